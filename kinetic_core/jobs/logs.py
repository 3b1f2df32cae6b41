"""Log of a job: kept by the backend while the container exists, by the runner for good.

Every line of a slice begins with its host: `[host 1] ...`.
"""

from __future__ import annotations

import codecs
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kinetic_core._runner import object_names
from kinetic_core._runner.lines import LineBuffer
from kinetic_core._runner.log import printable
from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.base import Backend
from kinetic_core.errors import ClusterError, KineticError, ObjectNotFound, StoreError
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.retry import pauses
from kinetic_core.store.protocol import ObjectStore

_LOG = logging.getLogger(__name__)
_EVIDENCE_LINES = 20
_EVIDENCE_BYTES = 8 << 20
"""Bytes at the end of a stored log that are searched: who writes the bucket sets the size of the whole."""
_LAST_CHUNKS = 200
"""Chunks at the end of a stored log that are read: who writes the bucket sets how many it has."""
_POLL_SECONDS = 0.05
_STORED_SECONDS = 1.0
_OUTAGE_SECONDS = 60.0
_PIECE = 1 << 20
"""Bytes of a log that are read at a time."""


def host_count(reference: JobReference) -> int:
    """Return how many hosts print: those of the job's slice; 1 on this machine."""
    return 1 if reference.backend == "local" else parse_accelerator(reference.accelerator).hosts


def read_pieces(
    backend: Backend, reference: JobReference, attempt: int, host: int = 0, offset: int = 0
) -> Iterator[bytes]:
    """Yield what one attempt of a host has printed from a byte offset on, in pieces.

    The pieces come from the container's log, or else from the stored chunks. A negative offset counts from
    the end of the last chunks; the container's log is then read whole.
    """
    where = reference.namespace, reference.job_id, attempt
    reached = max(0, offset)
    while piece := backend.log(*where, reached, host, _PIECE):
        yield piece
        reached += len(piece)
    if piece is not None:
        return
    if offset < 0:
        yield from stored_end(backend.store, reference, attempt, host, -offset)
    else:
        yield from StoredLog(backend.store, reference, attempt, host, reached).pieces()


def stored_end(
    store: ObjectStore, reference: JobReference, attempt: int, host: int, size: int
) -> Iterator[bytes]:
    """Yield the last `size` bytes that are stored of an attempt of a host, of its last 200 chunks at most.

    A chunk that has gone, because the job is being removed, is left out.
    """
    listed = store.list(_prefix(reference, attempt, host))
    chunks = deque((info for info in listed if info.size), maxlen=_LAST_CHUNKS)
    passed = max(0, sum(info.size for info in chunks) - size)
    for info in chunks:
        for start in range(min(passed, info.size), info.size, _PIECE):
            try:
                piece = store.read_range(info.name, start, min(_PIECE, info.size - start))
            except ObjectNotFound:
                break
            yield piece
        passed = max(0, passed - info.size)


class StoredLog:
    """Reading position in the stored chunks of one attempt of a host, from a byte offset on."""

    def __init__(
        self, store: ObjectStore, reference: JobReference, attempt: int, host: int = 0, offset: int = 0
    ) -> None:
        self._store, self._prefix = store, _prefix(reference, attempt, host)
        self._chunk, self._passed = "", offset
        """Name of the last chunk that was listed; how many bytes from its beginning on are passed."""

    def pieces(self) -> Iterator[bytes]:
        """Yield what is stored and was not yielded before. Chunks are listed only as far as they are read."""
        before = 0
        for info in self._store.list(self._prefix, since=self._chunk):
            self._chunk, self._passed, before = info.name, self._passed - before, info.size
            while self._passed < info.size:
                start, size = self._passed, min(_PIECE, info.size - self._passed)
                piece = self._store.read_range(info.name, start, size)
                self._passed += size  # only now: what could not be read is read again
                if piece:
                    yield piece


