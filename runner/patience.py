"""Patient store, for the end of user code: hours of work are not lost to minutes without a store."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TypeVar

from .store import Content, SinkType, Store, StoreUnavailable

Answer = TypeVar("Answer")

KEPT_SECONDS = 3600.0
"""Seconds for which the end of user code is kept in the pod for a store that does not answer."""
_PAUSE = 5.0
_SHORT_PAUSE = 0.5
_LASTING = (
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EPROTO,
)
"""Errors that only a person can mend: no permission, no bucket or directory, no room, a refusal."""


class PatientStore:
    """Store that repeats requests to another store which does not answer, once `keep` has said for how long.

    No claim is made and no lease renewed meanwhile, and neither is needed: no user code runs any
    more, an outcome is stored only where there is none, and a later attempt finds it there.
    """

    def __init__(
        self,
        store: Store,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uri = store.uri
        self._store, self._sleep, self._clock = store, sleep, clock
        self._give_up = clock()
        self._is_hurried = self._has_other_work = False

    def keep(self, seconds: float, *, hurried: bool = False) -> None:
        """Repeat requests for `seconds` from now on.

        `hurried`: a connection that says nothing is soon replaced, because the pod is about to be killed.
        """
        self._give_up, self._is_hurried = self._clock() + seconds, hurried

    def read(self, name: str) -> bytes:
        return self._answered(lambda: self._store.read(name))

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        return self._answered(lambda: self._store.read_range(name, offset, size))

    def download(self, name: str, new_sink: Callable[[], SinkType]) -> SinkType:
        return self._answered(lambda: self._store.download(name, new_sink))

    def create_if_absent(
        self, name: str, content: bytes | Content, metadata: Mapping[str, str] | None = None
    ) -> bool:
        return self._answered(lambda: self._store.create_if_absent(name, content, metadata))

    def replace(self, name: str, content: bytes | Content, metadata: Mapping[str, str] | None = None) -> None:
        self._answered(lambda: self._store.replace(name, content, metadata))

    def fetch(self, name: str, most: int) -> str:
        return self._answered(lambda: self._store.fetch(name, most))

    def age(self, name: str) -> float:
        return self._answered(lambda: self._store.age(name))

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Repeat nothing inside the context, whatever `keep` has said: its caller tries again itself."""
        before, self._has_other_work = self._has_other_work, True
        try:
            with self._store.hurried():
                yield
        finally:
            self._has_other_work = before

    def _answered(self, ask: Callable[[], Answer]) -> Answer:
        pause = _SHORT_PAUSE
        while True:
            try:
                with self._store.hurried() if self._is_hurried else nullcontext():
                    return ask()
            except StoreUnavailable as exc:
                left = self._give_up - self._clock()
                if left <= 0 or self._has_other_work or exc.errno in _LASTING:
                    raise
                sys.stderr.write(f"kinetic: what user code has left is kept until the store answers: {exc}\n")
            self._sleep(min(pause, left))
            if not self._is_hurried:
                pause = min(2 * pause, _PAUSE)
