"""Wire format: frames, failures, exit codes and signatures that client, pod and observer agree on.

The names of objects are in `object_names`.

Standard library only, and little of it: the runner pays for each import before user code starts.

A *frame* is how both the payload and the outcome are stored::

    b"KINETIC2"  | uint32 header length | JSON header | 32 bytes HMAC-SHA256 | parts, back to back

Everything before the parts is the *head*. Its header lists the parts (name, length) and has their SHA-256;
the signature covers the header and all before it. A verified head vouches for parts that were not read, and
its digest names the frame. A payload is not signed (its digest is in the manifest): it has 32 zero bytes
there.

Whoever can write the store can write a frame: reading a malformed one always ends in a FrameError.
"""

from __future__ import annotations

import codecs
import hashlib
import hmac
import io
import json
import struct
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

Buffer = bytes | bytearray | memoryview
"""Memory that parts of a frame are written from, or read into."""
Part = Buffer | str
"""A part of a frame: its bytes, or a text, which is UTF-8 in the frame."""
_PIECE = 1 << 20

PROTOCOL = 1
"""Version of the wire format and of the names of objects; a reader refuses any other."""
SPARE = "_spare"
"""Directory of the runner's archive with packages for images that lack them."""

STATE = "state"
"""Metadata of an outcome for listings: the state (`succeeded`, `failed`, `cancelled` or `dropped`), the id of
the key that signs it, and the signature. See `sealed_state`."""
CANCELLED = "cancelled"
"""State of a job that somebody cancelled."""
DROPPED = "dropped"
"""State of a batch's input that was never started, because another had failed."""
CLAIM = "claim"
"""Metadata of the claim of a block of inputs, for listings: its whole content. See lane.py."""
STATES = "states"
"""Metadata of a segment of outcomes, for listings: how its inputs ended, sealed. See segments.py."""
BLOCK_INPUTS = 256
"""Inputs of a block that a lane takes, at most."""
LARGEST_SEGMENT = 8 << 20
"""Bytes of an object with outcomes of a block's inputs, at most."""
WRITE_MARK = "kinetic-write"
"""Metadata of an object in Cloud Storage: a random mark of the write that made it. A writer whose answer was
lost finds its own mark when it tries again."""

MAGIC = b"KINETIC2"
LARGEST_DOCUMENT = 32 << 20
"""Bytes of the largest JSON document. Parsed, JSON takes up to thirty times as much memory."""
HEAD_BYTES = 64 << 10
"""Bytes of a frame to read for its head, which is rarely longer; `head_size` tells its size."""
_LENGTH = struct.Struct(">I")
_SIGNATURE_BYTES = 32
_UNSIGNED = bytes(_SIGNATURE_BYTES)
_MAX_HEADER = 16 << 20
_LARGEST = 1 << 63
_HEADER_AT = len(MAGIC) + _LENGTH.size

EXIT_SUCCEEDED = 0
"""Exit code: the outcome is committed and holds a value."""
EXIT_USER_ERROR = 1
"""Exit code: the function failed; the attempt's outcome says how. Another attempt may follow."""
EXIT_NEVER_RETRY = 65
"""Exit code: the attempt failed in a way no retry mends (bad payload, ...): fail the index."""
EXIT_FENCED = 66
"""Exit code: the job has gone to another accelerator, and user code did not run."""
EXIT_INTERRUPTED = 143
"""Exit code: SIGTERM stopped the runner before the function had ended: 128 + 15, as a shell would say."""
EXIT_UNPUBLISHED = 67
"""Exit code: the outcome, or the end of the log, could not be written to the store. An infrastructure restart
may mend it."""
EXIT_REGROUP = 68
"""Exit code: all hosts of the slice start anew together; their rendezvous counts whose fault it was."""
EXIT_NO_RUNNER = 70
"""Exit code: the runner's archive is no longer in the store; user code did not run, and never will."""
EXIT_UNSURE = 69
"""Exit code: the attempt before may still run; user code did not run, and a pod follows once that ends."""


