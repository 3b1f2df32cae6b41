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
        threading.Thread(target=self._follow, name=f"kinetic-log-{pod}", daemon=True).start()

    def read(self, offset: int) -> bytes:
        """What is known from a byte offset on."""
        self._asked = time.monotonic()
        return bytes(memoryview(self._text)[offset:])

    def _follow(self) -> None:
        fruitless = 0
        try:
            while time.monotonic() - self._asked < _IDLE_SECONDS and not self.was_given_up:
                known = len(self._text)
                try:
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

    def _take_all(self) -> None:
        seen = 0
        for piece in self._api.follow_pod_log(self._namespace, self._pod, CONTAINER):
            begins = (bytes(self._text[seen:_HEAD]) or self._head[seen:])[: len(piece)]
            if not piece.startswith(begins):
                self.was_given_up = True
                return
            known = len(self._text) - seen
            self._text += piece[max(known, 0) :]
            seen += len(piece)
            if time.monotonic() - self._asked > _IDLE_SECONDS:
                return
