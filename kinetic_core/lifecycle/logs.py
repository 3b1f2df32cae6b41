"""What a job printed: kept by the backend while it has the container, by the runner for good.

Of a slice, every line begins with its host: `[host 1] ...`.
"""

from __future__ import annotations

import codecs
import time
from collections import deque
from collections.abc import Callable, Iterator

from kinetic_core._runner import wire
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.model.accelerators import parse_accelerator
from kinetic_core.model.job import JobReference

_EVIDENCE_LINES = 20
_POLL_SECONDS = 0.05


def host_count(reference: JobReference) -> int:
    """How many hosts print: those of its slice; one on this machine."""
    return 1 if reference.backend == "local" else parse_accelerator(reference.accelerator).hosts


def read_attempt(backend: Backend, reference: JobReference, attempt: int, host: int = 0) -> bytes:
    """All that one attempt of a host printed, from the container's log or else from the kept chunks."""
    text = backend.log(reference.namespace, reference.job_id, attempt, 0, host)
    if text is not None:
        return text
    prefix = wire.log_object(reference.job_id, attempt, 0, host).rpartition("/")[0] + "/"
    return b"".join(backend.store.read(info.name) for info in backend.store.list(prefix))


def read_log(
    backend: Backend, reference: JobReference, last: int, host: int | None = None, first: int = 0
) -> str:
    """The log of attempts `first` to `last`, in order: of all hosts, or of one without prefixes."""
    hosts = range(host_count(reference)) if host is None else [host]
    parts = []
    for attempt in range(first, last + 1):
        for each in hosts:
            text = read_attempt(backend, reference, attempt, each).decode(errors="replace")
            parts.append(_prefixed(text, each) if len(hosts) > 1 else text)
    return "".join(parts)


def last_lines(backend: Backend, reference: JobReference, attempt: int) -> tuple[str, ...]:
    """The last lines of an attempt, of every host: the evidence that goes with a failure."""
    hosts = host_count(reference)
    kept: list[str] = []
    for host in range(hosts):
        text = read_attempt(backend, reference, attempt, host).decode(errors="replace")
        text = _prefixed(text, host) if hosts > 1 else text
        kept += deque(text.splitlines(), maxlen=max(1, _EVIDENCE_LINES // hosts))
    return tuple(kept[-_EVIDENCE_LINES:])


def follow_log(
    backend: Backend,
    reference: JobReference,
    ended: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """What the job prints, as it comes, of every attempt in turn, until `ended()` and all is read.

    Pieces, not lines: a progress bar that ends in no newline must be seen. Every attempt starts a line. Of a
    slice, whole lines, each with its host.
    """
    hosts = host_count(reference)
    followed = [_HostLog(backend, reference, host) for host in range(hosts)]
    rest = [""] * hosts
    while True:
        over, quiet = ended(), True
        for host, log in enumerate(followed):
            text = log.read(over)
            if text is None:
                continue
            quiet = False
            if hosts > 1:
                whole, newline, rest[host] = (rest[host] + text).rpartition("\n")
                text = _prefixed(whole + newline, host)
            if text:
                yield text
        if quiet and over:
            yield from (_prefixed(text, host) for host, text in enumerate(rest) if text)
            return
        if quiet:
            sleep(_POLL_SECONDS)


class _HostLog:
    """How far one host's log has been read."""

    def __init__(self, backend: Backend, reference: JobReference, host: int) -> None:
        self._backend, self._reference, self._host = backend, reference, host
        self._attempt, self._offset, self._at_start = 0, 0, True
        self._decoder = _decoder()

    def read(self, over: bool) -> str | None:
        """What is new; None if nothing is, and once it is `over` nothing will be."""
        chunk = self._log(self._attempt, self._offset)
        self._offset += len(chunk)
        if chunk:
            text = self._decoder.decode(chunk)
            self._at_start = text.endswith("\n") if text else self._at_start
            return text
        follows = bool(self._log(self._attempt + 1, 0))
        if not follows and not over:
            return None
        text = self._decoder.decode(b"", final=True) + ("" if self._at_start else "\n")
        self._at_start = True
        if follows:
            self._attempt, self._offset, self._decoder = self._attempt + 1, 0, _decoder()
            return text
        return text or None

    def _log(self, attempt: int, offset: int) -> bytes:
        where = self._reference.namespace, self._reference.job_id
        return self._backend.log(*where, attempt, offset, self._host) or b""


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


def _prefixed(text: str, host: int) -> str:
    return "".join(f"[host {host}] {line}\n" for line in text.splitlines())
