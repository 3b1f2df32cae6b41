"""The cluster, as the GKE API has it.

Fields: container/v1 Cluster in Google's REST reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinetic_core.provision.pools import BUSY, autoscaling, node_config
from kinetic_core.provision.resources import MINE, Found, Json, Request, Resource, lacking
from kinetic_core.provision.specification import Wanted

_DEFAULT_POOL = "default-pool"
_SYSTEM_NODES = 3
"""Most nodes of the default pool. GKE's own pods keep one; it is emptied as far as these allow."""
_FEE = 0.10
"""Dollars for an hour: GKE's management fee."""


@dataclass(frozen=True)
class Cluster(Resource):
    """The cluster with its default pool."""

    kind = "cluster"
    wanted: Wanted

    @property
    def name(self) -> str:
        return self.wanted.cluster

    @property
    def reading(self) -> Request:
        return Request("container", "GET", self.wanted.path)

    def busy(self, found: Found) -> bool:
        return found.get("status") in BUSY

    def mine(self, found: Found) -> bool:
        return bool((found.get("resourceLabels") or {}).get("kinetic"))

    def broken(self, found: Found) -> bool:
        return found.get("status") == "ERROR"

    def fixed(self, found: Found) -> tuple[str, ...]:
        asked: Json = {}
        if self.wanted.autopilot is not None:
            asked["autopilot"] = {"enabled": self.wanted.autopilot}
        if self.wanted.private is not None:
            asked["privateClusterConfig"] = {"enablePrivateNodes": self.wanted.private}
        for key in ("network", "subnetwork"):
            if name := getattr(self.wanted, key):  # GKE tells the last part of a name, as of a shared VPC's
                asked[key] = name.rpartition("/")[2]
        return (*lacking(asked, found), *self._other_machines(found))

    def _other_machines(self, found: Found) -> tuple[str, ...]:
        if self.wanted.machine_type is None:
            return ()
        pools = {pool["name"]: pool for pool in found.get("nodePools") or ()}
        config = pools.get(_DEFAULT_POOL, {}).get("config")
        return lacking({"machineType": self.wanted.machine_type}, config, _DEFAULT_POOL)

    def differences(self, found: Found) -> tuple[str, ...]:
        return lacking(self._changeable(), found)

    def creation(self) -> tuple[Request, ...]:
        return (Request("container", "POST", f"{self.wanted.parent}/clusters", {"cluster": self.body()}),)

    def changes(self, found: Found) -> tuple[Request, ...]:
        """One field a request: the API takes no more."""
        return tuple(
            Request(
                "container", "PUT", self.wanted.path, {"update": {f"desired{key[0].upper()}{key[1:]}": value}}
            )
            for key, value in self._changeable().items()
            if lacking({key: value}, found)
        )

    def removal(self, found: Found) -> tuple[Request, ...]:
        del found
        return (Request("container", "DELETE", self.wanted.path),)

    @property
    def permissions(self) -> tuple[str, ...]:
        return ("container.clusters.create", "container.clusters.update", "iam.serviceAccounts.actAs")

    @property
    def cost(self) -> str:
        return f"{_FEE:.2f} USD/hour: GKE's management fee"

    def hourly(self, *, full: bool) -> Mapping[str, float]:
        del full
        return {"USD": _FEE}

    def _changeable(self) -> Json:
        if self.wanted.autopilot:  # which brings all of it
            return {}
        fields: Json = {
            "workloadIdentityConfig": {"workloadPool": f"{self.wanted.project}.svc.id.goog"},
            "addonsConfig": {"gcsFuseCsiDriverConfig": {"enabled": True}},
        }
        if self.wanted.channel is not None:
            fields["releaseChannel"] = {"channel": self.wanted.channel}
        return fields

    def body(self) -> Json:
        """The Cluster that is created."""
        wanted = self.wanted
        body: Json = {
            "name": wanted.cluster,
            "resourceLabels": {**MINE, "kinetic-cluster": wanted.cluster},
            "releaseChannel": {"channel": wanted.channel or "REGULAR"},
            "ipAllocationPolicy": {"useIpAliases": True},
            **self._changeable(),
        }
        body |= {key: value for key in ("network", "subnetwork") if (value := getattr(wanted, key))}
        if wanted.private:
            body["privateClusterConfig"] = {"enablePrivateNodes": True}
        if wanted.autopilot:
            defaults = {"serviceAccount": wanted.email("nodes")}
            return body | {
                "autopilot": {"enabled": True},
                "autoscaling": {"autoprovisioningNodePoolDefaults": defaults},
            }
        return body | {
            "autoscaling": {"autoscalingProfile": "OPTIMIZE_UTILIZATION"},
            "nodePools": [
                {
                    "name": _DEFAULT_POOL,
                    "initialNodeCount": 1,
                    "autoscaling": autoscaling(0, _SYSTEM_NODES, wanted.regional),
                    "management": {"autoUpgrade": True, "autoRepair": True},
                    "config": {"machineType": wanted.machine_type or "e2-standard-4", **node_config(wanted)},
                }
            ],
        }
