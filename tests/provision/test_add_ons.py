"""LeaderWorkerSet and Kueue: made once, kept, brought up to date, and never over what others installed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.cli.output import Output
from kinetic_core.cli.plans import show
from kinetic_core.cli.verb import Session
from kinetic_core.errors import CloudError, ConfigurationError, ProvisioningError
from kinetic_core.provision import vendored
from kinetic_core.provision.add_ons import DIGEST, VERSION, objects_of
from kinetic_core.provision.plan import Action
from kinetic_core.provision.prepare import Prepared, prepare_up
from kinetic_core.provision.vendored import KUEUE, LWS, add_on
from tests.provision.worlds import ADD_ON, WANTED, World

FOLDER = Path(vendored.__file__).parent
NAMES = (LWS, KUEUE)
BOTH = replace(WANTED, pools=(), add_ons=tuple(map(add_on, NAMES)))
BARE = replace(WANTED, add_ons=())
CRD = ("CustomResourceDefinition", "", "sets.example.org")
DEPLOYMENT = ("Deployment", "sets-system", "sets")


def actions(prepared: Prepared) -> dict[str, Action]:
    """Of the steps of add-ons, by their names."""
    return {step.resource.name: step.action for step in prepared.steps if step.resource.kind == "add-on"}


@pytest.mark.promise("provisioning: LeaderWorkerSet, Kueue vendored with version and checksum")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_vendored_is_what_its_table_says(name: str) -> None:
    about = json.loads((FOLDER / "vendored.json").read_text())[name]
    content = (FOLDER / f"{name}.json.gz").read_bytes()
    assert about["sha256"] == hashlib.sha256(content).hexdigest()
    assert (about["licence"], about["source"].count(about["version"])) == ("Apache-2.0", 1)
    kinds = [each["kind"] for each in add_on(name).objects]
    assert kinds[:2] == ["Namespace", "CustomResourceDefinition"]
    assert kinds.index("Deployment") < kinds.index("ValidatingWebhookConfiguration")
    (deployment,) = [each for each in add_on(name).objects if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == about["image"]


@pytest.mark.promise("provisioning: LeaderWorkerSet, Kueue vendored with version and checksum")
def test_a_file_that_is_not_what_was_released_is_refused(tmp_path: Path) -> None:
    for file in FOLDER.glob("*.json*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "lws.json.gz").write_bytes((FOLDER / "kueue.json.gz").read_bytes())
    with pytest.raises(ConfigurationError, match=r"lws\.json\.gz is not LeaderWorkerSet v0\.9\.0 as it was"):
        add_on(LWS, tmp_path)


def test_both_are_installed_and_kept(world: World) -> None:
    world.cluster.objects.create("Namespace", "", {"metadata": {"name": "kube-system"}})
    steps = world.up(BOTH).steps
    assert len(world.mutations()) == len([step for step in steps if not step.resource.only_waits])
    reads = [each.line for each in world.cluster.faults.requests if each.line.startswith("GET ")]
    assert len(reads) <= 2 * sum(step.resource.reading.service == "kubernetes" for step in steps)
    made = world.cluster.objects.get("Deployment", "lws-system", "lws-controller-manager")
    assert made["metadata"]["labels"][VERSION] == add_on(LWS).version
    before = world.mutations()
    assert set(actions(world.up(BOTH)).values()) == {Action.KEEP}
    assert world.mutations() == before


def test_namespaces_of_add_ons_are_none_of_jobs(world: World) -> None:
    world.up()
    deleted = [str(step.resource) for step in world.down().steps if step.action is Action.DELETE]
    assert "Kubernetes Namespace ml" in deleted
    assert [each for each in deleted if "sets-system" in each] == []


@pytest.mark.parametrize("number", range(len(ADD_ON.objects)))
def test_what_somebody_else_installed_is_left_as_it_is(number: int, world: World) -> None:
    world.up(BARE)
    theirs = ADD_ON.objects[number]
    facts = theirs["metadata"]
    if facts.get("namespace"):
        world.cluster.objects.create("Namespace", "", {"metadata": {"name": facts["namespace"]}})
    world.cluster.objects.create(
        theirs["kind"], facts.get("namespace", ""), {**theirs, "spec": {"old": True}}
    )
    prepared = world.up()
    assert actions(prepared) == {"Sets v1.2.0": Action.LEAVE}
    assert prepared.steps[-1].details[0].endswith("installed by somebody else, left as it is")
    assert [line for line in world.mutations() if "sets" in line] == []
    there = world.cluster.objects.get(theirs["kind"], facts.get("namespace", ""), facts["name"])
    assert there["spec"] == {"old": True}


def test_the_version_that_somebody_else_installed_is_told(world: World) -> None:
    world.up(BARE)
    world.cluster.objects.create("Namespace", "", {"metadata": {"name": "sets-system"}})
    image = {"spec": {"containers": [{"image": "localhost:5000/sets:v1.0.9"}]}}
    body = {"metadata": {"name": "sets"}, "spec": {"template": image}}
    world.cluster.objects.create("Deployment", "sets-system", body)
    assert world.up().steps[-1].details == ("v1.0.9 installed by somebody else, left as it is",)


def test_an_older_one_of_ours_is_updated_a_newer_is_left(world: World) -> None:
    world.up()
    newer = replace(WANTED, add_ons=(another("v1.10.0"),))
    changed = world.up(newer)
    assert actions(changed)["Sets Deployment sets-system/sets"] is Action.CHANGE
    (step,) = [step for step in changed.steps if step.resource.name == "Sets Deployment sets-system/sets"]
    assert step.details == ("v1.2.0 to v1.10.0",)
    assert world.cluster.objects.get(*DEPLOYMENT)["spec"]["paused"] == "v1.10.0"
    prepared = world.up()
    assert actions(prepared) == {"Sets v1.2.0": Action.LEAVE}
    assert prepared.steps[-1].details == ("v1.10.0, which is newer, is left as it is",)
    assert set(actions(world.up(newer)).values()) == {Action.KEEP}


def another(version: str) -> vendored.AddOn:
    """The same in another version."""
    *others, deployment = ADD_ON.objects
    spec = {**deployment["spec"], "paused": version}
    return replace(ADD_ON, version=version, objects=(*others, {**deployment, "spec": spec}))


def test_fields_changed_by_others_are_set_again_on_update(world: World) -> None:
    world.up()
    theirs = {"spec": {"paused": "by them"}}
    world.cluster.objects.change(*DEPLOYMENT, lambda item: item["spec"].update(theirs["spec"]))
    assert set(actions(world.up()).values()) == {Action.KEEP}
    world.up(replace(WANTED, add_ons=(another("v1.3.0"),)))
    assert world.cluster.objects.get(*DEPLOYMENT)["spec"]["paused"] == "v1.3.0"


def test_somebody_who_installs_it_before_our_turn_wins(world: World) -> None:
    """Their definition comes between our look and our turn."""
    world.up(BARE)
    cloud = world.cloud
    prepared = prepare_up(cloud, WANTED)
    body = {"metadata": {"name": CRD[2]}, "spec": {"group": "another"}}
    world.cluster.objects.create(CRD[0], CRD[1], body)
    before = world.mutations()
    world.carry_out(cloud, prepared)
    assert world.said[-1] == "Sets v1.2.0: installed by somebody else, left as it is"
    assert world.mutations() == before
    assert world.cluster.objects.get(*CRD)["spec"] == {"group": "another"}
    assert actions(world.up()) == {"Sets v1.2.0": Action.LEAVE}


def test_a_new_cluster_that_comes_with_it_keeps_its_own(world: World) -> None:
    world.cluster.objects.create("CustomResourceDefinition", "", {**ADD_ON.objects[1], "spec": {"old": True}})
    assert actions(world.up())["Sets Namespace sets-system"] is Action.CREATE  # nobody could look
    assert [line for line in world.mutations() if "sets" in line] == []
    assert world.cluster.objects.get(*CRD)["spec"] == {"old": True}


def test_theirs_made_in_between_is_not_overwritten(world: World) -> None:
    """The request itself does not force what it says on anybody."""
    world.up(BARE)
    (_, crd, _) = objects_of(ADD_ON)
    body = {"metadata": {"name": CRD[2]}, "spec": {"group": "another"}}
    world.cluster.objects.create(CRD[0], CRD[1], body)
    with pytest.raises(CloudError, match="conflict"):
        world.cloud.do(crd.creation()[0])
    assert world.cluster.objects.get(*CRD)["spec"] == {"group": "another"}


def test_the_controller_is_waited_for(world: World, unready: Callable[[], None]) -> None:
    unready()
    assert actions(prepare_up(world.cloud, WANTED))["Sets v1.2.0"] is Action.WAIT
    world.clock.at(100.0, lambda: world.cluster.objects.change(*DEPLOYMENT, ready))
    before = world.mutations()
    world.up()
    assert 100.0 <= world.clock.now < 120.0
    assert world.mutations() == before
    assert set(actions(world.up()).values()) == {Action.KEEP}


def test_a_controller_that_does_not_start_has_its_reason(world: World, unready: Callable[[], None]) -> None:
    unready()
    with pytest.raises(ProvisioningError) as failed:
        world.up()
    assert "wait add-on Sets v1.2.0: no pod of Deployment sets-system/sets is ready" in str(failed.value)
    assert "after 10 minutes (no minimum availability)" in str(failed.value)
    assert 600.0 <= world.clock.now < 620.0


@pytest.fixture
def unready(world: World) -> Callable[[], None]:
    """All is there, and no pod of the controller is."""

    def make() -> None:
        world.up()
        world.clock.now = 0.0
        conditions = [{"type": "Available", "status": "False", "message": "no minimum availability"}]
        world.cluster.objects.change(
            *DEPLOYMENT, lambda item: item.update(status={"observedGeneration": 1, "conditions": conditions})
        )

    return make


def ready(item: dict[str, Any]) -> None:
    item["status"]["availableReplicas"] = 1


def test_the_labels_tell_the_content() -> None:
    digests = {
        (each.creation()[0].body or {})["metadata"]["labels"][DIGEST]
        for each in (*objects_of(ADD_ON), *objects_of(another("v9.0.0")))
    }
    assert len(digests) == len(ADD_ON.objects) + 1


def test_people_are_shown_one_line_for_all_objects(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    show(Session(Output(), {}), prepare_up(world.cloud, WANTED).steps)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "add-on" in line]
    assert lines == [
        ["create", "add-on", "Sets", "v1.2.0", "3", "objects"],
        ["wait", "add-on", "Sets", "v1.2.0"],
    ]
