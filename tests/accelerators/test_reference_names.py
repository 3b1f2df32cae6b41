"""Every accelerator name that keras-kinetic understands, and what the same name means here.

The table and the grammar are keras-kinetic's, written down from its documentation; `GUIDE` tells users of
each name that does not simply mean the same machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.errors import InvalidAccelerator

GUIDE = Path(__file__).parents[2] / "docs" / "migration" / "keras-kinetic.md"

GPUS = {
    "l4": ("nvidia-l4", {1: "g2-standard-4", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"}),
    "t4": ("nvidia-tesla-t4", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}),
    "v100": ("nvidia-tesla-v100", {n: f"n1-standard-{n * 8}" for n in (1, 2, 4, 8)}),
    "a100": (
        "nvidia-tesla-a100",
        {**{n: f"a2-highgpu-{n}g" for n in (1, 2, 4, 8)}, 16: "a2-megagpu-16g"},
    ),
    "a100-80gb": ("nvidia-a100-80gb", {n: f"a2-ultragpu-{n}g" for n in (1, 2, 4, 8, 16)}),
    "h100": ("nvidia-h100-80gb", {n: f"a3-highgpu-{n}g" for n in (1, 2, 4, 8)}),
    "p4": ("nvidia-tesla-p4", {n: f"n1-standard-{n * 4}" for n in (1, 2, 4)}),
    "p100": ("nvidia-tesla-p100", {n: f"n1-standard-{n * 4}" for n in (1, 2, 4)}),
}
V4 = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16"
TPUS = {
    "v3": (4, {"ct3-hightpu-4t": "2x2", "ct3p-hightpu-4t": "4x4 4x8 8x8 8x16 16x16 16x32 32x32 32x64"}),
    "v4": (4, {"ct4p-hightpu-4t": V4}),
    "v5litepod": (
        4,
        {
            "ct5lp-hightpu-1t": "1x1",
            "ct5lp-hightpu-8t": "2x4",
            "ct5lp-hightpu-4t": "2x2 4x4 4x8 8x8 8x16 16x16",
        },
    ),
    "v5p": (8, {"ct5p-hightpu-4t": "2x2x2 2x2x4 2x4x4"}),
    "v6e": (8, {"ct6e-standard-4t": "2x4 4x4"}),
}
PREFERRED_GPUS = ("h100", "a100-80gb", "a100", "l4", "v100", "t4", "p100", "p4")
PREFERRED_TPUS = ("v6e", "v5p", "v5litepod", "v4", "v3")

Machines = tuple[str, int, str | None]
"""Machine type, hosts, topology."""


def gpu(name: str, count: int) -> Machines:
    return GPUS[name][1][count], 1, None


def tpu(name: str, machine: str, topology: str) -> Machines:
    chips = prod(map(int, topology.split("x")))
    return machine, chips // int(machine.rpartition("-")[2].removesuffix("t")), topology


def slices(name: str) -> Iterator[tuple[int, str, Machines]]:
    for machine, topologies in TPUS[name][1].items():
        for topology in topologies.split():
            yield prod(map(int, topology.split("x"))), topology, tpu(name, machine, topology)


def names() -> Iterator[tuple[str, str, Machines]]:
    """Kind, name without first word, and what keras-kinetic takes it for."""
    for name, (label, machines) in GPUS.items():
        yield "gpu", name, gpu(name, 1)
        yield "gpu", label, gpu(name, 1)
        for count in machines:
            yield "gpu", f"{name}x{count}", gpu(name, count)
    for name, (default, _) in TPUS.items():
        for alias in (name, "v5e") if name == "v5litepod" else (name,):
            for chips, topology, machines in slices(name):
                yield "tpu", f"{alias}-{chips}", machines
                yield "tpu", f"{alias}-{topology}", machines
                if chips == default:
                    yield "tpu", alias, machines


def numbers() -> Iterator[tuple[str, Machines]]:
    counts = sorted({count for _, machines in GPUS.values() for count in machines})
    dearest = {n: next(gpu(name, n) for name in PREFERRED_GPUS if n in GPUS[name][1]) for n in counts}
    largest: dict[int, Machines] = {}
    for name in reversed(PREFERRED_TPUS):
        largest |= {chips: machines for chips, _, machines in slices(name)}
    for count, machines in dearest.items():
        yield f"gpu:{count}", machines
        yield f"gpu-{count}", machines
    for chips, machines in largest.items():
        yield f"tpu:{chips}", machines
        yield f"tpu-{chips}", machines
        yield str(chips), dearest.get(chips, machines)


def strings() -> dict[str, Machines]:
    found = {}
    for kind, name, machines in names():
        found |= {f"{first}{name}": machines for first in ("", f"{kind}-", f"{kind}:")}
    found |= {"gpu": gpu("l4", 1), "tpu": tpu("v5litepod", "ct5lp-hightpu-4t", "2x2")}
    found |= dict(numbers())
    return found | {f"{text}:spot": machines for text, machines in found.items()}


STRINGS = strings()


def answer(text: str, there: Machines) -> str:
    """How our reading of a name compares with keras-kinetic's: same, by pool, other, refused."""
    try:
        found = parse_accelerator(text)
    except InvalidAccelerator:
        return "refused"
    assert found.spot is text.endswith(":spot")
    meant = [(each.machine_type, each.hosts, each.topology) for each in found.meanings]
    if meant[0] == there:
        return "same"
    return "by pool" if there in meant else "other"


ANSWERS = {text: answer(text, there) for text, there in STRINGS.items()}


def plain(text: str) -> str:
    """The name without what does not matter: first word, spot."""
    return re.sub("^[gt]pu[-:]", "", text.removesuffix(":spot"))


def told() -> dict[str, set[str]]:
    """The names in the guide's section on accelerators, by the first cell of their row."""
    section = GUIDE.read_text("utf-8").partition("## Accelerator names")[2].partition("\n## ")[0]
    found: dict[str, set[str]] = {}
    for kind, names, _ in (row.strip("|").split("|") for row in section.splitlines() if row.startswith("| ")):
        found.setdefault(kind.strip(), set()).update(re.findall("`([^`]+)`", names))
    return found


def test_most_names_mean_the_same_machines() -> None:
    assert len(STRINGS) > 660
    assert list(ANSWERS.values()).count("same") > 580


@pytest.mark.parametrize("kind", ["by pool", "other", "refused"])
def test_the_guide_has_every_name_that_differs(kind: str) -> None:
    differing = {plain(text) for text, found in ANSWERS.items() if found == kind}
    if kind == "refused":
        differing = {text if not text.isdecimal() else "a number alone" for text in differing}
    assert differing == told()[kind]


@pytest.mark.parametrize("text", [text for text, found in ANSWERS.items() if found == "refused"])
def test_a_refused_name_is_told_the_reason(text: str) -> None:
    reason = r"only a number, and the first that has it is the dearest\. Say which"
    if not plain(text).isdecimal():
        reason = "Compute Engine has no machine with 16 of them|32x64 would be 2048"
    with pytest.raises(InvalidAccelerator, match=reason):
        parse_accelerator(text)


@pytest.mark.parametrize(("text", "cores"), [("cpu", None), ("cpu:4", 4)])
def test_processors_are_processors(text: str, cores: int | None) -> None:
    assert parse_accelerator(text).cpu_count == cores
