"""Every request that only looks, with every fault: it is outlasted or told, and a re-run continues."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from kinetic_core.cli.exit_codes import Exit, exit_code
from kinetic_core.errors import CloudError, KineticError, ProvisioningError
from kinetic_core.provision.apply import apply
from kinetic_core.provision.prepare import prepare_down, prepare_up
from kinetic_core.testing.faulty_server import Faults
from tests.provision.verbs import FAULTS, VERBS, before, both, used
from tests.provision.worlds import READS, WANTED, World

pytestmark = pytest.mark.slow  # with all their faults, half a minute
PASSES = ("429", "500", "no answer", "lost reply", "times out")


def reads_of(world: World, name: str) -> list[str]:
    """What matches the requests with which a verb looks and waits, each once."""
    verb = before(world, name)
    world.project.faults, world.cluster.faults = Faults(), Faults()
    verb(world)
    requests = [*world.project.faults.requests, *world.cluster.faults.requests]
    lines = [re.escape(each.line) for each in requests if any(word in each.line for word in READS)]
    return list(dict.fromkeys(f"^{re.sub('operation.*', 'operations?/.*', line)}$" for line in lines))


@pytest.mark.promise("provisioning: … at every read and poll")
@pytest.mark.parametrize("fault", PASSES)
@pytest.mark.parametrize("name", VERBS)
def test_what_passes_is_outlasted(name: str, fault: str, worlds: Callable[[], World]) -> None:
    whole = worlds()
    lines = reads_of(whole, name)
    world = worlds()
    verb = before(world, name)
    for line in lines:
        for faults in both(world):
            faults.add(replace(FAULTS[fault], match=line, times=2))
    verb(world)
    assert world.state() == whole.state()


@pytest.mark.promise("provisioning: … at every read and poll")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", VERBS)
def test_what_stays_is_told_and_a_rerun_continues(name: str, fault: str, worlds: Callable[[], World]) -> None:
    whole = worlds()
    lines = reads_of(whole, name)
    for line in lines:
        world = worlds()
        verb = before(world, name)
        earlier = world.mutations()
        for faults in both(world):
            faults.add(replace(FAULTS[fault], match=line))
        try:
            verb(world)  # some is not needed, and nobody insists
        except KineticError as exc:
            check_told(exc, world, earlier)
        for faults in both(world):
            faults.clear()
        verb(world)
        assert world.state() == whole.state(), line


def check_told(exc: KineticError, world: World, earlier: list[str]) -> None:
    """Who fails in the middle says what is not done; who fails before it has done nothing."""
    if isinstance(exc, ProvisioningError):
        assert "Not done: " in str(exc)
        assert exit_code(exc) is Exit.CLOUD_ERROR
        return
    assert world.mutations() == earlier
    told = r"cannot be (looked at|listed|read)|may not be used|there is no cluster|nothing has been changed"
    assert re.search(rf"{told}|HTTP \d+|gave no answer", str(exc)), exc
    assert exit_code(exc) in (Exit.CLOUD_ERROR, Exit.USER_ERROR)


def test_what_cannot_be_looked_at_is_named(world: World) -> None:
    world.up()
    before = world.mutations()
    world.project.faults.answer("GET .*/repositories/kn-training$", 403, times=None)
    with pytest.raises(CloudError, match=r"registry .*kn-training cannot be looked at: .*HTTP 403"):
        world.up()
    assert world.mutations() == before


@pytest.mark.promise("provisioning: Operations that never end, namespaces that do not go")
@pytest.mark.parametrize(("name", "step"), [("training", "create cluster"), ("gpu-l4-1", "create pool")])
def test_an_operation_that_does_not_end_is_told(name: str, step: str, world: World) -> None:
    world.project.endless.add(name)
    with pytest.raises(ProvisioningError, match=f"{step} {name}: .*/operations/.* goes on for an hour"):
        world.up()
    with pytest.raises(ProvisioningError, match=f"{name} has been busy for an hour; look at it in the cons"):
        world.up()
    world.project.endless.clear()
    world.up()
    assert {step.action for step in world.up().steps} == {"keep"}


@pytest.mark.promise("provisioning: Operations that never end, namespaces that do not go")
def test_a_namespace_that_does_not_go_is_told(world: World) -> None:
    used(world)
    why = {"type": "NamespaceFinalizersRemaining", "status": "True", "message": "pods have finalizers"}

    def terminate(item: dict[str, dict[str, object]]) -> None:
        item["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        item["status"]["conditions"] = [why]

    world.cluster.objects.change("Namespace", "", "ml", terminate)
    said = r"Namespace ml: .*has been going away for 10 minutes \(pods have finalizers\). Remove what keeps"
    with pytest.raises(ProvisioningError, match=said):
        world.down()
    with pytest.raises(ProvisioningError, match=said):
        world.up()
    world.cluster.objects.remove("Namespace", "", "ml", None)
    world.down()
    assert world.project.resources == {}


def test_a_bucket_that_another_down_has_removed_is_empty(world: World) -> None:
    used(world)
    cloud = world.cloud
    prepared = prepare_down(cloud, WANTED)
    world.down()
    apply(cloud, prepared, world.said.append)
    assert {step.acts for step in prepare_up(world.cloud, WANTED).steps} == {True, False}
