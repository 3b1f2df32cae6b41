"""Jobs recorded in one state each, on a cluster and in a store that refuse every write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import codec, object_names, wire
from kinetic_core._runner.accelerator_choice import PASSED
from kinetic_core._runner.notes import encode_note
from kinetic_core.backends.base import Backend, open_backend
from kinetic_core.backends.kubernetes.names import LEADER_WORKER_SET, QUEUE
from kinetic_core.batches.definition import Plan
from kinetic_core.batches.indexed import submit_batch
from kinetic_core.connections import Connections, default_connections
from kinetic_core.job import JobReference
from kinetic_core.jobs.bundle import Packed, pack
from kinetic_core.jobs.prepare import address
from kinetic_core.jobs.signing import key_id_of, outcome_key
from kinetic_core.jobs.submit import submit
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing import FakeCluster, MemoryObjectStore
from kinetic_core.testing import kubelet as behaviours
from tests.conftest import wait_for

ID, GROUP = "job-00000000000000cc", "grp-a"
TPU, GPU, SLICE = "tpu-v6e-8", "gpu-h100-1", "tpu-v5p-8"
LONG_AGO = "2026-01-01T00:00:00Z"
Object = dict[str, Any]


def square(x: int = 3) -> int:
    return x * x


def condition(kind: str, status: str = "True", **more: str) -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": LONG_AGO, **more}


class Recorded:
    """A cluster with one job or batch in a certain state, found by settings, as any process would.

    `fault` is that of a `MemoryObjectStore`.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        state: str,
        fault: Callable[[str, str], None] | None = None,
    ) -> None:
        self.state, self.folder = state, folder
        self.fake = FakeCluster(self._behave)
        self.store = MemoryObjectStore("gs://bucket", fault)
        monkeypatch.setattr(GcsObjectStore, "at", lambda *_args, **_options: self.store)
        monkeypatch.setenv("KINETIC_KUBECONFIG", str(self.fake.write_kubeconfig(folder / "kubeconfig")))
        monkeypatch.setenv("KINETIC_BUCKET", "bucket")
        monkeypatch.setenv("KINETIC_BACKEND", "gke")
        self.backend: Backend = open_backend("gke", default_connections())

    def job(self) -> JobReference:
        """Submit a job, bring it into the state, and let nothing change from then on."""
        choices: Any = [TPU, GPU] if "fallback" in self.state else SLICE if "slice" in self.state else "cpu"
        reference = submit(address(self._packed(choices), job_id=ID))
        getattr(self, f"_{self.state}")()
        self._freeze()
        return reference

    def batch(self, *, fail_fast: bool) -> None:
        """The same of a batch of two inputs that share a Job."""
        submit_batch(self._packed("cpu"), [1, 2], Plan(GROUP, False, "auto", 64, fail_fast, False, "a", {}))
        getattr(self, f"_{self.state}")()
        self._freeze()

    @property
    def refused(self) -> list[str]:
        """What somebody has tried to write since."""
        return [*self.fake.refused, *self.store.refused]

    def close(self) -> None:
        """Let the cluster go when nobody watches it any more."""
        for job in self._objects("Job"):
            self.fake.objects.remove("Job", "default", job["metadata"]["name"])
        self.store.__init__("gs://bucket")  # type: ignore[misc]  # whoever still watches sees that all is gone
        wait_for(lambda: "kinetic-watch-default" not in {thread.name for thread in threading.enumerate()})
        self.backend.end_watch("default")  # type: ignore[attr-defined]  # of a cluster's backend alone
        self.fake.close()

    def _packed(self, choices: Any) -> Packed:
        asked = RunOptions.checked(choices, container_image="python:3.11", timeout=3600)
        here = str(Path(__file__).parent)
        settings = replace(read_settings(), package_root=here)
        return pack(square, asked, Connections(settings), backend=self.backend)

    def _behave(self, pod: Object) -> behaviours.PodBehaviour:
        lives: dict[str, Callable[[], behaviours.PodBehaviour]] = {
            "fallback_due": behaviours.cannot_be_scheduled,
            "fallback_decided": behaviours.cannot_be_scheduled,
            "fallback_late_pod": lambda: behaviours.exits(wire.EXIT_FENCED),
            "never_pulled": behaviours.cannot_be_pulled,
            "out_of_memory": behaviours.runs_out_of_memory,
            "failed": lambda: behaviours.exits(wire.EXIT_USER_ERROR, log="last words\n"),
            "failed_input": lambda: behaviours.exits(wire.EXIT_USER_ERROR),
            "node_silent": behaviours.runs_until_stopped,
            "running": lambda: behaviours.runs_until_stopped(log="a line\n"),
            "finished": behaviours.runs_until_stopped,
        }
        if self.state.startswith("slice") and pod["metadata"]["name"].rpartition("-")[0].endswith("-0"):
            return behaviours.runs_until_stopped()
        return lives.get(self.state, behaviours.stays_pending)()

    def _freeze(self) -> None:
        self.fake.freeze()
        self.store.freeze()

    def _objects(self, kind: str) -> list[Object]:
        return self.fake.objects.list(kind, "default")[1]

    def _only(self, kind: str) -> Object:
        wait_for(lambda: self._objects(kind))
        return self._objects(kind)[0]

    def _edit(self, kind: str, edit: Callable[[Object], None]) -> None:
        for item in self._objects(kind):
            self.fake.objects.change(kind, "default", item["metadata"]["name"], edit)

    def _when_pods(self, are: Callable[[Object], object], count: int = 1) -> None:
        wait_for(lambda: len([pod for pod in self._objects("Pod") if are(pod.get("status") or {})]) >= count)

    def _pending(self) -> None:
        self._when_pods(lambda status: status.get("containerStatuses"))

    def _running(self) -> None:
        self._when_pods(lambda status: status.get("phase") == "Running")

    def _finished(self) -> None:
        self._running()
        self._commit()
        self._edit("Job", lambda job: job["status"].update(conditions=[condition("Complete")]))

    def _gone(self) -> None:
        self._pending()
        self._commit()
        self.fake.objects.remove("Job", "default", self._only("Job")["metadata"]["name"])

    def _commit(self) -> None:
        job = self._only("Job")
        key, key_id = outcome_key(job) or b"", key_id_of(job)
        header = {
            "protocol": wire.PROTOCOL,
            "job_id": ID,
            "attempt": 0,
            "state": "succeeded",
            "key_id": key_id,
        }
        frame = wire.encode_frame({**header, "codec": "typed"}, codec.encode(9), key)
        sealed = wire.sealed_state(ID, "succeeded", key_id, key)
        self.store.create_if_absent(object_names.result(ID), frame, {wire.STATE: sealed})

    def _failed(self) -> None:
        wait_for(lambda: any(each["type"] == "Failed" for each in self._conditions()))

    def _conditions(self) -> list[Object]:
        return list(self._only("Job").get("status", {}).get("conditions", ()))

    def _never_pulled(self) -> None:
        self._when_pods(lambda status: status.get("containerStatuses"))

    def _out_of_memory(self) -> None:
        self._when_pods(lambda status: status.get("containerStatuses"))
        wait_for(lambda: len(self._objects("Pod")) > 0)
        self._when_pods(lambda status: status.get("phase") == "Failed")

    def _failed_input(self) -> None:
        wait_for(lambda: self._only("Job").get("status", {}).get("failedIndexes"))

    def _suspended(self) -> None:
        self._edit("Job", lambda job: job["spec"].update(suspend=True))
        self._edit("Job", lambda job: job["status"].update(conditions=[condition("Suspended")]))

    def _queued_too_long(self) -> None:
        def edit(job: Object) -> None:
            job["metadata"]["labels"][QUEUE] = "research"
            job["metadata"]["creationTimestamp"] = LONG_AGO
            job["spec"]["suspend"] = True
            job["status"]["conditions"] = [condition("Suspended")]

        self._edit("Job", edit)
        wait_for(
            lambda: not [pod for pod in self._objects("Pod") if not pod["metadata"].get("deletionTimestamp")]
        )

    def _node_silent(self) -> None:
        self._running()
        said = [condition("Ready", "False"), condition("ContainersReady")]
        self._edit("Pod", lambda pod: pod["status"].update(conditions=said))
        lease = object_names.lease(ID, 0)
        self.store.create_if_absent(lease, b"")

    def _slice_half_dead(self) -> None:
        self._running()

    def _slice_in_set_ended(self) -> None:
        """Its pods do not end by themselves: what is stored says that it has ended."""
        self._running()
        self._edit("Job", lambda job: job["metadata"]["labels"].update({LEADER_WORKER_SET: "true"}))
        self._commit()

    def _fallback_due(self) -> None:
        self._when_pods(lambda status: status.get("conditions"))
        self._edit("Job", lambda job: job["metadata"].update(creationTimestamp=LONG_AGO))

    def _fallback_decided(self) -> None:
        """Whoever passed the first accelerator over has died before it created the next Job."""
        self._fallback_due()
        self._pass_over()

    def _fallback_late_pod(self) -> None:
        """Neither is the Job of a pod that came too late the end."""
        self._failed()
        self._pass_over()

    def _pass_over(self) -> None:
        job, name = self._only("Job"), object_names.choice(ID, 0)
        at = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        told = {"decision": PASSED, "at": at, "why": "none", "key_id": key_id_of(job)}
        self.store.create_if_absent(name, encode_note(outcome_key(job) or b"", name, told))


STATES = (
    "pending",
    "running",
    "finished",
    "gone",
    "failed",
    "never_pulled",
    "out_of_memory",
    "suspended",
    "queued_too_long",
    "node_silent",
    "slice_half_dead",
    "slice_in_set_ended",
    "fallback_due",
    "fallback_decided",
    "fallback_late_pod",
)
"""Every state that a job can be found in, those first in which nobody has to act."""
