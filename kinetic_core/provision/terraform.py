"""The plan as Terraform, in its JSON syntax, for those who keep their infrastructure there.

Arguments are those of the provider hashicorp/google (registry.terraform.io/providers/hashicorp/google). What
is inside the cluster (namespaces, add-ons) is left to `kinetic up` and `kinetic namespace add`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from kinetic_core.provision.cluster import Cluster
from kinetic_core.provision.iam import Policy, builds_policy, jobs_policy, project_policy, registry_policy
from kinetic_core.provision.pools import NodePool
from kinetic_core.provision.project import APIS, Bucket, repository_of
from kinetic_core.provision.resources import MINE, Json
from kinetic_core.provision.specification import Wanted, WantedPool, check

_NUMBER = "${data.google_project.this.number}"
_HEADER = "https://developer.hashicorp.com/terraform/language/syntax/json"


def write(wanted: Wanted, folder: Path) -> list[Path]:
    """Write `main.tf.json` into a folder, which is made; the paths. Raises InvalidRequest."""
    check(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "main.tf.json"
    file.write_text(json.dumps(document(wanted), indent=2) + "\n", encoding="utf-8")
    return [file]


def document(wanted: Wanted) -> Json:
    """What `main.tf.json` says."""
    return {
        "//": f"Made by kinetic up --export terraform; {_HEADER}",
        "terraform": {"required_providers": {"google": {"source": "hashicorp/google", "version": ">= 6.39"}}},
        "provider": {"google": {"project": wanted.project, "region": wanted.region}},
        "data": {"google_project": {"this": {"project_id": wanted.project}}},
        "resource": {
            "google_project_service": {_key(api): _service(api) for api in APIS},
            "google_service_account": {use: _account(wanted, use) for use in ("nodes", "builds")},
            "google_artifact_registry_repository": {"images": _repository(wanted)},
            "google_storage_bucket": {use: _bucket(wanted, use) for use in ("jobs", "builds")},
            **_grants(wanted),
            "google_container_cluster": {"cluster": _cluster(wanted)},
            **({} if wanted.autopilot else {"google_container_node_pool": _pools(wanted)}),
        },
    }


def _key(name: str) -> str:
    return name.partition(".")[0].replace("-", "_")


def _labels(wanted: Wanted) -> Json:
    return {**MINE, "kinetic-cluster": wanted.cluster}


def _service(api: str) -> Json:
    return {"service": api, "disable_on_destroy": False}


def _account(wanted: Wanted, use: str) -> Json:
    about = f"kinetic: {use} of {wanted.cluster}"
    return {
        "account_id": wanted.account(use),
        "display_name": wanted.account(use),
        "description": about,
        "depends_on": ["google_project_service.iam"],
    }


def _repository(wanted: Wanted) -> Json:
    repository = repository_of(wanted)
    return {
        "location": repository.location,
        "repository_id": repository.name,
        "format": "DOCKER",
        "labels": _labels(wanted),
        "depends_on": ["google_project_service.artifactregistry"],
    }


def _bucket(wanted: Wanted, use: str) -> Json:
    (request,) = Bucket(wanted, use).creation()
    body = request.body or {}
    return {
        "name": body["name"],
        "location": body["location"],
        "labels": body["labels"],
        "uniform_bucket_level_access": True,
        "public_access_prevention": "enforced",
        "lifecycle_rule": [
            {
                "action": {"type": rule["action"]["type"]},
                "condition": {
                    "age": rule["condition"]["age"],
                    "matches_prefix": rule["condition"]["matchesPrefix"],
                },
            }
            for rule in body["lifecycle"]["rule"]
        ],
        "depends_on": ["google_project_service.storage"],
    }


def _grants(wanted: Wanted) -> Json:
    """One member of one role each, so that Terraform leaves everybody else's grants alone."""
    repository = "${google_artifact_registry_repository.images.name}"
    location = repository_of(wanted).location
    images = {"repository": repository, "location": location}
    jobs, builds = ({"bucket": f"${{google_storage_bucket.{use}.name}}"} for use in ("jobs", "builds"))
    return {
        "google_project_iam_member": _members([project_policy(wanted)], {"project": wanted.project}, wanted),
        "google_artifact_registry_repository_iam_member": _members([registry_policy(wanted)], images, wanted),
        "google_storage_bucket_iam_member": {
            **_members([builds_policy(wanted)], builds, wanted),
            **_members([jobs_policy(wanted, _NUMBER)], jobs, wanted),
        },
    }


