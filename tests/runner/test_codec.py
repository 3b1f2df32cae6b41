"""The typed codec carries plain data exactly, refuses everything else, and never executes what it reads."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from collections import OrderedDict, namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic_core._runner import codec

Point = namedtuple("Point", "x y")

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.datetimes()
    | st.dates()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.fractions()
    | st.uuids()
)
_HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(_HASHABLE, inner)
        | st.frozensets(_HASHABLE)
    ),
    max_leaves=12,
)


@given(_VALUES)
def test_plain_values_come_back_with_their_types(value: object) -> None:
    try:
        parts = codec.encode(value)
    except codec.NotPlain:  # hypothesis reuses objects, and what is referred to twice is not plain
        return
    back = codec.decode(parts)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        -(1 << 63),
        math.inf,
        range(3, 10, 2),
        slice(None, 5),
        bytearray(b"x"),
        {1, "a"},
        Path("/a/b"),
        PurePosixPath("c"),
        Decimal("1.10"),
        Fraction(1, 3),
        uuid.UUID(int=7),
        dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.time(1, 2, fold=1),
        {(1, 2): [None], frozenset({3}): "\ud800"},
        [(0, 0)] * 3,
    ],
    ids=lambda value: type(value).__name__,
)
def test_awkward_values(value: object) -> None:
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)
    assert getattr(back, "fold", 0) == getattr(value, "fold", 0)


def test_nan_stays_nan() -> None:
    assert math.isnan(codec.decode(codec.encode([math.nan]))[0])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.array([], dtype="int8"),
        np.array([(1, 2.0)], dtype="i4,f8"),
        np.float32(1.5),
        np.asfortranarray(np.eye(3)),
    ],
    ids=str,
)
def test_arrays_keep_dtype_and_shape(array: np.ndarray) -> None:
    back = codec.decode(codec.encode({"w": array}))["w"]
    np.testing.assert_array_equal(back, array)
    assert (type(back), back.dtype, back.shape) == (type(array), array.dtype, array.shape)


class Text(str):
    """A subclass that may mean more."""


_SHARED: list[int] = [1]
_CYCLE: list[object] = []
_CYCLE.append(_CYCLE)
_DEEP: list[object] = []
for _ in range(300):
    _DEEP = [_DEEP]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Text("a"),
        Point(1, 2),
        OrderedDict(),
        [_SHARED, _SHARED],
        _CYCLE,
        _DEEP,
        np.array([object()]),
        np.ma.masked_array([1]),
        {"f": print},
        ValueError("x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(codec.NotPlain):
        codec.encode(value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"t":"os.system","v":"true"}',
        b'{"t":"set","v":[[]]}',
        b'{"t":"bytes","v":3}',
        b'{"t":"Decimal","v":"x"}',
        b'{"t":"ndarray","v":0}',
        b'{"v":1}',
        json.dumps({"t": "int", "v": 5}).encode(),
        b"[" * 100_000,
        b'{"t":"datetime","v":["2024-01-01","../../etc/passwd",0]}',
    ],
)
def test_hostile_bodies_are_refused(body: bytes) -> None:
    pickled_objects = b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n"
    with pytest.raises(codec.CodecError):
        codec.decode({"body": body, "blob-0": pickled_objects})
