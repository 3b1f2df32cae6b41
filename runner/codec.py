"""The typed codec: plain data as JSON and blobs, decoded without executing anything.

Plain is: None, bool, int, float, str, bytes, bytearray, list, tuple, set, frozenset, dict, complex,
datetime, date, time, timedelta, Decimal, Fraction, UUID, range, slice, Path, numpy arrays and scalars
without objects. Exact types only: a subclass may mean more than it shows. A container that is referred
to twice is not plain either, because decoding would make two of it.

A value is JSON; what JSON lacks is an object `{"t": tag, "v": ...}`. Bytes and arrays are blobs, which
travel beside the JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

_MAX_DEPTH = 200
_SAFE_INT = 1 << 63


class NotPlain(TypeError):
    """The value is not plain data; it must be pickled."""


class CodecError(ValueError):
    """The bytes are not what `encode` makes."""


def encode(value: Any) -> dict[str, bytes]:
    """The frame parts of a plain value: `body` and its blobs. Raises NotPlain."""
    writer = _Writer()
    body = json.dumps(writer.write(value, 0), separators=(",", ":"), ensure_ascii=False)
    blobs = {f"blob-{number}": blob for number, blob in enumerate(writer.blobs)}
    return {"body": body.encode("utf-8", "surrogatepass"), **blobs}


def decode(parts: dict[str, bytes]) -> Any:
    """The value of frame parts. Raises CodecError for anything `encode` would not have made."""
    try:
        return _read(json.loads(parts["body"].decode("utf-8", "surrogatepass")), parts, 0)
    except CodecError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, RecursionError, LookupError) as exc:
        raise CodecError(f"the encoded value is malformed: {type(exc).__name__}: {exc}") from exc


class _Writer:
    def __init__(self) -> None:
        self.blobs: list[bytes] = []
        self._seen: dict[int, Any] = {}

    def write(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if -_SAFE_INT < value < _SAFE_INT else {"t": "int", "v": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"t": "float", "v": repr(value)}
        if kind in _CONTAINERS:
            return self._container(value, kind, depth)
        if kind is bytes or kind is bytearray:
            return {"t": kind.__name__, "v": self._blob(bytes(value))}
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
        import io

        import numpy

        if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
            raise NotPlain(f"numpy.{type(value).__name__}")
        array = numpy.asarray(value)
        if array.dtype.hasobject:
            raise NotPlain("a numpy array of objects")
        stream = io.BytesIO()
        numpy.save(stream, array, allow_pickle=False)
        tag = "ndarray" if isinstance(value, numpy.ndarray) else "npscalar"
        return {"t": tag, "v": self._blob(stream.getvalue())}

    def _blob(self, content: bytes) -> int:
        self.blobs.append(content)
        return len(self.blobs) - 1


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
    if name in ("decimal.Decimal", "fractions.Fraction", "uuid.UUID"):
        return {"t": kind.__name__, "v": str(value)}
    if kind.__name__ in ("PosixPath", "PurePosixPath") and kind.__module__.startswith("pathlib"):
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


def _read(node: Any, parts: dict[str, bytes], depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH:
        raise CodecError("the encoded value is nested too deep")
    if isinstance(node, list):
        return [_read(item, parts, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    tag, value = node["t"], node["v"]
    if tag == "dict":
        return {_read(key, parts, depth + 1): _read(item, parts, depth + 1) for key, item in value}
    if tag in ("tuple", "set", "frozenset"):
        build: Callable[[Any], Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}[tag]
        return build(_read(item, parts, depth + 1) for item in value)
    if tag in ("bytes", "bytearray", "ndarray", "npscalar"):
        return _read_blob(tag, parts[f"blob-{int(value)}"])
    reader = _READERS.get(tag)
    if reader is None:
        raise CodecError(f"unknown tag {tag!r}: written by a newer version?")
    return reader(value)


def _read_blob(tag: str, blob: bytes) -> Any:
    if tag == "bytes":
        return blob
    if tag == "bytearray":
        return bytearray(blob)
    import io

    try:
        import numpy
    except ImportError as exc:
        raise CodecError("the value holds a numpy array, and numpy is not installed here") from exc
    array = numpy.load(io.BytesIO(blob), allow_pickle=False)
    return array if tag == "ndarray" else array[()]


def _read_time(tag: str, value: Any) -> Any:
    import datetime

    text, zone, fold = value
    moment: Any = getattr(datetime, tag).fromisoformat(text)
    if zone is not None:
        import zoneinfo

        moment = moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return moment.replace(fold=int(fold))


def _date(text: str) -> Any:
    import datetime

    return datetime.date.fromisoformat(text)


def _made(module: str, name: str, *args: Any) -> Any:
    from importlib import import_module

    return getattr(import_module(module), name)(*args)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "complex": lambda pair: complex(float(pair[0]), float(pair[1])),
    "range": lambda numbers: range(*(int(n, 16) for n in numbers)),
    "slice": lambda numbers: slice(*(None if n is None else int(n, 16) for n in numbers)),
    "Decimal": lambda text: _made("decimal", "Decimal", text),
    "Fraction": lambda text: _made("fractions", "Fraction", text),
    "UUID": lambda text: _made("uuid", "UUID", text),
    "PosixPath": lambda text: _made("pathlib", "Path", text),
    "PurePosixPath": lambda text: _made("pathlib", "PurePosixPath", text),
    "timedelta": lambda numbers: _made("datetime", "timedelta", *numbers),
    "date": _date,
    "datetime": lambda value: _read_time("datetime", value),
    "time": lambda value: _read_time("time", value),
}
