"""The table agrees with itself, with Kubernetes' rules and with facts written down a second time."""

from __future__ import annotations

import re
from math import prod

import pytest

from kinetic_core.accelerators.grammar import known_accelerators
from kinetic_core.accelerators.shapes import families, rows

ROWS = pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.accelerator))
FAMILIES = pytest.mark.parametrize("family", families(), ids=lambda family: family.name)

# Written by hand, apart from the JSON: topology, chips, hosts, machine type, label.
SLICES = {
    "tpu-v3-8": ("2x2", 4, 1, "ct3-hightpu-4t", "tpu-v3-device"),
    "tpu-v3-32": ("4x4", 16, 4, "ct3p-hightpu-4t", "tpu-v3-slice"),
    "tpu-v3-2048": ("32x32", 1024, 256, "ct3p-hightpu-4t", "tpu-v3-slice"),
    "tpu-v4-4": ("2x2x1", 4, 1, "ct4p-hightpu-4t", "tpu-v4-podslice"),
    "tpu-v4-8": ("2x2x2", 8, 2, "ct4p-hightpu-4t", "tpu-v4-podslice"),
    "tpu-v4-4096": ("16x16x16", 4096, 1024, "ct4p-hightpu-4t", "tpu-v4-podslice"),
    "tpu-v5e-1": ("1x1", 1, 1, "ct5lp-hightpu-1t", "tpu-v5-lite-podslice"),
    "tpu-v5e-4": ("2x2", 4, 1, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice"),
    "tpu-v5e-8": ("2x4", 8, 1, "ct5lp-hightpu-8t", "tpu-v5-lite-podslice"),
    "tpu-v5e-8-4t": ("2x4", 8, 2, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice"),
    "tpu-v5e-16": ("4x4", 16, 4, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice"),
    "tpu-v5e-256": ("16x16", 256, 64, "ct5lp-hightpu-4t", "tpu-v5-lite-podslice"),
    "tpu-v5p-4": ("2x2x1", 4, 1, "ct5p-hightpu-4t", "tpu-v5p-slice"),
    "tpu-v5p-8": ("2x2x2", 8, 2, "ct5p-hightpu-4t", "tpu-v5p-slice"),
    "tpu-v5p-32": ("2x4x4", 32, 8, "ct5p-hightpu-4t", "tpu-v5p-slice"),
    "tpu-v5p-6144": ("16x16x24", 6144, 1536, "ct5p-hightpu-4t", "tpu-v5p-slice"),
    "tpu-v6e-1": ("1x1", 1, 1, "ct6e-standard-1t", "tpu-v6e-slice"),
    "tpu-v6e-4": ("2x2", 4, 1, "ct6e-standard-4t", "tpu-v6e-slice"),
    "tpu-v6e-8": ("2x4", 8, 1, "ct6e-standard-8t", "tpu-v6e-slice"),
    "tpu-v6e-8-4t": ("2x4", 8, 2, "ct6e-standard-4t", "tpu-v6e-slice"),
    "tpu-v6e-256": ("16x16", 256, 64, "ct6e-standard-4t", "tpu-v6e-slice"),
    "tpu7x-1": ("1x1x1", 1, 1, "tpu7x-standard-1t", "tpu7x"),
    "tpu7x-4": ("2x2x1", 4, 1, "tpu7x-standard-4t", "tpu7x"),
    "tpu7x-64": ("4x4x4", 64, 16, "tpu7x-standard-4t", "tpu7x"),
}
# count: machine type
GPUS = {
    "t4": {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"},
    "l4": {1: "g2-standard-4", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"},
    "v100": {1: "n1-standard-8", 2: "n1-standard-16", 4: "n1-standard-32", 8: "n1-standard-64"},
    "a100": {n: f"a2-highgpu-{n}g" for n in (1, 2, 4, 8)} | {16: "a2-megagpu-16g"},
    "a100-80gb": {n: f"a2-ultragpu-{n}g" for n in (1, 2, 4, 8)},
    "h100": {n: f"a3-highgpu-{n}g" for n in (1, 2, 4, 8)},
    "h100-mega": {8: "a3-megagpu-8g"},
    "h200": {8: "a3-ultragpu-8g"},
    "b200": {8: "a4-highgpu-8g"},
    "gb200": {4: "a4x-highgpu-4g"},
    "gb300": {4: "a4x-maxgpu-4g-metal"},
    "rtx-pro-6000": {n: f"g4-standard-{48 * n}" for n in (1, 2, 4, 8)},
    "p100": {n: f"n1-standard-{4 * n}" for n in (1, 2, 4)},
    "p4": {n: f"n1-standard-{4 * n}" for n in (1, 2, 4)},
}
GPU_LABELS = {
    "t4": "nvidia-tesla-t4",
    "l4": "nvidia-l4",
    "v100": "nvidia-tesla-v100",
    "a100": "nvidia-tesla-a100",
    "a100-80gb": "nvidia-a100-80gb",
    "h100": "nvidia-h100-80gb",
    "h100-mega": "nvidia-h100-mega-80gb",
    "h200": "nvidia-h200-141gb",
    "b200": "nvidia-b200",
    "gb200": "nvidia-gb200",
    "gb300": "nvidia-gb300",
    "rtx-pro-6000": "nvidia-rtx-pro-6000",
    "p100": "nvidia-tesla-p100",
    "p4": "nvidia-tesla-p4",
}


def test_slices_written_down_twice() -> None:
    found = {str(row.accelerator): row.accelerator for row in rows()}
    for name, (topology, chips, hosts, machine, label) in SLICES.items():
        shape = found[name]
        assert (shape.topology, shape.chips, shape.hosts) == (topology, chips, hosts), name
        assert (shape.machine_type, shape.label) == (machine, label), name


def test_gpus_written_down_twice() -> None:
    gpus = [row.accelerator for row in rows() if row.accelerator.kind == "gpu"]
    found = {family: {g.chips: g.machine_type for g in gpus if g.family == family} for family in GPUS}
    assert found == GPUS
    assert {gpu.family: gpu.label for gpu in gpus} == GPU_LABELS
    assert {gpu.family for gpu in gpus if gpu.architecture == "arm64"} == {"gb200", "gb300"}


@ROWS
def test_sizes_agree(row) -> None:
    shape = row.accelerator
    assert shape.chips > 0
    assert shape.chips % shape.chips_per_host == 0
    assert shape.hosts == shape.chips // shape.chips_per_host
    if shape.kind == "gpu":
        assert (shape.hosts, shape.topology) == (1, None)
        return
    sides = [int(side) for side in shape.topology.split("x")]
    assert shape.chips == prod(sides)
    assert len(sides) == (3 if shape.family in ("v4", "v5p", "tpu7x") else 2)
    assert shape.machine_type.endswith(f"-{shape.chips_per_host}t")


@ROWS
def test_kubernetes_takes_the_labels(row) -> None:
    value = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
    shape = row.accelerator
    assert shape.node_selector()
    for key, text in shape.node_selector().items():
        assert key.startswith("cloud.google.com/gke-")
        assert value.fullmatch(text)
    assert value.fullmatch(shape.name)
    for toleration in shape.tolerations():
        assert toleration["effect"] == "NoSchedule"


@ROWS
def test_every_row_gives_its_source(row) -> None:
    assert row.sources
    assert all(source.startswith("https://") for source in row.sources)


def test_names_are_unique() -> None:
    names = [str(row.accelerator) for row in rows()]
    assert len(names) == len(set(names))
    spellings = [name for family in families() for name in (family.name, *family.aliases)]
    assert len(spellings) == len(set(spellings))


def test_no_two_shapes_would_meet_on_one_node() -> None:
    """Slices of different sizes must differ in what they select or in what they ask of a host."""
    tpus = [row.accelerator for row in rows() if row.accelerator.kind == "tpu"]
    asked = [(*sorted(shape.node_selector().items()), shape.chips_per_host) for shape in tpus]
    assert len(asked) == len(set(asked))


@FAMILIES
def test_a_family_has_shapes_or_says_why_not(family) -> None:
    if family.retired:
        assert not family.rows
        assert "Write '" in family.retired
        assert family.retired.endswith(".")
    else:
        assert family.default in [row.accelerator for row in family.rows]
        assert family.title


@FAMILIES
def test_the_preferred_shape_of_a_number_has_the_fewest_hosts(family) -> None:
    for row in family.rows:
        shapes = list(family.by_number(family.number(row.accelerator)))
        assert shapes[0].hosts == min(shape.hosts for shape in shapes)


def test_the_order_for_people() -> None:
    kinds = [row.accelerator.kind for row in known_accelerators()]
    assert kinds == sorted(kinds, reverse=True)
    assert known_accelerators() == rows()
