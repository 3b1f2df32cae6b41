"""What the guide promises of clusters, pools, buckets and registries, in the requests that make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kinetic_core.provision.cluster import Cluster
from kinetic_core.provision.plan import down_resources, resources
from kinetic_core.provision.pools import NodePool
from kinetic_core.provision.project import Bucket, Registry
from kinetic_core.provision.resources import Resource
from kinetic_core.provision.specification import wanted_pool
from tests.provision.worlds import WANTED, World

LABELS = {"kinetic": "true", "goog-packaged-solution": "kinetic", "kinetic-cluster": "training"}
NODES = "kn-training-nodes@my-project.iam.gserviceaccount.com"
POOLS = tuple(NodePool(WANTED, pool) for pool in WANTED.pools)
DEFAULT_POOL, *_ = Cluster(WANTED).body()["nodePools"]


def body_of(resource: Resource) -> dict[str, Any]:
    (request,) = resource.creation()
    return request.body or {}


@pytest.mark.promise("provisioning: Workload Identity, image streaming, GCS FUSE CSI")
def test_a_cluster_has_workload_identity_fuse_and_a_channel() -> None:
    body = Cluster(WANTED).body()
    assert body["workloadIdentityConfig"] == {"workloadPool": "my-project.svc.id.goog"}
    assert body["addonsConfig"]["gcsFuseCsiDriverConfig"] == {"enabled": True}
    assert body["releaseChannel"] == {"channel": "REGULAR"}
    assert body["ipAllocationPolicy"] == {"useIpAliases": True}
    assert "privateClusterConfig" not in body


@pytest.mark.promise("provisioning: Default pool that can go to zero")
def test_the_default_pool_can_go_to_zero() -> None:
    assert DEFAULT_POOL["name"] == "default-pool"
    assert DEFAULT_POOL["autoscaling"] == {
        "enabled": True,
        "minNodeCount": 0,
        "maxNodeCount": 3,
        "locationPolicy": "ANY",
    }
    assert Cluster(WANTED).body()["autoscaling"] == {"autoscalingProfile": "OPTIMIZE_UTILIZATION"}


@pytest.mark.promise("provisioning: Workload Identity, image streaming, GCS FUSE CSI")
@pytest.mark.promise("provisioning: Pools: machine type, topology, placement, autoscaling from zero")
@pytest.mark.parametrize(
    "pool", [DEFAULT_POOL, *(pool.body() for pool in POOLS)], ids=lambda one: one["name"]
)
def test_nodes_stream_images_and_have_no_identity_but_their_pods(pool: dict[str, Any]) -> None:
    config = pool["config"]
    assert config["gcfsConfig"] == {"enabled": True}
    assert config["workloadMetadataConfig"] == {"mode": "GKE_METADATA"}
    assert config["serviceAccount"] == NODES
    assert pool["autoscaling"]["minNodeCount"] == 0


def test_an_autopilot_clusters_nodes_have_the_account_too() -> None:
    body = Cluster(replace(WANTED, location="us-central1", pools=(), autopilot=True)).body()
    assert body["autoscaling"]["autoprovisioningNodePoolDefaults"] == {"serviceAccount": NODES}


@pytest.mark.promise("provisioning: Registry; labels for cost reports")
def test_all_that_can_carry_labels_has_those_for_the_bill() -> None:
    assert Cluster(WANTED).body()["resourceLabels"] == LABELS
    for pool in (DEFAULT_POOL, *(pool.body() for pool in POOLS)):
        assert pool["config"]["resourceLabels"] == LABELS
    for resource in (Bucket(WANTED, "jobs"), Bucket(WANTED, "builds"), Registry(WANTED)):
        assert body_of(resource)["labels"] == LABELS


@pytest.mark.promise(
    "provisioning: Least privilege: own prefix only, no writing of builds",
    "the policy that is written; nothing here enforces it",
)
@pytest.mark.parametrize("use", ["jobs", "builds"])
def test_a_bucket_is_nobodys_but_those_who_have_a_grant(use: str) -> None:
    access = body_of(Bucket(WANTED, use))["iamConfiguration"]
    assert access == {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}


@pytest.mark.promise("provisioning: In an order that leaves nothing orphaned")
def test_namespaces_go_before_the_cluster_and_accounts_last() -> None:
    assert [str(each) for each in down_resources(WANTED)] == [
        "Kubernetes Namespace ml",
        "cluster training",
        "registry us-docker.pkg.dev/my-project/kn-training",
        "bucket my-project-kn-training-jobs",
        "bucket my-project-kn-training-builds",
        "grants on project my-project",
        "service account kn-training-nodes",
        "service account kn-training-builds",
    ]


@pytest.mark.promise("provisioning: In an order that leaves nothing orphaned")
def test_down_removes_all_kinds_that_up_makes(world: World) -> None:
    """Grants go with what they are on, pools with the cluster, and what is in it with the namespace or it."""
    kinds = {each.kind for each in resources(WANTED, "1")}
    assert kinds - {each.kind for each in down_resources(WANTED)} == {"APIs", "pool", "add-on"}
    world.up()
    world.down()
    lines = [line for line in world.mutations() if line.startswith("DELETE")]
    assert [line.partition("?")[0].rpartition("/")[2] for line in lines if "/api/" not in line] == [
        "training",
        "kn-training",
        "my-project-kn-training-jobs",
        "my-project-kn-training-builds",
        "kn-training-nodes@my-project.iam.gserviceaccount.com",
        "kn-training-builds@my-project.iam.gserviceaccount.com",
    ]


@pytest.mark.parametrize(
    ("name", "machine", "topology", "other"),
    [
        ("v6e-8", "ct6e-standard-8t", None, "tpu-v6e-2x4-4t is tpu-v6e-8-4t"),
        ("v6e-2x4-4t", "ct6e-standard-4t", "2x4", None),
        ("v3-32", "ct3p-hightpu-4t", "4x4", "tpu-v3-4x8-4t is tpu-v3-64"),
        ("v3-4x8", "ct3p-hightpu-4t", "4x8", None),
        ("v3-16", "ct3p-hightpu-4t", "4x4", None),
    ],
)
def test_a_pool_is_what_the_name_means(
    name: str, machine: str, topology: str | None, other: str | None
) -> None:
    pool = wanted_pool(name)
    body = NodePool(WANTED, pool).body()
    assert body["config"]["machineType"] == machine
    assert body.get("placementPolicy", {}).get("tpuTopology") == topology
    assert bool(pool.notices()) is bool(other)
    assert all(str(other) in notice for notice in pool.notices())
