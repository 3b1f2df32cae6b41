"""The log of a running container, followed once for all who read it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.names import CONTAINER
from kinetic_core.errors import ClusterError

_IDLE_SECONDS = 60.0
_RETRY_SECONDS = 0.5
_FRUITLESS = 5
"""How many connections in a row may bring nothing."""
_HEAD = 1024
_BEGIN_SECONDS = 10.0
_LOG = logging.getLogger(__name__)


class PodLog:
    """What a pod's container has printed so far, in a thread that lives while somebody reads.

    A broken connection is made again; the log then comes from its start, and what is known is skipped. A
    node keeps the newest 10 MiB or so: a log that begins otherwise than it should has lost its start, and
    is given up, as is one that the node does not give.
    """

    def __init__(
        self,
        api: ClusterApi,
        namespace: str,
        pod: str,
        head: bytes = b"",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`head`: how the log is known to begin."""
        self._api, self._namespace, self._pod, self._sleep = api, namespace, pod, sleep
        self._head = head[:_HEAD]
        self._text = bytearray()
        self._asked = time.monotonic()
        self.has_ended = False
        """Whether the thread has stopped; a reader that comes back later starts another."""
        self.was_given_up = False
        self._begun = threading.Event()
        threading.Thread(target=self._follow, name=f"kinetic-log-{pod}", daemon=True).start()

    def read(self, offset: int) -> bytes:
        """What is known from a byte offset on; the first time, all that had been printed until now."""
        self._asked = time.monotonic()
        self._begun.wait(_BEGIN_SECONDS)
        return bytes(memoryview(self._text)[offset:])

    @property
    def is_idle(self) -> bool:
        """Whether nobody has read it for a minute."""
        return time.monotonic() - self._asked > _IDLE_SECONDS

    def _follow(self) -> None:
        fruitless = 0
        try:
            while not self.is_idle and not self.was_given_up:
                known = len(self._text)
                try:
                    if not self._begun.is_set():
                        self._take(0, self._api.pod_log(self._namespace, self._pod, CONTAINER) or b"")
                        self._begun.set()
                    self._take_all()
                except ClusterError as exc:
                    fruitless = fruitless + 1 if len(self._text) == known else 0
                    self.was_given_up = self.was_given_up or fruitless >= _FRUITLESS
                    _LOG.debug("the log of %s broke off: %s", self._pod, exc)
                    self._sleep(_RETRY_SECONDS)
                else:
                    return
        finally:
            self.has_ended = True
            self._begun.set()

    def _take_all(self) -> None:
        seen = 0
        for piece in self._api.follow_pod_log(self._namespace, self._pod, CONTAINER):
            self._take(seen, piece)
            seen += len(piece)
            if self.was_given_up or self.is_idle:
                return

    def _take(self, at: int, piece: bytes) -> None:
        """Add what is new in a piece of the log that begins at an offset."""
        expected = bytes(self._text[at:_HEAD]) or self._head[at:]
        if not piece.startswith(expected[: len(piece)]):
            self.was_given_up = True
        else:
            self._text += piece[max(len(self._text) - at, 0) :]
