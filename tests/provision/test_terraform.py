"""The plan as Terraform, held to the provider's own schema: arguments, their types, what refers to what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.provision.specification import Wanted, WantedNamespace, check, wanted_pool
from kinetic_core.provision.terraform import document
from tests.provision.worlds import WANTED

SCHEMA: dict[str, dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("google_schema.json").read_text(encoding="utf-8")
)
"""Arguments by type, of the resources and blocks that are written; a block that is not in it is not known."""
EVERYWHERE = ("depends_on",)
COMPUTED = ("email", "id", "member", "name", "number")
"""What resources say of themselves."""
REGIONAL = replace(WANTED, location="europe-west4", pools=())
ZONED = ("europe-west4-a",)

CASES: dict[str, Wanted] = {
    "zonal": WANTED,
    "without pools": replace(WANTED, pools=()),
    "regional": replace(REGIONAL, pools=(wanted_pool("gpu-l4"), wanted_pool("tpu-v5e-4", zones=ZONED))),
    "autopilot": replace(REGIONAL, autopilot=True),
    "private": replace(WANTED, private=True, network="mine", subnetwork="mine-too", channel="RAPID"),
    "private autopilot": replace(REGIONAL, autopilot=True, private=True),
    "spot": replace(WANTED, pools=(wanted_pool("tpu-v5e-4", spot=True), wanted_pool("gpu-t4", spot=True))),
    "slice": replace(WANTED, pools=(wanted_pool("tpu-v5p-8", min_nodes=2),)),
    "flex-start": replace(WANTED, pools=(wanted_pool("gpu-h100-8", flex_start=True, max_run_hours=24),)),
    "reservation": replace(WANTED, pools=(wanted_pool("gpu-h100-8", reservation="mine"),)),
    "members": replace(
        WANTED,
        namespaces=(
            WantedNamespace("ml", ("user:ada@example.org", "group:all@example.org")),
            WantedNamespace("vision"),
        ),
    ),
    "no namespace": replace(WANTED, namespaces=()),
}


@pytest.mark.promise("provisioning: that validate-style parsing accepts; documented")
@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_what_the_provider_takes(name: str) -> None:
    check(CASES[name])
    written = document(CASES[name])
    assert list(faults(written)) == []
    json.dumps(written)


def faults(written: dict[str, Any]) -> Iterator[str]:
    """Everything that `terraform validate` would find."""
    assert written.keys() == {"//", "terraform", "provider", "data", "resource"}
    yield from wrong("provider.google", written["provider"]["google"], "provider")
    yield from wrong("data.google_project", written["data"]["google_project"]["this"], "data")
    there = {"data.google_project.this": "data.google_project"}
    for kind, named in written["resource"].items():
        there |= {f"{kind}.{name}": kind for name in named}
        for name, block in named.items():
            if not re.fullmatch(r"[A-Za-z_][\w-]*", name):
                yield f"{kind}.{name} is no name"
            yield from wrong(kind, block, f"{kind}.{name}")
    for owner, field in re.findall(r"\$\{((?:data\.)?\w+\.\w+)\.(\w+)\}", json.dumps(written)):
        known = owner in there and (field in COMPUTED or field in arguments(there[owner]))
        if not known:
            yield f"{owner}.{field} is not there"
    used = [each for named in written["resource"].values() for one in named.values() for each in needs(one)]
    yield from (f"{each} is not there" for each in used if each not in there)


def needs(block: dict[str, Any]) -> list[str]:
    found: list[str] = block.get("depends_on", [])
    return found


def arguments(path: str) -> dict[str, str]:
    """Type by name."""
    return {
        name: kind for kind, names in SCHEMA.get(path, {}).items() for name in names if kind != "required"
    }


def wrong(path: str, block: dict[str, Any], place: str) -> Iterator[str]:
    """What is wrong with a block, and with those in it."""
    if path not in SCHEMA:
        yield f"{place}: {path} is not known"
        return
    known = arguments(path)
    yield from (f"{place} lacks {name}" for name in SCHEMA[path].get("required", ()) if name not in block)
    for name, value in block.items():
        if name in EVERYWHERE:
            continue
        kind = known.get(name, "unknown")
        if kind in ("block", "blocks"):
            many = value if isinstance(value, list) else [value]
            if kind == "block" and len(many) != 1:
                yield f"{place}.{name} is there {len(many)} times"
            for one in many:
                yield from wrong(f"{path}.{name}", one, f"{place}.{name}")
        elif not fits(kind, value):
            yield f"{place}.{name} = {value!r} is {kind}"


def fits(kind: str, value: object) -> bool:
    """Whether an argument of a type may have a value. Terraform makes a text of no number here."""
    if kind == "list of string":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if kind == "map of string":
        return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    types = {"string": str, "bool": bool, "number": int}
    return kind in types and type(value) is types[kind]


def test_the_checker_sees_what_is_wrong() -> None:
    written = document(WANTED)
    pool = written["resource"]["google_container_node_pool"]["tpu_v5p_8"]
    del pool["cluster"]
    pool |= {"name": 5, "flavour": "x", "management": [{}, {}], "depends_on": ["google_x.y"]}
    pool["node_config"] |= {"service_account": "${google_service_account.other.email}", "boot_disk": {}}
    place = "google_container_node_pool.tpu_v5p_8"
    assert sorted(faults(written)) == [
        f"{place} lacks cluster",
        f"{place}.flavour = 'x' is unknown",
        f"{place}.management is there 2 times",
        f"{place}.name = 5 is string",
        f"{place}.node_config.boot_disk: google_container_node_pool.node_config.boot_disk is not known",
        "google_service_account.other.email is not there",
        "google_x.y is not there",
    ]


@pytest.mark.promise("provisioning: that validate-style parsing accepts; documented")
def test_the_provider_is_new_enough_for_flex_start() -> None:
    """`flex_start` came with 6.39, the newest of all arguments that are written."""
    assert document(WANTED)["terraform"]["required_providers"]["google"]["version"] == ">= 6.39"


def test_add_ons_are_not_in_it() -> None:
    assert document(replace(WANTED, add_ons=())) == document(WANTED)


def test_pools_are_on_the_terms_that_were_asked_for() -> None:
    def node(case: str, pool: str) -> dict[str, Any]:
        found: dict[str, Any] = document(CASES[case])["resource"]["google_container_node_pool"][pool]
        return found

    assert node("spot", "gpu_t4_1_spot")["node_config"]["spot"] is True
    flex = node("flex-start", "gpu_h100_8_flex")
    assert flex["node_config"]["flex_start"] is True
    assert flex["node_config"]["max_run_duration"] == "86400s"
    assert flex["node_config"]["reservation_affinity"] == {"consume_reservation_type": "NO_RESERVATION"}
    assert flex["management"]["auto_repair"] is False
    reserved = node("reservation", "gpu_h100_8_mine")["node_config"]["reservation_affinity"]
    assert reserved["values"] == ["mine"]
    assert node("slice", "tpu_v5p_8")["initial_node_count"] == 2
    regional = node("regional", "tpu_v5e_4")
    assert regional["node_locations"] == ["europe-west4-a"]
    assert regional["autoscaling"]["total_max_node_count"] == 10
    assert "google_container_node_pool" not in document(CASES["autopilot"])["resource"]
