"""Values between XCom and jobs: plain values as they are, all others as references.

Airflow's processes never unpickle anything of a job. A reference is a small signed dict in XCom; given to
another kinetic task, at any depth of its arguments, it becomes the value itself inside that job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from kinetic_core.errors import InvalidRequest
from kinetic_core.jobs.references import ResultReference, is_reference

MAX_DEPTH = 50
"""Depth up to which containers are searched: deeper ones are never plain."""

_LEAVES = frozenset({str, int, float, bool, type(None)})
_RESERVED = frozenset({"__classname__", "__version__", "__data__", "__type", "__var"})
_NUMPY_NUMBERS = frozenset(
    ["bool", "bool_", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def is_plain(value: Any) -> bool:
    """Return whether XCom gives back an equal value of the same type.

    Types must match exactly: a subclass would come back as its base, so it is not plain.
    """
    return all(_is_plain_leaf(leaf) for leaf in _leaves(value, MAX_DEPTH))


Verify = Callable[[Mapping[str, Any], str], ResultReference]
"""Verifier of a dict that looks like a reference; it raises InvalidRequest, naming the place."""


def with_references(value: Any, where: str, verify: Verify) -> Any:
    """Return an argument as the job gets it: references verified, lazy sequences of XComs read.

    `where`: the argument's name in errors. Raises InvalidRequest for a value that only looks like a
    reference, and for a reference that is an object already, which nobody has verified.
    """
    return _with_references(value, MAX_DEPTH, where, verify)


class _NotPlain:
    """Marker in place of a container that cannot be plain."""


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    kind = type(value)
    if kind not in (dict, list, tuple, set, frozenset):
        yield value
    elif depth == 0 or (kind is dict and not _has_plain_keys(value)):
        yield _NotPlain()
    else:
        for item in value.values() if kind is dict else value:
            yield from _leaves(item, depth - 1)


def _has_plain_keys(value: Mapping[Any, Any]) -> bool:
    return all(type(key) is str and key not in _RESERVED and _is_text(key) for key in value)


def _is_plain_leaf(value: Any) -> bool:
    kind = type(value)
    if value is None or kind in (bool, date, timedelta, UUID):
        return True
    if kind is str:
        return _is_text(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is float:
        return math.isfinite(value)
    if kind is Decimal:
        return bool(value.is_finite() and Decimal(str(float(value))) == value)
    if kind is datetime:
        return value.tzinfo is None or value.tzinfo is UTC or type(value.tzinfo) is ZoneInfo
    if kind.__module__ == "numpy" and kind.__name__ in _NUMPY_NUMBERS:
        return bool(math.isfinite(value))
    return False


def _is_text(value: str) -> bool:
    """Return whether the text can be encoded: a lone surrogate cannot."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _with_references(value: Any, depth: int, where: str, verify: Verify) -> Any:
    kind = type(value)
    if is_reference(value):
        return verify(value, where)
    if isinstance(value, ResultReference):
        raise InvalidRequest(
            f"{where} is a ResultReference, and nothing says who made it. Pass the output of the kinetic "
            "task itself, or ResultReference.load() its value"
        )
    if depth == 0:
        return value

    def inside(key: object, item: Any) -> Any:
        if type(item) in _LEAVES:  # no text for each of a million numbers
            return item
        return _with_references(item, depth - 1, f"{where}[{key!r}]", verify)

    if kind is dict:
        return {key: inside(key, item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return kind(inside(index, item) for index, item in enumerate(value))
    if kind.__module__.startswith("airflow.") and isinstance(value, Sequence):
        return [inside(index, item) for index, item in enumerate(value)]
    return value
