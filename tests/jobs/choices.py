"""A job that may run on one of several accelerators, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinetic_core._runner import codec, object_names, wire
from kinetic_core._runner.accelerator_choice import PASSED, is_taken
from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.notes import encode_note
from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.fallbacks import accelerator_of
from kinetic_core.connections import Connections, default_connections
from kinetic_core.job import JobObservation, JobReference
from kinetic_core.jobs.bundle import pack
from kinetic_core.jobs.facts import observed
from kinetic_core.jobs.prepare import address
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.signing import key_id_of, outcome_key
from kinetic_core.jobs.submit import submit
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from kinetic_core.testing import kubelet as behaviours
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

    def create_if_absent(self, name: str, content: bytes, metadata: Mapping[str, str] | None = None) -> bool:
        return self.store.create_if_absent(name, content, metadata)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        return self.store.read_range(name, offset, size)


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
            Target(str(self.fake.write_kubeconfig(self.folder / "kubeconfig"))),
            "bucket",
            default_connections(),
        )
        self.backend.store = self.store

    def submit(self, choices: list[str], **options: Any) -> JobReference:
        asked = RunOptions.checked(choices, container_image="python:3.11", **options)
        root = str(Path(__file__).parent)
        settings = replace(read_settings(), package_root=root)
        packed = pack(answer, asked, Connections(settings), backend=self.backend)
        return submit(address(packed, job_id=ID))

    def reconcile(self, reference: JobReference, later: float = LATER) -> JobObservation:
        """As `reconcile`, that many seconds later."""
        return reconcile(self.backend, reference, time.time() + later)

    def jobs(self) -> list[str]:
        """The accelerators that Jobs are there for."""
        return [accelerator_of(job) for job in self.fake.objects.list("Job", "default")[1]]

    def take(self, number: int, key: tuple[str, bytes] | None = None) -> bool:
        """What the runner of a pod for this accelerator does before anything else."""
        key_id, secret = key or self.key()
        environment = {
            "KINETIC_STORE": "gs://bucket",
            "KINETIC_JOB_ID": ID,
            "KINETIC_PAYLOAD_SHA256": "",
            "KINETIC_OUTCOME_KEY": secret.hex(),
            "KINETIC_KEY_ID": key_id,
            "KINETIC_WORK_DIR": "",
            "KINETIC_CHOICE": str(number),
        }
        runner: Any = RunnersStore(self.store)
        return is_taken(take_job(environment), runner)

    def key(self) -> tuple[str, bytes]:
        """Id and key of the job that is there."""
        (job,) = self.fake.objects.list("Job", "default")[1]
        key = outcome_key(job)
        assert key is not None
        return key_id_of(job), key

    def pass_over(self, number: int, why: str = "none", key: bytes | None = None) -> None:
        """What an observer stores, with the job's key or another."""
        name, told = object_names.choice(ID, number), {"decision": PASSED, "at": 1.0, "why": why}
        note = encode_note(key or self.key()[1], name, {**told, "key_id": self.key()[0]})
        self.store.create_if_absent(name, note)

    def waits(self, reference: JobReference) -> None:
        """Until the scheduler has said no."""
        wait_for(lambda: observed(self.backend, reference).reason == "Unschedulable")

    def _behave(self, pod: dict[str, Any]) -> behaviours.PodBehaviour:
        job = {"metadata": pod["metadata"], "spec": {"template": pod}}
        if accelerator_of(job) not in self.capacity:
            return behaviours.cannot_be_scheduled()
        environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        key, key_id = bytes.fromhex(environment["KINETIC_OUTCOME_KEY"]), environment["KINETIC_KEY_ID"]
        number = environment.get("KINETIC_CHOICE")
        if number is not None and not self.take(int(number), (key_id, key)):
            return behaviours.exits(wire.EXIT_FENCED)
        self.ran.append(accelerator_of(job))
        header = {"protocol": 1, "job_id": ID, "attempt": 0, "state": "succeeded", "codec": "typed"}
        frame = wire.encode_frame({**header, "key_id": key_id}, codec.encode(42), key)
        sealed = wire.sealed_state(ID, "succeeded", key_id, key)
        self.store.create_if_absent(object_names.result(ID), frame, {wire.STATE: sealed})
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
