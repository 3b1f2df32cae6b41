"""What can never run, told apart from what must wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.auth.credentials import Credentials

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.capacity import Supply
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.supply import SupplyReader
from kinetic_core.connections import Connections
from kinetic_core.settings import Account, Settings
from kinetic_core.testing.fake_cluster import FakeCluster

V5E_POOL: dict[str, Any] = {
    "name": "v5e",
    "config": {"machineType": "ct5lp-hightpu-4t"},
    "placementPolicy": {"tpuTopology": "2x2"},
}
V6E_HOSTS = {"name": "v6e-single", "config": {"machineType": "ct6e-standard-8t"}}
L4_SPOT = {
    "name": "l4",
    "config": {
        "machineType": "g2-standard-4",
        "spot": True,
        "accelerators": [{"acceleratorType": "nvidia-l4", "acceleratorCount": "1"}],
    },
}


def pod(name: str, **selector: str) -> dict[str, Any]:
    accelerator = parse_accelerator(name)
    devices = {key: str(count) for key, count in accelerator.device_resources().items()}
    return {
        "spec": {
            "nodeSelector": {**accelerator.node_selector(), **selector},
            "tolerations": accelerator.tolerations(),
            "containers": [
                {
                    "name": "kinetic-worker",
                    "resources": {"limits": devices},
                    "env": [{"name": "KINETIC_ACCELERATOR", "value": str(accelerator)}],
                }
            ],
        }
    }


def node(devices: int, taint: str = "google.com/tpu", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "node", "labels": labels},
        "spec": {"taints": [{"key": taint, "value": "present", "effect": "NoSchedule"}]},
        "status": {"allocatable": {"google.com/tpu": str(devices)}},
    }


@pytest.mark.parametrize(
    ("asked", "pools", "fits"),
    [
        ("tpu-v5e-4", [V5E_POOL], True),
        ("tpu-v5e-8", [V5E_POOL], False),
        ("tpu-v6e-8", [V5E_POOL], False),
        ("tpu-v6e-8", [V5E_POOL, V6E_HOSTS], True),
        ("gpu-l4-1:spot", [L4_SPOT], True),
        ("gpu-l4-1", [L4_SPOT], True),
        ("gpu-l4-4:spot", [L4_SPOT], False),
        ("gpu-a100-1", [L4_SPOT], False),
        ("cpu", [V5E_POOL], True),
        ("tpu-v5e-4", [], False),
    ],
)
def test_pools_of_no_node(asked: str, pools: list[dict[str, Any]], fits: bool) -> None:
    refusal = Supply(nodes=[], pools=pools).refusal(pod(asked))
    assert (refusal is None) is fits
    if refusal is not None:
        names = ", ".join(pool["name"] for pool in pools) or "none"
        command = f"kinetic pool add --accelerator {parse_accelerator(asked)}"
        assert f"pools are {names}. Make a pool for it ({command}), or choose" in refusal


L4_ON_DEMAND = {**L4_SPOT, "config": {**L4_SPOT["config"], "spot": False}}


@pytest.mark.parametrize(
    ("asked", "pools", "says"),
    [
        ("gpu-l4-1", [L4_SPOT], 'accelerator="gpu-l4-1:spot": all nodes with gpu-l4-1 are Spot machines'),
        ("gpu-l4-1:spot", [L4_SPOT], ""),
        ("gpu-l4-1", [L4_SPOT, L4_ON_DEMAND], ""),
        ("gpu-l4-1:spot", [L4_ON_DEMAND], 'accelerator="gpu-l4-1": no node with it is a Spot machine'),
        ("tpu-v6e-8", [L4_SPOT], "kinetic pool add --accelerator tpu-v6e-8: no pool of the cluster has it"),
        ("tpu-v6e-8", None, ""),
    ],
)
def test_what_gives_a_job_a_node(asked: str, pools: list[dict[str, Any]] | None, says: str) -> None:
    accelerator = parse_accelerator(asked)
    assert Supply(nodes=[], pools=pools).remedy(accelerator) == says
    assert Supply(nodes=[], pools=pools, makes_pools=True).remedy(accelerator) == ""
    assert Supply().remedy(accelerator) == ""


def test_a_node_that_is_there_is_only_busy() -> None:
    v5e = parse_accelerator("tpu-v5e-4")
    here = node(4, **v5e.node_selector())
    assert Supply(nodes=[here], pools=[]).remedy(v5e) == ""
    spot = parse_accelerator("tpu-v5e-4:spot")
    on_spot = node(4, taint="cloud.google.com/gke-spot", **spot.node_selector())
    on_spot["spec"]["taints"][0]["value"] = "true"
    assert Supply(nodes=[on_spot]).remedy(v5e).startswith('accelerator="tpu-v5e-4:spot"')


def tpu_pool(machine: str, topology: str = "") -> dict[str, Any]:
    placed = {"placementPolicy": {"tpuTopology": topology}} if topology else {}
    return {"name": machine, "config": {"machineType": machine}, **placed}


@pytest.mark.parametrize(
    ("pools", "asked", "meant"),
    [
        ([tpu_pool("ct6e-standard-4t", "2x4")], "tpu-v6e-8", "tpu-v6e-8-4t"),
        ([tpu_pool("ct6e-standard-4t", "2x4")], "tpu-v6e-8-8t", None),
        ([tpu_pool("ct6e-standard-4t")], "tpu-v6e-8", None),
        ([tpu_pool("ct6e-standard-4t")], "tpu-v6e-4", "tpu-v6e-4"),
        ([tpu_pool("ct6e-standard-8t")], "tpu-v6e-8", "tpu-v6e-8"),
        ([tpu_pool("ct6e-standard-8t")], "tpu-v6e-8-4t", None),
        ([tpu_pool("ct6e-standard-4t", "2x4")], "tpu-v6e-8:spot", None),
        ([tpu_pool("ct3p-hightpu-4t", "4x8")], "tpu-v3-32", "tpu-v3-64"),
        ([tpu_pool("ct3p-hightpu-4t", "4x4"), tpu_pool("ct3p-hightpu-4t", "4x8")], "tpu-v3-32", "tpu-v3-32"),
        ([tpu_pool("ct3p-hightpu-4t", "4x8")], "tpu-v3-4x4", None),
        ([], "tpu-v6e-8", None),
    ],
)
def test_the_pools_say_what_a_name_means(pools: list[dict[str, Any]], asked: str, meant: str | None) -> None:
    found = Supply(pools=pools).meaning(parse_accelerator(asked))
    assert (found and str(found)) == meant


def test_nothing_is_impossible_where_pools_are_unknown() -> None:
    assert Supply().refusal(pod("tpu-v6e-8")) is None
    assert Supply(nodes=[]).refusal(pod("tpu-v6e-8")) is None
    assert Supply(nodes=[], pools=[], makes_pools=True).refusal(pod("tpu-v6e-8")) is None


def test_a_label_that_no_pool_decides_may_come_from_elsewhere() -> None:
    assert Supply(nodes=[], pools=[V5E_POOL]).refusal(pod("tpu-v5e-4", rack="7")) is None


def test_flex_start_takes_a_pool_of_its_own() -> None:
    wanted = pod("tpu-v5e-4", **{"cloud.google.com/gke-flex-start": "true"})
    flex = {**V5E_POOL, "name": "flex", "config": {**V5E_POOL["config"], "flexStart": True}}
    assert "gke-flex-start=true" in str(Supply(nodes=[], pools=[V5E_POOL]).refusal(wanted))
    assert Supply(nodes=[], pools=[V5E_POOL, flex]).refusal(wanted) is None


@pytest.mark.promise("batches: Reservation in the manifest; refusal")
@pytest.mark.parametrize("value", ["ours", "projects/p/reservations/ours", "ours/reservationBlocks/b"])
def test_a_reservation_takes_a_pool_that_was_made_for_it(value: str) -> None:
    wanted = pod("tpu-v5e-4", **{"cloud.google.com/reservation-name": "ours"})
    affinity = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": [value]}
    pools = [
        {**V5E_POOL, "name": name, "config": {**V5E_POOL["config"], **more}}
        for name, more in [
            ("any", {"reservationAffinity": {"consumeReservationType": "ANY_RESERVATION"}}),
            ("theirs", {"reservationAffinity": {**affinity, "values": ["theirs"]}}),
            ("ours", {"reservationAffinity": affinity}),
        ]
    ]
    assert "reservation-name=ours" in str(Supply(nodes=[], pools=pools[:2]).refusal(wanted))
    assert Supply(nodes=[], pools=pools).refusal(wanted) is None
    assert Supply(nodes=[], pools=pools[:2], makes_pools=True).refusal(wanted) is None
    assert Supply(nodes=[], pools=pools[2:]).refusal(pod("tpu-v5e-4")) is None


def test_a_node_that_is_there_counts_if_it_would_take_the_pod() -> None:
    wanted = parse_accelerator("tpu-v6e-8").node_selector()
    for there, fits in [
        (node(8, **wanted), True),
        (node(4, **wanted), False),
        (node(8), False),
        (node(8, taint="reserved", **wanted), False),
        (node(8, taint="node.kubernetes.io/not-ready", **wanted), True),
    ]:
        assert (Supply(nodes=[there], pools=[]).refusal(pod("tpu-v6e-8")) is None) is fits


class Token(Credentials):
    """A token that never expires."""

    def __init__(self) -> None:
        super().__init__()
        self.token = "t"

    def refresh(self, request: Any) -> None:
        raise AssertionError("it never expires")


def test_a_gke_api_that_is_silent_leaves_the_nodes(tmp_path: Path) -> None:
    one, two = parse_accelerator("tpu-v6e-8"), parse_accelerator("tpu-v6e-8-4t")
    account = Account("somebody", "1", Token())
    silent = Target(project="p", zone="z", cluster="c", gke_api="http://127.0.0.1:1", account=account)
    with FakeCluster() as fake:
        api = ClusterApi(Target(str(fake.write_kubeconfig(tmp_path / "kubeconfig"))))
        reader = SupplyReader(api, silent, Connections(Settings()))
        assert reader.meaning(one) is None
        fake.objects.create("Node", "", node(4, **two.node_selector()) | {"kind": "Node"})
        assert reader.meaning(one) == two
