"""A batch that shares Jobs, on a fake cluster."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from kinetic_core._runner import codec, object_names, wire
from kinetic_core._runner.indexes import parse_indexes
from kinetic_core._runner.notes import encode_note
from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.chunks import variable
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import HOST_INDEX, JOB_ID
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.batches.chunk_watch import ChunkWatch
from kinetic_core.batches.definition import Plan
from kinetic_core.batches.indexed import submit_batch
from kinetic_core.batches.progress import Board
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import StoreRefused
from kinetic_core.job import JobReference
from kinetic_core.jobs.bundle import Packed, pack
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.inputs import input_reference
from kinetic_core.jobs.watch import JobWatch
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.kubelet import Behave
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.conftest import wait_for

PLAN = Plan("grp-a", False, "auto", 64, False, False, "a", {})


def square(x: int) -> int:
    return x * x


class Place:
    """A cluster, a store, and a function packed for them."""

    def __init__(self, folder: Path, behave: Behave, **options: Any) -> None:
        self.fake = FakeCluster(behave)
        self.folder = folder
        self.target = Target(str(self.fake.write_kubeconfig(folder / "kubeconfig")))
        self.store = MemoryObjectStore("gs://bucket")
        self.backend = self.backend_of(default_connections())
        self.options = options

    def backend_of(self, connections: Connections) -> GkeBackend:
        """Return the backend of a client with these connections."""
        backend = GkeBackend(self.target, "bucket", connections)
        backend.store = self.store  # type: ignore[assignment]  # Cloud Storage is for cluster tests
        return backend

    def packed(self) -> Packed:
        asked = RunOptions.checked("cpu", container_image="python:3.11", **self.options)
        settings = replace(read_settings(), package_root=str(Path(__file__).parent))
        return pack(square, asked, Connections(settings), backend=self.backend)

    def submit(self, items: list[Any], plan: Plan = PLAN) -> tuple[JobReference, dict[int, Exception]]:
        return submit_batch(self.packed(), items, plan)

    def watched(self, size: int, whole: JobReference, plan: Plan = PLAN) -> Board:
        board = Board(size)
        board.fill([JobHandle.of(input_reference(whole, index)) for index in range(size)])
        parts = self.backend.parts.parts("default", whole.job_id)
        ChunkWatch(self.backend, whole, board).start(parts)
        return board

    def failure(self, child: str) -> wire.Failure:
        """How Kubernetes' objects say that an input failed."""
        found = self.backend.get("default", child)
        assert found is not None
        failure = observe(*found).failure
        assert failure is not None
        return failure

    def jobs(self) -> list[dict[str, Any]]:
        return self.jobs_of("default")

    def jobs_of(self, namespace: str) -> list[dict[str, Any]]:
        return self.fake.objects.list("Job", namespace)[1]

    def close(self) -> None:
        """Let nobody watch any more what is about to go."""
        for part in {job["metadata"]["labels"][JOB_ID] for job in self.jobs()}:
            self.backend.remove("default", part)
        wait_for(lambda: "kinetic-watch-default" not in {thread.name for thread in threading.enumerate()})
        self.backend.end_watch("default")
        self.fake.close()

    def tell(self, pod: dict[str, Any], state: str = "succeeded") -> None:
        """What a pod's runner stores, in the least form."""
        spec = {"spec": {"template": pod}}
        indexes = parse_indexes(variable(spec, "KINETIC_INDEXES") or "")
        index = indexes[int(pod["metadata"]["labels"][HOST_INDEX])]
        child = object_names.input_id(variable(spec, "KINETIC_GROUP_ID") or "", index)
        key = wire.input_key(bytes.fromhex(variable(spec, "KINETIC_OUTCOME_KEY") or ""), index)
        key_id = variable(spec, "KINETIC_KEY_ID") or ""
        header = {"protocol": 1, "job_id": child, "attempt": 0, "state": state, "codec": "typed"}
        header["key_id"] = key_id
        if state != wire.DROPPED:
            name = object_names.claim(child, 0)
            self.store.create_if_absent(name, encode_note(key, name, {"number": 0, "pod_uid": "uid"}))
        frame = wire.encode_frame(header, codec.encode(index), key)
        self.store.create_if_absent(
            object_names.result(child), frame, {wire.STATE: wire.sealed_state(child, state, key_id, key)}
        )


class Refusing:
    """A backend that is refused to read how jobs have ended, until somebody permits it."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self.is_permitted = False
        self.refusals = 0

    def get(self, namespace: str, job_id: str) -> Any:
        if not self.is_permitted:
            self.refusals += 1
            raise StoreRefused(f"cannot read {job_id}: not permitted")
        return self._whole.get(namespace, job_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


def watch_that_is_refused(backend: Any) -> Refusing:
    """Have a client watch jobs through a backend that refuses, by a clock whose seconds are minutes."""
    refusing: Any = Refusing(backend)
    minutes = count(0, 60)
    job_watch = JobWatch(refusing, "default", lambda: next(minutes))
    backend.connections.get((JobWatch, refusing.key, "default"), lambda: job_watch)
    return refusing  # type: ignore[no-any-return]
