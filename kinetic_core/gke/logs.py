"""A job's log from wherever it is now: the node while the container runs there, the store for ever.

Both hold the same bytes, since the runner prints and keeps what it reads from user code: a reader with an
offset in one goes on with it in the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.names import CONTAINER
from kinetic_core.cluster.pods import attempt_of, host_of, is_silent, terminated
from kinetic_core.errors import ClusterError, ObjectNotFound
from kinetic_core.gke.pod_logs import PodLog
from kinetic_core.storage.protocol import ObjectStore

_ENDED_KEPT = 4
_POLL_SECONDS = 1.0
_IDLE_SECONDS = 60.0
_OVERLAP = 1024
_RUNNERS_OWN = (
    wire.EXIT_SUCCEEDED,
    wire.EXIT_USER_ERROR,
    wire.EXIT_NEVER_RETRY,
    wire.EXIT_FENCED,
    wire.EXIT_REGROUP,
    wire.EXIT_INTERRUPTED,
)
"""Exit codes before which the runner has stored the whole log."""


class JobLogs:
    """The logs of one backend's jobs, by their pods' UIDs: a set's pods come again by the same names."""

    def __init__(self, api: ClusterApi, store: ObjectStore) -> None:
        self._api, self._store = api, store
        self._followers: dict[str, PodLog] = {}
        self._kept: dict[str, _KeptLog] = {}
        self._ended: dict[str, bytes] = {}

    def read(self, namespace: str, job_id: str, pod: Mapping[str, Any], offset: int) -> bytes | None:
        """What a pod's container printed, from a byte offset on; None for one that has not started."""
        phase = (pod.get("status") or {}).get("phase")
        if phase == "Running":
            return self._running(namespace, job_id, pod, offset)
        return self._whole(namespace, job_id, pod)[offset:] if phase in ("Succeeded", "Failed") else None

    def _running(self, namespace: str, job_id: str, pod: Mapping[str, Any], offset: int) -> bytes:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        kept = self._kept.setdefault(uid, _KeptLog(self._store, job_id, pod))
        follower = self._followers.get(uid)
        if is_silent(pod):
            return kept.read(offset)
        if follower is None or (follower.has_ended and not follower.was_given_up):
            self._forget_idle()
            follower = self._followers[uid] = PodLog(self._api, namespace, name, kept.head())
        text = follower.read(offset)
        return kept.read(offset) if follower.was_given_up else text

    def _forget_idle(self) -> None:
        """A triggerer lives for months, and most logs are read to their end elsewhere."""
        caches: tuple[dict[str, Any], ...] = (self._followers, self._kept)
        for logs in caches:
            for name in [name for name, log in list(logs.items()) if log.is_idle]:
                logs.pop(name, None)

    def _whole(self, namespace: str, job_id: str, pod: Mapping[str, Any]) -> bytes:
        """All that a container printed that has ended: it does not change, so it is read once."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._followers.pop(uid, None)
        self._kept.pop(uid, None)
        if uid in self._ended:
            return self._ended[uid]
        text = _KeptLog(self._store, job_id, pod).read(0)
        if not text or (terminated(pod) or {}).get("exitCode") not in _RUNNERS_OWN:
            try:
                text = _joined(text, self._api.pod_log(namespace, name, CONTAINER) or b"")
            except ClusterError as exc:  # a dead node's; the verdict must not wait for it
                return text + f"kinetic: the node does not give the end of the log: {exc}\n".encode()
        if len(self._ended) >= _ENDED_KEPT:
            self._ended.clear()
        self._ended[uid] = text
        return text


class _KeptLog:
    """What the runner in one pod has stored of its log, chunk by chunk."""

    def __init__(self, store: ObjectStore, job_id: str, pod: Mapping[str, Any]) -> None:
        self._store, self._job_id = store, job_id
        self._attempt, self._host = attempt_of(pod), host_of(pod)
        self._text = bytearray()
        self._next = 0
        self._ask_at = 0.0
        self._read_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether nobody has read it for a minute."""
        return time.monotonic() - self._read_at > _IDLE_SECONDS

    def head(self) -> bytes:
        """How the log begins, as far as it is stored."""
        self._take()
        return bytes(self._text)

    def read(self, offset: int) -> bytes:
        """What is stored from a byte offset on; the store is asked once a second at most."""
        self._read_at = time.monotonic()
        if time.monotonic() >= self._ask_at:
            while self._take():
                continue
            self._ask_at = time.monotonic() + _POLL_SECONDS
        return bytes(memoryview(self._text)[offset:])

    def _take(self) -> bool:
        try:
            self._text += self._store.read(
                wire.log_object(self._job_id, self._attempt, self._next, self._host)
            )
        except ObjectNotFound:
            return False
        self._next += 1
        return True


def _joined(kept: bytes, on_node: bytes) -> bytes:
    """The kept log, and what the node has beyond its end."""
    if not kept or not on_node:
        return kept or on_node
    end = kept[-_OVERLAP:]
    at = on_node.rfind(end)
    if at >= 0:
        return kept + on_node[at + len(end) :]
    return kept + b"kinetic: what was printed here is lost, the node has only the end\n" + on_node