def _members(policies: Iterable[Policy], owner: Json, wanted: Wanted) -> Json:
    found: Json = {}
    for policy in policies:
        for number, grant in enumerate(policy.grants):
            use = next((use for use in ("nodes", "builds") if wanted.email(use) in grant.member), "jobs")
            member = f"${{google_service_account.{use}.member}}" if use != "jobs" else grant.member
            condition = grant.condition()
            extra: Json = {"condition": condition} if condition else {}
            if use == "jobs":  # the identities it names are made with the cluster
                extra["depends_on"] = ["google_container_cluster.cluster"]
            found[f"{use}_{number}"] = {**owner, "role": grant.role, "member": member, **extra}
    return found


def _cluster(wanted: Wanted) -> Json:
    body = Cluster(wanted).body()
    cluster: Json = {
        "name": wanted.cluster,
        "location": wanted.location,
        "resource_labels": body["resourceLabels"],
        "release_channel": body["releaseChannel"],
        "deletion_protection": False,
        "ip_allocation_policy": {},
        "depends_on": ["google_project_service.container", "google_project_service.compute"],
    }
    cluster |= {key: body[key] for key in ("network", "subnetwork") if key in body}
    if wanted.private:
        cluster["private_cluster_config"] = {"enable_private_nodes": True}
    if wanted.autopilot:
        defaults = {"service_account": "${google_service_account.nodes.email}"}
        return cluster | {
            "enable_autopilot": True,
            "cluster_autoscaling": {"auto_provisioning_defaults": defaults},
        }
    return cluster | {
        "initial_node_count": 1,
        "remove_default_node_pool": True,  # pools that are written inside a cluster exclude all others
        "workload_identity_config": {"workload_pool": body["workloadIdentityConfig"]["workloadPool"]},
        "addons_config": {"gcs_fuse_csi_driver_config": {"enabled": True}},
        "cluster_autoscaling": {"enabled": False, "autoscaling_profile": "OPTIMIZE_UTILIZATION"},
    }


def _pools(wanted: Wanted) -> Json:
    (system,) = Cluster(wanted).body()["nodePools"]
    first: Json = {
        "name": system["name"],
        "cluster": "${google_container_cluster.cluster.id}",
        "initial_node_count": system["initialNodeCount"],
        "autoscaling": _autoscaling(system["autoscaling"]),
        "management": {"auto_repair": True, "auto_upgrade": True},
        "node_config": {"machine_type": system["config"]["machineType"], **_node_config(wanted)},
    }
    return {"default_pool": first} | {
        pool.name.replace("-", "_"): _pool(wanted, pool) for pool in wanted.pools
    }


def _pool(wanted: Wanted, pool: WantedPool) -> Json:
    body = NodePool(wanted, pool).body()
    config, terms = body["config"], body["config"].get("reservationAffinity")
    node: Json = {"machine_type": config["machineType"], **_node_config(wanted)}
    node |= {key: True for key, field in (("spot", "spot"), ("flex_start", "flexStart")) if config.get(field)}
    if terms:
        named = {key: terms[key] for key in ("key", "values") if key in terms}
        node["reservation_affinity"] = {
            "consume_reservation_type": terms["consumeReservationType"],
            **named,
        }
    if "maxRunDuration" in config:
        node["max_run_duration"] = config["maxRunDuration"]
    if "accelerators" in config:
        (gpu,) = config["accelerators"]
        node["guest_accelerator"] = {
            "type": gpu["acceleratorType"],
            "count": int(gpu["acceleratorCount"]),
            "gpu_driver_installation_config": {"gpu_driver_version": "DEFAULT"},
        }
    found: Json = {
        "name": pool.name,
        "cluster": "${google_container_cluster.cluster.id}",
        "autoscaling": _autoscaling(body["autoscaling"]),
        "management": {"auto_repair": body["management"]["autoRepair"], "auto_upgrade": True},
        "node_config": node,
        "initial_node_count": pool.min_nodes,
    }
    if placement := body.get("placementPolicy"):
        kind = placement.get("type", "COMPACT")
        found["placement_policy"] = {"type": kind, "tpu_topology": placement["tpuTopology"]}
    if pool.zones:
        found["node_locations"] = list(pool.zones)
    return found


def _node_config(wanted: Wanted) -> Json:
    return {
        "service_account": "${google_service_account.nodes.email}",
        "oauth_scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        "workload_metadata_config": {"mode": "GKE_METADATA"},
        "gcfs_config": {"enabled": True},
        "resource_labels": _labels(wanted),
    }


def _autoscaling(body: Json) -> Json:
    names = {
        "minNodeCount": "min_node_count",
        "maxNodeCount": "max_node_count",
        "totalMinNodeCount": "total_min_node_count",
        "totalMaxNodeCount": "total_max_node_count",
        "locationPolicy": "location_policy",
    }
    return {names[key]: value for key, value in body.items() if key in names}
