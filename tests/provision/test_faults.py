"""Every step of every verb, with every fault: what a re-run makes is what a run without faults makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from kinetic_core.errors import CloudError, ProvisioningError
from kinetic_core.provision.prepare import Prepared
from kinetic_core.provision.project import Bucket
from kinetic_core.testing.faults import Act, Fault, Faults
from tests.provision.worlds import WANTED, Killed, World

Verb = Callable[[World], Prepared]
SMALL = replace(WANTED, pools=WANTED.pools[:1])
ONE_MORE = replace(WANTED, namespaces=(replace(WANTED.namespaces[0], name="vision"),))

VERBS: dict[str, tuple[Verb | None, Verb]] = {
    "up": (None, World.up),
    "pool add": (lambda world: world.up(SMALL), World.pool_add),
    "namespace add": (World.up, lambda world: world.namespace_add(ONE_MORE)),
    "down": (lambda world: used(world), World.down),
}
"""By name, what there is before, and the verb itself."""
FAULTS = {
    "403": Fault("", Act.ANSWER, None, status=403),
    "404": Fault("", Act.ANSWER, None, status=404),
    "409": Fault("", Act.ANSWER, None, status=409),
    "429": Fault("", Act.ANSWER, None, status=429),
    "500": Fault("", Act.ANSWER, None, status=500),
    "no answer": Fault("", Act.DROP, None),
    "lost reply": Fault("", Act.LOSE_REPLY, None),
    "times out": Fault("", Act.SILENCE, None),
}
DONE_ALL_THE_SAME = ("lost reply", "times out")


def used(world: World) -> Prepared:
    """A cluster that people have used: there is something in its buckets."""
    made = world.up()
    for use in ("jobs", "builds"):
        world.project.objects[f"my-project-kn-training-{use}"] = ["ml/outputs/x", "source/y"]
    return made


def before(world: World, name: str) -> Verb:
    first, verb = VERBS[name]
    if first is not None:
        first(world)
    return verb


def steps_of(world: World, name: str) -> list[str]:
    """The requests with which the verb changes something."""
    verb = before(world, name)
    world.project.faults, world.cluster.faults = Faults(), Faults()
    made = verb(world)
    lines = world.mutations()
    assert lines
    acting = [step for step in made.steps if step.acts and not step.resource.only_waits]
    emptied = [step for step in acting if step.action == "delete" and isinstance(step.resource, Bucket)]
    assert len(lines) == len(acting) + len(emptied)
    return lines


def both(world: World) -> tuple[Faults, Faults]:
    return world.project.faults, world.cluster.faults


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


def test_who_may_only_add_pools_can(world: World) -> None:
    world.up(SMALL)
    world.project.refused = {"resourcemanager.projects.setIamPolicy", "storage.buckets.create"}
    world.pool_add()
    assert {step.action for step in world.up().steps} == {"keep"}
