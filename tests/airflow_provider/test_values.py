"""What XCom carries as it is, and where references are recognised."""

from __future__ import annotations

import math
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from airflow_provider.xcom import is_plain, with_references
from kinetic_core import ResultReference
from kinetic_core.errors import InvalidRequest

REFERENCE = ResultReference(
    "file:///store", "jobs/job-0123456789abcdef/result", "0" * 64, "job-0123456789abcdef", "Box"
)
Point = namedtuple("Point", "x y")
Level = IntEnum("Level", "LOW HIGH")


def believe(found: Any, where: str) -> ResultReference:
    return ResultReference.from_dict(found)


def refuse(found: Any, where: str) -> ResultReference:
    raise InvalidRequest(where)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.promise("airflow: Plain results, references for the rest")
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**63),
        1.5,
        "text",
        "é😀",
        [1, [2, {"a": (3,)}]],
        {"a": {"b": {1, 2}}},
        frozenset([1]),
        date(2026, 1, 1),
        timedelta(seconds=3),
        datetime(2026, 1, 1),
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
        Decimal("1.5"),
        UUID(int=7),
        np.float32(1.5),
        np.int64(3),
    ],
    ids=repr,
)
def test_plain(value: Any) -> None:
    assert is_plain(value)


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        2**63,
        math.inf,
        math.nan,
        "\ud800",
        {1: "a"},
        {"__classname__": "evil"},
        {"a": {"__type": "evil"}},
        Point(1, 2),
        OrderedDict(a=1),
        Level.LOW,
        Decimal("0.1234567890123456789"),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        np.zeros(3),
        object(),
        [object()],
        nested(60),
    ],
    ids=lambda value: type(value).__name__,
)
def test_not_plain(value: Any) -> None:
    assert not is_plain(value)


def test_a_container_that_holds_itself_is_not_plain() -> None:
    value: list[Any] = []
    value.append(value)
    assert not is_plain(value)


def test_references_are_recognised_at_any_depth() -> None:
    pushed = REFERENCE.to_dict()
    given = {"a": [pushed, (pushed, 1)], "b": {"c": pushed}, "d": "text"}
    assert with_references(given, "op_args", believe) == {
        "a": [REFERENCE, (REFERENCE, 1)],
        "b": {"c": REFERENCE},
        "d": "text",
    }


def test_what_is_no_container_stays_itself() -> None:
    value = OrderedDict(a=REFERENCE.to_dict())
    assert with_references(value, "op_args", refuse) is value


@pytest.mark.attack
@pytest.mark.parametrize(
    ("given", "where"),
    [
        (REFERENCE.to_dict(), "op_args"),
        ([1, {"deep": ({"down": REFERENCE.to_dict()},)}], "op_args[1]['deep'][0]['down']"),
        ([REFERENCE], "op_args[0]"),
    ],
)
def test_a_reference_that_nobody_verified_is_named(given: Any, where: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        with_references(given, "op_args", refuse)
    assert str(refused.value).startswith(where)


@pytest.mark.attack
def test_a_dict_that_is_no_reference_stays_one() -> None:
    for value in ({"__kinetic_result__": 2}, {"__kinetic_result__": "1", "sha256": "0"}, {"job_id": "job-1"}):
        assert with_references(value, "op_args", refuse) == value
