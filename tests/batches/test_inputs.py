"""Inputs become arguments as documented."""

from __future__ import annotations

import pytest

from kinetic_core.batches.definition import arguments_of
from kinetic_core.errors import InvalidRequest
from kinetic_core.options import MAP_OPTIONS


@pytest.mark.parametrize(
    ("item", "mode", "expected"),
    [
        (3, "auto", ((3,), {})),
        ({"a": 1}, "auto", ((), {"a": 1})),
        ({"a b": 1}, "auto", (({"a b": 1},), {})),
        ({"class": 1}, "auto", (({"class": 1},), {})),
        ({1: 1}, "auto", (({1: 1},), {})),
        ({}, "auto", ((), {})),
        ((1, 2), "auto", ((1, 2), {})),
        ([1, 2], "auto", ((1, 2), {})),
        ("ab", "auto", (("ab",), {})),
        ((1, 2), "single", (((1, 2),), {})),
        ({"a": 1}, "single", (({"a": 1},), {})),
        ([1], "args", ((1,), {})),
        ({"a": 1}, "kwargs", ((), {"a": 1})),
    ],
)
def test_arguments(item: object, mode: str, expected: object) -> None:
    assert arguments_of(item, mode) == expected


@pytest.mark.parametrize(("item", "mode"), [(1, "args"), ({"a": 1}, "args"), ([1], "kwargs")])
def test_a_wrong_type_is_said(item: object, mode: str) -> None:
    with pytest.raises(TypeError, match=f"input_mode='{mode}' needs"):
        arguments_of(item, mode)


def test_an_unknown_mode_lists_the_known() -> None:
    with pytest.raises(InvalidRequest, match="auto, single, args, kwargs"):
        MAP_OPTIONS.check("run_async_map", input_mode="star")
