"""One set of tests for two clusters: what they start, and where."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.bootstrap import StoredArchive
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.manifest import Delivery, Surroundings, job_manifest
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.job import JobReference, JobSpec
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.kubelet import Behave
from tests.conftest import wait_for

Object = dict[str, Any]

PATIENCE = 90.0

KUBECONFIG = os.environ.get("KUBECONFIG", "")

IMAGE = os.environ.get("KINETIC_TEST_IMAGE", "")


@dataclass(frozen=True)
class Case:
    """What pods do: the shell command of a real one, the behaviour of a fake one."""

    command: str
    behave: Behave


SUCCEEDS = Case("echo said", lambda _pod: behaviours.succeeds(log="said\n"))

FAILS = Case("exit 1", lambda _pod: behaviours.exits(1))

NEVER_RETRY = Case("exit 65", lambda _pod: behaviours.exits(65))

STOPS = Case(
    "trap 'exit 143' TERM; sleep 600 & wait", lambda _pod: behaviours.runs_until_stopped(log="never")
)

AT_SECOND_TRY = Case(
    '[ "$KINETIC_FAILED_COUNT" -ge 1 ] || exit 1',
    lambda pod: behaviours.succeeds() if Pod(pod).attempt else behaviours.exits(1),
)

UNPUBLISHED_ONCE = Case(
    '[ "${KINETIC_IGNORED_COUNT:-0}" -ge 1 ] || exit 67',
    lambda pod: behaviours.succeeds() if Pod(pod).attempt else behaviours.exits(67),
)

STOPPED_ONCE = Case(
    '[ "${KINETIC_IGNORED_COUNT:-0}" -ge 1 ] && exit 0; ' + STOPS.command,
    lambda pod: behaviours.succeeds() if Pod(pod).attempt else behaviours.runs_until_stopped(),
)

GREEDY = Case("exec python3 -c 'bytearray(1 << 30)'", lambda _pod: behaviours.runs_out_of_memory(0.5))

NO_NODE = Case("true", lambda _pod: behaviours.cannot_be_scheduled())

NO_IMAGE = Case("true", lambda _pod: behaviours.cannot_be_pulled())


class World:
    """A cluster, a namespace of the test's own in it, and jobs of ours."""

    def __init__(self, api: ClusterApi, namespace: str, case: Case, is_fake: bool) -> None:
        self.api, self.namespace, self.case, self.is_fake = api, namespace, case, is_fake

    def manifest(self, **options: Any) -> Object:
        """Our own manifest, with the case's command."""
        job_id = f"job-{secrets.token_hex(8)}"
        values = dict.fromkeys(JobReference.__dataclass_fields__, "x")
        values |= {"job_id": job_id, "k8s_name": f"kinetic-{job_id}", "namespace": self.namespace}
        values["image_uri"] = IMAGE or "python:3.11"
        spec = JobSpec("f", parse_accelerator("cpu"), "gke", **options)
        delivery = Delivery(StoredArchive("a" * 64, 1000), b"payload", "c" * 64, Surroundings("default"))
        job = job_manifest(spec, JobReference(**values), delivery)
        container = job["spec"]["template"]["spec"]["containers"][0]
        container["command"] = ["sh", "-c", self.case.command]
        container["resources"]["requests"] = {"cpu": "10m", "memory": "16Mi"}
        return job

    def create(self, **options: Any) -> str:
        job = self.manifest(**options)
        self.api.create("Job", self.namespace, job)
        return str(job["metadata"]["name"])

    def job(self, name: str) -> Object:
        found = self.api.get("Job", self.namespace, name)
        assert found is not None
        return found

    def pods(self, name: str) -> list[Object]:
        query = {"labelSelector": f"app=kinetic,batch.kubernetes.io/job-name={name}"}
        found: list[Object] = self.api.list("Pod", self.namespace, query)["items"]
        return sorted(found, key=lambda pod: Pod(pod).attempt)

    def conditions(self, name: str) -> dict[str, str]:
        """Type and reason of the conditions that hold."""
        conditions = self.job(name).get("status", {}).get("conditions", ())
        return {each["type"]: each["reason"] for each in conditions if each["status"] == "True"}

    def ended(self, name: str) -> dict[str, str]:
        wait_for(lambda: {"Complete", "Failed"} & self.conditions(name).keys(), PATIENCE)
        return self.conditions(name)

    def running(self, name: str) -> Object:
        wait_for(lambda: [p["status"].get("phase") for p in self.pods(name)][-1:] == ["Running"], PATIENCE)
        return self.pods(name)[-1]


Make = Callable[[Case], World]
