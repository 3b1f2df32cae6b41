"""The facts: every TPU slice and GPU machine of GKE, from `tpu_shapes.json` and `gpu_shapes.json`.

Read when the first accelerator is parsed, so that `import kinetic_core` does not pay for it. A new
machine type is one line of JSON; chips, hosts and names follow from it.

Each family gives the pages that document it. Where the facts were looked up (stored copies, 2026):

* GKE's table of TPU slices ("Plan TPUs in GKE", availability), through KubeRay's validator, which
  transcribes it: the stored page ended before its tables (ray-project/kuberay, kubectl-plugin/pkg/util).
* The Cloud TPU page of each version: topologies, chips, and for v6e machine types.
* GKE's cluster autoscaler (package k8s.io/gke-autoscaling, gke/machinetypes and gke/labels): node labels,
  machine types, chips or GPUs a machine, processor architecture.
* xpk, Google's tool for slices (AI-Hypercomputer/xpk, system_characteristics.py): slices and labels.

A fact that only one of them has, or that they dispute, is told in the note beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import prod
from typing import Any

from kinetic_core.accelerators.grammar import Accelerator, Kind, first_with_others


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine type and the shapes built from it.

    `chips` are the TPU chips or GPUs of one machine, `label` GKE's node label for them. `topologies` are
    the TPU slices, separated by spaces; a GPU machine is its own only shape and has none. With
    `shared_topology` another machine has slices of the same labels, and a plain name means those.
    """

    type: str
    chips: int
    label: str
    topologies: str = ""
    note: str = ""
    shared_topology: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table for people: the hardware, where it is documented, what to know of it."""

    accelerator: Accelerator
    sources: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Family:
    """Hardware that differs only in size.

    A name without a size means `default_number`. A chip counts as `cores_per_number` in names; with
    `chips_too` names that count chips are understood as well. `absent` says of sizes people may know from
    elsewhere why there are none.
    `custom_limit` is the most chips of a topology beyond the list that GKE's rule for custom topologies
    allows; 0 means that there are none. A family with `retired` has no shapes: the text, which continues
    a sentence, says why and what to use instead.
    """

    kind: Kind
    name: str
    title: str
    aliases: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()
    default_number: int = 1
    cores_per_number: int = 1
    chips_too: bool = False
    custom_limit: int = 0
    architecture: str = "amd64"
    sources: tuple[str, ...] = ()
    note: str = ""
    retired: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every listed shape, smallest first; of two with the same chips, the one on fewer hosts first."""
        rows = [
            Row(self._shape(machine, topology), self.sources, f"{machine.note} {self.note}".strip())
            for machine in self.machines
            for topology in tuple(machine.topologies.split()) or (None,)
        ]
        return tuple(sorted(rows, key=lambda row: (row.accelerator.chips, row.accelerator.hosts)))

    @property
    def default(self) -> Accelerator:
        """What the name alone means."""
        found = first_with_others(self.by_number(self.default_number))
        assert found is not None  # noqa: S101  a test holds every family to it
        return found

    def number(self, shape: Accelerator) -> int:
        """The number that the name of this shape carries."""
        return shape.chips * self.cores_per_number

    def by_number(self, number: int | None) -> Iterator[Accelerator]:
        """The shapes whose name carries this number, the preferred one first."""
        shapes = [row.accelerator for row in self.rows]
        yield from (shape for shape in shapes if self.number(shape) == number)
        if self.chips_too:
            yield from (shape for shape in shapes if shape.chips == number)

    def by_topology(self, topology: str) -> Iterator[Accelerator]:
        """The listed shapes of this topology, the preferred one first; else a custom one, if allowed."""
        listed = [row.accelerator for row in self.rows if row.accelerator.topology == topology]
        if not listed and self._allows(topology):
            custom = self._shape(self.machines[-1], topology)
            listed = [replace(custom, name=f"{self._prefix}-{topology}")]
        return iter(listed)

    def _allows(self, topology: str) -> bool:
        """GKE's rule for three dimensions: above 64 chips, multiples of 4 in ascending order."""
        sides = [int(side) for side in topology.split("x")]
        regular = len(sides) == 3 and sides == sorted(sides) and not any(side % 4 for side in sides)
        return regular and 64 < prod(sides) <= self.custom_limit

    @property
    def _prefix(self) -> str:
        return self.name if self.name.startswith(self.kind) else f"{self.kind}-{self.name}"

    def _shape(self, machine: Machine, topology: str | None) -> Accelerator:
        chips = prod(int(side) for side in topology.split("x")) if topology else machine.chips
        suffix = f"-{machine.chips}t" if machine.shared_topology else ""
        return Accelerator(
            kind=self.kind,
            name=f"{self._prefix}-{chips * self.cores_per_number}{suffix}",
            family=self.name,
            chips=chips,
            chips_per_host=machine.chips,
            topology=topology,
            machine_type=machine.type,
            label=machine.label,
            architecture=self.architecture,
            shared_topology=machine.shared_topology,
        )


@cache
def families() -> tuple[Family, ...]:
    """All families: TPUs, then GPUs, newest first."""
    import json
    from pathlib import Path

    here = Path(__file__)
    kinds: tuple[Kind, ...] = ("tpu", "gpu")
    return tuple(
        _family(kind, entry)
        for kind in kinds
        for entry in json.loads(here.with_name(f"{kind}_shapes.json").read_text("utf-8"))
    )


def _family(kind: Kind, entry: dict[str, Any]) -> Family:
    for key in ("aliases", "sources"):
        entry[key] = tuple(entry.get(key, ()))
    entry["machines"] = tuple(Machine(**machine) for machine in entry.get("machines", ()))
    return Family(kind, **entry)


def rows() -> tuple[Row, ...]:
    """Every listed shape of every family."""
    return tuple(row for family in families() for row in family.rows)


def split_name(text: str) -> tuple[Family | None, str]:
    """The family that `text` begins with and the size that follows, with its `-` or `x`.

    The longest name wins: `rtx-pro-6000` has no size, and `a100-80gb-4` is not an `a100`.
    """
    for name, family in _names():
        size = text[len(name) :]
        separators = ("-", "x") if family.kind == "gpu" else ("-",)
        if text == name or (text.startswith(name) and size.startswith(separators)):
            return family, size
    return None, text


@cache
def _names() -> tuple[tuple[str, Family], ...]:
    names = [(name, family) for family in families() for name in (family.name, *family.aliases)]
    return tuple(sorted(names, key=lambda pair: -len(pair[0])))
