"""Every spelling of an accelerator, every refusal, and what a pod is told to ask for."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from kinetic_core.accelerators.grammar import Accelerator, known_accelerators, parse_accelerator
from kinetic_core.errors import InvalidAccelerator

SPELLINGS = {
    "tpu-v5e-8": "tpu-v5e-8",
    "v5e-8": "tpu-v5e-8",
    "tpu:v5e-8": "tpu-v5e-8",
    "v5litepod-4": "tpu-v5e-4",
    "tpu-v5litepod-4": "tpu-v5e-4",
    "tpu-v5litepod-2x4": "tpu-v5e-8",
    "tpu-v5litepod-2x4-8t": "tpu-v5e-8",
    "tpu-v5litepod-2x4-4t": "tpu-v5e-8-4t",
    "v5e": "tpu-v5e-4",
    "v5litepod": "tpu-v5e-4",
    "tpu": "tpu-v5e-4",
    "tpu-v3-8": "tpu-v3-8",
    "v3-8": "tpu-v3-8",
    "v3-4": "tpu-v3-8",
    "v3-16": "tpu-v3-32",
    "p100": "gpu-p100-1",
    "gpu-p4x2": "gpu-p4-2",
    "nvidia-tesla-p100": "gpu-p100-1",
    "v3": "tpu-v3-8",
    "v3-2x2": "tpu-v3-8",
    "v3-4x4": "tpu-v3-32",
    "v4": "tpu-v4-4",
    "v4-8": "tpu-v4-8",
    "v4-2x2x2": "tpu-v4-8",
    "v5p": "tpu-v5p-8",
    "v5p-4": "tpu-v5p-4",
    "tpu-v5p-2x2x1": "tpu-v5p-4",
    "tpu-v5p-4x8x16": "tpu-v5p-4x8x16",
    "tpu-v5p-4x8x16-4t": "tpu-v5p-4x8x16",
    "tpu-v5p-8x8x8": "tpu-v5p-512",
    "tpu-v6e-1": "tpu-v6e-1",
    "tpu-v6e": "tpu-v6e-8",
    "tpu-v6e-2x2": "tpu-v6e-4",
    "v6e-8-4t": "tpu-v6e-8-4t",
    "v6e-8-8t": "tpu-v6e-8",
    "tpu7x": "tpu7x-4",
    "tpu7x-4": "tpu7x-4",
    "tpu7x-2x2x1": "tpu7x-4",
    "tpu-tpu7x-8": "tpu7x-8",
    "tpu-v7x-8": "tpu7x-8",
    "gpu": "gpu-l4-1",
    "gpu-l4": "gpu-l4-1",
    "gpu:l4": "gpu-l4-1",
    "l4": "gpu-l4-1",
    "nvidia-l4": "gpu-l4-1",
    "l4x4": "gpu-l4-4",
    "l4-4": "gpu-l4-4",
    "gpu-l4-4": "gpu-l4-4",
    "gpu-l4x4": "gpu-l4-4",
    "gpu:l4x4": "gpu-l4-4",
    "t4": "gpu-t4-1",
    "nvidia-tesla-t4": "gpu-t4-1",
    "v100x8": "gpu-v100-8",
    "gpu-a100": "gpu-a100-1",
    "a100-40gb-16": "gpu-a100-16",
    "nvidia-tesla-a100": "gpu-a100-1",
    "gpu-a100-80gb": "gpu-a100-80gb-1",
    "gpu-a100-80gb-4": "gpu-a100-80gb-4",
    "a100-80gbx8": "gpu-a100-80gb-8",
    "nvidia-a100-80gb": "gpu-a100-80gb-1",
    "h100": "gpu-h100-1",
    "h100-80gb-8": "gpu-h100-8",
    "nvidia-h100-80gb": "gpu-h100-1",
    "h100-mega": "gpu-h100-mega-8",
    "nvidia-h100-mega-80gb": "gpu-h100-mega-8",
    "h200": "gpu-h200-8",
    "h200-141gbx8": "gpu-h200-8",
    "b200": "gpu-b200-8",
    "gb200": "gpu-gb200-4",
    "gb300": "gpu-gb300-4",
    "rtx-pro-6000": "gpu-rtx-pro-6000-1",
    "gpu-rtx-pro-6000-8": "gpu-rtx-pro-6000-8",
    "cpu": "cpu",
    "cpu:8": "cpu:8",
}


@pytest.mark.parametrize(("text", "canonical"), SPELLINGS.items())
def test_every_spelling_has_one_canonical_name(text: str, canonical: str) -> None:
    assert str(parse_accelerator(text)) == canonical
    assert parse_accelerator(f" {text.upper()}\n") == parse_accelerator(canonical)
    spot = parse_accelerator(f"{text}:spot")
    assert spot == replace(parse_accelerator(text), spot=True)
    assert str(spot) == f"{canonical}:spot"


@pytest.mark.parametrize("row", known_accelerators(), ids=lambda row: str(row.accelerator))
def test_every_row_parses_back_to_itself(row) -> None:
    for shape in (row.accelerator, replace(row.accelerator, spot=True)):
        assert parse_accelerator(str(shape)) == shape
        assert parse_accelerator(str(shape).removeprefix(f"{shape.kind}-")) == shape
        assert pickle.loads(pickle.dumps(shape)) == shape


@pytest.mark.parametrize("row", known_accelerators(), ids=lambda row: str(row.accelerator))
def test_a_topology_names_the_same_slice_as_its_number(row) -> None:
    shape = row.accelerator
    if shape.topology:
        text = f"{shape.family}-{shape.topology}-{shape.chips_per_host}t"
        assert parse_accelerator(text) == shape


def test_v3_names_count_tensorcores_and_others_count_chips() -> None:
    assert parse_accelerator("v3-8").chips == 4
    assert parse_accelerator("v3-32").chips == 16
    assert parse_accelerator("v4-8").chips == 8
    assert parse_accelerator("v5p-8").chips == 8


@pytest.mark.parametrize("name", ["tpu-v5e-8", "tpu-v6e-8"])
def test_one_host_is_preferred_to_two(name: str) -> None:
    assert parse_accelerator(name).hosts == 1
    two = parse_accelerator(f"{name}-4t")
    assert (two.hosts, two.chips, two.topology) == (2, 8, parse_accelerator(name).topology)


@pytest.mark.parametrize("row", known_accelerators(), ids=lambda row: str(row.accelerator))
def test_an_exact_name_is_carried_by_one_machine(row) -> None:
    for shape in (row.accelerator, replace(row.accelerator, spot=True)):
        found = parse_accelerator(shape.exact)
        assert (found, found.others) == (shape, ())


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("tpu-v6e-8", ["tpu-v6e-8-4t"]),
        ("tpu-v6e-8:spot", ["tpu-v6e-8-4t:spot"]),
        ("v5e-2x4", ["tpu-v5e-8-4t"]),
        ("v3-32", ["tpu-v3-64"]),
        ("v3-8", []),
        ("v6e-8-8t", []),
        ("v4-8", []),
    ],
)
def test_a_name_knows_the_machines_that_carry_it(text: str, others: list[str]) -> None:
    found = parse_accelerator(text)
    assert [str(each) for each in found.meanings] == [str(found), *others]
    swapped = [found.meaning(each) for each in found.meanings]
    assert {each.asked for each in swapped} == {found.asked}


REFUSED = {
    "": "TPUs are",
    "gpu:": "GPUs are",
    "tpu-": "TPUs are",
    "4": "'gpu-l4-4'",
    "gpu:4": "Say which: 'gpu-l4-4', 'gpu-a100-4' or 'gpu-h100-4'",
    "tpu:8": "Say which: 'tpu-v5e-8', 'tpu-v6e-8' or 'tpu-v5p-8'",
    "tpu-7": "Say which: 'tpu-v5e-4'",
    "cpu-8": "'cpu:8'",
    "cpu8": "'cpu:8'",
    "cpu:": "'cpu:8'",
    "cpu:0": "'cpu:8'",
    "cpu:-1": "'cpu:1'",
    "cpu:1.5": "'cpu:8'",
    "v5e-8:spot:spot": ":spot twice",
    "cpu:spot:spot": ":spot twice",
    ":spot": "TPUs are",
    "l5": "Nearest: 'gpu-",
    "v6-8": "'tpu-v6e-8'",
    "tpu-v5-8": "'tpu-v5e-8'",
    "tpu_v5e_8": "'tpu-v5e-8'",
    "l4 x4": "'gpu-l4-1'",
    "l4:4": "'gpu-l4-4'",
    "h100 mega": "'gpu-h100-mega-8'",
    "tpu-l4": "Write 'gpu-l4-1'",
    "gpu-v5e-8": "Write 'tpu-v5e-8'",
    "v5e-3": "Nearest: tpu-v5e-4 (4 chips, 2x2, 1 host of ct5lp-hightpu-4t)",
    "v5e-3x3": "Nearest: tpu-v5e-8 ",
    "v5e-4x2": "Nearest: tpu-v5e-8 ",
    "v5e-512": "Nearest: tpu-v5e-256 ",
    "v5e-4-8t": "Nearest: tpu-v5e-4 ",
    "v5e-4-": "Nearest: tpu-v5e-4 ",
    "v5e-08": "Nearest: tpu-v5e-1 ",
    "v5ex8": "TPUs are",
    "v3-4096": "A v3 Pod has 2048 TensorCores. Nearest: tpu-v3-2048 (1024 chips",
    "v3-32x64": "32x64 would be 2048",
    "v2-64": "The number counts TensorCores, 2 a chip",
    "v5p-4x4x6": "multiples of 4 in ascending order, at most 6144 chips",
    "v5p-16x8x4": "multiples of 4 in ascending order",
    "v5p-16x16x28": "at most 6144 chips",
    "v5p-8x8x8x8": "Nearest: tpu-v5p-4096 ",
    "v6e-4x4x4": "Nearest: tpu-v6e-64 ",
    "l4-3": "Nearest: gpu-l4-2 ",
    "l4-": "All: gpu-l4-1, gpu-l4-2, gpu-l4-4, gpu-l4-8",
    "l4-x4": "All: gpu-l4-1, gpu-l4-2, gpu-l4-4, gpu-l4-8",
    "l4-٤": "All: gpu-l4-1",
    "a100-80gb-16": "no machine with 16 of them; its machine with 16 GPUs has A100 40GB, 'gpu-a100-16'",
    "h200-1": "Nearest: gpu-h200-8 ",
    "v2-16": "Nearest: tpu-v2-8 ",
    "nvidia-tesla-k80": "obsolete",
}


@pytest.mark.parametrize(("text", "said"), REFUSED.items())
def test_a_refusal_names_the_argument_and_the_nearest_names(text: str, said: str) -> None:
    with pytest.raises(InvalidAccelerator) as caught:
        parse_accelerator(text)
    message = str(caught.value)
    assert message.startswith(f"accelerator={text!r} ")
    assert said in message
    assert message.endswith(".")


@pytest.mark.parametrize("value", [8, None, b"cpu", ["cpu"]])
def test_a_value_that_is_no_text_is_refused(value) -> None:
    with pytest.raises(InvalidAccelerator, match="must be a name such as"):
        parse_accelerator(value)


@pytest.mark.parametrize("text", ["x" * 10_000, "l4-" + "9" * 10_000, "v5p-" + "x".join(["4"] * 2_000)])
def test_a_long_text_is_refused_shortly(text: str) -> None:
    with pytest.raises(InvalidAccelerator) as caught:
        parse_accelerator(text)
    assert len(str(caught.value)) < 1_000


def test_suggested_names_are_accepted() -> None:
    for text in REFUSED:
        with pytest.raises(InvalidAccelerator) as caught:
            parse_accelerator(text)
        for name in str(caught.value).split("'")[3::2]:
            assert parse_accelerator(name)


def test_the_nodes_of_the_test_cluster() -> None:
    one_host = parse_accelerator("tpu-v5e-2x2")
    assert one_host.node_selector() == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    assert (one_host.hosts, one_host.device_resources()) == (1, {"google.com/tpu": "4"})
    assert one_host.tolerations() == [
        {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"},
    ]

    two_hosts = parse_accelerator("tpu-v5p-8")
    assert two_hosts.node_selector() == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x2",
    }
    assert (two_hosts.hosts, two_hosts.device_resources()) == (2, {"google.com/tpu": "4"})

    gpus = parse_accelerator("l4x2:spot")
    assert gpus.node_selector() == {
        "cloud.google.com/gke-accelerator": "nvidia-l4",
        "cloud.google.com/gke-spot": "true",
    }
    assert gpus.device_resources() == {"nvidia.com/gpu": "2"}
    assert gpus.tolerations() == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    ]


def test_the_hosts_size_is_selected_where_no_label_tells_it() -> None:
    count = "cloud.google.com/gke-accelerator-count"
    chosen = {
        str(row.accelerator) for row in known_accelerators() if count in row.accelerator.node_selector()
    }
    assert chosen == {"tpu-v5e-8-4t", "tpu-v6e-8-4t"}
    assert parse_accelerator("tpu-v6e-8-4t").node_selector()[count] == "4"


def test_an_arm_machine_is_tolerated_and_told() -> None:
    grace = parse_accelerator("gb200")
    assert grace.architecture == "arm64"
    arm = {"key": "kubernetes.io/arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}
    assert arm in grace.tolerations()


def test_the_cpu_asks_for_no_device_and_no_node() -> None:
    cpu = parse_accelerator("cpu")
    assert (cpu.node_selector(), cpu.tolerations(), cpu.device_resources()) == ({}, [], {})
    assert (cpu.kind, cpu.hosts, cpu.chips, cpu.cpu_count, cpu.resource_name) == ("cpu", 1, 0, None, None)
    assert parse_accelerator("cpu:8").cpu_count == 8
    spot = parse_accelerator("cpu:8:spot")
    assert spot.node_selector() == {"cloud.google.com/gke-spot": "true"}
    assert [taint["key"] for taint in spot.tolerations()] == ["cloud.google.com/gke-spot"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5p-8", "tpu-v5p-8 (8 chips, 2x2x2, 2 hosts of ct5p-hightpu-4t)"),
        ("v6e-1:spot", "tpu-v6e-1:spot (1 chip, 1x1, 1 host of ct6e-standard-1t)"),
        ("l4", "gpu-l4-1 (1 GPU, 1 host of g2-standard-4)"),
        ("cpu:8", "cpu:8"),
    ],
)
def test_describe_spells_it_out(name: str, words: str) -> None:
    assert parse_accelerator(name).describe() == words


def test_it_is_a_value() -> None:
    one = parse_accelerator("l4")
    assert one == parse_accelerator("gpu:l4")
    assert len({one, parse_accelerator("nvidia-l4"), parse_accelerator("l4:spot")}) == 2
    with pytest.raises(FrozenInstanceError):
        one.spot = True  # type: ignore[misc]
    assert isinstance(one, Accelerator)


def test_importing_reads_no_table() -> None:
    code = (
        "import sys, kinetic_core.accelerators.grammar as a; "
        "assert 'kinetic_core.accelerators.shapes' not in sys.modules; "
        "a.parse_accelerator('v5e-8'); assert 'difflib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