def encodable(text: str) -> str:
    """Return a text with lone surrogates, which UTF-8 does not have, as escapes such as `\\udce9`.

    Python makes them of bytes that are no UTF-8, as in the name of a file.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_encodable(text: str) -> bool:
    """Return whether a text has no lone surrogates."""
    return encodable(text) == text


class FailureClass(StrEnum):
    """Class of a failure: whose fault it is, and so whose retry budget it spends."""

    USER_ERROR = "user error"
    OUT_OF_MEMORY = "out of memory"
    OUT_OF_DISK = "out of disk"
    PREEMPTED = "preempted / node lost"
    IMAGE = "image"
    CONFIGURATION = "configuration"
    IMPOSSIBLE_REQUEST = "impossible request"
    QUOTA = "quota / stockout"
    DEADLINE = "deadline"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    CONTROL_PLANE = "control plane"


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of an attempt that ended without a value. JSON-safe; absent facts are None."""

    failure_class: str
    message: str
    phase: str = "execute"
    exception_type: str | None = None
    traceback: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    last_lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON, its texts such that they can be encoded: user code raises any text."""
        told = {key: value for key, value in asdict(self).items() if value not in (None, ())}
        texts = {key: encodable(value) for key, value in told.items() if isinstance(value, str)}
        lines = {"last_lines": tuple(map(encodable, self.last_lines))} if self.last_lines else {}
        return {**told, **texts, **lines}

    @classmethod
    def from_dict(cls, fields: object) -> Failure:
        """Rebuild from `to_dict()`. Raises Malformed for anything else."""
        known = document(fields, failure_class=str, message=str)
        lines = known.get("last_lines") or ()
        if not isinstance(lines, list | tuple):
            raise Malformed("last_lines of a failure are texts")
        for line in lines:
            _check("last_lines", line, str)
        return cls(
            known["failure_class"],
            known["message"],
            optional(known, "phase", str) or "execute",
            optional(known, "exception_type", str),
            optional(known, "traceback", str),
            optional(known, "exit_code", int),
            optional(known, "signal", int),
            tuple(lines),
        )


class Malformed(ValueError):
    """Malformed bytes in the store: damaged, forged, or of another version."""


class FrameError(Malformed):
    """Malformed frame, or one that this protocol cannot read."""


class SignatureError(FrameError):
    """Signature that does not match the frame's content under the given key."""


