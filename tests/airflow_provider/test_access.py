"""Names of connections and accounts, by which tasks and triggers find settings and credentials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider.access import ENVIRONMENT, Access
from airflow_provider.deployment import UsedPlace, read_places, with_place
from kinetic_core.errors import InvalidRequest
from tests.airflow_provider.records_of_jobs import reference

ROBOT = "robot@lab.iam.gserviceaccount.com"
OTHER = "other@lab.iam.gserviceaccount.com"
CHAIN = Access("lab", "google", (OTHER, ROBOT))


@pytest.mark.parametrize(
    ("given", "chain"),
    [
        (None, ()),
        ("", ()),
        (ROBOT, (ROBOT,)),
        ([OTHER, ROBOT], (OTHER, ROBOT)),
        ((OTHER, ROBOT), (OTHER, ROBOT)),
        (f"{OTHER}, {ROBOT}", (OTHER, ROBOT)),
    ],
)
def test_a_chain_is_an_account_or_several(given: Any, chain: tuple[str, ...]) -> None:
    assert Access.of(impersonation_chain=given).impersonation_chain == chain


@pytest.mark.parametrize("given", [5, [5], {"a": 1}, [ROBOT, ""], f"{ROBOT},"], ids=str)
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"impersonation_chain=.* must be the email"):
        Access.of(impersonation_chain=given)


def test_a_trigger_gets_names_that_an_earlier_version_knows() -> None:
    assert ENVIRONMENT.to_dict() == {"conn_id": None}
    assert Access("lab").to_dict() == {"conn_id": "lab"}
    assert Access.of(**CHAIN.to_dict()) == CHAIN
    assert CHAIN.to_dict()["impersonation_chain"] == [OTHER, ROBOT]


def test_orphans_are_looked_for_with_the_tasks_credentials() -> None:
    job, text = reference("job-0123456789abcdef"), ""
    asked = [ENVIRONMENT, Access("lab"), CHAIN, replace(CHAIN, impersonation_chain=(ROBOT,))]
    for access in asked:
        text = with_place(text, UsedPlace(job, access), 50) or ""
    assert [place.access for place in read_places(text)] == asked
    assert with_place(text, UsedPlace(job, CHAIN), 50) is None
