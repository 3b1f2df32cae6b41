"""Collection of a job's outcome: read, verified with the job's key, decoded."""

from __future__ import annotations

import builtins
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ContextDecorator
from dataclasses import dataclass, replace
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kinetic_core._runner import codec, object_names, wire
from kinetic_core._runner.outcome import Header
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.backends.base import Backend
from kinetic_core.connections import default_connections
from kinetic_core.errors import (
    JobBudgetExceeded,
    JobCancelled,
    JobDeadlineExceeded,
    JobError,
    JobFailed,
    JobLost,
    JobMisconfigured,
    JobNotFound,
    JobOutOfDisk,
    JobOutOfMemory,
    ObjectNotFound,
    UnloadableResult,
    UnserializableResult,
    UnverifiedResult,
)
from kinetic_core.job import JobReference
from kinetic_core.jobs.lanes import LaneOutcomes, Segment, outcome_start, runs_on_lane
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.references import ResultReference
from kinetic_core.jobs.signing import Keys, outcome_key
from kinetic_core.settings import log_level
from kinetic_core.store import open_store
from kinetic_core.store.documents import read_start
from kinetic_core.store.protocol import ObjectStore

if TYPE_CHECKING:
    from kinetic_core.jobs.references import ResultReference

_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>[0-9]{1,9}), in ')
_ERRORS: dict[str, type[JobError]] = {
    FailureClass.USER_ERROR: JobFailed,
    FailureClass.OUT_OF_MEMORY: JobOutOfMemory,
    FailureClass.OUT_OF_DISK: JobOutOfDisk,
    FailureClass.PREEMPTED: JobLost,
    FailureClass.CONTROL_PLANE: JobLost,
    FailureClass.DEADLINE: JobDeadlineExceeded,
    FailureClass.BUDGET: JobBudgetExceeded,
    FailureClass.CANCELLED: JobCancelled,
}


def error_of(job_id: str, failure: Failure) -> JobError:
    """Build the error of a job that ended without an exception of its function."""
    kind = _ERRORS.get(failure.failure_class, JobMisconfigured)
    if failure.phase == "result":
        kind = UnserializableResult
    return kind(f"{job_id}: {failure.message}", failure)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job: how the job ended, and its value or failure.

    `codec` is `typed` (plain data), `pickle` or `none`. `verified` is False if the signature was not checked
    with the job's key: using the value then means trusting everybody who can write to the store.

    `times` maps those of started, installing, installed, data, user_started, user_finished and finished
    that happened to Unix seconds. `log_size` is the size of the attempt's whole log in bytes, of a slice that
    of the host that has stored the outcome; None if it is not known.
    """

    job_id: str
    attempt: int
    succeeded: bool
    codec: str
    parts: Mapping[str, wire.Part]
    failure: Failure | None
    result_type: str | None
    times: Mapping[str, float]
    verified: bool
    may_unpickle: bool
    result_repr: str | None = None
    digest: str = ""
    place: str = ""
    """Where it is stored, "" if that is not known."""
    log_size: int | None = None

    def value_or_raise(self) -> Any:
        """Return the function's value, or raise the function's exception, or a JobError.

        Raises UnverifiedResult instead of unpickling what may not be unpickled, UnloadableResult if this
        machine lacks the value's class.
        """
        if not self.succeeded:
            raise self.exception()
        if self.codec == "typed":
            return self._decoded()
        self._require_pickle()
        try:
            return self._unpickled()
        except (ImportError, AttributeError) as exc:
            raise UnloadableResult(
                f"{self.job_id} returned a {self.result_type or 'value'} that cannot be loaded here: {exc}. "
                f"It lies at {self.place or object_names.result(self.job_id)}: ask for it where its class "
                "can be imported, or let the function return plain data"
            ) from exc

    def exception(self) -> BaseException:
        """Return the exception of `value_or_raise`, with remote traceback and last log lines as notes."""
        failure = self.failure or Failure(FailureClass.CONTROL_PLANE, "the job failed without a reason")
        error = self._rebuilt(failure) or error_of(self.job_id, failure)
        if failure.traceback:
            shown = _with_sources(failure.traceback)
            error.add_note(f"Remote traceback ({self.job_id}, attempt {self.attempt + 1}):\n{shown}")
        if failure.last_lines and not failure.traceback:
            error.add_note("Last lines of its log:\n" + "\n".join(failure.last_lines))
        if self.result_repr:
            error.add_note(f"The value was: {self.result_repr}")
        return error

    def _rebuilt(self, failure: Failure) -> BaseException | None:
        """Return the user's own exception if it was sent along and may be rebuilt here, else None."""
        if self.codec == "typed":
            return _builtin(self._decoded())
        if self.codec != "pickle" or not self.may_unpickle:
            return None
        try:
            error = self._unpickled()
        except Exception as exc:  # noqa: BLE001  unpickling runs user code; the failure itself must be told
            told_error = error_of(self.job_id, failure)
            told_error.add_note(f"Its exception cannot be rebuilt here: {type(exc).__name__}: {exc}")
            return told_error
        return error if isinstance(error, Exception) else None

    def _decoded(self) -> Any:
        try:
            return codec.decode(self.parts)
        except codec.LibraryMissing:
            raise
        except codec.CodecError as exc:
            raise UnverifiedResult(f"the stored outcome of {self.job_id} is not its own: {exc}") from exc

    def _unpickled(self) -> Any:
        from kinetic_core._runner.results import loaded

        return loaded(wire.memory(self.parts, "body"), parts=self.parts)

    def _require_pickle(self) -> None:
        if self.may_unpickle:
            return
        kind = self.result_type or "object"
        raise UnverifiedResult(
            f"{self.job_id} returned a pickled {kind}, which is not unpickled here without trust_store=True: "
            "that runs code, so trust all who write to the store"
        )


