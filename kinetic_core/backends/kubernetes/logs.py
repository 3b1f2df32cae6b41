"""Log of a job: on the node while the container runs there, in the store for good.

Both hold the same bytes, since the runner prints and stores what it reads from user code: a reader can
continue at the same offset in the other.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.client import ClusterApi, SilentLog
from kinetic_core.backends.kubernetes.names import CONTAINER
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.backends.kubernetes.pods import is_silent
from kinetic_core.errors import ClusterError, ObjectNotFound
from kinetic_core.store.protocol import ObjectInfo, ObjectStore

_IDLE_SECONDS = 60.0
_RETRY_SECONDS = 0.5
_AGAIN_SECONDS = 5.0
"""Seconds before a log that has ended is asked for again: its pod is normally seen to be over by then."""
_SILENT_SECONDS = 60.0
"""Seconds without a byte after which a connection may be dead."""
_MOST_SILENT = 4
"""Times as many seconds for a pod that goes on printing nothing: each time, its log comes from its start."""
_FRUITLESS = 5
"""Connections in a row that may bring no byte."""
_HEAD = 1024
_HELD = 4 << 20
"""Newest bytes that are held at least."""
_BEGIN_SECONDS = 10.0
_LOG = logging.getLogger(__name__)


class PodLog:
    """Recent output of a pod's container, read by a thread that lives while somebody reads.

    Only the newest 8 MiB are held; older bytes are read elsewhere.

    A connection that is broken, or silent for long, is made again; the log then comes from its start, and
    known bytes are skipped. A node keeps the newest 10 MiB or so: a log with another beginning than known has
    lost its start, and is given up, as is one that the node does not serve.
    """

    def __init__(
        self,
        api: ClusterApi,
        namespace: str,
        pod: str,
        head: bytes = b"",
        sleep: Callable[[float], None] = time.sleep,
        again_seconds: float = _AGAIN_SECONDS,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        """Prepare to follow a pod's log. `head`: the known beginning of the log."""
        self._silent_seconds = silent_seconds
        self._api, self._namespace, self._pod, self._sleep = api, namespace, pod, sleep
        self._head, self._again_seconds = head[:_HEAD], again_seconds
        self._begin = bytearray()
        self._text = bytearray()
        self._dropped = 0
        """Bytes of the log before `_text`."""
        self._lock = threading.Lock()
        self._asked = time.monotonic()
        self._again_at = float("inf")
        """Time from which on somebody else may follow the log; infinite while the thread follows it."""
        self.was_given_up = False
        self.is_broken = True
        """Whether the node does not serve the log: it has not answered yet, or the container is gone."""
        self._begun = threading.Event()
        threading.Thread(target=self._follow, name=f"kinetic-log-{pod}", daemon=True).start()

    def read(self, offset: int, size: int) -> bytes | None:
        """Return at most `size` known bytes from an offset on; None if they are no longer held.

        The first call waits for what had been printed until then.
        """
        self._asked = time.monotonic()
        self._begun.wait(_BEGIN_SECONDS)
        with self._lock:
            at = offset - self._dropped
            return None if at < 0 or self.was_given_up else bytes(self._text[at : at + size])

    @property
    def is_idle(self) -> bool:
        """Return whether nobody has read the log for a minute."""
        return time.monotonic() - self._asked > _IDLE_SECONDS

    @property
    def is_over(self) -> bool:
        """Return whether the thread has stopped, and following the log anew may bring more of it."""
        return time.monotonic() >= self._again_at and not self.was_given_up

    def _follow(self) -> None:
        fruitless, again_after = 0, 0.0
        try:
            while not self.is_idle and not self.was_given_up:
                known = self._size
                try:
                    if not self._begun.is_set():
                        text = self._api.pod_log(self._namespace, self._pod, CONTAINER)
                        self.is_broken = text is None
                        self._take(0, text or b"")
                        self._begun.set()
                    self._take_all()
                except ClusterError as exc:
                    self.is_broken = True
                    fruitless = fruitless + 1 if self._size == known else 0
                    self.was_given_up = self.was_given_up or fruitless >= _FRUITLESS
                    _LOG.debug("the log of %s broke off: %s", self._pod, exc)
                    self._sleep(_RETRY_SECONDS)
                else:
                    again_after = 0.0 if self.is_idle else self._again_seconds
                    return
        finally:
            self._again_at = time.monotonic() + again_after
            self._begun.set()

    def _take_all(self) -> None:
        """Take the log until container or connection ends, asking anew whenever no byte comes for long."""
        silent_seconds = self._silent_seconds
        while not self.was_given_up and not self.is_idle:
            known = self._size
            try:
                self._take_stream(silent_seconds)
            except SilentLog as exc:
                _LOG.debug("the log of %s is silent: %s", self._pod, exc)
            else:
                return
            if not self._runs():
                self.is_broken = True
                return
            longer = min(2 * silent_seconds, _MOST_SILENT * self._silent_seconds)
            silent_seconds = longer if self._size == known else self._silent_seconds

    def _runs(self) -> bool:
        pod = self._api.get("Pod", self._namespace, self._pod)
        return pod is not None and pod["status"].get("phase") == "Running"

    def _take_stream(self, silent_seconds: float) -> None:
        seen = 0
        for piece in self._api.follow_pod_log(self._namespace, self._pod, CONTAINER, silent_seconds):
            self.is_broken = False
            self._take(seen, piece)
            seen += len(piece)
            if self.was_given_up or self.is_idle:
                return

    def _take(self, at: int, piece: bytes) -> None:
        """Add the new bytes of a piece of the log that begins at an offset."""
        expected = bytes(self._begin[at:]) or self._head[at:]
        if not piece.startswith(expected[: len(piece)]):
            self.was_given_up = True
            return
        new = piece[max(self._size - at, 0) :]
        with self._lock:
            self._begin += new[: _HEAD - len(self._begin)]
            self._text += new
            if len(self._text) > 2 * _HELD:
                self._dropped += len(self._text) - _HELD
                del self._text[: len(self._text) - _HELD]

    @property
    def _size(self) -> int:
        return self._dropped + len(self._text)


