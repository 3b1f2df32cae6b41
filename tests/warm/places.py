"""Where calls run on workers: this machine, or a fake cluster whose pods are real runners of this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kinetic_core._runner.processes import below
from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import FAILED_COUNT, HOST_INDEX, IGNORED_COUNT, JOB_ID
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.batches.definition import Plan
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.lanes import start_on_lanes
from kinetic_core.batches.submit import attach_stored
from kinetic_core.connections import Connections
from kinetic_core.jobs.bundle import Packed, pack
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.prepare import address
from kinetic_core.jobs.submit import submit
from kinetic_core.jobs.warm import WorkerSummary, workers
from kinetic_core.options import RunOptions
from kinetic_core.settings import Settings, read_settings
from kinetic_core.store.directory import DirectoryObjectStore
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.fake_cluster import FakeCluster
from tests.conftest import end_local_jobs, is_alive, wait_for


@dataclass
class Here:
    """The backend of this machine."""

    folder: Path
    root: Path = Path(__file__).parent
    """The project's directory."""
    maps: list[BatchHandle] = field(default_factory=list)
    name = "local"

    def __post_init__(self) -> None:
        self.backend: Any = LocalBackend(self.folder / "local", Connections(self.settings()))

    def settings(self) -> Settings:
        place = self.folder / "local"
        return replace(read_settings(), package_root=str(self.root), local_store=place)

    @property
    def cache(self) -> Path:
        """The cache directory that all clients of the test share."""
        return self.settings().cache

    def submit(self, function: Callable[..., Any], *args: Any, warm: Any = 60, **options: Any) -> Call:
        """Submit a call as a client of its own would."""
        job_id, origin = options.pop("job_id", None), options.pop("origin", "")
        environment = options.pop("environment", None)
        packed = self.pack(function, warm=warm, **options)
        handle = JobHandle.of(submit(address(packed, args, job_id=job_id), environment, origin))
        return Call.at(self.backend, handle)

    def map(
        self, function: Callable[..., Any], items: Iterable[Any], lanes: int = 2, **options: Any
    ) -> BatchHandle:
        """Start a map on so many workers, as a client of its own would."""
        known = {each.name for each in fields(Plan)}
        asked = {name: options.pop(name) for name in known & options.keys()}
        group_id = asked.pop("group_id", f"grp-{secrets.token_hex(4)}")
        plan = replace(Plan(group_id, False, "single", lanes, False, False, None, {}), **asked)
        options.setdefault("warm", 60)
        if self.name != "local":  # whose clients believe in no directory of another machine
            options.setdefault("output_dir", "gs://bucket/outputs")
        self.maps.append(start_on_lanes(self.pack(function, **options), list(items), plan))
        return self.maps[-1]

    def attach(self, group_id: str) -> BatchHandle:
        self.maps.append(attach_stored(self.backend, group_id))
        return self.maps[-1]

    def pack(self, function: Callable[..., Any], **options: Any) -> Packed:
        image = {} if self.name == "local" else {"container_image": "python:3.11"}
        asked = RunOptions.checked(options.pop("accelerator", "cpu"), **image, **options)
        return pack(function, asked, Connections(self.settings()), backend=self.backend)

    def workers(self) -> list[WorkerSummary]:
        return list(workers(self.backend, "default"))

    def runner_of(self, job_id: str) -> int:
        """The process id of the runner of a job that has one of its own."""
        record = self.backend.get("default", job_id)
        assert record is not None
        from kinetic_core.backends.local.record import read_record

        known = read_record(self.folder / "local" / "cluster" / "default" / f"{job_id}.json")  # type: ignore[arg-type]
        assert known is not None
        return int(known["group"]["pid"])

    def close(self) -> None:
        for batch in self.maps:
            batch.close()
        end_local_jobs(self.folder / "local")


class Call(JobHandle):
    """A handle whose backend is that of the test."""

    @classmethod
    def at(cls, backend: Any, handle: JobHandle) -> Call:
        made = cls.from_dict(handle.to_dict())
        object.__setattr__(made, "_backend", backend)
        return made

    @property
    def place(self) -> Any:
        return self.__dict__["_backend"]

    def value(self) -> Any:
        """Wait for the call, and leave all that is stored of it."""
        return self.result(cleanup=False)


