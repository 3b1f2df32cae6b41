"""The objects of slices of several hosts: one Job, or a LeaderWorkerSet."""

from __future__ import annotations

import pytest

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.manifest import job_manifest
from kinetic_core.backends.kubernetes.names import HOST_INDEX, QUEUE, WORKER_INDEX
from kinetic_core.backends.kubernetes.set_objects import runs_in_set
from kinetic_core.backends.kubernetes.slices import HOSTS_SERVICE_MANIFEST
from kinetic_core.job import JobSpec, PodOptions
from tests.kubernetes.manifests import DELIVERY, container, manifest, reference, set_of


def test_one_pod_per_host() -> None:
    job = manifest("tpu-v5p-16")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    assert container(job)["resources"]["limits"]["google.com/tpu"] == "4"
    assert job["spec"]["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2x4"


@pytest.mark.promise("batches: `TPU_WORKER_ID`, `TPU_WORKER_HOSTNAMES`, coordinator address")
def test_hosts_of_a_slice_know_themselves_and_each_other() -> None:
    job = manifest("tpu-v5p-8")
    pod = job["spec"]["template"]["spec"]
    told = {
        each["name"]: each["value"] if "value" in each else each["valueFrom"]
        for each in container(job)["env"]
    }
    hosts = told["TPU_WORKER_HOSTNAMES"].split(",")
    assert hosts == [f"kinetic-job-0123456789abcdef-{index}.{pod['subdomain']}" for index in (0, 1)]
    assert told["JAX_COORDINATOR_ADDRESS"].startswith(hosts[0] + ":")
    assert told["TPU_WORKER_ID"] == told["JAX_PROCESS_ID"] == told["KINETIC_HOST_INDEX"]
    assert HOST_INDEX in told["TPU_WORKER_ID"]["fieldRef"]["fieldPath"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert HOSTS_SERVICE_MANIFEST["spec"]["selector"].items() <= labels.items()
    assert {"podAffinity", "podAntiAffinity"} == set(pod["affinity"])


def test_a_set_is_owned_by_a_job_without_pods_that_knows_all() -> None:
    job, found = set_of(timeout=60)
    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (0, 2)
    assert job["spec"]["activeDeadlineSeconds"] == 60
    assert runs_in_set(job)
    assert not runs_in_set(manifest("tpu-v5p-8"))
    for key in ("name", "namespace", "labels", "annotations"):
        assert found["metadata"][key] == job["metadata"][key]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": "uid"}
    assert found["metadata"]["ownerReferences"] == [owner]
    assert (found["spec"]["replicas"], found["spec"]["leaderWorkerTemplate"]["size"]) == (1, 2)


@pytest.mark.promise("batches: No `activeDeadlineSeconds` in its pods; the runner keeps the deadline")
def test_only_the_leader_of_a_set_has_a_token() -> None:
    _, found = set_of(timeout=60)
    group = found["spec"]["leaderWorkerTemplate"]
    pods = [group[name]["spec"] for name in ("leaderTemplate", "workerTemplate")]
    assert [pod["automountServiceAccountToken"] for pod in pods] == [True, False]
    for pod in pods:
        assert not {"restartPolicy", "activeDeadlineSeconds", "subdomain"} & set(pod)
        assert {"podAffinity", "podAntiAffinity"} == set(pod["affinity"])
        assert {"name": "KINETIC_TIMEOUT", "value": "60"} in pod["containers"][0]["env"]


@pytest.mark.promise("batches: `TPU_WORKER_ID`, `TPU_WORKER_HOSTNAMES`, coordinator address")
def test_hosts_of_a_set_have_its_names() -> None:
    job, _ = set_of()
    told = {
        each["name"]: each["value"] if "value" in each else each["valueFrom"]
        for each in container(job)["env"]
    }
    name = "kinetic-job-0123456789abcdef"
    assert told["KINETIC_SET"] == name
    assert told["TPU_WORKER_HOSTNAMES"].split(",") == [f"{name}-0.{name}", f"{name}-0-1.{name}"]
    assert told["JAX_COORDINATOR_ADDRESS"].startswith(f"{name}-0.{name}:")
    assert WORKER_INDEX in told["KINETIC_HOST_INDEX"]["fieldRef"]["fieldPath"]
    assert "KINETIC_FAILED_COUNT" not in told


def test_a_queue_admits_the_set_and_leaves_its_job_alone() -> None:
    job, found = set_of(pod=PodOptions(queue="research"))
    assert found["metadata"]["labels"][QUEUE] == "research"
    assert QUEUE not in job["metadata"]["labels"]
    assert "suspend" not in job["spec"]


def test_a_set_of_one_host_asks_for_no_slice() -> None:
    job, found = set_of("cpu")
    assert found["spec"]["leaderWorkerTemplate"]["size"] == 1
    assert "affinity" not in job["spec"]["template"]["spec"]


def test_a_slice_is_one_process_here() -> None:
    spec = JobSpec("f", parse_accelerator("tpu-v5p-8"), "local")
    job = job_manifest(spec, reference(backend="local"), DELIVERY)
    assert "KINETIC_HOST_COUNT" not in {each["name"] for each in container(job)["env"]}
