"""What `up` and `down` do to a project, and what they do not do twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kinetic_core.cli.plans import answer
from kinetic_core.cli.schemas import SCHEMAS, SHAPES
from kinetic_core.provision.prepare import prepare_namespace_removal
from kinetic_core.provision.specification import WantedNamespace
from kinetic_core.provision.state import State, pool_of
from tests.provision.worlds import WANTED, Killed, World


@pytest.mark.promise("provisioning: `up` applies it with progress")
@pytest.mark.promise("provisioning: Mutating calls = resources")
@pytest.mark.promise("provisioning: Second `up`: 0 mutations, ≤ 3 s")
def test_up_makes_each_resource_with_one_request(world: World) -> None:
    steps = world.up().steps
    assert {step.action for step in steps} == {"create", "change", "wait"}
    assert len(world.mutations()) == len([step for step in steps if step.action != "wait"])
    before = world.mutations()
    again = world.up().steps
    assert {step.action for step in again} == {"keep"}
    assert world.mutations() == before


@pytest.mark.promise("provisioning: `--json` for each")
def test_steps_and_pools_are_what_is_said_of_their_json(world: World) -> None:
    made = answer(world.up(), done=True)
    assert made.keys() == SCHEMAS["pool.add"].keys()
    assert {frozenset(step) for step in made["steps"]} == {frozenset(SHAPES["step"])}
    pools = State("path", pools=(pool_of({"name": "one"}),)).fields()["pools"]
    assert [pool.keys() for pool in pools] == [SHAPES["pool"].keys()]
    assert State("path").fields().keys() == SCHEMAS["status"].keys()


@pytest.mark.promise("provisioning: From an empty project, the default namespace too")
@pytest.mark.parametrize("name", ["default", "somebodys"])
def test_a_namespace_that_others_made_is_used_and_stays(name: str, world: World) -> None:
    """As `default` is in every cluster; nobody could see it while there was no cluster."""
    world.cluster.objects.create("Namespace", "", {"metadata": {"name": name}})
    wanted = replace(WANTED, namespaces=(WantedNamespace(name),))
    world.up(wanted)
    assert world.cluster.objects.get("ServiceAccount", name, "kinetic")
    assert {step.action for step in world.up(wanted).steps} == {"keep"}
    world.do(prepare_namespace_removal, wanted)
    assert "labels" not in world.cluster.objects.get("Namespace", "", name)["metadata"]


def test_down_leaves_nothing_but_the_apis(world: World) -> None:
    world.up()
    world.project.objects["my-project-kn-training-jobs"] = ["ml/outputs/x"]
    world.down()
    assert world.project.resources == {}
    assert world.project.policies["projects/my-project"]["bindings"] == []


def test_two_at_once_make_it_once(world: World) -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(world.up) for _ in range(2)]:
            done.result()
    assert {step.action for step in world.up().steps} == {"keep"}


@pytest.mark.promise("provisioning: State is what the cloud says")
def test_another_run_is_waited_for(world: World) -> None:
    world.dies = (9, True)
    with pytest.raises(Killed):
        world.up()
    world.dies = None
    assert world.project.resources[WANTED.path]["status"] == "PROVISIONING"
    actions = {str(step.resource): step.action for step in world.up().steps}
    assert actions["cluster training"] == "wait"
    assert world.mutations().count("POST /v1/projects/my-project/locations/us-central1-a/clusters") == 1


@pytest.mark.promise("provisioning: Says honestly what remains")
def test_a_cluster_that_does_not_answer_can_be_removed(world: World) -> None:
    world.up()
    world.cluster.faults.answer("/api/v1/namespaces", 503, times=None)
    prepared = world.down()
    assert "disks and addresses of jobs" in " ".join(prepared.remains)
    assert world.project.resources == {}
