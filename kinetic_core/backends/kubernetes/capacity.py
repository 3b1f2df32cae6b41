"""Capacity: whether any node, existing or future, can ever take a pod, as a pure function of plain data.

A pod is refused only when that is certain. Labels and taints of GKE's nodes: "About GKE node labels" and the
pages on GPUs, TPUs and Spot VMs in GKE's documentation; pools: container/v1 NodePool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.accelerators.shapes import rows
from kinetic_core.backends.kubernetes.names import FLEX_START, RESERVATION

Object = Mapping[str, Any]

_GPU, _TPU = "nvidia.com/gpu", "google.com/tpu"
_POOL = "cloud.google.com/gke-nodepool"
_SPOT = "cloud.google.com/gke-spot"
_GPU_TYPE = "cloud.google.com/gke-accelerator"
_TPU_TYPE = "cloud.google.com/gke-tpu-accelerator"
_TPU_TOPOLOGY = "cloud.google.com/gke-tpu-topology"
_TPU_COUNT = "cloud.google.com/gke-accelerator-count"
_DECIDED_BY_POOL = (_GPU_TYPE, _TPU_TYPE, _TPU_TOPOLOGY, _TPU_COUNT, _SPOT, FLEX_START, RESERVATION, _POOL)
"""Labels that a pool's description settles; any other label may be put on a node otherwise."""
_WHILE_SICK = "node.kubernetes.io/"
"""Taints of this domain come and go with the state of a node."""


@dataclass(frozen=True)
class Supply:
    """Nodes and node pools of a cluster. None means that this account may not read them.

    `pools` are GKE's node pools; `makes_pools` says that the cluster creates others when it needs them
    (Autopilot, node auto-provisioning).
    """

    nodes: Sequence[Object] | None = None
    pools: Sequence[Object] | None = None
    makes_pools: bool = False

    def refusal(self, pod: Object) -> str | None:
        """Return why no node can ever take the pod; None as long as one may."""
        if self.makes_pools or self.pools is None:
            return None
        wanted = dict(pod["spec"].get("nodeSelector") or {})
        devices = _devices(pod)
        if any(_node_takes(node, wanted, devices, pod) for node in self.nodes or ()):
            return None
        if any(_pool_takes(pool, wanted, devices) for pool in self.pools):
            return None
        asked = [f"{name}={value}" for name, value in {**wanted, **devices}.items()]
        names = ", ".join(str(pool.get("name")) for pool in self.pools) or "none"
        return (
            f"no node and no node pool of the cluster can run this job, which asks for {', '.join(asked)}. "
            f"Its pools are {names}. Make a pool for it{_command(pod)}, or choose another accelerator="
        )

    def meaning(self, accelerator: Accelerator) -> Accelerator | None:
        """Return the first machine that carries the name and that is here; None if there is none."""
        return next((each for each in accelerator.meanings if self._has(each)), None)

    def remedy(self, accelerator: Accelerator) -> str:
        """Say what gives a job that waits for this hardware a node, with the command or the option to use.

        Returns "" if the hardware is there and busy, or if this account may not read what there is.
        """
        if self.makes_pools or (self.nodes is None and self.pools is None) or self._nodes_take(accelerator):
            return ""
        pools = [pool for pool in self.pools or () if pool_has(pool, accelerator)]
        other = replace(accelerator, spot=not accelerator.spot)
        if not accelerator.spot and all(map(_is_spot, pools)) and (pools or self._nodes_take(other)):
            return f'accelerator="{other}": all nodes with {accelerator} are Spot machines'
        if pools or self.pools is None:
            return ""
        if accelerator.spot and self._has(other):
            return f'accelerator="{other}": no node with it is a Spot machine'
        return f"kinetic pool add --accelerator {accelerator}: no pool of the cluster has it"

    def _has(self, accelerator: Accelerator) -> bool:
        return self._nodes_take(accelerator) or any(pool_has(pool, accelerator) for pool in self.pools or ())

    def _nodes_take(self, accelerator: Accelerator) -> bool:
        wanted, devices = accelerator.node_selector(), _counts(accelerator)
        pod = {"spec": {"tolerations": accelerator.tolerations()}}
        return any(_node_takes(node, wanted, devices, pod) for node in self.nodes or ())


def makes_pools(cluster: Object) -> bool:
    """Return whether a cluster, as the GKE API describes it, creates pools when jobs need them."""
    autopilot = (cluster.get("autopilot") or {}).get("enabled")
    return bool(autopilot or (cluster.get("autoscaling") or {}).get("enableNodeAutoprovisioning"))