def parsed(content: Buffer) -> Any:
    """Parse JSON without NaN and infinities. Raises Malformed."""
    try:
        return json.loads(str(content, "utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError, MemoryError) as exc:
        raise Malformed(f"it is not JSON: {type(exc).__name__}: {exc}") from exc


def document(value: object, **fields: type) -> dict[str, Any]:
    """Return a JSON object, from its bytes or parsed, after checking that these fields have their types.

    A float may be written without a point, and is finite; a text can be encoded as UTF-8, which JSON alone
    does not see to. Raises Malformed.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        value = parsed(value)
    if not isinstance(value, dict):
        raise Malformed(f"it is {type(value).__name__}, not an object")
    for name, kind in fields.items():
        if name not in value:
            raise Malformed(f"it has no {name!r}")
        _check(name, value[name], kind)
    return value


def optional(fields: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a field that may be absent or null, of this type otherwise. Raises Malformed."""
    if fields.get(name) is not None:
        _check(name, fields[name], kind)
    return fields.get(name)


def _check(name: str, value: object, kind: type) -> None:
    fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise Malformed(f"{name!r} is {type(value).__name__}, not {kind.__name__}")
    if isinstance(value, int | float) and not -_LARGEST < value < _LARGEST:
        raise Malformed(f"{name!r} is out of range")
    if not is_encodable(name) or (isinstance(value, str) and not is_encodable(value)):
        raise Malformed(f"{name!r} cannot be encoded as UTF-8")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def encode_head(
    header: Mapping[str, object],
    parts: list[tuple[str, int]],
    sha256: str,
    key: bytes | bytearray | None = None,
) -> bytes:
    """Encode the head of a frame for parts of these lengths and this digest, signed unless `key` is None."""
    described = {**header, "parts": [[name, length] for name, length in parts], "sha256": sha256}
    text = json.dumps(described, separators=(",", ":"), sort_keys=True).encode()
    head = b"".join((MAGIC, _LENGTH.pack(len(text)), text))
    return head + (hmac.digest(key, head, "sha256") if key else _UNSIGNED)


def encode_frame(
    header: Mapping[str, object], parts: Mapping[str, Part], key: bytes | bytearray | None = None
) -> bytes:
    """Encode a frame of `header` and named parts, signed with `key` unless that is None."""
    content = hashlib.sha256()
    for part in parts.values():
        for piece in pieces(part):
            content.update(piece)
    lengths = [(name, part_size(part)) for name, part in parts.items()]
    head = encode_head(header, lengths, content.hexdigest(), key)
    return b"".join((head, *(piece for part in parts.values() for piece in pieces(part))))


def part_size(part: Part) -> int:
    """Return the number of bytes of a part in its frame."""
    return sum(map(len, pieces(part))) if isinstance(part, str) and not part.isascii() else len(part)


def memory(parts: Mapping[str, Part], name: str) -> Buffer:
    """Return a part that is not text. Raises FrameError for a text, KeyError for a missing part."""
    part = parts[name]
    if isinstance(part, str):
        raise FrameError(f"{name} is a text")
    return part


def pieces(part: Part) -> Iterator[Buffer]:
    """Yield the bytes of a part in its frame, without copying them all: a text is encoded in pieces."""
    if not isinstance(part, str):
        yield from (memoryview(part)[start : start + _PIECE] for start in range(0, len(part), _PIECE))
        return
    for start in range(0, len(part), _PIECE):
        yield part[start : start + _PIECE].encode("utf-8", "surrogatepass")


def decode_frame(
    frame: bytes, key: bytes | bytearray | None = None
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Decode header and parts of a frame; the signature is checked first when a key is given.

    Raises FrameError for anything malformed or of another protocol, SignatureError for a bad signature.
    Nothing in a frame is evaluated here.
    """
    reader = FrameReader(key)
    reader.write(frame)
    return reader.close()


def decode_head(start: bytes, key: bytes | bytearray | None = None) -> dict[str, Any]:
    """Decode the header of a frame, of which `head_size` bytes suffice. Raises as `decode_frame`."""
    reader = FrameReader(key)
    reader.write(memoryview(start)[: head_size(start)])
    return reader.header


def head_size(start: bytes) -> int:
    """Return the size of a frame's head. Raises FrameError if `start` does not begin a frame."""
    if len(start) < _HEADER_AT or not start.startswith(MAGIC):
        raise FrameError("not a Kinetic frame, or not all of it is there")
    (length,) = _LENGTH.unpack_from(start, len(MAGIC))
    if length > _MAX_HEADER:
        raise FrameError("the frame's header is too long")
    return int(_HEADER_AT + length + _SIGNATURE_BYTES)


def head_digest(start: bytes) -> str:
    """Return the digest of a frame's head, which covers the parts and names the frame. Raises FrameError."""
    size = head_size(start)
    if len(start) < size:
        raise FrameError("not all of the frame's head is there")
    return digest(start[:size])


class FrameReader:
    """Reader of a frame in pieces, which holds each part once: memory of about the frame's size in all.

    A part whose name begins with `array-` becomes a bytearray, which the decoded value keeps, one that begins
    with `text-` a str; others, bytes. `header` is set when the head has been read and verified; nothing is
    kept of a frame with a bad head.
    """

    def __init__(self, key: bytes | bytearray | None = None, head_sha256: str | None = None) -> None:
        """Start at a frame's beginning. `head_sha256`: the digest of the only head that is accepted."""
        self._key, self._head_sha256 = key, head_sha256
        self._head = bytearray()
        self._header: dict[str, Any] | None = None
        self._lengths: dict[str, int] = {}
        self._parts: dict[str, Any] = {}
        self._digest = hashlib.sha256()
        self._waiting: Iterator[tuple[str, int]] = iter(())
        self._name, self._left = "", 0
        self._part: bytearray | io.BytesIO | _Text = bytearray()

    @property
    def header(self) -> dict[str, Any]:
        """Return the header. Raises FrameError if the head has not been read to its end."""
        if self._header is None:
            raise FrameError("not a Kinetic frame, or not all of it is there")
        return self._header

    def write(self, piece: Buffer) -> int:
        """Take the next piece. Raises FrameError as soon as the pieces cannot be a frame."""
        rest = memoryview(piece)
        if self._header is None:
            rest = self._take_head(rest)
        while rest:
            if not self._left and not self._begin_part():
                raise FrameError("the frame is longer than its parts")
            taken, rest = rest[: self._left], rest[self._left :]
            self._digest.update(taken)
            if isinstance(self._part, bytearray):
                self._part += taken
            else:
                self._part.write(taken)
            self._left -= len(taken)
        return len(piece)

    def close(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return header and parts of the frame, read to its end. Raises FrameError for a damaged one."""
        header = self.header
        if self._left or self._begin_part():
            raise FrameError("the frame ends before its parts do")
        if self._digest.hexdigest() != header["sha256"]:
            raise FrameError("the parts of the frame are not those that its head names")
        return header, self._parts

    def _take_head(self, rest: memoryview) -> memoryview:
        wanted = _HEADER_AT
        while True:
            taken = wanted - len(self._head)
            self._head += rest[:taken]
            rest = rest[taken:]
            if len(self._head) < wanted:
                return rest
            if wanted > _HEADER_AT:
                self._read_head(bytes(self._head))
                return rest
            wanted = head_size(bytes(self._head))

    def _read_head(self, head: bytes) -> None:
        signed, signature = head[:-_SIGNATURE_BYTES], head[-_SIGNATURE_BYTES:]
        if self._key is not None and not hmac.compare_digest(
            hmac.digest(self._key, signed, "sha256"), signature
        ):
            raise SignatureError("the signature does not match: written by somebody without the job's key")
        if self._head_sha256 is not None and digest(head) != self._head_sha256:
            raise SignatureError("it changed since it was referred to; nothing was loaded")
        try:
            header = document(signed[_HEADER_AT:], protocol=int, parts=list, sha256=str)
        except Malformed as exc:
            raise FrameError(f"the frame's header is malformed: {exc}") from exc
        if header["protocol"] != PROTOCOL:
            raise FrameError(f"the frame speaks another protocol than {PROTOCOL}; update the older side")
        for entry in header["parts"]:
            name, length = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
            if not isinstance(name, str) or not name or type(length) is not int or not 0 <= length < _LARGEST:
                raise FrameError("the frame's list of parts is malformed")
            if name in self._lengths:
                raise FrameError(f"the frame has two parts {name!r}")
            self._lengths[name] = length
        self._header, self._waiting = header, iter(self._lengths.items())
        self._begin_part()

    def _begin_part(self) -> bool:
        """Go on with the next part that is not empty; return False if there is none."""
        while True:
            if self._name:
                part = self._part
                self._parts[self._name] = part if isinstance(part, bytearray) else part.getvalue()
            self._name, self._left = next(self._waiting, ("", 0))
            kind = self._name.partition("-")[0]
            self._part = (
                bytearray() if kind == "array" else _Text(self._left) if kind == "text" else io.BytesIO()
            )
            if self._left or not self._name:
                return bool(self._left)


class _Text:
    """Text of `size` bytes that arrives in UTF-8: it is held once, and a few pieces of it twice."""

    def __init__(self, size: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        self._pieces: list[str] = []
        self._held, self._most = 0, max(_PIECE, size // 64)
        self._joined = _joined()
        next(self._joined)

    def write(self, piece: Buffer) -> None:
        self._take(piece, is_last=False)
        if self._held >= self._most:
            self._join()

    def getvalue(self) -> str:
        self._take(b"", is_last=True)
        self._join()
        try:
            self._joined.send(None)
        except StopIteration as end:
            return str(end.value)
        raise AssertionError

    def _take(self, piece: Buffer, *, is_last: bool) -> None:
        try:
            self._pieces.append(self._decoder.decode(piece, is_last))
        except UnicodeDecodeError as exc:
            raise FrameError(f"a text of the frame is not UTF-8: {exc.reason}") from exc
        self._held += len(piece)

    def _join(self) -> None:
        self._joined.send("".join(self._pieces))
        self._pieces, self._held = [], 0


def _joined() -> Generator[None, str | None, str]:
    """Join the texts that are sent. CPython extends a local variable in place, where `join` copies."""
    text = ""
    while (piece := (yield)) is not None:
        text += piece
    return text


def digest(content: bytes) -> str:
    """Return the SHA-256 in hex, which names everything content-addressed."""
    return hashlib.sha256(content).hexdigest()


def input_key(key: bytes | bytearray, index: int) -> bytes:
    """Derive the key of one input's outcome from that of the Job that several inputs share."""
    return hmac.digest(key, f"index {index}".encode(), "sha256")


def signing_key(secret: bytes, key_id: str) -> bytes:
    """Derive the key of that id from the secret of its namespace: see `kinetic_core/jobs/signing.py`."""
    return hmac.digest(secret, f"outcome {key_id}".encode(), "sha256")


def state_after(failure: Failure) -> str:
    """Return the state in the outcome of an attempt that this failure ended."""
    return CANCELLED if failure.failure_class == FailureClass.CANCELLED else "failed"


def sealed_state(job_id: str, state: str, key_id: str, key: bytes | bytearray) -> str:
    """Sign the state in an outcome's metadata, so that a listing is trusted without reading outcomes.

    Returns the state alone without a `key_id` that names the key.
    """
    if not key_id:
        return state
    seal = hmac.digest(key, f"state {job_id} {state}".encode(), "sha256").hex()
    return f"{state} {key_id} {seal}"


def object_key(key: bytes | bytearray, name: str) -> bytes:
    """Derive the key of one object that attempts of a job leave for each other from the outcome's key.

    Each object has a key of its own, so that its signature is valid under no other name.
    """
    return hmac.digest(key, f"object {name}".encode(), "sha256")


def call_key(worker_key: bytes | bytearray, key_id: str) -> bytes:
    """Derive the key of a call's outcome from that of its worker; the call's key id names both."""
    return hmac.digest(worker_key, f"call {key_id}".encode(), "sha256")
