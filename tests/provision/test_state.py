"""What is said of a cluster and of what would go with it; and that saying it changes nothing."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.cli.clusters import take_down
from kinetic_core.cli.output import Output
from kinetic_core.cli.verb import Session
from kinetic_core.errors import ConfigurationError
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.prepare import (
    prepare_down,
    prepare_namespace_removal,
    prepare_namespaces,
    prepare_pool_removal,
    prepare_pool_sizes,
    prepare_pools,
    prepare_up,
)
from kinetic_core.provision.state import State, live_jobs_by_namespace, look, look_at_pools
from tests.provision.worlds import WANTED, World

BUCKET = "my-project-kn-training-jobs"
LOOKS: dict[str, Callable[[Cloud], object]] = {
    "status": lambda cloud: look(cloud, WANTED),
    "up": lambda cloud: prepare_up(cloud, WANTED),
    "down": lambda cloud: prepare_down(cloud, WANTED),
}
LOOKS_AT_A_CLUSTER: dict[str, Callable[[Cloud], object]] = {
    "pool list": lambda cloud: look_at_pools(cloud, WANTED),
    "namespace list": live_jobs_by_namespace,
    "pool add": lambda cloud: prepare_pools(cloud, WANTED),
    "pool update": lambda cloud: prepare_pool_sizes(cloud, WANTED, "gpu-l4-1", 0, 2),
    "pool remove": lambda cloud: prepare_pool_removal(cloud, WANTED, "gpu-l4-1"),
    "namespace add": lambda cloud: prepare_namespaces(cloud, WANTED),
    "namespace remove": lambda cloud: prepare_namespace_removal(cloud, WANTED),
}
"""Every verb up to where it would begin to change something; these need a cluster."""
ELSEWHERE = replace(WANTED, location="us-east1-b")


def job(world: World, namespace: str, job_id: str, spec: dict[str, Any], *, ended: bool = False) -> None:
    """A Job that has no pods."""
    labels = {"app": "kinetic", JOB_ID: job_id}
    objects = world.cluster.objects
    with objects.changed:  # which the controller waits for
        objects.create("Job", namespace, {"metadata": {"name": job_id, "labels": labels}, "spec": spec})
        if ended:
            over = {"conditions": [{"type": "Complete", "status": "True"}]}
            objects.change("Job", namespace, job_id, lambda item: item["status"].update(over))


def test_a_namespace_is_listed_with_its_live_jobs(world: World) -> None:
    world.cluster.objects.create("Namespace", "", {"metadata": {"name": "default"}})
    world.up()
    queued = {"completions": 1, "suspend": True}
    job(world, "ml", "job-0000000000000001", queued)
    job(world, "ml", "job-0000000000000002", queued, ended=True)
    job(world, "default", "job-0000000000000003", queued)
    assert live_jobs_by_namespace(world.cloud) == {"ml": 1}


@pytest.mark.promise("provisioning: lists jobs, pools, outputs and what is lost")
def test_jobs_and_outputs_of_every_namespace_would_be_lost(world: World) -> None:
    world.cluster.objects.create("Namespace", "", {"metadata": {"name": "default"}})
    world.up()
    slice_of_hosts = {"completions": 1, "parallelism": 0, "template": {}}
    queued = {"completions": 1, "suspend": True}
    job(world, "default", "job-queued", queued)
    job(world, "ml", "job-slice", slice_of_hosts)
    job(world, "ml", "job-over", queued, ended=True)
    names = ["default/outputs/job-1/x", "default/outputs/job-1/y", "ml/jobs/job-2/result", "note"]
    world.project.objects[BUCKET] = names
    state = look(world.cloud, WANTED)
    assert state.namespaces == ("ml",)
    assert sorted(state.running_jobs) == ["default/job-queued", "ml/job-slice"]
    assert state.outputs == {"default": 2, "ml": 0}
    told = state.losses()
    assert told[0] in (
        "running jobs end: default/job-queued, ml/job-slice",
        "running jobs end: ml/job-slice, default/job-queued",
    )
    assert told[1] == "pools: default-pool, tpu-v5e-4-spot, tpu-v5p-8, gpu-l4-1"
    assert told[2:] == ["outputs of default are deleted, objects: 2"]


def test_a_thousand_outputs_are_counted_no_further() -> None:
    assert State("path", outputs={"ml": 1000}).losses() == [
        "outputs of ml are deleted, objects: 1000 or more"
    ]


@pytest.mark.promise("provisioning: … and what nobody could look at")
def test_what_nobody_could_look_at_is_said(world: World) -> None:
    world.up()
    world.cluster.faults.answer("/jobs", 503, times=None)
    world.project.faults.answer(f"/b/{BUCKET}/o", 403, times=None)
    state = look(world.cloud, WANTED)
    assert (state.running_jobs, state.outputs) == ((), None)
    jobs, outputs = state.losses()[1:]
    assert jobs.startswith("not known: running jobs (")
    assert "HTTP 503" in jobs
    assert outputs.startswith(f"not known: outputs in gs://{BUCKET} (")


@pytest.mark.promise("provisioning: A wrong zone or project is refused")
def test_a_cluster_in_another_zone_is_named(world: World) -> None:
    world.up()
    assert look(world.cloud, ELSEWHERE).elsewhere == ("us-central1-a",)
    said = "is in us-central1-a, not in us-east1-b: give --zone us-central1-a"
    for verb in (look_at_pools, prepare_pools, prepare_namespaces):
        with pytest.raises(ConfigurationError, match=said):
            verb(world.cloud, ELSEWHERE)
    with pytest.raises(ConfigurationError, match=said):
        prepare_pool_removal(world.cloud, ELSEWHERE, "gpu-l4-1")
    nowhere = replace(WANTED, cluster="other")
    assert look(world.cloud, nowhere).elsewhere == ()
    with pytest.raises(ConfigurationError, match=r"there is no cluster other in us-central1-a.*makes it"):
        look_at_pools(world.cloud, nowhere)


@pytest.mark.promise("provisioning: A read-only verb creates nothing")
@pytest.mark.parametrize("name", LOOKS)
def test_looking_changes_nothing_in_an_empty_project(name: str, world: World) -> None:
    LOOKS[name](world.cloud)
    assert world.mutations() == []


@pytest.mark.promise("provisioning: A read-only verb creates nothing")
@pytest.mark.parametrize("name", LOOKS | LOOKS_AT_A_CLUSTER)
def test_looking_changes_nothing_in_a_project_with_a_cluster(name: str, world: World) -> None:
    world.up(replace(WANTED, pools=WANTED.pools[-1:]))
    before = world.mutations()
    (LOOKS | LOOKS_AT_A_CLUSTER)[name](world.cloud)
    assert world.mutations() == before


def test_down_says_what_is_lost_before_it_asks(world: World) -> None:
    world.up()
    job(world, "ml", "job-running", {"completions": 1, "suspend": True})
    world.project.objects[BUCKET] = ["ml/outputs/job-1/x"]
    shown: list[str] = []

    def no(_question: str) -> bool:
        shown.extend(stream.getvalue().splitlines())
        return False

    stream = io.StringIO()
    _, lost, done = take_down(Session(Output(stream=stream), {}), world.cloud, WANTED, no)
    assert not done
    assert shown[:3] == lost
    assert [line.partition(":")[0] for line in lost] == [
        "running jobs end",
        "pools",
        "outputs of ml are deleted, objects",
    ]
    assert shown[3].split() == ["ACTION", "KIND", "NAME", "DETAILS"]
    assert BUCKET in world.project.objects
