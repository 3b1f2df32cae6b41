"""What a job printed: kept by the backend while it has the container, by the runner for good."""

from __future__ import annotations

import codecs
import time
from collections import deque
from collections.abc import Callable, Iterator

from kinetic_core._runner import wire
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.model.job import JobReference

_EVIDENCE_LINES = 20
_POLL_SECONDS = 0.05


def read_attempt(backend: Backend, reference: JobReference, attempt: int) -> bytes:
    """All that one attempt printed, from the container's log or else from the runner's kept chunks."""
    text = backend.log(reference.namespace, reference.job_id, attempt, 0)
    if text is not None:
        return text
    prefix = wire.log_object(reference.job_id, attempt, 0).rpartition("/")[0] + "/"
    return b"".join(backend.store.read(info.name) for info in backend.store.list(prefix))


def read_log(backend: Backend, reference: JobReference, attempts: int) -> str:
    """The whole log of attempts 0 to `attempts`, in order."""
    parts = [read_attempt(backend, reference, attempt) for attempt in range(attempts + 1)]
    return b"".join(parts).decode(errors="replace")


def last_lines(backend: Backend, reference: JobReference, attempt: int) -> tuple[str, ...]:
    """The last lines of an attempt: the evidence that goes with a failure."""
    text = read_attempt(backend, reference, attempt).decode(errors="replace")
    return tuple(deque(text.splitlines(), maxlen=_EVIDENCE_LINES))


def follow_log(
    backend: Backend,
    reference: JobReference,
    ended: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """What the job prints, as it comes, of every attempt in turn, until `ended()` and all is read.

    Pieces, not lines: a progress bar that ends in no newline must be seen. Every attempt starts a line.
    """
    attempt, offset, at_start = 0, 0, True
    decoder = _decoder()
    while True:
        over = ended()
        chunk = backend.log(reference.namespace, reference.job_id, attempt, offset) or b""
        offset += len(chunk)
        if text := decoder.decode(chunk):
            at_start = text.endswith("\n")
            yield text
        if chunk:
            continue
        follows = bool(backend.log(reference.namespace, reference.job_id, attempt + 1, 0))
        if not follows and not over:
            sleep(_POLL_SECONDS)
            continue
        if text := decoder.decode(b"", final=True) + ("" if at_start else "\n"):
            yield text
        if not follows:
            return
        attempt, offset, at_start, decoder = attempt + 1, 0, True, _decoder()


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