_ENDED_KEPT = 4
_POLL_SECONDS = 1.0
_OVERLAP = 1024
_PIECE = 1 << 20
_RUNNERS_OWN = (
    wire.EXIT_SUCCEEDED,
    wire.EXIT_USER_ERROR,
    wire.EXIT_NEVER_RETRY,
    wire.EXIT_FENCED,
    wire.EXIT_UNSURE,
    wire.EXIT_REGROUP,
    wire.EXIT_INTERRUPTED,
)
"""Exit codes before which the runner has stored the whole log."""


class JobLogs:
    """Logs of one backend's jobs, by the UIDs of their pods, because a set's new pods reuse names."""

    def __init__(
        self,
        api: ClusterApi,
        store: ObjectStore,
        again_seconds: float = _AGAIN_SECONDS,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        self._api, self._store = api, store
        self._again_seconds, self._silent_seconds = again_seconds, silent_seconds
        self._followers: dict[str, PodLog] = {}
        self._kept: dict[str, _KeptLog] = {}
        self._ended: dict[str, tuple[_KeptLog, bytes]] = {}

    def read(
        self, namespace: str, job_id: str, pod: Mapping[str, Any], offset: int, size: int = -1
    ) -> bytes | None:
        """Read what a pod's container printed from a byte offset on; None for a pod that has not started.

        At most `size` bytes, unless `size` is negative.
        """
        phase = (pod.get("status") or {}).get("phase")
        if phase not in ("Running", "Succeeded", "Failed"):
            return None
        if size >= 0:
            return self._part(namespace, job_id, pod, offset, size)
        pieces = []
        while piece := self._part(namespace, job_id, pod, offset, _PIECE):
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def _part(self, namespace: str, job_id: str, pod: Mapping[str, Any], offset: int, size: int) -> bytes:
        if (pod.get("status") or {}).get("phase") == "Running":
            return self._running(namespace, job_id, pod, offset, size)
        kept, end = self._whole(namespace, job_id, pod)
        return kept.read(offset, size) or end[max(0, offset - kept.size) :][:size]

    def _running(self, namespace: str, job_id: str, pod: Mapping[str, Any], offset: int, size: int) -> bytes:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        kept = self._kept.setdefault(uid, _KeptLog(self._store, job_id, pod))
        follower = self._followers.get(uid)
        if is_silent(Pod(pod)):
            return kept.read(offset, size)
        if follower is None or follower.is_over:
            self._forget_idle()
            follower = self._followers[uid] = PodLog(
                self._api,
                namespace,
                name,
                kept.head(),
                again_seconds=self._again_seconds,
                silent_seconds=self._silent_seconds,
            )
        text = follower.read(offset, size)
        if text is None or (not text and follower.is_broken):
            return kept.read(offset, size)
        return text

    def _forget_idle(self) -> None:
        """Drop idle logs: a triggerer lives for months, and most logs are read to their end elsewhere."""
        caches: tuple[dict[str, Any], ...] = (self._followers, self._kept)
        for logs in caches:
            for name in [name for name, log in list(logs.items()) if log.is_idle]:
                logs.pop(name, None)

    def _whole(self, namespace: str, job_id: str, pod: Mapping[str, Any]) -> tuple[_KeptLog, bytes]:
        """Return the stored log of a container that has ended, and what the node has beyond its end."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self._followers.pop(uid, None)
        self._kept.pop(uid, None)
        if uid in self._ended:
            return self._ended[uid]
        kept, end = _KeptLog(self._store, job_id, pod), b""
        kept.look()
        if not kept.size or Pod(pod).exit_code not in _RUNNERS_OWN:
            try:
                end = _beyond(kept, self._api.pod_log(namespace, name, CONTAINER) or b"")
            except ClusterError as exc:  # a dead node's; the verdict must not wait for it
                return kept, f"kinetic: the node does not give the end of the log: {exc}\n".encode()
        if len(self._ended) >= _ENDED_KEPT:
            self._ended.clear()
        self._ended[uid] = kept, end
        return kept, end


class _KeptLog:
    """Log that the runner of one pod has stored, chunk by chunk, each read at first use."""

    def __init__(self, store: ObjectStore, job_id: str, pod: Mapping[str, Any]) -> None:
        self._store = store
        self._first = object_names.log(job_id, Pod(pod).attempt, 0, Pod(pod).host)
        self._chunks: list[ObjectInfo] = []
        self._starts: list[int] = []
        self.size = 0
        """Bytes that are known to be stored."""
        self._ask_at = 0.0
        self._read_at = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Return whether nobody has read the log for a minute."""
        return time.monotonic() - self._read_at > _IDLE_SECONDS

    def head(self) -> bytes:
        """Return the beginning of the log, as far as it is stored."""
        return self.read(0, _OVERLAP)

    def read(self, offset: int, size: int) -> bytes:
        """Read stored bytes of one chunk from an offset on; new chunks are looked for once a second."""
        self._read_at = time.monotonic()
        if offset >= self.size and time.monotonic() >= self._ask_at:
            self.look()
            self._ask_at = time.monotonic() + _POLL_SECONDS
        if offset >= self.size:
            return b""
        number = bisect.bisect_right(self._starts, offset) - 1
        try:
            return self._store.read_range(self._chunks[number].name, offset - self._starts[number], size)
        except ObjectNotFound:
            return b""  # somebody has removed it: the log that is left ends here

    def look(self) -> None:
        """List the chunks that are stored now, up to the first gap."""
        folder = self._first.rpartition("/")[0] + "/"
        for info in self._store.list(folder):
            if info.name == f"{folder}{len(self._chunks):08d}" and info.size:
                self._chunks.append(info)
                self._starts.append(self.size)
                self.size += info.size


def _beyond(kept: _KeptLog, on_node: bytes) -> bytes:
    """Return what the node has beyond the end of the stored log."""
    if not kept.size or not on_node:
        return on_node
    start, end = max(0, kept.size - _OVERLAP), b""
    while piece := kept.read(start + len(end), _OVERLAP):
        end += piece
    if on_node[start : kept.size] == end:  # the node has the log from its beginning
        return on_node[kept.size :]
    at = on_node.find(end)  # rather the first place: lines may come twice, but none is lost
    if at >= 0:
        return on_node[at + len(end) :]
    return b"kinetic: what was printed here is lost, the node has only the end\n" + on_node
