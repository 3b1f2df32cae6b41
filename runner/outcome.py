"""Outcomes: how an attempt ended, as the frame that is signed and stored."""

from __future__ import annotations

import errno
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from . import object_names, wire
from .attempt import Job
from .store import Content, MissingObject, Store, StoreUnavailable

_MAX_REPR = 2000
_HELD = 1 << 20
"""Bytes of an outcome's file that are read at once; larger parts stay in the file."""
_CODECS = ("typed", "pickle", "none")
STATES = ("succeeded", "failed", wire.CANCELLED, wire.DROPPED)


@dataclass(frozen=True)
class Header:
    """Header of an outcome's frame, checked, because whoever can write the store can write any other.

    `times` are Unix seconds of events in the attempt. `key_id` names the key that signs the frame.
    `log_size` is the size in bytes of the log that the attempt's host has stored whole, None if not known.
    """

    job_id: str
    state: str
    codec: str
    attempt: int
    failure: wire.Failure | None
    result_type: str | None
    result_repr: str | None
    retry: bool
    times: Mapping[str, float]
    key_id: str
    log_size: int | None

    @classmethod
    def from_dict(cls, header: Mapping[str, Any]) -> Header:
        """Check the header of a frame. Raises FrameError for one that is not an outcome's."""
        try:
            failure, times = header.get("failure"), header.get("times") or {}
            wire.document(times, **dict.fromkeys(times if isinstance(times, dict) else (), float))
            return cls(
                job_id=wire.optional(header, "job_id", str) or "",
                state=_one_of(STATES, header.get("state")),
                codec=_one_of(_CODECS, header.get("codec", "none")),
                attempt=max(wire.optional(header, "attempt", int) or 0, 0),
                failure=None if failure is None else wire.Failure.from_dict(failure),
                result_type=wire.optional(header, "result_type", str),
                result_repr=wire.optional(header, "result_repr", str),
                retry=wire.optional(header, "retry", bool) is not False,
                times={name: float(at) for name, at in times.items()},
                key_id=wire.optional(header, "key_id", str) or "",
                log_size=wire.optional(header, "log_size", int),
            )
        except wire.Malformed as exc:
            raise wire.FrameError(f"the frame is not of an outcome: {exc}") from exc


@dataclass(frozen=True)
class FileParts:
    """Parts of a frame that lie in a file, from an offset on, because they are large."""

    path: str
    offset: int
    lengths: list[tuple[str, int]]
    sha256: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of user code, before the runner adds who ran it.

    `parts` hold the value or the exception in the way `codec` names: `typed`, `pickle` or `none`.
    `retry` is False where another attempt cannot end differently. `stored` replaces `parts` for those in a
    file. `log_size`: see `Header`.
    """

    state: str
    codec: str
    parts: Mapping[str, wire.Part]
    failure: wire.Failure | None = None
    result_type: str | None = None
    result_repr: str | None = None
    retry: bool = True
    stored: FileParts | None = None
    log_size: int | None = None

    @property
    def is_infrastructure(self) -> bool:
        """Return whether a service has failed, which is not user code's fault."""
        return self.failure is not None and self.failure.failure_class == wire.FailureClass.CONTROL_PLANE

    def to_frame(self, facts: Mapping[str, object], key: bytes | bytearray | None = None) -> bytes | Content:
        """Encode the frame of this outcome, with `facts` about the attempt in its header."""
        header = self._header(facts)
        if self.stored is None:
            return wire.encode_frame(header, self.parts, key)
        head = wire.encode_head(header, self.stored.lengths, self.stored.sha256, key)
        return Content(head, self.stored.path, self.stored.offset)

    def unsigned(self) -> bytes:
        """Encode a small outcome as the bytes of an unsigned frame."""
        return wire.encode_frame(self._header({}), self.parts)

    def write(self, stream: BinaryIO) -> None:
        """Write an unsigned frame of the outcome, piece by piece, for the parent process.

        A thread of the user's may change an array meanwhile: the written bytes count.
        """
        lengths = [(name, wire.part_size(part)) for name, part in self.parts.items()]
        stream.write(wire.encode_head(self._header({}), lengths, "0" * 64))
        written = hashlib.sha256()
        for content in self.parts.values():
            for part in wire.pieces(content):
                piece = bytes(part)
                written.update(piece)
                stream.write(piece)
        stream.seek(0)
        stream.write(wire.encode_head(self._header({}), lengths, written.hexdigest()))

    def _header(self, facts: Mapping[str, object]) -> dict[str, object]:
        header: dict[str, object] = {"protocol": wire.PROTOCOL, "author": "runner", **facts}
        header |= {"state": self.state, "codec": self.codec, "retry": self.retry}
        if self.failure is not None:
            header["failure"] = self.failure.to_dict()
        if self.result_type is not None:
            header["result_type"] = wire.encodable(self.result_type)
        if self.result_repr is not None:
            header["result_repr"] = wire.encodable(self.result_repr)
        if self.log_size is not None:
            header["log_size"] = self.log_size
        return header

    @classmethod
    def from_file(cls, path: str) -> Outcome:
        """Read the outcome that a child process left for its parent. Raises FrameError, FileNotFoundError."""
        with open(path, "rb") as stream:
            start = stream.read(_HELD)
            if len(start) < _HELD:
                return cls.from_frame(start)
            size = wire.head_size(start)
            start += stream.read(max(0, size - len(start)))
            fields = wire.decode_head(start)
            content = hashlib.sha256(start[size:])
            while piece := stream.read(_HELD):
                content.update(piece)
            length = stream.tell() - size
        lengths = [(name, part) for name, part in fields["parts"]]
        if content.hexdigest() != fields["sha256"] or length != sum(part for _, part in lengths):
            raise wire.FrameError("the parts of the frame are not those that its head names")
        return cls.from_parts(fields, {}, FileParts(path, size, lengths, fields["sha256"]))

    @classmethod
    def from_frame(cls, frame: bytes) -> Outcome:
        """Decode the outcome in a frame. Raises FrameError."""
        return cls.from_parts(*wire.decode_frame(frame))

    @classmethod
    def from_parts(
        cls, fields: Mapping[str, Any], parts: Mapping[str, wire.Part], stored: FileParts | None = None
    ) -> Outcome:
        """Decode the outcome of a frame's header, with its parts or where they are stored."""
        header = Header.from_dict(fields)
        return cls(
            state=header.state,
            codec=header.codec,
            parts=parts,
            failure=header.failure,
            result_type=header.result_type,
            result_repr=header.result_repr,
            retry=header.retry,
            stored=stored,
        )