def read_attempt(backend: Backend, reference: JobReference, attempt: int, host: int = 0) -> bytes:
    """Read everything that one attempt of a host has printed."""
    return b"".join(read_pieces(backend, reference, attempt, host))


def read_log(
    backend: Backend, reference: JobReference, last: int, host: int | None = None, first: int = 0
) -> str:
    """Read the log of attempts `first` to `last`, in order: of all hosts, or of one host without prefixes."""
    hosts = range(host_count(reference)) if host is None else [host]
    parts = []
    for attempt in range(first, last + 1):
        for each in hosts:
            text = read_attempt(backend, reference, attempt, each).decode(errors="replace")
            parts.append(_prefixed(text, each) if len(hosts) > 1 else text)
    return "".join(parts)


def last_lines(backend: Backend, reference: JobReference, attempt: int) -> tuple[str, ...]:
    """Read the last lines of an attempt, of every host: the evidence stored with a failure.

    What a terminal would obey is spelt out: whoever can write the bucket can have written them.
    """
    hosts = host_count(reference)
    kept: list[str] = []
    for host in range(hosts):
        lines, last = LineBuffer(), deque[str](maxlen=max(1, _EVIDENCE_LINES // hosts))
        for piece in read_pieces(backend, reference, attempt, host, -_EVIDENCE_BYTES):
            last.extend(line.text for line in lines.add(piece))
        if lines.size:
            last.append(lines.end().text)
        kept += (printable(f"[host {host}] {text}" if hosts > 1 else text) for text in last)
    return tuple(kept[-_EVIDENCE_LINES:])


@dataclass
class FollowedJob:
    """State of a job whose log is followed, as an observer is told of it."""

    attempt: int = 0
    """Last attempt that is known to have begun."""
    _has_ended: bool = False
    _trouble: KineticError | None = None

    def see(self, seen: JobObservation) -> None:
        """Take an observation."""
        self.attempt = max(self.attempt, seen.attempt)
        self._has_ended = self._has_ended or seen.is_terminal

    def lose(self, trouble: KineticError) -> None:
        """Take the reason why no observation will come."""
        self._trouble = trouble

    def has_ended(self) -> bool:
        """Return whether the job has ended. Raises what `lose` was told."""
        if self._trouble is not None:
            raise self._trouble
        return self._has_ended


def follow_log(
    backend: Backend,
    reference: JobReference,
    ended: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
    attempt: Callable[[], int] = lambda: 0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[str]:
    """Yield what the job prints, attempt by attempt, until `ended()` is true and everything is read.

    Yields pieces, not lines, to show a progress bar that ends in no newline. Every attempt starts a line. A
    slice yields whole lines, each with its host. `attempt()` is the last one that is known to have begun:
    attempts before it may have printed nothing.

    A log that cannot be read for a while is read later, where it broke off; after the job's end for a minute.
    Raises what does not pass by itself.
    """
    hosts = host_count(reference)
    followed = [_HostLog(backend, reference, host) for host in range(hosts)]
    rest, outage = [""] * hosts, _Outage(reference, clock)
    while True:
        over, quiet = ended(), True
        for host, log in enumerate(followed):
            try:
                text = log.read(over, attempt())
            except (StoreError, ClusterError) as exc:
                sleep(outage.pause_after(exc, over=over))
                quiet = False
                continue
            outage.end()
            if text is None:
                continue
            quiet = False
            if hosts > 1:
                if "\n" not in text and len(rest[host]) + len(text) < _PIECE:
                    rest[host] += text
                    continue
                whole, newline, rest[host] = (rest[host] + text).rpartition("\n")
                if not newline:  # a line without end is broken
                    whole, rest[host] = rest[host], ""
                text = _prefixed(whole + newline, host)
            if text:
                yield text
        if quiet and over:
            yield from (_prefixed(text, host) for host, text in enumerate(rest) if text)
            return
        if quiet:
            sleep(_POLL_SECONDS)


class _Outage:
    """Time for which a log cannot be read, which is told once."""

    def __init__(self, reference: JobReference, clock: Callable[[], float]) -> None:
        self._reference, self._clock = reference, clock
        self._began: float | None = None
        self._pauses = pauses()

    def pause_after(self, error: StoreError | ClusterError, *, over: bool) -> float:
        """Return the seconds until the next attempt; raise an error after which there is none."""
        if not error.is_passing:
            raise error
        now = self._clock()
        if self._began is None:
            self._began, self._pauses = now, pauses()
            _LOG.warning("the log of %s cannot be read now, trying again: %s", self._reference.job_id, error)
        if over and now - self._began > _OUTAGE_SECONDS:
            raise error
        return next(self._pauses)

    def end(self) -> None:
        """Forget the outage: the log was read."""
        self._began = None


class _HostLog:
    """Reading position in one host's log."""

    def __init__(self, backend: Backend, reference: JobReference, host: int) -> None:
        self._backend, self._reference, self._host = backend, reference, host
        self._attempt, self._offset, self._at_start = 0, 0, True
        self._decoder = _decoder()
        self._stored: StoredLog | None = None
        self._pieces: Iterator[bytes] = iter(())
        """Rest of what the last listing of the stored chunks found."""
        self._asked = float("-inf")
        self._is_read = False

    def _is_due(self) -> bool:
        """Return whether to look for stored output of a call that runs on a worker: once a second."""
        if not self._reference.worker or time.monotonic() - self._asked < _STORED_SECONDS:
            return False
        self._asked = time.monotonic()
        return True

    def read(self, over: bool, last: int) -> str | None:
        """Read the new part; return None if there is none, and never will be once the job is `over`.

        `last` is the last attempt that is known to have begun.
        """
        if self._is_read:
            return None
        chunk, follows = next(self._pieces, b""), None
        if not chunk:
            with_stored = over or self._is_due()
            chunk = self._next(with_stored)
            if not chunk and (follows := self._following(with_stored, last)) is not None and not with_stored:
                chunk = self._next(True)  # its pod may have gone before all of it was read
        self._offset += len(chunk)
        if chunk:
            text = self._decoder.decode(chunk)
            self._at_start = text.endswith("\n") if text else self._at_start
            return text
        if follows is None and not over:
            return None
        text = self._decoder.decode(b"", final=True) + ("" if self._at_start else "\n")
        self._at_start = True
        if follows is not None:
            self._attempt, self._offset, self._decoder, self._stored = follows, 0, _decoder(), None
            return text
        self._is_read = not text
        return text or None

    def _next(self, with_stored: bool) -> bytes:
        """Return the next piece of the container's log; `with_stored`, of the chunks if its pod is gone."""
        where = self._reference.namespace, self._reference.job_id
        piece = self._backend.log(*where, self._attempt, self._offset, self._host, _PIECE)
        if piece is not None:
            self._stored = None
        elif with_stored:
            if self._stored is None:
                place = self._reference, self._attempt, self._host, self._offset
                self._stored = StoredLog(self._backend.store, *place)
            self._pieces = self._stored.pieces()
            piece = next(self._pieces, None)
        return piece or b""

    def _following(self, with_stored: bool, last: int) -> int | None:
        """Return the next attempt that has printed something, up to the `last` one."""
        where = self._reference.namespace, self._reference.job_id
        for attempt in range(self._attempt + 1, max(self._attempt + 1, last) + 1):
            piece = self._backend.log(*where, attempt, 0, self._host, 1)
            if piece is None and with_stored:
                stored = StoredLog(self._backend.store, self._reference, attempt, self._host)
                piece = next(stored.pieces(), None)
            if piece:
                return attempt
        return None


def _prefix(reference: JobReference, attempt: int, host: int) -> str:
    """Return the prefix of the stored chunks of one attempt of a host."""
    return object_names.log(reference.job_id, attempt, 0, host).rpartition("/")[0] + "/"


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


def _prefixed(text: str, host: int) -> str:
    return "".join(f"[host {host}] {line}\n" for line in text.splitlines())
