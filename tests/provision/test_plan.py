"""The plan is a function of what is wanted and what was found; what is wrong is said before a change."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kinetic_core._runner import object_names
from kinetic_core.cli.plans import total
from kinetic_core.errors import ConfigurationError, InvalidRequest
from kinetic_core.jobs.cost import Prices
from kinetic_core.provision.cluster import Cluster
from kinetic_core.provision.iam import Grant, Policy, below, builds_policy, jobs_policy, principal
from kinetic_core.provision.namespaces import LEADER, LEADER_RULES, RULES, USER
from kinetic_core.provision.plan import Action, Found, plan, resources
from kinetic_core.provision.pools import NodePool
from kinetic_core.provision.project import Bucket
from kinetic_core.provision.resources import Json, Request, lacking
from kinetic_core.provision.specification import (
    Wanted,
    WantedNamespace,
    WantedPool,
    check,
    meant_location,
    wanted_pool,
)
from tests.bucket_policy import BucketPolicy
from tests.provision.worlds import WANTED, World

REGIONAL = replace(WANTED, location="europe-west4", pools=())


def pool_body(accelerator: str, wanted: Wanted = WANTED, **options: Any) -> Json:
    return NodePool(wanted, wanted_pool(accelerator, **options)).body()


@pytest.mark.promise("provisioning: A plan of idempotent steps, pure function of wanted and found")
def test_the_first_plan_makes_all_in_dependency_order() -> None:
    steps = plan(resources(WANTED, "1"), Found())
    assert {step.action for step in steps[:-1]} == {Action.CREATE}
    order = [str(step.resource) for step in steps]
    assert order.index("service account kn-training-nodes") < order.index("cluster training")
    assert order.index("cluster training") < order.index("pool gpu-l4-1")
    assert order.index("cluster training") < order.index("grants on bucket my-project-kn-training-jobs")
    assert order[-5] == "Kubernetes RoleBinding ml/kinetic-user"
    assert (steps[-1].action, order[-1]) == (Action.WAIT, "add-on Sets v1.2.0")
    assert len(set(order)) == len(order)


@pytest.mark.promise("provisioning: A plan of idempotent steps, pure function of wanted and found")
def test_a_plan_is_the_same_for_the_same() -> None:
    assert plan(resources(WANTED, "1"), Found()) == plan(resources(WANTED, "1"), Found())


@pytest.mark.promise("provisioning: Names and lengths: said before the first mutation")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"project": "Nope"}, "no project id"),
        ({"location": "mars"}, r"neither a zone .*\(us-central1\)$"),
        ({"location": "europe-west4b"}, r"Did you mean 'europe-west4-b'\?$"),
        ({"location": "us-central-1"}, r"Did you mean 'us-central1'\?$"),
        ({"cluster": "a-name-of-21-letters-"}, "at most 20"),
        ({"cluster": "twenty-one-letters-xx"}, "since the service account"),
        ({"project": "a-project-with-thirty-letters-", "cluster": "x"}, "no project id"),
        ({"project": "a-project-with-thirty-letters0", "cluster": "a-cluster-of-20-lett"}, ""),
        ({"channel": "FAST"}, "not one of RAPID"),
        ({"channel": "REGULR"}, r"Did you mean 'REGULAR'\?$"),
        ({"autopilot": True}, "--zone us-central1"),
        ({"autopilot": True, "location": "us-central1"}, "leave --accelerator out"),
        ({"autopilot": True, "location": "us-central1", "machine_type": "e2"}, "leave --machine-type out"),
        ({"namespaces": (WantedNamespace("My_Space"),)}, "--namespace 'My_Space'"),
        ({"namespaces": (WantedNamespace("ml", ("ada",)),)}, "--member 'ada'"),
        ({"pools": (wanted_pool("gpu-l4", spot=True, reservation="r"),)}, "exclude each other"),
        ({"pools": (wanted_pool("gpu-l4", flex_start=True, max_run_hours=200),)}, "168 hours"),
        ({"pools": (wanted_pool("gpu-l4", min_nodes=5, max_nodes=2),)}, "--min-nodes 5 and --max-nodes 2"),
        ({"pools": (wanted_pool("gpu-l4", name="x" * 41),)}, "at most 40"),
        ({"location": "us-central1", "pools": (wanted_pool("tpu-v5e-4"),)}, "name it with --node-zone"),
        (
            {"pools": (wanted_pool("gpu-l4", zones=("europe-west4-a",)),)},
            "'europe-west4-a' is not a zone of us-c",
        ),
        ({"pools": (wanted_pool("gpu-l4", zones=("mars",)),)}, "--node-zone 'mars' is not a zone of us-c"),
        ({"pools": (wanted_pool("gpu-l4", zones=("us-central1",)),)}, "'us-central1' is not a zone of us-c"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(wrong: Json, said: str) -> None:
    wanted = replace(WANTED, **wrong)
    if not said:
        check(wanted)
        return
    with pytest.raises(InvalidRequest, match=said):
        check(wanted)


@pytest.mark.parametrize(
    ("location", "meant"),
    [
        ("us-cental1-a", "us-central1-a"),
        ("europ-west4", "europe-west4"),
        ("us-central1-a", None),
        ("us-west9-b", None),  # a region may be new
        ("us-south1-ai1b", None),  # a zone for accelerators
        ("us-sout1-ai1b", "us-south1-ai1b"),
        ("moon-base1-a", None),
    ],
)
def test_a_region_that_looks_mis_spelt_is_guessed(location: str, meant: str | None) -> None:
    """It is asked for all the same: the list of regions is not complete for ever."""
    check(replace(WANTED, location=location, pools=()))
    assert meant_location(location) == meant


def test_a_pool_may_be_in_an_ai_zone_of_the_region() -> None:
    pool = wanted_pool("tpu-v6e-8", zones=("us-south1-ai1b",))
    check(replace(WANTED, location="us-south1", pools=(pool,)))
    assert replace(WANTED, location="us-south1-ai1b").region == "us-south1"


@pytest.mark.promise("provisioning: Pools: machine type, topology, placement, autoscaling from zero")
def test_a_pool_of_several_hosts_is_one_slice() -> None:
    body = pool_body("tpu-v5p-8")
    assert body["placementPolicy"] == {"type": "COMPACT", "tpuTopology": "2x2x2"}
    assert (body["autoscaling"]["minNodeCount"], body["autoscaling"]["maxNodeCount"]) == (0, 2)
    assert "initialNodeCount" not in body
    with pytest.raises(InvalidRequest, match="all or none"):
        wanted_pool("tpu-v5p-8", max_nodes=8)


@pytest.mark.promise("provisioning: Spot, reservations, flex-start, GPU drivers by GKE")
def test_the_terms_of_a_pool() -> None:
    spot = pool_body("gpu-l4", spot=True)
    assert spot["name"] == "gpu-l4-1-spot"
    assert spot["config"]["spot"] is True
    (gpu,) = spot["config"]["accelerators"]
    assert gpu["gpuDriverInstallationConfig"] == {"gpuDriverVersion": "DEFAULT"}
    reserved = pool_body("tpu-v6e-8", reservation="mine", max_run_hours=24)["config"]
    assert reserved["reservationAffinity"]["values"] == ["mine"]
    assert reserved["maxRunDuration"] == "86400s"
    flex = pool_body("gpu-h100-8", flex_start=True)
    assert flex["config"]["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert flex["management"]["autoRepair"] is False
    regional = pool_body("gpu-l4", REGIONAL, zones=("europe-west4-a",))
    assert regional["autoscaling"]["totalMaxNodeCount"] == 10
    assert regional["locations"] == ["europe-west4-a"]


@pytest.mark.promise("provisioning: `up --plan`: create, change, keep, cost per hour where known")
def test_what_a_pool_costs_is_told_at_the_users_prices() -> None:
    spot, on_demand = {("tpu", "v5e"): 0.4}, {("tpu", "v5p"): 4.2, ("tpu", "v5e"): 1.2}
    priced = replace(WANTED, prices=Prices("EUR", on_demand, spot))

    def cost(accelerator: str, wanted: Wanted = priced, **options: Any) -> str:
        return NodePool(wanted, wanted_pool(accelerator, **options)).cost

    assert cost("tpu-v5e-4", spot=True) == "nothing while idle, then 1.60 EUR/hour for each ct5lp-hightpu-4t"
    always = "16.80 EUR/hour for each ct5p-hightpu-4t, 33.60 EUR/hour always for 2 of them"
    assert cost("tpu-v5p-8", min_nodes=2) == always
    assert cost("gpu-l4") == cost("gpu-l4", WANTED) == "nothing while idle, then g2-standard-4 each"
    assert cost("gpu-l4", min_nodes=2) == "2 of g2-standard-4 always"


@pytest.mark.promise("provisioning: `up --plan`: create, change, keep, cost per hour where known")
def test_a_plan_adds_up_what_it_makes() -> None:
    prices = Prices("EUR", {("tpu", "v5e"): 1.0}, {})
    wanted = replace(WANTED, prices=prices)
    priced = NodePool(wanted, wanted_pool("tpu-v5e-4", min_nodes=1, max_nodes=3))
    unpriced = NodePool(wanted, wanted_pool("gpu-l4"))
    assert total([]) == total([Bucket(wanted, "jobs")]) == ""
    assert total([Cluster(wanted), Bucket(wanted, "jobs"), priced]) == (
        "what is made costs 0.10 USD/hour and 4.00 EUR/hour while idle, "
        "0.10 USD/hour and 12.00 EUR/hour with all their machines"
    )
    assert total([priced, unpriced]).endswith("and pool gpu-l4-1, for which no price is known")


@pytest.mark.promise("provisioning: Zonal, regional or Autopilot cluster, private, release channel")
def test_autopilot_and_private_clusters() -> None:
    body = Cluster(replace(REGIONAL, autopilot=True, private=True, channel="RAPID")).body()
    assert body["autopilot"] == {"enabled": True}
    assert "nodePools" not in body
    assert body["privateClusterConfig"] == {"enablePrivateNodes": True}
    assert body["releaseChannel"] == {"channel": "RAPID"}


@pytest.mark.promise("provisioning: Zonal, regional or Autopilot cluster, private, release channel")
def test_a_cluster_is_changed_as_far_as_it_can_be(world: World) -> None:
    world.up()
    cluster = world.project.resources[WANTED.path]
    cluster["addonsConfig"] = {}
    steps = {str(step.resource): step for step in world.up(replace(WANTED, channel="RAPID")).steps}
    assert steps["cluster training"].details == (
        "addonsConfig.gcsFuseCsiDriverConfig.enabled",
        "releaseChannel.channel",
    )
    assert cluster["releaseChannel"] == {"channel": "RAPID"}
    with pytest.raises(ConfigurationError, match="enablePrivateNodes, which cannot be changed"):
        world.up(replace(WANTED, private=True))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"network": "other"}, "another network, which"),
        ({"subnetwork": "projects/host/regions/us-central1/subnetworks/other"}, "another subnetwork, which"),
        ({"machine_type": "e2-standard-4"}, r"another default-pool\.machineType, which"),
        ({"network": None, "machine_type": None}, ""),
    ],
)
def test_what_a_cluster_is_made_with_cannot_be_changed(world: World, other: Json, said: str) -> None:
    subnetwork = "projects/host/regions/us-central1/subnetworks/mine"
    made = replace(WANTED, network="mine", subnetwork=subnetwork, machine_type="e2-standard-8")
    world.up(made)
    assert {step.action for step in world.up(made).steps} == {Action.KEEP}
    if not said:
        world.up(replace(made, **other))
        return
    before = world.mutations()
    with pytest.raises(ConfigurationError, match=f"cluster training exists with {said} cannot be changed"):
        world.up(replace(made, **other))
    assert world.mutations() == before


def test_apis_beyond_the_first_page_are_seen(world: World) -> None:
    world.project.enabled |= {f"a{number:03}.googleapis.com" for number in range(450)}
    world.up()
    before = world.mutations()
    assert {step.action for step in world.up().steps} == {Action.KEEP}
    assert world.mutations() == before
    assert sum("/services?" in each.line for each in world.project.faults.requests) == 6


@pytest.mark.promise("provisioning: A wrong zone or project is refused")
def test_another_zone_is_refused(world: World) -> None:
    world.up()
    before = world.mutations()
    with pytest.raises(
        ConfigurationError, match=r"is in us-central1-a, not in us-east1-b: give --zone us-cen"
    ):
        world.up(replace(WANTED, location="us-east1-b"))
    with pytest.raises(ConfigurationError, match="is in us-central1-a"):
        world.down(replace(WANTED, location="us-east1-b"))
    assert world.mutations() == before


@pytest.mark.promise("provisioning: Deletes only what it made")
def test_what_others_made_is_neither_changed_nor_removed(world: World) -> None:
    world.up()
    world.project.resources[WANTED.path]["resourceLabels"] = {}
    with pytest.raises(ConfigurationError, match="cluster training exists and was not made by kinetic"):
        world.up()
    steps = {str(step.resource): step.action for step in world.down().steps}
    assert steps["cluster training"] is Action.LEAVE
    assert WANTED.path in world.project.resources


@pytest.mark.promise("provisioning: Quotas, machines, permissions: before the first mutation, with the fix")
def test_what_is_missing_is_said_with_what_to_do(world: World) -> None:
    world.project.enabled |= {"compute.googleapis.com"}
    world.project.machines = {"g2-standard-4"}
    world.project.quotas = {"NVIDIA_L4_GPUS": 0.0}
    world.project.refused = {"container.clusters.create"}
    with pytest.raises(ConfigurationError) as refused:
        world.up()
    assert "you lack container.clusters.create in my-project: gcloud projects" in str(refused.value)
    assert "us-central1-a has no machines ct5lp-hightpu-4t" in str(refused.value)
    assert "quota NVIDIA_L4_GPUS in us-central1 is 0, and one machine needs 1: ask for" in str(refused.value)
    assert "setIamPolicy" not in str(refused.value)
    assert world.mutations() == []
    with pytest.raises(ConfigurationError, match="project other-project may not be used"):
        world.up(replace(WANTED, project="other-project"))


@pytest.mark.promise("provisioning: Quotas, machines, permissions: before the first mutation, with the fix")
@pytest.mark.parametrize(
    ("pool", "limits", "said"),
    [
        (
            wanted_pool("tpu-v5e-4"),
            (3, 64),
            "quota TPU_LITE_PODSLICE_V5 in us-central1 is 3, and one machine ",
        ),
        (wanted_pool("tpu-v5e-4"), (4, 0), ""),
        (wanted_pool("tpu-v5e-16"), (15, 64), "is 15, and one slice needs 16"),
        (wanted_pool("tpu-v5e-16", reservation="mine"), (0, 0), ""),
        (
            wanted_pool("tpu-v5e-4", spot=True),
            (0, 3),
            "quota PREEMPTIBLE_TPU_LITE_PODSLICE_V5 in us-central1",
        ),
        (wanted_pool("tpu-v5e-4", spot=True), (0, 4), ""),
        (wanted_pool("tpu-v5e-4", spot=True), (4, 0), ""),
        (wanted_pool("tpu-v5e-4", flex_start=True), (0, 4), ""),
        (wanted_pool("tpu-v6e-8"), (0, 0), ""),
    ],
)
def test_a_quota_of_tpus_is_seen_before_anything_is_made(
    pool: WantedPool, limits: tuple[float, float], said: str, world: World
) -> None:
    world.project.enabled |= {"compute.googleapis.com"}
    names = ("TPU_LITE_PODSLICE_V5", "PREEMPTIBLE_TPU_LITE_PODSLICE_V5")
    world.project.quotas = dict(zip(names, limits, strict=True))
    if not said:
        world.up(replace(WANTED, pools=(pool,)))
        return
    with pytest.raises(ConfigurationError, match=said):
        world.up(replace(WANTED, pools=(pool,)))
    assert world.mutations() == []


def test_a_quota_that_the_region_does_not_list_is_gkes_to_refuse(world: World) -> None:
    world.project.enabled |= {"compute.googleapis.com"}
    world.project.quotas = {"PREEMPTIBLE_TPU_LITE_PODSLICE_V5": 0.0}
    world.up(replace(WANTED, pools=(wanted_pool("tpu-v5e-4"), wanted_pool("tpu-v5e-4", spot=True))))


@pytest.mark.promise("provisioning: Deletes only what it made")
def test_grants_of_others_stay_and_stale_etags_are_read_again(world: World) -> None:
    theirs = {"role": "roles/viewer", "members": ["user:bob@example.org"]}
    world.project.policies["projects/my-project"] = {"version": 1, "etag": "7", "bindings": [theirs]}
    world.up()
    assert theirs in world.project.policies["projects/my-project"]["bindings"]
    world.down()
    assert world.project.policies["projects/my-project"]["bindings"] == [theirs]


@pytest.mark.promise("provisioning: Least privilege: own prefix only, no writing of builds")
def test_pods_reach_their_own_prefix_only() -> None:
    policy = jobs_policy(WANTED, "42")
    (change,) = policy.changes({"bindings": [], "etag": "1"})
    bindings = (change.body or {})["bindings"]
    pods = principal("my-project", "42", "ml")
    assert [(binding["role"], binding["members"]) for binding in bindings] == [
        ("roles/storage.objectViewer", [pods]),
        ("roles/storage.objectCreator", [pods]),
        ("roles/storage.objectUser", [pods]),
        ("roles/storage.objectUser", ["user:ada@example.org"]),
    ]
    objects = "projects/_/buckets/my-project-kn-training-jobs/objects/ml/"
    for binding in bindings:
        parts = binding["condition"]["expression"].split(" || ")
        assert f"resource.name.startsWith('{objects}" in parts[0]
        assert len(re.findall(r"&&|\|\||!", binding["condition"]["expression"])) <= 12  # IAM's limit
    assert (change.body or {})["version"] == 3
    assert all("builds" not in str(each) for each in policy.grants)


@pytest.mark.attack
def test_the_pods_right_to_replace_everything_is_taken_back() -> None:
    """Earlier versions gave it; what people have is left to them."""
    pods, limit = principal("my-project", "42", "ml"), below("my-project-kn-training-jobs", "ml/")
    members = [pods, "user:ada@example.org", "user:bob@example.org"]
    before = {"role": "roles/storage.objectUser", "members": members, "condition": asdict(limit)}
    policy = jobs_policy(WANTED, "42")
    assert "no roles/storage.objectUser for ns/ml/sa/kinetic on all of it" in policy.differences(
        {"bindings": [before]}
    )
    (change,) = policy.changes({"bindings": [before], "etag": "1"})
    after = change.body or {}
    assert after["bindings"][0]["members"] == members[1:]
    assert policy.changes(after) == ()


OBJECTS = {
    "runners/r.zip": "read",
    "packs/p.zip": "read",
    "trees/t.json": "read",
    "data/d/file": "read",
    "index/0-job-1": "read",
    "batches/grp-1/manifest.json": "read",
    object_names.batch_payload("grp-1", "0" * 64): "read",
    "batches/grp-1/finished.json": "read",
    object_names.stop("grp-1"): "create",
    object_names.block_claim("grp-1", 0): "create",
    object_names.outcome_segment("grp-1", 0, 0): "create",
    object_names.handle("job-1"): "read",
    object_names.payload("job-1", "0" * 64): "read",
    object_names.cancel("job-1"): "read",
    object_names.result("job-1"): "create",
    object_names.claim("job-1", 0): "create",
    object_names.attempt_outcome("job-1", 0, 1): "create",
    object_names.log("job-1", 0, 7): "create",
    object_names.memory("job-1", 0): "create",
    object_names.debugger("job-1", "uid"): "create",
    object_names.choice("job-1", 1): "create",
    object_names.rendezvous("job-1", 0, "end"): "create",
    object_names.lease("job-1", 0): "replace",
    object_names.spending("job-1", 0, 2): "replace",
    object_names.still("job-1", 0, 3): "replace",
    "outputs/job-1/model": "replace",
    "watchers/w/told/job-1/run": "read",
}
"""What pods may do to it, at most; each contains those before it."""


@pytest.mark.attack
@pytest.mark.parametrize("name", OBJECTS)
def test_what_pods_may_do_to_each_object(name: str) -> None:
    bucket = "my-project-kn-training-jobs"
    (change,) = jobs_policy(WANTED, "42").changes({"bindings": [], "etag": "1"})
    policy = BucketPolicy(bucket, (change.body or {})["bindings"])
    pods, person = principal("my-project", "42", "ml"), "user:ada@example.org"
    found = [verb for verb in ("get", "create", "delete") if policy.allows(pods, verb, f"ml/{name}")]
    kinds = {"read": ["get"], "create": ["get", "create"], "replace": ["get", "create", "delete"]}
    assert found == kinds[OBJECTS[name]]
    assert policy.allows(pods, "list", "", listing="ml/jobs/")
    assert not policy.allows(pods, "list", "", listing="vision/")
    assert not policy.allows(pods, "get", f"vision/{name}")
    assert all(policy.allows(person, verb, f"ml/{name}") for verb in ("get", "create", "delete"))


@pytest.mark.attack
@pytest.mark.promise("provisioning: Least privilege: own prefix only, no writing of builds")
def test_only_builds_have_rights_in_their_bucket() -> None:
    (change,) = builds_policy(WANTED).changes({"bindings": [], "etag": "1"})
    members = [member for binding in (change.body or {})["bindings"] for member in binding["members"]]
    assert members == [f"serviceAccount:{WANTED.email('builds')}"]


@pytest.mark.promise("provisioning: Least privilege: own prefix only, no writing of builds")
def test_with_a_namespace_go_all_grants_on_its_prefix() -> None:
    (made,) = jobs_policy(WANTED, "42").changes({"bindings": [], "etag": "1"})
    other = replace(WANTED, namespaces=(WantedNamespace("vision"),))
    (both,) = jobs_policy(other, "42").changes(made.body or {})
    (less,) = jobs_policy(replace(WANTED, namespaces=(WantedNamespace("ml"),)), "42", absent=True).changes(
        both.body or {}
    )
    left = (less.body or {})["bindings"]
    assert [each["members"] for each in left] == [[principal("my-project", "42", "vision")]] * 3


def test_a_condition_makes_another_binding() -> None:
    here, there = (Grant("r", "user:a@b.c", below("bucket", prefix)) for prefix in ("one/", "two/"))
    policy = Policy("x", Request("storage", "GET", "b"), Request("storage", "PUT", "b"), (there,), "p")
    found = {"bindings": [{"role": "r", "members": ["user:a@b.c"], "condition": here.condition()}]}
    (change,) = policy.changes(found)
    assert len((change.body or {})["bindings"]) == 2


@pytest.mark.promise("provisioning: Lifecycle that never removes cached content under a live marker")
def test_a_bucket_keeps_content_and_other_peoples_rules() -> None:
    bucket = Bucket(WANTED, "jobs")
    theirs = {"action": {"type": "SetStorageClass"}, "condition": {"age": 7}}
    (creation,) = bucket.creation()
    (ours,) = (creation.body or {})["lifecycle"]["rule"]
    assert ours["condition"]["matchesPrefix"] == ["ml/batches/", "ml/index/", "ml/jobs/"]
    found = {"lifecycle": {"rule": [theirs, ours]}}
    assert bucket.changes(found) == ()
    more = Bucket(replace(WANTED, namespaces=(WantedNamespace("vision"),)), "jobs")
    (change,) = more.changes(found)
    rules = (change.body or {})["lifecycle"]["rule"]
    assert theirs in rules
    assert len(rules[-1]["condition"]["matchesPrefix"]) == 6


def test_another_namespace_leaves_other_ages_in_a_bucket() -> None:
    """Whoever keeps outputs for a year, or has changed our own rule to 90 days, loses nothing after 30."""
    outputs = {"action": {"type": "Delete"}, "condition": {"age": 365, "matchesPrefix": ["ml/outputs/"]}}
    bucket = Bucket(WANTED, "jobs")
    (creation,) = bucket.creation()
    (ours,) = (creation.body or {})["lifecycle"]["rule"]
    changed = {**ours, "condition": {**ours["condition"], "age": 90}}
    found = {"lifecycle": {"rule": [outputs, changed]}}
    assert bucket.differences(found) == ()
    more = Bucket(replace(WANTED, namespaces=(WantedNamespace("vision"),)), "jobs")
    (change,) = more.changes(found)
    first, second, added = (change.body or {})["lifecycle"]["rule"]
    assert [first, second] == [outputs, changed]
    assert added["condition"]["matchesPrefix"] == ["vision/batches/", "vision/index/", "vision/jobs/"]


@pytest.mark.promise("gke: `docs/guides/clusters.md`; its role applied and used by tests")
@pytest.mark.promise("provisioning: Namespaces: account, role, Workload Identity binding")
def test_the_guide_shows_the_role_that_is_made() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "clusters.md").read_text()
    shown = yaml.safe_load(guide.partition("```yaml\n")[2].partition("```")[0])
    assert (shown["metadata"]["name"], shown["rules"]) == (USER, RULES)


def test_the_guide_shows_the_role_of_host_0() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "multi-host.md").read_text()
    shown = yaml.safe_load(guide.partition("### The role of host 0\n\n```yaml\n")[2].partition("```")[0])
    assert (shown["metadata"]["name"], shown["rules"]) == (LEADER, LEADER_RULES)


def test_googles_spellings_of_a_field_are_no_difference() -> None:
    assert lacking({"n": 3, "off": False, "in": {"least": 0}}, {"n": "3", "in": {}}) == ()
    assert lacking({"in": {"most": 2}}, {"in": {"most": 3}}) == ("in.most",)