def read_head(store: Store, name: str) -> bytes:
    """Read the beginning of a stored frame, its whole head at least. Raises FrameError, MissingObject."""
    start = store.read_range(name, 0, wire.HEAD_BYTES)
    size = wire.head_size(start)
    return start if size <= len(start) else store.read_range(name, 0, size)


def committed_code(job: Job, store: Store) -> int | None:
    """Return the exit code that agrees with the job's committed outcome; None if there is none.

    An object that is not signed with the job's key, as its outcome, is ignored.
    """
    try:
        header = wire.decode_head(read_head(store, object_names.result(job.job_id)), job.outcome_key)
        object_names.require_place(header, job.job_id)
    except (MissingObject, wire.FrameError):
        return None
    return wire.EXIT_SUCCEEDED if header.get("state") == "succeeded" else wire.EXIT_NEVER_RETRY


def commit(job: Job, store: Store, frame: bytes | Content, state: str) -> int | None:
    """Store the job's outcome unless it has one; return the exit code of the one that it has.

    An object without the job's signature is replaced, where the pod may do that. Whoever wrote it can still
    delete or replace the outcome, but a replacement is refused by its readers.
    """
    name = object_names.result(job.job_id)
    sealed = {wire.STATE: job.sealed(state)}
    if store.create_if_absent(name, frame, sealed):
        return None
    committed = committed_code(job, store)
    if committed is None:
        sys.stderr.write(f"kinetic: {name} is not signed by this job, and replaced: somebody has forged it\n")
        try:
            store.replace(name, frame, sealed)
        except StoreUnavailable as exc:
            if exc.errno != errno.EACCES:
                raise
            sys.stderr.write(f"kinetic: {name} is not signed by this job, and the pod may not replace it\n")
            return wire.EXIT_NEVER_RETRY  # another attempt would find the same
    return committed


def leave(job: Job, store: Store, outcome: Outcome, told: Mapping[str, object]) -> str:
    """Store the end of an attempt that is not its job's end; return the name, which is signed with it."""
    name = object_names.attempt_outcome(job.job_id, job.attempt, job.host)
    store.create_if_absent(name, outcome.to_frame({**told, "object": name}, job.outcome_key))
    return name


def _one_of(known: tuple[str, ...], value: object) -> str:
    if value not in known:
        raise wire.Malformed(f"{str(value)[:50]!r} is none of {', '.join(known)}")
    return str(value)


def failed(
    failure_class: str,
    message: str,
    phase: str,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
    retry: bool = True,
) -> Outcome:
    """Return an outcome without an exception: the process died, or the runner itself could not go on."""
    failure = wire.Failure(failure_class, message, phase, exit_code=exit_code, signal=signal)
    return Outcome(wire.state_after(failure), "none", {}, failure, retry=retry)


def type_name(value: Any) -> str:
    """Return the qualified name of a value's type, without `builtins.`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def safe_repr(value: Any) -> str:
    """Return at most 2,000 characters of `repr(value)`, whatever its `__repr__` does."""
    try:
        return repr(value)[:_MAX_REPR]
    except BaseException as exc:  # noqa: BLE001  a user's __repr__ may raise anything
        return f"<{type_name(value)}, whose repr failed: {type(exc).__name__}>"
