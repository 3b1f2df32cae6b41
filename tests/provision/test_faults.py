"""Every step of every verb, with every fault: what a re-run makes is what a run without faults makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from kinetic_core.errors import CloudError, ProvisioningError
from tests.provision.verbs import (
    DONE_ALL_THE_SAME,
    FAULTS,
    SMALL,
    VERBS,
    before,
    both,
    steps_of,
)
from tests.provision.worlds import Killed, World


@pytest.mark.promise("provisioning: Each fault at every change of four verbs; converges")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", VERBS)
def test_a_rerun_continues(name: str, fault: str, worlds: Callable[[], World]) -> None:
    whole = worlds()
    lines = steps_of(whole, name)
    for line in lines:
        world = worlds()
        verb = before(world, name)
        for faults in both(world):
            faults.add(replace(FAULTS[fault], match=f"^{re.escape(line)}$"))
        if fault in DONE_ALL_THE_SAME:  # it was done: looking shows that, and the verb goes on
            verb(world)
        else:
            with pytest.raises(ProvisioningError, match="Not done: ") as failed:
                verb(world)
            assert world.said[-1].partition("] ")[2] in str(failed.value)
        for faults in both(world):
            faults.clear()
        verb(world)
        assert world.state() == whole.state(), line


@pytest.mark.promise("provisioning: Each fault at every change of four verbs; converges")
@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("fault", ["409", "429", "500", "no answer", *DONE_ALL_THE_SAME])
def test_what_passes_is_outlasted(name: str, fault: str, worlds: Callable[[], World]) -> None:
    whole = worlds()
    lines = steps_of(whole, name)
    world = worlds()
    verb = before(world, name)
    for line in lines:
        for faults in both(world):
            faults.add(replace(FAULTS[fault], match=f"^{re.escape(line)}$", times=2))
    verb(world)
    assert world.state() == whole.state()


@pytest.mark.promise("provisioning: Killed anywhere and run again, it continues")
@pytest.mark.promise("provisioning: Kill -9 at every step")
@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere(name: str, after: bool, worlds: Callable[[], World]) -> None:
    whole = worlds()
    lines = steps_of(whole, name)
    for number in range(len(lines)):
        world = worlds()
        verb = before(world, name)
        world.dies = (number, after)
        with pytest.raises(Killed):
            verb(world)
        world.dies = None
        verb(world)
        assert world.state() == whole.state(), lines[number]


def test_reading_that_fails_changes_nothing(world: World) -> None:
    world.project.faults.answer("GET .*/clusters", 403, times=None)
    world.project.enabled.add("container.googleapis.com")
    with pytest.raises(CloudError, match="403"):
        world.up()
    assert world.mutations() == []


def test_an_operation_that_fails_is_told_and_its_pool_made_again(world: World) -> None:
    world.project.fails["tpu-v5p-8"] = "[GCE_STOCKOUT] there are none"
    with pytest.raises(
        ProvisioningError, match=r"create pool tpu-v5p-8: .*GCE_STOCKOUT.*Not done: create pool"
    ):
        world.up()
    world.project.fails.clear()
    actions = {str(step.resource): step.action for step in world.up().steps}
    assert actions["pool tpu-v5p-8"] == "replace"
    assert {step.action for step in world.up().steps} == {"keep"}


def test_a_cluster_that_failed_is_made_again_with_all_its_pools(world: World) -> None:
    world.project.fails["training"] = "no addresses left"
    with pytest.raises(ProvisioningError, match="create cluster training: no addresses left"):
        world.up()
    world.project.fails.clear()
    actions = {str(step.resource): step.action for step in world.up().steps}
    assert (actions["cluster training"], actions["pool gpu-l4-1"]) == ("replace", "create")
    assert {step.action for step in world.up().steps} == {"keep"}


def test_a_failure_of_an_operation_that_says_no_done_is_told(world: World) -> None:
    """An operation that goes on is answered without `done`, as false values are left out."""
    world.project.fails["kn-training"] = "too many repositories"
    with pytest.raises(
        ProvisioningError, match=r"create registry .*/kn-training: too many repositories.*Not done: "
    ):
        world.up()
    world.project.fails.clear()
    world.up()
    assert {step.action for step in world.up().steps} == {"keep"}


def test_who_may_only_add_pools_can(world: World) -> None:
    world.up(SMALL)
    world.project.refused = {"resourcemanager.projects.setIamPolicy", "storage.buckets.create"}
    world.pool_add()
    assert {step.action for step in world.up().steps} == {"keep"}
