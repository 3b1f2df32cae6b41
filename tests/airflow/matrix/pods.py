"""Jobs as pods of the cluster of $KUBECONFIG, which a watch sees come and go."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError
from kinetic_core.jobs.cancel import cancel
from kinetic_core.jobs.facts import observed
from kinetic_core.jobs.observe import find
from kinetic_core.settings import read_settings
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.store.protocol import ObjectStore
from matrix.cells import STEPS, WAITING, Cell, Phase
from matrix.places import LIVING, REPORTING, Jobs, Steps

BUCKET = "test-bucket"
_JOBS = r"/apis/batch/v1/namespaces/[^/]+/jobs"
_REQUESTS = (
    r'"name": "[^"]+/payload-[0-9a-f]+\.pkl"',
    r'"name": "[^"]+/handle\.json"',
    rf"^POST {_JOBS} ",
    rf"^GET {_JOBS}",
    r"^GET /storage/[^ ]+prefix=[^ &]+%2Flog%2F",
    r"^GET /storage/[^ ]+%2Fresult\?alt=media",
    rf"^DELETE {_JOBS}",
)
_ROOM = "kinetic.test/{}.{}"
"""A label that nodes with room for a cell have, by the run of the matrix and the cell."""
_WATCH_SECONDS = 5.0


class Pods:
    """The place of all cells' jobs: a namespace."""

    name = "pods"

    def __init__(self, namespace: str = "default") -> None:
        requests = (("http.client.send", pattern) for pattern in _REQUESTS)
        self.steps: Steps = dict(zip(STEPS, (*requests, (REPORTING, "")), strict=True))
        self._run = f"matrix-{os.getpid()}"
        self.data = f"{BUCKET}/{self._run}/cells"
        self._settings: Mapping[str, str] = {
            "KINETIC_KUBECONFIG": os.environ["KUBECONFIG"],
            "KINETIC_BUCKET": f"{BUCKET}/{self._run}/kinetic",
            "KINETIC_CONTAINER_IMAGE": os.environ["KINETIC_TEST_IMAGE"],
            "KINETIC_NAMESPACE": namespace,
        }
        self._namespace = namespace
        self._api = ClusterApi(Target(os.environ["KUBECONFIG"]))
        self._rooms: set[str] = set()
        self._backend = open_backend("gke", Connections(read_settings(self._settings)))
        self._watch = _Watch(self._api, namespace, f"tests={self._run}")
        self._watch.start()

    def prepare(self, cells: Iterable[Cell]) -> Mapping[str, str]:
        """All are in one namespace and one bucket."""
        return self._settings

    def options(self, cell: Cell) -> dict[str, Any]:
        small = {"backend": "gke", "cpu": 0.1, "memory": "160Mi"}
        labels = {"labels": {"tests": self._run, "dag": _as_label(cell.dag_id)}}
        label = {_ROOM.format(self._run, cell.dag_id): "1"}
        room = {"node_selector": label} if cell.phase == Phase.QUEUED else {}
        held = {"deferrable": False} if cell.phase == WAITING else {}  # a pod may take longer than patience
        return {**small, **labels, **room, **held}

    def jobs(self, cell: Cell, folder: Path) -> Jobs:
        signs = GcsObjectStore.at(f"{self.data}/{cell.dag_id}")
        room = partial(self._give_room, cell.dag_id)
        return _Jobs(_as_label(cell.dag_id), signs, self._backend, self._watch, room)

    def close(self) -> None:
        self._watch.close()
        self._api.delete_all("Job", self._namespace, f"tests={self._run}")
        self._label(dict.fromkeys(self._rooms))

    def _give_room(self, dag_id: str) -> None:
        room = _ROOM.format(self._run, dag_id)
        if room not in self._rooms:
            self._rooms.add(room)
            self._label({room: "1"})

    def _label(self, labels: Mapping[str, str | None]) -> None:
        for node in self._api.list("Node", "")["items"]:
            self._api.patch("Node", "", node["metadata"]["name"], {"metadata": {"labels": labels}})


def _as_label(dag_id: str) -> str:
    """The DAG's name as a label, which has at most 63 characters."""
    return dag_id[:63].rstrip("-_")


class _Watch(threading.Thread):
    """All pods there ever were, by the DAG that is a label of theirs: in `ids` their jobs, in order."""

    def __init__(self, api: ClusterApi, namespace: str, selector: str) -> None:
        super().__init__(daemon=True)
        self._api, self._namespace, self._query = api, namespace, {"labelSelector": selector}
        self._over = threading.Event()
        self.ids: dict[str, list[str]] = defaultdict(list)
        self.living: dict[str, set[str]] = defaultdict(set)
        self.overlaps: dict[str, int] = defaultdict(int)

    def run(self) -> None:
        version = ""
        while not self._over.is_set():
            try:
                version = version or self._all()
                watch = self._api.watch("Pod", self._namespace, self._query, version, _WATCH_SECONDS)
                for event, pod in watch:
                    version = pod["metadata"]["resourceVersion"]
                    if event != "BOOKMARK":
                        self._see(pod, event != "DELETED")
            except ClusterError:
                version = ""

    def _all(self) -> str:
        found = self._api.list("Pod", self._namespace, self._query)
        there = {pod["metadata"]["uid"] for pod in found["items"]}
        for living in list(self.living.values()):  # others ask for more of them meanwhile
            living &= there
        for pod in found["items"]:
            self._see(pod, True)
        return str(found["metadata"]["resourceVersion"])

    def _see(self, pod: Mapping[str, Any], is_there: bool) -> None:
        facts = pod["metadata"]
        dag_id, job_id = facts["labels"]["dag"], facts["labels"][JOB_ID]
        living = self.living[dag_id]
        if job_id not in self.ids[dag_id]:
            self.ids[dag_id].append(job_id)
        if not is_there or pod["status"]["phase"] in ("Succeeded", "Failed"):
            living.discard(facts["uid"])
        elif facts["uid"] not in living:
            self.overlaps[dag_id] += bool(living)
            living.add(facts["uid"])

    def close(self) -> None:
        self._over.set()
        self.join()


class _Jobs:
    def __init__(
        self, label: str, signs: ObjectStore, backend: Backend, watch: _Watch, room: Callable[[], None]
    ) -> None:
        self._label, self._signs, self._room = label, signs, room
        self._backend, self._watch = backend, watch

    def put(self, name: str) -> None:
        self._signs.create_if_absent(name, b"-")

    def drop(self, name: str) -> None:
        self._signs.delete(name)

    def journal(self, event: str) -> list[float]:
        told = sorted(info.name.removeprefix("journal/") for info in self._signs.list("journal/"))
        return [float(at) for at, _, what in (name.partition("-") for name in told) if what == event]

    def overlaps(self) -> int:
        return self._watch.overlaps[self._label]

    def ids(self) -> list[str]:
        return list(self._watch.ids[self._label])

    def states(self) -> list[str]:
        references = (find(self._backend, job_id) for job_id in self.ids())
        return [observed(self._backend, each).status.value for each in references if each is not None]

    def cancel(self) -> None:
        for job_id in self.ids():
            if (reference := find(self._backend, job_id)) is not None:
                cancel(self._backend, reference)

    def living(self) -> int:
        return max(len(self._watch.living[self._label]), sum(state in LIVING for state in self.states()))

    def take_room(self) -> None:
        """No node has the label that its pods ask for."""

    def give_room(self) -> None:
        self._room()
