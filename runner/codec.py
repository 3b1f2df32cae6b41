"""Typed codec: plain data as JSON and blobs, decoded without executing anything.

Plain is: None, bool, int, float, str, bytes, bytearray, list, tuple, set, frozenset, dict, complex,
datetime, date, time, timedelta, Decimal, Fraction, UUID, range, slice, Path, numpy arrays and scalars
without objects. Exact types only: a subclass may have more than its base. A container that is referred
to twice is not plain either, because decoding would make two of it.

A value is JSON; a type that JSON lacks is an object `{"t": tag, "v": ...}`. Large bytes, arrays and texts are
parts of their own beside the JSON: `blob-0` is immutable, `array-1` is memory that the decoded array keeps
using, `text-2` a str. Small bytes and arrays, of which a value may have millions, lie one after the other in
the part `small`, so that the frame's head does not grow with them.

Whoever can write the store can write what is decoded here: every malformed value ends as CodecError, in time
and memory proportional to its size.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from .wire import Buffer, Malformed, Part, memory

LARGE = 16 << 10
"""Bytes, or characters, from which on bytes, an array or a text is a part of its own."""
_SMALL = "small"
_MAX_DEPTH = 200
_SAFE_INT = 1 << 63
_MAX_FRACTION_BITS = 1 << 15
"""Bits of numerator and denominator: reducing a fraction takes time quadratic in its digits."""
_MAX_DECIMAL = 1 << 16
"""Characters of a Decimal at most."""
_MAX_DIMENSIONS = 64
_SAME_HASHES = 100
"""Keys of a dictionary or set that may have the same hash: comparing more takes quadratic time."""
_SCALAR_TYPE = re.compile(r"[<>|=][?bBhilqpuUSVfcmMiu]\d{0,9}(\[\d{0,9}[a-zA-Z]{1,7}\])?")
"""A numpy dtype as encoded: `<f8`, `|S5`, `<M8[ns]`."""


class NotPlain(TypeError):
    """The value is not plain data; it must be pickled."""


class CodecError(Malformed):
    """Bytes that `encode` cannot have made."""


class LibraryMissing(CodecError, ImportError):
    """Missing library: the value needs it, and it is not installed here."""


def encode(value: Any) -> dict[str, Part]:
    """Encode a plain value as frame parts: `body`, and its bytes, arrays and large texts, not copied.

    Raises NotPlain.
    """
    writer = _Writer()
    body = json.dumps(writer.write(value, 0), separators=(",", ":"), ensure_ascii=False)
    parts: dict[str, Part] = {"body": body.encode("utf-8", "surrogatepass"), **writer.parts}
    return {**parts, _SMALL: writer.small} if writer.small else parts


def decode(parts: Mapping[str, Part]) -> Any:
    """Decode frame parts. Raises CodecError for parts that `encode` cannot have made."""
    try:
        body = json.loads(str(memory(parts, "body"), "utf-8", "surrogatepass"))
        return _read(body, _Parts(parts), 0)
    except CodecError:
        raise
    except Exception as exc:
        raise CodecError(f"the encoded value is malformed: {type(exc).__name__}: {str(exc)[:300]}") from exc


class _Writer:
    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self.small = bytearray()
        self._seen: dict[int, Any] = {}

    def write(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str and len(value) >= LARGE:
            return {"t": "str", "v": self._part("text", value)}
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_SAFE_INT < value < _SAFE_INT else {"t": "int", "v": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"t": "float", "v": repr(value)}
        if kind in _CONTAINERS:
            return self._container(value, kind, depth)
        if kind is bytes or kind is bytearray:
            part = self._part("blob", value) if kind is bytes else self._part("array", memoryview(value))
            return {"t": kind.__name__, "v": part}
        if kind.__module__ == "numpy":
            return self._numpy(value)
        tagged = _scalar(value, kind)
        if tagged is None:
            raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")
        return tagged

    def _container(self, value: Any, kind: type, depth: int) -> Any:
        if depth >= _MAX_DEPTH:
            raise NotPlain(f"nested more than {_MAX_DEPTH} deep")
        if value and (kind in _MUTABLE or any(type(item) in _CONTAINERS for item in value)):
            if id(value) in self._seen:
                raise NotPlain(f"one {kind.__name__} is referred to twice")
            self._seen[id(value)] = value
        if kind is dict:
            pairs = [[self.write(key, depth + 1), self.write(item, depth + 1)] for key, item in value.items()]
            return {"t": "dict", "v": pairs}
        items = [self.write(item, depth + 1) for item in value]
        return items if kind is list else {"t": kind.__name__, "v": items}

    def _numpy(self, value: Any) -> Any:
        import numpy

        if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
            raise NotPlain(f"numpy.{type(value).__name__}")
        array = numpy.asarray(value)
        described = _described(array.dtype)
        if isinstance(value, numpy.generic):
            return {"t": "npscalar", "v": [described, array.tobytes().hex()]}
        by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
        flat = numpy.ascontiguousarray(array.T if by_columns else array).reshape(-1).view(numpy.uint8)
        return {"t": "ndarray", "v": [self._part("array", flat.data), described, array.shape, by_columns]}

    def _part(self, kind: str, content: Part) -> int | list[int]:
        """Take a part; return its number, or for a small one its place: offset and length."""
        if len(content) < LARGE and not isinstance(content, str):
            self.small += content
            return [len(self.small) - len(content), len(content)]
        number = len(self.parts)
        self.parts[f"{kind}-{number}"] = content
        return number


_MUTABLE = (list, set, dict)
_CONTAINERS = (*_MUTABLE, tuple, frozenset)


def _scalar(value: Any, kind: type) -> Any:
    if kind is complex:
        return {"t": "complex", "v": [repr(value.real), repr(value.imag)]}
    if kind is range or kind is slice:
        numbers = [value.start, value.stop, value.step]
        if all(number is None or type(number) is int for number in numbers):
            return {"t": kind.__name__, "v": [None if n is None else hex(n) for n in numbers]}
        return None
    name = f"{kind.__module__}.{kind.__name__}"
    if name == "fractions.Fraction":
        pair = value.numerator, value.denominator
        if max(number.bit_length() for number in pair) > _MAX_FRACTION_BITS:
            return None
        return {"t": kind.__name__, "v": [hex(number) for number in pair]}
    if name in ("decimal.Decimal", "uuid.UUID"):
        text = str(value)
        return {"t": kind.__name__, "v": text} if len(text) <= _MAX_DECIMAL else None
    if kind.__name__ in ("PosixPath", "PurePosixPath") and kind.__module__ in ("pathlib", "pathlib._local"):
        return {"t": kind.__name__, "v": str(value)}
    if kind.__module__ == "datetime":
        return _datetime(value, kind)
    return None


def _datetime(value: Any, kind: type) -> Any:
    if kind.__name__ == "timedelta":
        return {"t": "timedelta", "v": [value.days, value.seconds, value.microseconds]}
    if kind.__name__ == "date":
        return {"t": "date", "v": value.isoformat()}
    if kind.__name__ not in ("datetime", "time"):
        return None
    zone = value.tzinfo
    if zone is not None and type(zone).__module__ != "datetime":
        key = getattr(zone, "key", None)
        if type(zone).__module__ not in ("zoneinfo", "zoneinfo._zoneinfo") or not key:
            return None
        return {"t": kind.__name__, "v": [value.replace(tzinfo=None).isoformat(), key, value.fold]}
    return {"t": kind.__name__, "v": [value.isoformat(), None, value.fold]}


def _described(dtype: Any) -> Any:
    """Describe a numpy dtype as JSON. Raises NotPlain for one that would not come back equal."""
    import warnings

    from numpy.lib import format as npy

    if dtype.hasobject or not dtype.itemsize:
        raise NotPlain(f"a numpy array of {dtype}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, which does not travel
        described = json.loads(json.dumps(npy.dtype_to_descr(dtype)))
    try:
        back = _dtype(described)
    except (Malformed, TypeError, ValueError):
        back = None
    if back != dtype:
        raise NotPlain(f"a numpy array of {dtype}")
    return described


class _Parts:
    """Parts of an encoded value.

    Small parts do not overlap: all of them together are at most as long as the part that holds them.
    """

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts
        self._small = memoryview(memory(parts, _SMALL)) if _SMALL in parts else memoryview(b"")
        self._left = len(self._small)

    def buffer(self, kind: str, place: Any) -> Buffer:
        """Return bytes by the place that `_Writer._part` has given them. Raises CodecError."""
        if type(place) is int:
            return memory(self._parts, f"{kind}-{place}")
        offset, length = map(_length, _listed(place))
        self._left -= length
        if self._left < 0 or offset + length > len(self._small):
            raise CodecError("a small part lies outside of its place")
        return self._small[offset : offset + length]

    def text(self, number: Any) -> str:
        """Return a large text. Raises CodecError."""
        part = self._parts.get(f"text-{number}") if type(number) is int else None
        if not isinstance(part, str):
            raise CodecError("a large text is a part of its own, named by its number")
        return part


def _read(node: Any, parts: _Parts, depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH:
        raise CodecError("the encoded value is nested too deep")
    if isinstance(node, list):
        return [_read(item, parts, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    tag, value = node["t"], node["v"]
    if tag == "dict":
        keys = [_read(key, parts, depth + 1) for key, _ in _listed(value)]
        _check_hashes(keys)
        return dict(zip(keys, (_read(item, parts, depth + 1) for _, item in value), strict=True))
    if tag in ("tuple", "set", "frozenset"):
        items = [_read(item, parts, depth + 1) for item in _listed(value)]
        if tag == "tuple":
            return tuple(items)
        _check_hashes(items)
        return set(items) if tag == "set" else frozenset(items)
    if tag in _PART_READERS:
        return _PART_READERS[tag](value, parts)
    reader = _READERS.get(tag)
    if reader is None:
        raise CodecError(f"unknown tag {tag!r}: written by a newer version?")
    return reader(value)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise CodecError(f"a list is expected, not {type(value).__name__}")
    return value


def _check_hashes(keys: list[Any]) -> None:
    """Refuse keys that were chosen to have one hash: a table of them takes quadratic time."""
    if len(keys) <= _SAME_HASHES:
        return
    hashes = Counter(map(hash, keys))
    if max(hashes.values()) > _SAME_HASHES:
        raise CodecError(f"more than {_SAME_HASHES} keys have the same hash")


def _large_text(number: Any, parts: _Parts) -> str:
    return parts.text(number)


def _bytes(place: Any, parts: _Parts) -> bytes:
    part = parts.buffer("blob", place)
    return part if type(part) is bytes else bytes(part)


def _mutable(place: Any, parts: _Parts) -> bytearray:
    part = parts.buffer("array", place)
    return part if type(part) is bytearray else bytearray(part)


def _array(value: Any, parts: _Parts) -> Any:
    place, described, shape, by_columns = value
    content = _mutable(place, parts)
    numpy, dtype = _numpy(), _dtype(described)
    lengths = [_length(each) for each in _listed(shape)]
    if len(lengths) > _MAX_DIMENSIONS or math.prod(lengths) * dtype.itemsize != len(content):
        raise CodecError("an array's shape does not fit its content")
    array = numpy.frombuffer(content, dtype) if content else numpy.empty(0, dtype)
    return array.reshape(lengths[::-1]).T if by_columns else array.reshape(lengths)


def _npscalar(value: Any) -> Any:
    described, text = value
    numpy, dtype = _numpy(), _dtype(described)
    content = bytes.fromhex(text)
    if len(content) != dtype.itemsize:
        raise CodecError("a numpy scalar does not fit its type")
    return numpy.frombuffer(content, dtype).copy()[0]


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as exc:
        raise LibraryMissing("the value holds a numpy array, and numpy is not installed here") from exc
    return numpy


def _length(number: Any) -> int:
    if type(number) is not int or not 0 <= number < _SAFE_INT:
        raise CodecError("an array's shape is malformed")
    return number


def _dtype(described: Any, depth: int = 0) -> Any:
    """Return the numpy dtype that `_described` described."""
    from numpy.lib import format as npy

    dtype = npy.descr_to_dtype(_descr(described, depth))
    if dtype.hasobject or not dtype.itemsize:
        raise CodecError(f"an array of {dtype} is not plain data")
    return dtype


def _descr(described: Any, depth: int) -> Any:
    if isinstance(described, str):
        if not _SCALAR_TYPE.fullmatch(described):
            raise CodecError(f"{described[:50]!r} is not the type of plain numbers")
        return described
    if depth > 8:
        raise CodecError("an array's type is nested too deep")
    fields = []
    for name, inner, *shape in _listed(described):
        if not isinstance(name, str) or len(shape) > 1:
            raise CodecError("a field of an array's type is malformed")
        fields.append(
            (name, _descr(inner, depth + 1), *(tuple(map(_length, _listed(each))) for each in shape))
        )
    return fields


def _text(value: Any, longest: int = 100) -> str:
    if not isinstance(value, str) or len(value) > longest:
        raise CodecError(f"a text of at most {longest} characters is expected")
    return value


def _int(text: Any) -> int:
    if not isinstance(text, str):
        raise CodecError("an integer is written in base 16")
    return int(text, 16)


def _fraction(pair: Any) -> Any:
    from fractions import Fraction

    numerator, denominator = (_int(_text(number, _MAX_FRACTION_BITS // 4 + 4)) for number in pair)
    return Fraction(numerator, denominator)


def _timedelta(numbers: Any) -> Any:
    import datetime

    days, seconds, microseconds = numbers
    if not all(type(number) is int for number in numbers):
        raise CodecError("a timedelta is three integers")
    return datetime.timedelta(days, seconds, microseconds)


def _read_time(tag: str, value: Any) -> Any:
    import datetime

    text, zone, fold = value
    moment: Any = getattr(datetime, tag).fromisoformat(_text(text))
    if zone is not None:
        moment = moment.replace(tzinfo=_zone(_text(zone)))
    return moment.replace(fold=int(fold))


def _zone(key: str) -> Any:
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(key)
    except zoneinfo.ZoneInfoNotFoundError as exc:
        raise LibraryMissing(f"the time zone {key!r} is not known here; is tzdata installed?") from exc


def _date(text: Any) -> Any:
    import datetime

    return datetime.date.fromisoformat(_text(text))


def _made(module: str, name: str, *args: Any) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)(*args)


_PART_READERS: dict[str, Callable[[Any, _Parts], Any]] = {
    "str": _large_text,
    "bytes": _bytes,
    "bytearray": _mutable,
    "ndarray": _array,
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "npscalar": _npscalar,
    "int": _int,
    "float": lambda text: float(_text(text)),
    "complex": lambda pair: complex(float(_text(pair[0])), float(_text(pair[1]))),
    "range": lambda numbers: range(*(_int(n) for n in numbers)),
    "slice": lambda numbers: slice(*(None if n is None else _int(n) for n in numbers)),
    "Decimal": lambda text: _made("decimal", "Decimal", _text(text, _MAX_DECIMAL)),
    "Fraction": _fraction,
    "UUID": lambda text: _made("uuid", "UUID", _text(text)),
    "PosixPath": lambda text: _made("pathlib", "Path", text),
    "PurePosixPath": lambda text: _made("pathlib", "PurePosixPath", text),
    "timedelta": _timedelta,
    "date": _date,
    "datetime": lambda value: _read_time("datetime", value),
    "time": lambda value: _read_time("time", value),
}