@dataclass
class Cluster(Here):
    """A fake cluster: its kubelet starts what a container would run as a process of this machine."""

    name = "gke"
    pods: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """The newest container of each job."""
    hosts: dict[tuple[str, int], subprocess.Popen[bytes]] = field(default_factory=dict)
    """The newest container of each host of a job."""

    def __post_init__(self) -> None:
        self.fake = FakeCluster(self._behave)
        self.backend = GkeBackend(
            Target(str(self.fake.write_kubeconfig(self.folder / "kubeconfig"))),
            "bucket",
            Connections(self.settings()),
        )
        (self.folder / "store").mkdir()
        self.backend.store = DirectoryObjectStore(self.folder / "store")

    def runner_of(self, job_id: str) -> int:
        wait_for(lambda: job_id in self.pods)
        return self.pods[job_id].pid

    def close(self) -> None:
        for batch in self.maps:
            batch.close()
        self.backend.end_watch("default")
        self.fake.close()
        for process in {*self.pods.values(), *self.hosts.values()}:
            _kill_all(process.pid)
            process.wait()

    def _behave(self, pod: dict[str, Any]) -> behaviours.PodBehaviour:
        facts, container = pod["metadata"], pod["spec"]["containers"][0]
        environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        annotations, uid = facts["annotations"], facts["uid"]
        work = self.folder / "work" / uid
        work.mkdir(parents=True)
        environment |= {
            "PATH": os.environ["PATH"],
            "HOME": str(work),
            "KINETIC_WORK_DIR": str(work),
            "KINETIC_POD_UID": uid,
            "KINETIC_POD_NAME": facts["name"],
            "KINETIC_FAILED_COUNT": annotations.get(FAILED_COUNT, "0"),
            "KINETIC_IGNORED_COUNT": annotations.get(IGNORED_COUNT, "0"),
        }
        host = annotations[HOST_INDEX]
        if "KINETIC_HOST_COUNT" in environment:
            environment |= dict.fromkeys(("KINETIC_HOST_INDEX", "TPU_WORKER_ID", "JAX_PROCESS_ID"), host)
        with (self.folder / "pods.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *container["command"][1:]],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pods[facts["labels"][JOB_ID]] = process
        self.hosts[facts["labels"][JOB_ID], int(host)] = process
        threading.Thread(
            target=self._follow, args=(facts["namespace"], facts["name"], process), daemon=True
        ).start()
        return behaviours.runs_until_stopped()

    def _follow(self, namespace: str, name: str, process: subprocess.Popen[bytes]) -> None:
        """Write down the container's end, and end it when its pod is deleted."""
        told = False
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=0.05)
                break
            pod = self._pod(namespace, name)
            if not told and (pod is None or pod["metadata"].get("deletionTimestamp")):
                told = True
                process.send_signal(signal.SIGTERM)
        _kill_all(process.pid)
        code = code if code >= 0 else 128 - code

        def end(item: dict[str, Any]) -> None:
            if (item.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):
                item["status"] = behaviours.ended(behaviours.exits(code), item)

        with contextlib.suppress(Exception):
            self.fake.objects.change("Pod", namespace, name, end)

    def _pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        found = self.fake.objects.list("Pod", namespace)[1]
        return next((pod for pod in found if pod["metadata"]["name"] == name), None)


def _kill_all(pid: int) -> None:
    """Kill a container: everything in it."""
    for each in [*below(pid), pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def call_runner(worker: int) -> int:
    """The process id of the runner of the call that a worker runs."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [pid for pid in below(worker) if _parent(pid) == worker]
        return bool(found)

    wait_for(is_there)
    return found[0]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


def waits_for_a_call(place: Here, job_id: str) -> bool:
    return any(each.job_id == job_id and each.is_idle for each in place.workers())


def kill_worker(worker: int, alive: Path) -> None:
    """Kill a worker, and wait for its call to end too, as in a pod; `alive` has that call's process id."""
    call = int(alive.read_text())
    alive.unlink()
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not is_alive(call))
