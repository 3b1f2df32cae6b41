"""Sets of numbers as Kubernetes writes them."""

from __future__ import annotations

import pytest

from kinetic_core._runner.indexes import format_indexes, parse_indexes


@pytest.mark.parametrize(
    ("text", "numbers"), [("", []), ("3", [3]), ("1,2", [1, 2]), ("0,2-4,9", [0, 2, 3, 4, 9])]
)
def test_text_and_numbers(text: str, numbers: list[int]) -> None:
    assert parse_indexes(text) == numbers
    assert format_indexes(reversed(numbers)) == text


def test_other_text_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_indexes("1;2")
