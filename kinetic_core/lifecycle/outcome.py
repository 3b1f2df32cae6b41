"""Outcomes as this side reads them: verified, then decoded into a value or an exception."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinetic_core._runner import codec, wire
from kinetic_core._runner.wire import Failure, FailureClass
from kinetic_core.errors import (
    JobBudgetExceeded,
    JobCancelled,
    JobDeadlineExceeded,
    JobError,
    JobFailed,
    JobLost,
    JobMisconfigured,
    JobOutOfDisk,
    JobOutOfMemory,
    UnserializableResult,
    UnverifiedResult,
)

if TYPE_CHECKING:
    from kinetic_core.lifecycle.references import ResultReference

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


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    `codec` is `typed` (plain data), `pickle` or `none`; `verified` says whether the signature was checked
    with the job's key. `times` are Unix seconds of: started, installing, installed, data,
    user_started, user_finished, finished; those of them that happened.
    """

    job_id: str
    attempt: int
    succeeded: bool
    codec: str
    parts: Mapping[str, bytes]
    failure: Failure | None
    result_type: str | None
    times: Mapping[str, float]
    verified: bool
    may_unpickle: bool
    result_repr: str | None = None
    digest: str = ""

    def value_or_raise(self) -> Any:
        """The function's value. Raises what the function raised, or a JobError that says how it ended.

        Raises UnverifiedResult instead of unpickling what may not be unpickled.
        """
        if not self.succeeded:
            raise self.exception()
        if self.codec == "typed":
            return codec.decode(dict(self.parts))
        self._require_pickle()
        return self._unpickled()

    def exception(self) -> BaseException:
        """What `value_or_raise` raises, with the remote traceback and the last log lines as notes."""
        failure = self.failure or Failure(FailureClass.CONTROL_PLANE, "the job failed without a reason")
        error = self._rebuilt(failure) or self._described(failure)
        if failure.traceback:
            error.add_note(f"Remote traceback ({self.job_id}, attempt {self.attempt}):\n{failure.traceback}")
        if failure.last_lines and not failure.traceback:
            error.add_note("Last lines of its log:\n" + "\n".join(failure.last_lines))
        if self.result_repr:
            error.add_note(f"The value was: {self.result_repr}")
        return error

    def _rebuilt(self, failure: Failure) -> BaseException | None:
        """The user's own exception, if it travelled and may be rebuilt here."""
        if self.codec == "typed":
            told = codec.decode(dict(self.parts))
            kind = getattr(builtins, str(told["name"]), None)
            if not isinstance(kind, type) or not issubclass(kind, Exception):
                return None
            error = kind(*told["args"])
            for note in told["notes"]:
                error.add_note(str(note))
            return error
        if self.codec != "pickle" or not self.may_unpickle:
            return None
        try:
            error = self._unpickled()
        except Exception as exc:  # noqa: BLE001  unpickling runs user code; the failure itself must be told
            told_error = self._described(failure)
            told_error.add_note(f"Its exception cannot be rebuilt here: {type(exc).__name__}: {exc}")
            return told_error
        return error if isinstance(error, Exception) else None

    def _described(self, failure: Failure) -> JobError:
        kind = _ERRORS.get(failure.failure_class, JobMisconfigured)
        if failure.phase == "result":
            kind = UnserializableResult
        return kind(f"{self.job_id}: {failure.message}", failure)

    def _unpickled(self) -> Any:
        from kinetic_core._runner.results import loaded

        return loaded(self.parts["body"])

    def _require_pickle(self) -> None:
        if self.may_unpickle:
            return
        kind = self.result_type or "object"
        if self.verified:
            raise UnverifiedResult(f"{self.job_id} returned a pickled {kind}, which is not unpickled here")
        raise UnverifiedResult(
            f"{self.job_id} returned a pickled {kind}, and the key to verify it is gone with the job's "
            "Kubernetes object. result(trust_store=True) loads it, if you trust all who write to the store"
        )


def read_outcome(
    frame: bytes, key: bytes | None, *, job_id: str, allow_pickle: bool | None = None, known: bool = False
) -> Outcome:
    """The outcome in a frame, its signature checked with `key` if there is one.

    `allow_pickle` None unpickles what is verified (or `known` to be), True anything, False nothing.
    Raises UnverifiedResult if the frame is malformed, of another job, or signed with another key.
    """
    try:
        header, parts = wire.decode_frame(frame, key)
    except wire.FrameError as exc:
        raise UnverifiedResult(f"the stored outcome of {job_id} is not its own: {exc}") from exc
    if header.get("job_id") != job_id:
        raise UnverifiedResult(f"the stored outcome of {job_id} belongs to {header.get('job_id')}")
    verified = key is not None or known
    failure, times = header.get("failure"), header.get("times")
    attempt, result_type, shown = (header.get(name) for name in ("attempt", "result_type", "result_repr"))
    return Outcome(
        job_id=job_id,
        attempt=attempt if isinstance(attempt, int) else 0,
        succeeded=header.get("state") == "succeeded",
        codec=str(header.get("codec")),
        parts=parts,
        failure=Failure.from_dict(failure) if isinstance(failure, dict) else None,
        result_type=None if result_type is None else str(result_type),
        times={str(k): float(v) for k, v in times.items()} if isinstance(times, dict) else {},
        verified=verified,
        may_unpickle=verified if allow_pickle is None else allow_pickle,
        result_repr=None if shown is None else str(shown),
        digest=wire.digest(frame),
    )


def load_reference(reference: ResultReference, trust_store: bool) -> Any:
    """The value a reference names; see `ResultReference.load`."""
    from kinetic_core._runner.store import open_store

    frame = open_store(reference.store_uri).read(reference.object_name)
    if wire.digest(frame) != reference.sha256:
        raise UnverifiedResult(f"{reference.object_name} changed since it was referred to; not loaded")
    return read_outcome(frame, None, job_id=reference.job_id, allow_pickle=trust_store).value_or_raise()
