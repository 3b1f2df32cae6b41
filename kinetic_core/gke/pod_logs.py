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
_LOG = logging.getLogger(__name__)


class PodLog:
    """What a pod's container has printed so far, in a thread that lives while somebody reads.

    A broken connection is made again; the log then comes from its start, and what is known is skipped.
    """

    def __init__(
        self, api: ClusterApi, namespace: str, pod: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._api, self._namespace, self._pod, self._sleep = api, namespace, pod, sleep
        self._text = bytearray()
        self._asked = time.monotonic()
        self._ended = False
        threading.Thread(target=self._follow, name=f"kinetic-log-{pod}", daemon=True).start()

    def read(self, offset: int) -> bytes:
        """What is known from a byte offset on."""
        self._asked = time.monotonic()
        return bytes(memoryview(self._text)[offset:])

    @property
    def is_alive(self) -> bool:
        """Whether the thread still follows; a reader that comes back later starts another."""
        return not self._ended

    def _follow(self) -> None:
        try:
            while time.monotonic() - self._asked < _IDLE_SECONDS:
                try:
                    self._take_all()
                except ClusterError as exc:
                    _LOG.debug("the log of %s broke off, reading on: %s", self._pod, exc)
                    self._sleep(_RETRY_SECONDS)
                else:
                    return
        finally:
            self._ended = True

    def _take_all(self) -> None:
        seen = 0
        for piece in self._api.follow_pod_log(self._namespace, self._pod, CONTAINER):
            known = len(self._text) - seen
            self._text += piece[max(known, 0) :]
            seen += len(piece)
            if time.monotonic() - self._asked > _IDLE_SECONDS:
                return
