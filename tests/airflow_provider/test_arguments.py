"""What a job's function is called with."""

from __future__ import annotations

from collections import UserDict
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider.xcom import PLAIN_CONTEXT, Signatures, call_of
from kinetic_core import ResultReference
from kinetic_core.errors import InvalidRequest

RESERVED = {*PLAIN_CONTEXT, "ti", "dag", "macros"}
REFERENCE = ResultReference(
    "file:///store", "jobs/job-0123456789abcdef/result", "0" * 64, "job-0123456789abcdef", "Box"
)


class Kept(dict[str, str]):
    """Variables."""

    def set(self, name: str, value: str) -> None:
        self[name] = value


class Moment(datetime):
    """A datetime of a library that need not be installed in the job."""


CONTEXT: dict[str, Any] = {
    "run_id": "manual",
    "logical_date": Moment(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    "params": UserDict(rate=3),
    "ti": object(),
}


def test_context_is_filled_in_by_name_with_standard_types() -> None:
    def function(x: int, run_id: str, logical_date: datetime, params: dict[str, Any]) -> None: ...

    call = call_of(function, [1], {}, CONTEXT, RESERVED)
    assert call.args == (1,)
    assert call.kwargs["run_id"] == "manual"
    assert type(call.kwargs["logical_date"]) is datetime
    assert call.kwargs["logical_date"] == CONTEXT["logical_date"]
    assert type(call.kwargs["params"]) is dict
    assert call.kwargs["params"] == {"rate": 3}


def test_what_is_given_is_not_replaced() -> None:
    def function(run_id: str, params: int) -> None: ...

    assert call_of(function, ["mine"], {"params": 1}, CONTEXT, RESERVED).kwargs == {"params": 1}


def test_what_cannot_travel_is_refused_by_name() -> None:
    def function(ti: Any) -> None: ...

    with pytest.raises(InvalidRequest, match=r"'ti' of .*function is Airflow's context, which cannot travel"):
        call_of(function, [], {}, CONTEXT, RESERVED)


def test_what_this_run_lacks_is_refused_by_name() -> None:
    def function(ds: str) -> None: ...

    with pytest.raises(InvalidRequest, match=r"'ds' .*which this run does not have"):
        call_of(function, [], {}, CONTEXT, RESERVED)


def test_a_default_makes_context_optional() -> None:
    def function(ti: Any = None, ds: str | None = None, run_id: str | None = None) -> None: ...

    assert call_of(function, [], {}, CONTEXT, RESERVED).kwargs == {"run_id": "manual"}


def test_references_become_what_the_job_resolves() -> None:
    def function(box: Any, more: Any) -> None: ...

    signatures = Signatures(Kept())
    pushed = signatures.signed(REFERENCE)
    call = call_of(function, [pushed], {"more": [pushed]}, CONTEXT, RESERVED, signatures.verified)
    assert (call.args, call.kwargs) == ((REFERENCE,), {"more": [REFERENCE]})
