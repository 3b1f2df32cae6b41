"""The typed codec carries plain data exactly, refuses everything else, and never executes what it reads."""

from __future__ import annotations

import datetime as dt
import json
import math
import time
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

from kinetic_core._runner import codec, wire

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
        Fraction(-(10**5000), 7),
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
        np.arange(24).reshape(2, 3, 4)[:, ::2],
        np.array(["2024-01-01", "NaT"], dtype="M8[ns]"),
        np.array(["a", "bcd"]),
        np.array(5),
        np.zeros((0, 3)),
        np.array([True]),
        np.zeros(2, np.dtype("u1,f8", align=True)),
        np.datetime64("2024-01-01T00:00:00"),
        np.str_("abc"),
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
        type("PosixPath", (), {"__module__": "pathlib2"})(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(codec.NotPlain):
        codec.encode(value)


def npy(content: bytes = b"", shape: object = (1,), dtype: object = "<f8") -> dict[str, bytes]:
    """Parts of an array that says so of itself."""
    value = {"t": "ndarray", "v": [0, dtype, shape, False]}
    return {"body": json.dumps(value).encode(), "array-0": content}


def tagged(tag: str, value: object) -> dict[str, bytes]:
    """Parts of a value with a tag."""
    return {"body": json.dumps({"t": tag, "v": value}).encode()}


def small(*places: object, content: wire.Part = b"12345678") -> dict[str, wire.Part]:
    """Parts of a list of small bytes that says where they lie."""
    return {
        "body": json.dumps([{"t": "bytes", "v": place} for place in places]).encode(),
        "small": content,
    }


SAME_PLACES = b"[%s]" % b",".join([b'{"t":"bytes","v":[0,8]}'] * 100_000)
HOSTILE: dict[str, dict[str, wire.Part]] = {
    "nothing": {},
    "empty": {"body": b""},
    "no JSON": {"body": b"{"},
    "no UTF-8": {"body": b"\xff"},
    "unknown tag": tagged("os.system", "true"),
    "unhashable": tagged("set", [[]]),
    "no such part": tagged("bytes", 3),
    "no such text": tagged("str", 3),
    "a text that is none": {**tagged("str", 0), "text-0": b"text"},
    "a text by another's name": {**tagged("str", "0"), "text-0": "text"},
    "a text for bytes": {**tagged("bytes", 0), "blob-0": "text"},
    "a Decimal of letters": tagged("Decimal", "x"),
    "a Decimal of a million digits": tagged("Decimal", "9" * 1_000_000),
    "no tag": {"body": b'{"v":1}'},
    "a number for an int": tagged("int", 5),
    "deep": {"body": b"[" * 100_000},
    "deep tuples": {"body": b'{"t":"tuple","v":[' * 500 + b"]}" * 500},
    "a path for a zone": tagged("datetime", ["2024-01-01", "../../etc/passwd", 0]),
    "a directory for a zone": tagged("datetime", ["2024-01-01", "America", 0]),
    "a zone with a null": tagged("datetime", ["2024-01-01", "a\0b", 0]),
    "a zone of 100,000 letters": tagged("time", ["10:00", "Z" * 100_000, 0]),
    "a fold of 7": tagged("datetime", ["2024-01-01", None, 7]),
    "a UUID of a number": tagged("UUID", 7),
    "nan for days": tagged("timedelta", [float("nan"), 0, 0]),
    "text for days": tagged("timedelta", ["1", 0, 0]),
    "days without end": tagged("timedelta", [10**12, 0, 0]),
    "a Fraction that takes 35 s": tagged("Fraction", "1e30000000"),
    "a Fraction of a million digits": tagged("Fraction", ["0x" + "f" * 1_000_000, "0x3"]),
    "a Fraction over 0": tagged("Fraction", ["0x1", "0x0"]),
    "a list for a path": tagged("PosixPath", []),
    "keys of one hash": tagged(
        "set", [{"t": "int", "v": hex(n * ((1 << 61) - 1))} for n in range(1, 100_000)]
    ),
    "an int of a million digits": {"body": b"9" * 1_000_000},
    "an array larger than memory": npy(b"12345678", [1 << 60]),
    "an array of a negative shape": npy(b"12345678", [-1]),
    "an array of nothing without end": npy(b"", [1 << 62], "|V0"),
    "an array of objects": npy(b"12345678", [1], "|O"),
    "a type that is a program": npy(b"12345678", [1], "(__import__('os').system('true'),)f8"),
    "a type of a million fields": npy(b"12345678", [1], "f8," * 1_000_000),
    "a type of nested fields": npy(b"12345678", [1], [["a", [["a", [["a", "|O"]]]]]]),
    "a type with a shape without end": npy(b"12345678", [1], [["a", "<f8", [1 << 62, 1 << 62]]]),
    "an array of pickles": npy(
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n"
    ),
    "a zip of zeros": npy(b"PK\x03\x04" + bytes(100)),
    "a dictionary for a shape": npy(b"12345678", {"0": 1}),
    "65 dimensions": npy(b"12345678", [1] * 65),
    "small bytes of a text": small([0, 1], content="12345678"),
    "small bytes of nothing": tagged("bytes", [0, 1]),
    "small bytes beyond the end": small([7, 2]),
    "small bytes before the beginning": small([-1, 1]),
    "small bytes of a negative length": small([0, -1]),
    "small bytes without a length": small([0]),
    "the same small bytes 100,000 times": {"body": SAME_PLACES, "small": b"12345678"},
}


@pytest.mark.attack
@pytest.mark.parametrize("parts", HOSTILE.values(), ids=HOSTILE)
def test_hostile_parts_end_in_one_error_at_once(parts: dict[str, wire.Part]) -> None:
    began = time.process_time()
    with pytest.raises(codec.CodecError):
        codec.decode(parts)
    assert time.process_time() - began < 20  # about one, and a few on a slow machine


def test_a_large_text_is_a_part_of_its_own() -> None:
    large, ascii_only = "\ud800\udc00ü" * codec.LARGE, "x" * codec.LARGE
    value = [large, {"key": ascii_only}, "small"]
    parts = codec.encode(value)
    assert [parts["text-0"], parts["text-1"]] == [large, ascii_only]
    assert codec.decode(parts) == value
    _, read = wire.decode_frame(wire.encode_frame({"protocol": wire.PROTOCOL}, parts))
    assert codec.decode(read) == value


@pytest.mark.attack
def test_many_small_bytes_are_one_part() -> None:
    """Else the head of their frame would be too long for its readers, and the value lost."""
    number = 200_000
    value = [n.to_bytes(3, "big") for n in range(number)]
    value += [b"", bytearray(b"last"), np.arange(3), b"large" * codec.LARGE]
    parts = codec.encode(value)
    assert list(parts) == ["body", "blob-0", "small"]
    _, read = wire.decode_frame(wire.encode_frame({"protocol": wire.PROTOCOL}, parts))
    back = codec.decode(read)
    assert back[:-2] == value[:-2]
    assert [type(back[0]), type(back[-3])] == [bytes, bytearray]
    assert back[-2].tolist() == [0, 1, 2]
    back[-2][0] = 7  # as its sender's, it can be changed
    assert back[-1] == value[-1]


@pytest.mark.attack
def test_what_was_shared_with_the_sender_is_not_copied() -> None:
    array, content = np.arange(float(codec.LARGE)), b"x" * codec.LARGE
    parts = codec.encode([array, content])
    array[0] = 7
    assert np.frombuffer(parts["array-0"])[0] == 7
    assert parts["blob-1"] is content
