"""A job that may run on one of several accelerators, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinetic_core._runner import codec, wire
from kinetic_core._runner.choice import is_taken
from kinetic_core._runner.job import take_job
from kinetic_core.cluster.choices import accelerator_of
from kinetic_core.cluster.connecting import Target
from kinetic_core.configuration import read_settings
from kinetic_core.errors import ObjectExists
from kinetic_core.gke.backend import GkeBackend
from kinetic_core.lifecycle.moving_on import moved_on
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.packing import pack
from kinetic_core.lifecycle.preparing import address
from kinetic_core.lifecycle.settling import look
from kinetic_core.lifecycle.submission import submit
from kinetic_core.model.job import JobObservation, JobReference
from kinetic_core.testing import pod_behaviour as behaviours
from kinetic_core.testing.fake_cluster import FakeCluster
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.conftest import wait_for

ID = "job-00000000000000aa"

LATER = 10_000.0
"""Seconds by which every time is up."""


def answer() -> int:
    return 42


@dataclass
class RunnersStore:
    """The same store as a pod has it."""

    store: MemoryObjectStore

    def create(self, name: str, content: bytes, state: str = "") -> bool:
        try:
            self.store.create(name, content, {wire.STATE: state} if state else None)
        except ObjectExists:
            return False
        return True

    def read(self, name: str) -> bytes:
        return self.store.read(name)


@dataclass
class Place:
    """A cluster whose accelerators have `capacity` or none, and the pods that ran user code there."""

    folder: Path
    capacity: set[str] = field(default_factory=set)
    ran: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fake = FakeCluster(self._behave)
        self.store = MemoryObjectStore("gs://bucket")
        self.backend: Any = GkeBackend(
            Target(str(self.fake.write_kubeconfig(self.folder / "kubeconfig"))), "bucket", read_settings()
        )
        self.backend.store = self.store

    def submit(self, choices: list[str], **options: Any) -> JobReference:
        asked = RunOptions.checked(choices, container_image="python:3.11", **options)
        root = str(Path(__file__).parent)
        settings = replace(read_settings(), cache=self.folder / "cache", package_root=root)
        packed = pack(answer, asked, settings, backend=self.backend)
        return submit(address(packed, job_id=ID))

    def look(self, reference: JobReference, later: float = LATER, backend: Any = None) -> JobObservation:
        """As `settling.look`, that much later."""
        backend = backend or self.backend
        seen = look(backend, reference)
        found = backend.get("default", ID)
        if seen.is_terminal or found is None:
            return seen
        return moved_on(backend, reference, found, seen, lambda: time.time() + later)

    def jobs(self) -> list[str]:
        """The accelerators that Jobs are there for."""
        return [accelerator_of(job) for job in self.fake.objects.list("Job", "default")[1]]

    def take(self, number: int) -> bool:
        """What the runner of a pod for this accelerator does before anything else."""
        environment = {
            "KINETIC_STORE": "gs://bucket",
            "KINETIC_JOB_ID": ID,
            "KINETIC_PAYLOAD_SHA256": "",
            "KINETIC_OUTCOME_KEY": "00",
            "KINETIC_WORK_DIR": "",
            "KINETIC_CHOICE": str(number),
        }
        runner: Any = RunnersStore(self.store)
        return is_taken(take_job(environment), runner)

    def waits(self, reference: JobReference) -> None:
        """Until the scheduler has said no."""
        wait_for(lambda: look(self.backend, reference).reason == "Unschedulable")

    def _behave(self, pod: dict[str, Any]) -> behaviours.PodBehaviour:
        job = {"metadata": pod["metadata"], "spec": {"template": pod}}
        if accelerator_of(job) not in self.capacity:
            return behaviours.cannot_be_scheduled()
        environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        if "KINETIC_CHOICE" in environment and not self.take(int(environment["KINETIC_CHOICE"])):
            return behaviours.exits(wire.EXIT_FENCED)
        self.ran.append(accelerator_of(job))
        header = {"protocol": 1, "job_id": ID, "attempt": 0, "state": "succeeded", "codec": "typed"}
        frame = wire.encode_frame(header, codec.encode(42), bytes.fromhex(environment["KINETIC_OUTCOME_KEY"]))
        self.store.create(wire.result_object(ID), frame, {wire.STATE: "succeeded"})
        return behaviours.succeeds()


class Killed(BaseException):
    """The observer's process is gone."""


@dataclass
class Mortal:
    """A backend, or its store, whose observer dies before its n-th use of either."""

    whole: Any
    left: list[int]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.whole, name)
        if name == "store":
            return Mortal(found, self.left)
        if not callable(found) or name in ("get", "never_runs"):
            return found
        return self._counted(found)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            if self.left[0] == 0:
                raise Killed
            self.left[0] -= 1
            return call(*args)

        return counted


def asked_for(found: Any) -> str:
    """What the newest pod of a Job is for."""
    return accelerator_of({"spec": {"template": found[1][-1]}})
