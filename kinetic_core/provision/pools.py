"""Node pools, as the GKE API has them.

Fields: container/v1 NodePool and NodeConfig in Google's REST reference. What a TPU, a flex-start or a
reserved pool must say: "Plan TPUs in GKE", "About flex-start provisioning mode", "Consuming reserved
zonal resources".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinetic_core.errors import ConfigurationError, InvalidRequest
from kinetic_core.provision.resources import MINE, Found, Json, Request, Resource, lacking
from kinetic_core.provision.specification import Wanted, WantedPool

BUSY = ("PROVISIONING", "RECONCILING", "STOPPING")
"""Statuses of clusters and pools at which somebody is at work."""


@dataclass(frozen=True)
class Pool(Resource):
    """A pool by its name, which may change its size or go."""

    kind = "pool"
    wanted: Wanted
    pool_name: str
    min_nodes: int | None = None
    max_nodes: int | None = None
    """None leaves the size as it is."""

    @property
    def name(self) -> str:
        return self.pool_name

    @property
    def path(self) -> str:
        return f"{self.wanted.path}/nodePools/{self.name}"

    @property
    def reading(self) -> Request:
        return Request("container", "GET", self.path)

    def busy(self, found: Found) -> bool:
        return found.get("status") in BUSY

    def mine(self, found: Found) -> bool:
        return pool_is_mine(found)

    def fixed(self, found: Found) -> tuple[str, ...]:
        slice_of_several = (found.get("placementPolicy") or {}).get("type") == "COMPACT"
        return ("number of machines (it is one slice)",) if slice_of_several else ()

    def differences(self, found: Found) -> tuple[str, ...]:
        return lacking({"autoscaling": self._scaling(found)}, found)

    def creation(self) -> tuple[Request, ...]:
        raise ConfigurationError(
            f"pool {self.name} was removed after the plan was made: run the command again"
        )

    def changes(self, found: Found) -> tuple[Request, ...]:
        if not self.differences(found):
            return ()
        body = {"autoscaling": self._scaling(found)}
        return (Request("container", "POST", f"{self.path}:setAutoscaling", body),)

    def removal(self, found: Found) -> tuple[Request, ...]:
        del found
        return (Request("container", "DELETE", self.path),)

    @property
    def permissions(self) -> tuple[str, ...]:
        return ("container.clusters.update", "iam.serviceAccounts.actAs")

    def _scaling(self, found: Found) -> Json:
        least, most = _names(self.wanted.regional)
        asked = {least: self.min_nodes, most: self.max_nodes}
        given = {key: value for key, value in asked.items() if value is not None}
        scaling = {**(found.get("autoscaling") or {}), **given, "enabled": True}
        if int(scaling.get(least) or 0) > int(scaling.get(most) or 0):
            raise InvalidRequest(f"pool {self.name}: --min-nodes would be more than --max-nodes: give both")
        return scaling


@dataclass(frozen=True)
class NodePool(Resource):
    """A pool of machines with an accelerator."""

    kind = "pool"
    wanted: Wanted
    pool: WantedPool

    @property
    def name(self) -> str:
        return self.pool.name

    @property
    def reading(self) -> Request:
        return self._by_name.reading

    def busy(self, found: Found) -> bool:
        return self._by_name.busy(found)

    def mine(self, found: Found) -> bool:
        return pool_is_mine(found)

    def broken(self, found: Found) -> bool:
        return found.get("status") == "ERROR"

    def fixed(self, found: Found) -> tuple[str, ...]:
        body = self.body()
        asked = {"config": {key: body["config"].get(key) for key in ("machineType", "spot", "flexStart")}}
        asked["config"]["reservationAffinity"] = body["config"].get("reservationAffinity") or {}
        if self.pool.accelerator.hosts > 1:
            asked["placementPolicy"] = body["placementPolicy"]
        return lacking(asked, found)

    def differences(self, found: Found) -> tuple[str, ...]:
        return self._by_name.differences(found)

    def creation(self) -> tuple[Request, ...]:
        return (Request("container", "POST", f"{self.wanted.path}/nodePools", {"nodePool": self.body()}),)

    def changes(self, found: Found) -> tuple[Request, ...]:
        return self._by_name.changes(found)

    def removal(self, found: Found) -> tuple[Request, ...]:
        return self._by_name.removal(found)

    @property
    def _by_name(self) -> Pool:
        return Pool(self.wanted, self.pool.name, self.pool.min_nodes, self.pool.max_nodes)

    @property
    def permissions(self) -> tuple[str, ...]:
        return self._by_name.permissions

    @property
    def cost(self) -> str:
        least, machine = self.pool.min_nodes, str(self.pool.accelerator.machine_type)
        price = self._machine_price()
        if price is None:
            return f"{least} of {machine} always" if least else f"nothing while idle, then {machine} each"
        one, currency = price
        each = f"{one:.2f} {currency}/hour for each {machine}"
        always = f"{least * one:.2f} {currency}/hour always for {least} of them"
        return f"{each}, {always}" if least else f"nothing while idle, then {each}"

    def hourly(self, *, full: bool) -> Mapping[str, float] | None:
        machines = self.pool.max_nodes if full else self.pool.min_nodes
        if not machines:
            return {}
        price = self._machine_price()
        return None if price is None else {price[1]: price[0] * machines}

    def _machine_price(self) -> tuple[float, str] | None:
        """Return what one machine costs an hour, and the currency; None if the price table has no price."""
        hardware, prices = self.pool.accelerator, self.wanted.prices
        chip = prices.of(hardware) if prices is not None else None
        if prices is None or chip is None:
            return None
        return chip * hardware.chips_per_host, prices.currency

    def body(self) -> Json:
        """The NodePool that is created."""
        pool, hardware = self.pool, self.pool.accelerator
        config: Json = {"machineType": hardware.machine_type, **node_config(self.wanted), **_terms(pool)}
        if hardware.kind == "gpu":
            driver = {"gpuDriverVersion": "DEFAULT"}
            count = {"acceleratorCount": str(hardware.chips_per_host), "acceleratorType": hardware.label}
            config["accelerators"] = [{**count, "gpuDriverInstallationConfig": driver}]
        body: Json = {
            "name": pool.name,
            "autoscaling": autoscaling(pool.min_nodes, pool.max_nodes, self.wanted.regional),
            "management": {"autoUpgrade": True, "autoRepair": not pool.flex_start},
            "config": config,
        }
        if pool.min_nodes:
            body["initialNodeCount"] = pool.min_nodes
        if hardware.hosts > 1:
            body["placementPolicy"] = {"type": "COMPACT", "tpuTopology": hardware.topology}
        elif hardware.shared_topology:
            body["placementPolicy"] = {"tpuTopology": hardware.topology}
        if pool.zones:
            body["locations"] = list(pool.zones)
        return body


def pool_is_mine(found: Found) -> bool:
    """Whether this command made a pool."""
    return bool(((found.get("config") or {}).get("resourceLabels") or {}).get("kinetic"))


def node_config(wanted: Wanted) -> Json:
    """What all nodes have in common: the account, Workload Identity, image streaming, labels for the bill."""
    return {
        "serviceAccount": wanted.email("nodes"),
        "oauthScopes": ["https://www.googleapis.com/auth/cloud-platform"],
        "workloadMetadataConfig": {"mode": "GKE_METADATA"},
        "gcfsConfig": {"enabled": True},
        "resourceLabels": {**MINE, "kinetic-cluster": wanted.cluster},
    }


def _terms(pool: WantedPool) -> Json:
    """How the machines are paid for and for how long they stay."""
    terms: Json = {}
    if pool.accelerator.spot:
        terms["spot"] = True
    if pool.flex_start:
        terms["flexStart"] = True
        terms["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    if pool.reservation:
        terms["reservationAffinity"] = {
            "consumeReservationType": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [pool.reservation],
        }
    if pool.max_run_hours:
        terms["maxRunDuration"] = f"{pool.max_run_hours * 3600}s"
    return terms


def autoscaling(least: int, most: int, regional: bool) -> Json:
    """Between so many nodes. Of a regional pool the total is bounded, not the number in each of its zones."""
    names = _names(regional)
    return {"enabled": True, names[0]: least, names[1]: most, "locationPolicy": "ANY"}


def _names(regional: bool) -> tuple[str, str]:
    return ("totalMinNodeCount", "totalMaxNodeCount") if regional else ("minNodeCount", "maxNodeCount")
