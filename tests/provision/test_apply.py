"""What `up` and `down` do to a project, and what they do not do twice."""

from __future__ import annotations

from tests.provision.worlds import World


def test_up_makes_each_resource_with_one_request_and_the_second_does_nothing(world: World) -> None:
    steps = world.up().steps
    assert {step.action for step in steps} == {"create", "change"}
    assert len(world.mutations()) == len(steps)
    before = world.mutations()
    again = world.up().steps
    assert {step.action for step in again} == {"keep"}
    assert world.mutations() == before


def test_down_leaves_nothing_but_the_apis(world: World) -> None:
    world.up()
    world.project.objects["my-project-kn-training-jobs"] = ["ml/outputs/x"]
    world.down()
    assert world.project.resources == {}
    assert world.project.policies["projects/my-project"]["bindings"] == []