def _builtin(told: Any) -> BaseException | None:
    """Rebuild a built-in exception that was sent as plain data; return None for any other."""
    if not isinstance(told, dict) or not isinstance(told.get("args"), list | tuple):
        return None
    kind = getattr(builtins, str(told.get("name")), None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return None
    try:
        error = kind(*told["args"])
    except Exception:  # noqa: BLE001  arguments that it cannot have had
        return None
    for note in told.get("notes") or ():
        error.add_note(str(note))
    return error


class TrimmedTraceback(ContextDecorator):
    """Context or decorator that a job's exception leaves without the frames of what fetched it.

    So does Ctrl-C, which says nothing about the place where it came. Where a job's exception was raised is
    told by its note. `KINETIC_LOG_LEVEL=DEBUG` keeps the frames.
    """

    def __enter__(self) -> None:
        """Change nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        frames = [frame for frame, _ in walk_tb(trace)]
        is_of_job = bool(frames) and frames[-1].f_code is Outcome.value_or_raise.__code__
        says_nothing = is_of_job or isinstance(error, KeyboardInterrupt)
        if error is not None and says_nothing and log_level() > logging.DEBUG:
            error.__traceback__ = None


class StoredParts(Mapping[str, wire.Part]):
    """Parts of a stored frame, downloaded when the first part is read."""

    def __init__(self, names: Iterable[str], download: Callable[[], Mapping[str, wire.Part]]) -> None:
        self._names, self._download = list(names), download
        self._parts: Mapping[str, wire.Part] | None = None

    def __getitem__(self, name: str) -> wire.Part:
        if self._parts is None:
            self._parts = self._download()
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


Download = Callable[[Callable[[], wire.FrameReader]], wire.FrameReader]
"""Function that writes a frame's object to a reader, and returns the reader."""


def read_outcome(
    start: bytes,
    key: bytes | None,
    *,
    job_id: str,
    allow_pickle: bool | None = None,
    known: bool = False,
    download: Download | None = None,
) -> Outcome:
    """Decode the outcome in a frame, checking its signature if `key` is not None.

    `start` is the beginning of the frame, at least its head. If `start` is not the whole frame, `download` is
    called for the rest when the value is read, and checks what it gets against the head.
    `allow_pickle`: None unpickles only what is verified (or `known` to be), True unpickles without
    verification, False never unpickles. Raises UnverifiedResult if the frame is malformed, belongs to another
    job, is signed with another key, or is not verified and `allow_pickle` is not True.
    """
    try:
        fields = wire.decode_head(start, key)
        header = Header.from_dict(fields)
        object_names.require_place(fields, job_id)
        digest = wire.head_digest(start)
        parts = _parts(start, fields, key, job_id, download)
    except wire.FrameError as exc:
        raise UnverifiedResult(f"the stored outcome of {job_id} is not its own: {exc}") from exc
    verified = key is not None or known
    if not verified and not allow_pickle:
        raise UnverifiedResult(
            f"the stored outcome of {job_id} cannot be verified: the job's Kubernetes object is gone, and no "
            "key of its namespace signs it. result(trust_store=True) believes it, if you trust all who write "
            "to the store"
        )
    return Outcome(
        job_id=job_id,
        attempt=header.attempt,
        succeeded=header.state == "succeeded",
        codec=header.codec,
        parts=parts,
        failure=header.failure,
        result_type=header.result_type,
        times=header.times,
        verified=verified,
        may_unpickle=verified if allow_pickle is None else allow_pickle,
        result_repr=header.result_repr,
        digest=digest,
        log_size=header.log_size,
    )


def _with_sources(traceback: str) -> str:
    """Add the source lines of a notebook's cells, which the job has not had, to a traceback.

    The job chooses the names of files: nothing is read from a disk.
    """
    import linecache

    shown = []
    lines = traceback.splitlines(keepends=True)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        shown.append(line)
        frame = _FRAME.match(line)
        if frame is None or following.startswith("    "):
            continue
        match linecache.cache.get(frame["file"]):
            case (_, None, sources, _) if 0 < (number := int(frame["line"])) <= len(sources):
                shown.append(f"    {sources[number - 1].strip()}\n")
    return "".join(shown)


def _parts(
    start: bytes, fields: Mapping[str, Any], key: bytes | None, job_id: str, download: Download | None
) -> Mapping[str, wire.Part]:
    """Return the parts of a frame, downloaded when the first is read if `start` is not the whole frame."""
    size = wire.head_size(start) + sum(length for _, length in fields["parts"])
    if download is None or size <= len(start):
        return wire.decode_frame(start, key)[1]
    names, digest = (name for name, _ in fields["parts"]), wire.head_digest(start)
    return StoredParts(names, lambda: _downloaded(download, job_id, key, digest))


def _downloaded(download: Download, job_id: str, key: bytes | None, digest: str) -> Mapping[str, wire.Part]:
    try:
        return download(lambda: wire.FrameReader(key, digest)).close()[1]
    except wire.FrameError as exc:
        raise UnverifiedResult(f"the stored outcome of {job_id} is not its own: {exc}") from exc


def load_reference(reference: ResultReference, trust_store: bool) -> Any:
    """Load the value a reference names; see `ResultReference.load`."""
    store, name = open_store(reference.store_uri, default_connections()), reference.object_name
    span = object_names.span_of(name)
    try:
        start = read_start(store, name) if span is None else _read_span(store, *span)
        is_the_same = wire.head_digest(start) == reference.sha256
    except wire.FrameError as exc:
        raise UnverifiedResult(f"{name} is not an outcome: {exc}") from exc
    if not is_the_same:
        raise UnverifiedResult(f"{name} has changed since its reference was made: it is not loaded")
    outcome = read_outcome(
        start,
        None,
        job_id=reference.job_id,
        allow_pickle=trust_store,
        known=True,
        download=None if span is not None else lambda new_reader: store.download(name, new_reader),
    )
    return outcome.value_or_raise()


def _read_span(store: ObjectStore, name: str, start: int, end: int) -> bytes:
    """Read a part of a segment. Raises FrameError for what is too long to be one."""
    if not 0 <= end - start <= wire.LARGEST_SEGMENT:
        raise wire.FrameError("it is no outcome in a segment")
    return store.read_range(name, start, end - start)


KeyOf = Callable[[Backend, JobReference], bytes | None]
"""Function that returns the key that signs a job's outcome; None if the key is gone."""


def key_of(backend: Backend, reference: JobReference) -> bytes | None:
    """Return the key of a job's outcome from the job's Kubernetes Job, None if the Job is gone."""
    found = backend.get(reference.namespace, reference.job_id)
    return outcome_key(found[0] if found else None)


def _key(backend: Backend, reference: JobReference, start: bytes, of: KeyOf) -> bytes | None:
    """Return the Job's key; if the Job is gone, the key that the frame names."""
    if (key := of(backend, reference)) is not None:
        return key
    try:
        return Keys(backend, reference.namespace).of_frame(start, reference)
    except wire.FrameError:
        return None  # reading it will say why


def collect(
    backend: Backend,
    reference: JobReference,
    *,
    allow_pickle: bool | None = None,
    known_digest: str | None = None,
    key: KeyOf = key_of,
    start: bytes | None = None,
) -> Outcome:
    """Read the committed outcome of a job that has ended; a large value is read when it is first used.

    `allow_pickle` None unpickles the value if the signature is verified, True in any case, False never.
    `known_digest` is the digest of an outcome that was verified before; `start`, what was read of it.
    Raises JobNotFound if no outcome is stored, UnverifiedResult if the outcome is not the job's own.
    """
    if start is None and runs_on_lane(reference):
        segment = LaneOutcomes(backend, reference).segment_of(reference.group_index or 0)
        if segment is not None:
            return outcome_in(backend, reference, segment, allow_pickle=allow_pickle)
    start = _start(backend, reference) if start is None else start
    store, name = backend.store, object_names.result(reference.job_id)
    outcome = read_outcome(
        start,
        _key(backend, reference, start, key),
        job_id=reference.job_id,
        allow_pickle=allow_pickle,
        known=known_digest is not None and known_digest == wire.head_digest(start),
        download=lambda new_reader: store.download(name, new_reader),
    )
    return replace(outcome, place=f"{store.uri}/{name}")


def outcome_in(
    backend: Backend, reference: JobReference, segment: Segment, *, allow_pickle: bool | None = None
) -> Outcome:
    """Return the outcome of a map's input of which a segment tells. Raises as `collect` does."""
    index = reference.group_index or 0
    key, frame = segment.key_of(index), segment.frame(index)
    if frame is None:
        try:
            start = read_start(backend.store, object_names.result(reference.job_id))
        except ObjectNotFound as exc:
            raise JobNotFound(f"the outcome of {reference.job_id} is not stored any more") from exc
        return collect(
            backend, reference, allow_pickle=allow_pickle, key=lambda _backend, _job: key, start=start
        )
    outcome = read_outcome(frame, key, job_id=reference.job_id, allow_pickle=allow_pickle)
    place = object_names.within(segment.name, *segment.frames[index])
    return replace(outcome, place=f"{backend.store.uri}/{place}")


def result_reference(reference: JobReference, outcome: Outcome) -> ResultReference:
    """Return a reference to a job's value, for another job to load without this process decoding it.

    The reference's digest is that of the verified frame. Raises UnverifiedResult if there is none.
    """
    if not outcome.verified:
        raise UnverifiedResult(
            f"the key that signed the outcome of {reference.job_id} is gone with its Kubernetes object, so "
            "no job may load it. Run it again"
        )
    place = outcome.place.removeprefix(f"{reference.store_uri}/")
    return ResultReference(
        store_uri=reference.store_uri,
        object_name=place or object_names.result(reference.job_id),
        sha256=outcome.digest,
        job_id=reference.job_id,
        type_name=outcome.result_type or "object",
    )


def _start(backend: Backend, reference: JobReference) -> bytes:
    """Read the head of the outcome, and some of the bytes that follow."""
    try:
        try:
            return outcome_start(backend, reference)
        except ObjectNotFound:
            reconcile(backend, reference)  # records how it ended, or raises what keeps it from being recorded
            return outcome_start(backend, reference)
    except wire.FrameError as exc:
        raise UnverifiedResult(f"the stored outcome of {reference.job_id} is not its own: {exc}") from exc
    except ObjectNotFound as exc:
        raise JobNotFound(
            f"{reference.job_id} has no outcome in {reference.store_uri}: it has not ended, or its "
            "objects were removed"
        ) from exc
