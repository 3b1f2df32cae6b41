"""Other processes and people at the same time, and Ctrl-C, at every step of every verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kinetic_core.provision.prepare import (
    prepare_down,
    prepare_namespace_removal,
    prepare_namespaces,
    prepare_up,
)
from tests.provision.verbs import VERBS, before, steps_of
from tests.provision.worlds import WANTED, MortalCloud, World

PREPARE = {"up": prepare_up, "down": prepare_down, "namespace add": prepare_namespaces}
REGISTRY = "projects/my-project/locations/us/repositories/kn-training"
JOBS, BUILDS = "b/my-project-kn-training-jobs", "b/my-project-kn-training-builds"
THEIRS = [{"role": "roles/viewer", "members": [f"user:{name}@example.org"]} for name in ("a", "b")]


@pytest.mark.promise("provisioning: Ctrl-C at every step")
@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("after", [False, True])
def test_after_ctrl_c_anywhere_the_same_command_continues(
    name: str, after: bool, worlds: Callable[[], World]
) -> None:
    whole = worlds()
    lines = steps_of(whole, name)
    for number in range(len(lines)):
        world = worlds()
        verb = before(world, name)
        world.dies, world.end = (number, after), KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt):
            verb(world)
        begun, told = world.said[-2:]
        step = begun.partition("] ")[2]
        assert told == f"interrupted at: {step}. What was begun goes on; the same command continues"
        world.dies = None
        verb(world)
        assert world.state() == whole.state(), lines[number]


@pytest.mark.promise("provisioning: Ctrl-C at every step")
def test_ctrl_c_while_a_step_is_waited_for(world: World) -> None:
    cloud = world.cloud
    prepared = prepare_up(cloud, WANTED)
    cloud.sleep = interrupted
    with pytest.raises(KeyboardInterrupt):
        world.carry_out(cloud, prepared)
    assert "interrupted at: change APIs my-project" in world.said[-1]
    assert {step.acts for step in prepare_up(world.cloud, WANTED).steps} == {True, False}


def interrupted(_seconds: float) -> None:
    raise KeyboardInterrupt


@pytest.mark.promise("provisioning: Two `up` at once")
@pytest.mark.parametrize("name", ["up", "down"])
def test_a_second_one_between_any_two_changes(name: str, worlds: Callable[[], World]) -> None:
    whole = worlds()
    lines = steps_of(whole, name)
    for number in range(len(lines)):
        world = worlds()
        verb = before(world, name)
        first = world.cloud
        first.dies_at, first.between = number, lambda world=world, verb=verb: verb(world)
        world.carry_out(first, PREPARE[name](first, WANTED))
        assert first.dies_at < 0
        assert world.state() == whole.state(), lines[number]


def edited(world: World, owner: str) -> MortalCloud:
    """A cloud in which somebody edits a policy each time we have read it, twice."""
    cloud, edits, policies = world.cloud, list(THEIRS), world.project.policies

    def meddle(method: str, url: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        answer = world.project.ask(method, url, body)
        reads = f"/{owner}:getIamPolicy" in url or (method == "GET" and f"/{owner}/iam?" in url)
        if reads and answer[0] == 200 and edits:
            policy = policies[owner]
            new = [*policy["bindings"], edits.pop()]
            policies[owner] = {**policy, "bindings": new, "etag": f"theirs-{len(edits)}"}
        return answer

    cloud.ask = meddle
    return cloud


@pytest.mark.promise("provisioning: Concurrent IAM edits (etag)")
@pytest.mark.parametrize("owner", ["projects/my-project", REGISTRY, JOBS, BUILDS])
def test_an_edit_between_reading_and_writing_a_policy_is_kept(owner: str, world: World) -> None:
    cloud = edited(world, owner)
    world.carry_out(cloud, prepare_up(cloud, WANTED))
    bindings = world.project.policies[owner]["bindings"]
    assert [each for each in THEIRS if each in bindings] == THEIRS
    assert {step.action for step in world.up().steps} == {"keep"}


@pytest.mark.promise("provisioning: Concurrent IAM edits (etag)")
def test_an_edit_is_kept_where_grants_are_taken_away(world: World) -> None:
    world.up()
    for owner, prepare in ((JOBS, prepare_namespace_removal), ("projects/my-project", prepare_down)):
        cloud = edited(world, owner)
        world.carry_out(cloud, prepare(cloud, WANTED))
        assert sorted(world.project.policies[owner]["bindings"], key=str) == THEIRS