def meaning(cluster: Object, accelerator: Accelerator) -> Accelerator:
    """Return the machine that the name means on a cluster, as the GKE API describes it."""
    return Supply(pools=cluster.get("nodePools") or ()).meaning(accelerator) or accelerator


def pool_has(pool: Object, accelerator: Accelerator) -> bool:
    """Return whether the machines of a node pool are this hardware; for `cpu`, have no accelerator."""
    if accelerator.kind == "cpu":
        config = pool.get("config") or {}
        if config.get("accelerators") or config.get("machineType") in _tpu_machines():
            return False
    return _pool_takes(pool, accelerator.node_selector(), _counts(accelerator))


def _command(pod: Object) -> str:
    """Return the words that name the command which makes a pool for a pod, in brackets."""
    variables = (each for container in pod["spec"]["containers"] for each in container.get("env") or ())
    asked = next((each.get("value") for each in variables if each["name"] == "KINETIC_ACCELERATOR"), None)
    return f" (kinetic pool add --accelerator {asked})" if asked else ""


def _is_spot(pool: Object) -> bool:
    return bool((pool.get("config") or {}).get("spot"))


def _counts(accelerator: Accelerator) -> dict[str, int]:
    return {name: int(count) for name, count in accelerator.device_resources().items()}


def _node_takes(node: Object, wanted: Mapping[str, str], devices: Mapping[str, int], pod: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    has = (node.get("status") or {}).get("allocatable") or {}
    taints = [
        taint
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint["effect"] != "PreferNoSchedule" and not taint["key"].startswith(_WHILE_SICK)
    ]
    return (
        wanted.items() <= labels.items()
        and all(int(has.get(name) or 0) >= count for name, count in devices.items())
        and all(_tolerates(pod["spec"].get("tolerations") or (), taint) for taint in taints)
    )


def _pool_takes(pool: Object, wanted: Mapping[str, str], devices: Mapping[str, int]) -> bool:
    config = pool.get("config") or {}
    has = {_POOL: str(pool.get("name")), _SPOT: "true" if config.get("spot") else ""}
    has[FLEX_START] = "true" if config.get("flexStart") else ""
    reserved = wanted.get(RESERVATION, "")
    has[RESERVATION] = reserved if reserved in _reservations(config) else ""
    counts = {_GPU: 0, _TPU: 0}
    for gpu in config.get("accelerators") or ():
        has[_GPU_TYPE] = gpu["acceleratorType"]
        counts[_GPU] += int(gpu.get("acceleratorCount") or 0)
    slice_of = _tpu_machines().get(config.get("machineType"))
    if slice_of is not None:
        has[_TPU_TYPE], counts[_TPU] = slice_of.label or "", slice_of.chips_per_host
        # A pool of single hosts need not name the topology: it is the machine's own.
        topology = (pool.get("placementPolicy") or {}).get("tpuTopology")
        has[_TPU_TOPOLOGY] = topology or slice_of.topology or ""
        has[_TPU_COUNT] = str(slice_of.chips_per_host)
    settled = [name for name in _DECIDED_BY_POOL if name in wanted]
    return all(has.get(name) == wanted[name] for name in settled) and all(
        counts[name] >= count for name, count in devices.items()
    )


def _reservations(config: Object) -> set[str]:
    """Return the names of a pool's reservations, without the path of another project or a block."""
    paths = (config.get("reservationAffinity") or {}).get("values") or ()
    given = (config.get("labels") or {}).get(RESERVATION)
    return {name for path in (*paths, given or "") for name in (path, *path.split("/"))}


@cache
def _tpu_machines() -> dict[str | None, Accelerator]:
    """Return the slice that is one host, if there is one, of every machine type of TPUs."""
    tpus = sorted(
        (row.accelerator for row in rows() if row.accelerator.kind == "tpu"), key=lambda one: -one.hosts
    )
    return {one.machine_type: one for one in tpus}


def _devices(pod: Object) -> dict[str, int]:
    limits: Iterable[Mapping[str, str]] = (
        (container.get("resources") or {}).get("limits") or {} for container in pod["spec"]["containers"]
    )
    return {name: int(each[name]) for each in limits for name in (_GPU, _TPU) if name in each}


def _tolerates(tolerations: Iterable[Object], taint: Object) -> bool:
    return any(
        each.get("key") in (None, "", taint["key"])
        and each.get("effect") in (None, "", taint["effect"])
        and (each.get("operator") == "Exists" or (each.get("value") or "") == (taint.get("value") or ""))
        for each in tolerations
    )
