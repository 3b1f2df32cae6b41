"""Add-ons against a real API server: what is vendored is valid there, and applied once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import default_connections
from kinetic_core.provision.add_ons import VERSION, AddOnObject, AddOnReady, objects_of
from kinetic_core.provision.apply import apply
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.plan import Action, Found, plan
from kinetic_core.provision.prepare import Prepared
from kinetic_core.provision.resources import Resource
from kinetic_core.provision.specification import Wanted
from kinetic_core.provision.vendored import KUEUE, LWS, AddOn, add_on
from tests.cluster.conftest import KUBECONFIG
from tests.conftest import wait_for

NOTHING = Wanted("p", "l", "c")
ITS_NAMES = ("leaderworkerset.x-k8s.io", "leaderworkerset.sigs.k8s.io", "disaggregatedset.x-k8s.io")


@pytest.fixture
def cloud(api: ClusterApi) -> Cloud:
    del api  # which skips where there is no cluster
    return Cloud(
        "projects/p/locations/l",
        lambda: ClusterApi(Target(KUBECONFIG), patience=0.0),
        str,
        default_connections(),
    )


@pytest.fixture
def copy(api: ClusterApi) -> Iterator[AddOn]:
    """LeaderWorkerSet under names of the test's own, without pods; nothing of it stays."""
    mark = f"t{secrets.token_hex(4)}"
    text = (
        json.dumps(add_on(LWS).objects).replace("lws-", f"{mark}-").replace('"replicas": 2', '"replicas": 0')
    )
    for number, name in enumerate(ITS_NAMES):
        text = text.replace(name, f"n{number}.{mark}.example.org")
    made = replace(add_on(LWS), title=f"Copy {mark}", objects=tuple(json.loads(text)))
    yield made
    for each in reversed(objects_of(made)):
        api.delete(each.kind_name, each.namespace, each.object_name)
    wait_for(lambda: api.get("Namespace", "", f"{mark}-system") is None)


def look(cloud: Cloud, resources: tuple[Resource, ...]) -> Found:
    return Found({str(each): cloud.read(each.reading) for each in resources})


@pytest.mark.promise("provisioning: … applied through the API")
@pytest.mark.parametrize("name", [LWS, KUEUE])
def test_what_is_vendored_is_valid(name: str, api: ClusterApi, namespace: str) -> None:
    for each in add_on(name).objects:
        facts = dict(each["metadata"])
        if str(facts.get("namespace", "")).endswith("-system") and facts["namespace"] != "kube-system":
            facts["namespace"] = namespace  # its own is not there
        if each["kind"] not in ("CustomResourceDefinition", "APIService"):
            facts["name"] += "-of-a-test"  # the cluster may have some of these
        asked = (each["kind"], facts.get("namespace", ""), facts["name"])
        before = api.get(*asked)
        told = api.apply(*asked, {**each, "metadata": facts}, force=True, dry_run=True)
        assert told["kind"] == each["kind"]
        assert version_of(api.get(*asked)) == version_of(before)


def version_of(found: dict[str, Any] | None) -> str:
    return "" if found is None else str(found["metadata"]["resourceVersion"])


@pytest.mark.promise("provisioning: … applied through the API")
def test_a_real_server_is_given_it_once(copy: AddOn, cloud: Cloud, api: ClusterApi) -> None:
    objects = objects_of(copy)
    steps = plan(objects, look(cloud, objects))
    assert {step.action for step in steps} == {Action.CREATE}
    apply(cloud, Prepared(NOTHING, Found(), steps), str)
    found = look(cloud, objects)
    assert {step.action for step in plan(objects, found)} == {Action.KEEP}
    for each in objects:
        (request,) = each.creation()
        cloud.do(request)
        assert generation(cloud, each) == generation_in(found, each)
    newer = objects_of(replace(copy, version="v99.0.0"))
    apply(cloud, Prepared(NOTHING, found, plan(newer, found)), str)
    crd = api.get(newer[1].kind_name, "", newer[1].object_name)
    assert crd is not None
    assert crd["metadata"]["labels"][VERSION] == "v0.9.0"  # the same content: there is nothing to change


def generation(cloud: Cloud, each: AddOnObject) -> object:
    return generation_in(look(cloud, (each,)), each)


def generation_in(found: Found, each: AddOnObject) -> object:
    """What changes with the object, and not with its status."""
    there = found.resources[str(each)]
    assert there is not None
    facts = there["metadata"]
    return facts.get("generation") or facts["resourceVersion"]


def test_the_clusters_own_sets_are_somebody_elses(cloud: Cloud, api: ClusterApi) -> None:
    name = "leaderworkersets.leaderworkerset.x-k8s.io"
    before = api.get("CustomResourceDefinition", "", name)
    assert before is not None
    resources = (*objects_of(add_on(LWS)), AddOnReady(add_on(LWS)))
    (step,) = plan(resources, look(cloud, resources))
    assert (step.action, step.acts) == (Action.LEAVE, False)
    assert "installed by somebody else" in step.details[0]
