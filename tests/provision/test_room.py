"""Machines and quotas of a project in which Compute Engine cannot be asked yet: looked at once it can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kinetic_core.errors import ConfigurationError, ProvisioningError
from kinetic_core.provision.apply import apply
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.prepare import prepare_up
from kinetic_core.provision.project import COMPUTE
from kinetic_core.provision.specification import wanted_pool
from tests.provision.worlds import WANTED, World

ENABLING = "POST /v1/projects/my-project/services:batchEnable"


@pytest.mark.promise("provisioning: Disabled APIs")
def test_a_zone_without_the_machines_costs_nothing_but_the_apis(world: World) -> None:
    world.project.machines = {"g2-standard-4", "ct5p-hightpu-4t"}
    world.project.quotas = {"NVIDIA_L4_GPUS": 0.0}
    with pytest.raises(ProvisioningError) as told:
        world.up()
    assert "that is done, and now Compute Engine says: us-central1-a has no machines" in str(told.value)
    assert "us-central1-a has no machines ct5lp-hightpu-4t: choose another --zone" in str(told.value)
    assert "quota NVIDIA_L4_GPUS in us-central1 is 0, and one machine needs 1: ask for" in str(told.value)
    assert "Done: 1 of " in str(told.value)
    assert "Not done: create service account kn-training-nodes; " in str(told.value)
    assert world.mutations() == [ENABLING]
    with pytest.raises(ConfigurationError, match="nothing has been changed: us-central1-a has no machines"):
        world.up()
    world.project.machines, world.project.quotas = None, {}
    world.up()
    assert {step.action for step in world.up().steps} == {"keep"}


def test_a_compute_engine_that_takes_its_time_is_waited_for(world: World) -> None:
    world.project.machines = set()
    with pytest.raises(ProvisioningError, match="has no machines"):
        up(slow(world, 60.0))
    assert world.mutations() == [ENABLING]


def test_one_that_never_answers_is_gkes_to_tell(world: World) -> None:
    world.project.machines = set()
    up(slow(world, 1e9))
    assert WANTED.path in world.project.resources


@pytest.mark.promise("provisioning: Quotas, machines, permissions: before the first mutation, with the fix")
def test_a_region_without_the_machines_is_refused(world: World) -> None:
    world.project.enabled.add(COMPUTE)
    world.project.machines = {"ct5lp-hightpu-4t"}
    somewhere = replace(WANTED, location="europe-west4", pools=(wanted_pool("gpu-l4"),))
    with pytest.raises(ConfigurationError, match="europe-west4 has no machines g2-standard-4: choose anoth"):
        world.up(somewhere)
    assert world.mutations() == []
    zoned = wanted_pool("tpu-v5e-4", zones=("europe-west4-b",))
    prepare_up(world.cloud, replace(somewhere, pools=(zoned,)))
    world.project.faults.answer("/regions/", 403, times=None)
    prepare_up(world.cloud, somewhere)


def test_who_has_it_enabled_is_asked_once(world: World) -> None:
    world.project.enabled.add(COMPUTE)
    world.up(replace(WANTED, pools=WANTED.pools[:1]))
    assert world.project.faults.count("GET /compute/v1/.*/machineTypes/") == 1


def slow(world: World, seconds: float) -> Cloud:
    """A cloud in which Compute Engine is still called disabled for a while."""
    cloud, ask = world.cloud, world.project.ask

    def late(method: str, url: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        if "//compute." in url and world.clock() < seconds:
            details = [{"reason": "SERVICE_DISABLED"}]
            return 403, {"error": {"code": 403, "message": "disabled", "details": details}}
        return ask(method, url, body)

    cloud.ask = late
    return cloud


def up(cloud: Cloud) -> None:
    said: list[str] = []
    apply(cloud, prepare_up(cloud, WANTED), said.append)
