"""What a job runs on: `accelerator="tpu-v5e-8"` becomes a value that knows its nodes and devices.

Canonical spelling, which `str()` gives and which parses back to the same value:

    tpu-{version}-{number}    tpu-v5e-8, tpu-v3-8, tpu7x-4 (TPU7x is its own first word)
    gpu-{type}-{count}        gpu-l4-1, gpu-a100-80gb-4
    cpu, cpu:{cores}          cpu, cpu:8
    ...:spot                  the same on Spot machines

and, for the few shapes that a number does not tell apart, `tpu-v6e-8-4t` (8 chips on hosts of 4, where
`tpu-v6e-8` is one host) and `tpu-v5p-4x8x16` (a custom topology). Case and outer spaces are ignored.
Also understood: no first word (`v5e-8`, `l4`), a colon after it (`tpu:v5e-8`, `gpu:l4`), a topology for
the number (`tpu-v5litepod-2x4`), `x` before a count (`l4x4`, `a100-80gbx8`), a name without a size
(`tpu-v6e`, `gpu-h100`), `tpu` (v5e, 4 chips), `gpu` (one L4), other names of the same hardware
(`v5litepod`, `nvidia-l4`, `h100-80gb`). A number alone (`8`, `gpu:4`) names no hardware and is refused.

The number of a TPU name counts chips. Google's Cloud TPU API counts TensorCores for v4 and v5p, two a chip;
GKE's machines and this package do not: `v5p-8` is 8 chips, 2x2x2, on two hosts. v2 names count TensorCores,
because that is how Google writes them. `describe()` spells chips, topology and hosts out.

Some names are carried by two machines (ADR 0059): `tpu-v6e-8` is one host of 8 chips or two of 4, and the
number of a v3 name counts TensorCores for Google, chips for keras-kinetic. The value is then the first of
them, and `others` are the rest: where the cluster has a pool of only one, that one is meant. A suffix for
the host (`tpu-v6e-8-8t`) or a topology (`tpu-v3-4x8`) is carried by one machine only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from kinetic_core.errors import InvalidAccelerator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetic_core.accelerators.shapes import Family, Row

Kind = Literal["cpu", "gpu", "tpu"]

_DEVICES = {"gpu": "nvidia.com/gpu", "tpu": "google.com/tpu"}
_BARE = {"gpu": "gpu-l4-1", "tpu": "tpu-v5e-4"}


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Hardware of one job. Made by `parse_accelerator`; `dataclasses.replace(it, spot=True)` is fine.

    A GPU counts as one chip. A TPU slice of several hosts is one job of `hosts` pods that start
    together, each with `chips_per_host` chips. All sizes are 0 for the CPU, which has one host.
    """

    kind: Kind
    name: str
    """Canonical, without `:spot`."""
    family: str
    """What the sizes have in common: `v5e`, `a100-80gb`, `cpu`."""
    chips: int = 0
    chips_per_host: int = 0
    topology: str | None = None
    """How the chips of a TPU slice are wired, `2x4` or `2x2x2`; None for others."""
    machine_type: str | None = None
    """The Compute Engine machine of each host; None for the CPU, which runs on any node."""
    label: str | None = None
    """Value of GKE's node label for this hardware."""
    spot: bool = False
    cpu_count: int | None = None
    """Cores asked for by `cpu:N`; None leaves the request to whoever writes the manifest."""
    architecture: str = "amd64"
    """What the container image must be built for, in Go's spelling: `amd64` or `arm64`."""
    shared_topology: bool = False
    """True if machines of another size carry the same labels, so that the host's size is selected too."""
    others: tuple[Accelerator, ...] = field(default=(), compare=False, repr=False)
    """Other machines that carry the name as it was written."""

    def __str__(self) -> str:
        return f"{self.name}:spot" if self.spot else self.name

    @property
    def hosts(self) -> int:
        """Machines, and pods, that one job needs at the same time."""
        return self.chips // self.chips_per_host if self.chips_per_host else 1

    @property
    def meanings(self) -> tuple[Accelerator, ...]:
        """All machines that carry the name as it was written: this one, then the others."""
        return (self, *(replace(other, spot=self.spot) for other in self.others))

    @property
    def asked(self) -> str:
        """What was asked for, whichever of the meanings this is: `tpu-v6e-8 or tpu-v6e-8-4t`."""
        return " or ".join(sorted(map(str, self.meanings)))

    @property
    def exact(self) -> str:
        """A name that no other machine carries: `tpu-v6e-2x4-8t`; `str()` gives the usual one."""
        if not self.topology:
            return str(self)
        prefix = self.name.removesuffix("-" + self.name.split(f"{self.family}-", 1)[1])
        return f"{prefix}-{self.topology}-{self.chips_per_host}t{':spot' if self.spot else ''}"

    def meaning(self, chosen: Accelerator) -> Accelerator:
        """Return that one of the meanings, with the rest as its others."""
        return replace(chosen, others=tuple(each for each in self.meanings if each != chosen))

    @property
    def resource_name(self) -> str | None:
        """Kubernetes' name of the device, None for the CPU."""
        return _DEVICES.get(self.kind)

    def describe(self) -> str:
        """For people: `tpu-v5p-8 (8 chips, 2x2x2, 2 hosts of ct5p-hightpu-4t)`."""
        if self.kind == "cpu":
            return str(self)
        unit = "GPU" if self.kind == "gpu" else "chip"
        parts = [f"{self.chips} {unit}{'' if self.chips == 1 else 's'}"]
        if self.topology:
            parts.append(self.topology)
        parts.append(f"{self.hosts} host{'' if self.hosts == 1 else 's'} of {self.machine_type}")
        return f"{self} ({', '.join(parts)})"

    def device_resources(self) -> dict[str, str]:
        """Devices of one pod, as Kubernetes requests and limits; empty for the CPU."""
        return {self.resource_name: str(self.chips_per_host)} if self.resource_name else {}

    def node_selector(self) -> dict[str, str]:
        """Labels of the nodes that are this hardware; empty for a CPU that may be anywhere.

        GPUs are not selected by `gke-accelerator-count`: two of eight free GPUs serve a job of two.
        """
        labels: dict[str, str] = {}
        if self.kind == "gpu" and self.label:
            labels["cloud.google.com/gke-accelerator"] = self.label
        if self.kind == "tpu" and self.label and self.topology:
            labels["cloud.google.com/gke-tpu-accelerator"] = self.label
            labels["cloud.google.com/gke-tpu-topology"] = self.topology
            if self.shared_topology:
                # Without it two pods of 4 chips could meet on one 8-chip host, which is no slice of two.
                labels["cloud.google.com/gke-accelerator-count"] = str(self.chips_per_host)
        if self.spot:
            labels["cloud.google.com/gke-spot"] = "true"
        return labels

    def tolerations(self) -> list[dict[str, str]]:
        """The taints GKE puts on such nodes, as Kubernetes tolerations."""
        found = []
        if self.resource_name:
            found.append({"key": self.resource_name, "operator": "Exists", "effect": "NoSchedule"})
        if self.architecture != "amd64":
            found.append(_equal("kubernetes.io/arch", self.architecture))
        if self.spot:
            found.append(_equal("cloud.google.com/gke-spot", "true"))
        return found


def _equal(key: str, value: str) -> dict[str, str]:
    return {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}


def parse_accelerator(text: str) -> Accelerator:
    """The hardware that `text` names; the grammar is in the docstring of this module.

    A size that exists on one host and on several means the one host first. Raises InvalidAccelerator, whose
    message names the argument, says what is wrong with it and lists the nearest names.
    """
    if not isinstance(text, str):
        raise InvalidAccelerator(
            f"accelerator={text!r} must be a name such as 'tpu-v6e-8', 'gpu-l4' or 'cpu'"
        )
    body = text.strip().lower()
    spot = body.endswith(":spot")
    body = body.removesuffix(":spot")
    if body.endswith(":spot"):
        raise _refusal(text, "says :spot twice. Write it once, at the end.")
    found = _cpu(text, body) if body.startswith("cpu") else _device(text, _BARE.get(body, body))
    return replace(found, spot=True) if spot else found


def known_accelerators() -> tuple[Row, ...]:
    """Every listed shape with its sources and notes: TPUs, then GPUs, newest first."""
    from kinetic_core.accelerators.shapes import rows

    return rows()


def _cpu(text: str, body: str) -> Accelerator:
    if body == "cpu":
        return Accelerator("cpu", "cpu", "cpu")
    cores = _number(body.removeprefix("cpu:"))
    if body.startswith("cpu:") and cores:
        return Accelerator("cpu", f"cpu:{cores}", "cpu", cpu_count=cores)
    example = _number(body.removeprefix("cpu").lstrip(":-x")) or 8
    raise _refusal(text, f"is no CPU size. Write 'cpu', or 'cpu:{example}' for that many cores.")


@lru_cache(256)
def _device(text: str, body: str) -> Accelerator:
    from kinetic_core.accelerators.shapes import split_name

    kind = body[:3] if body[:4] in ("gpu-", "gpu:", "tpu-", "tpu:") else ""
    name = body[4:] if kind else body
    if number := _number(name):
        reason = "names no hardware, only a number, and the first that has it is the dearest"
        raise _refusal(text, f"{reason}. {_examples(kind, number)}")
    family, size = split_name(name)
    if family is None:
        raise _refusal(text, f"is not known. {_nearest_names(body)}")
    if family.retired:
        raise _refusal(text, family.retired)
    found = _sized(family, size)
    if kind and kind != family.kind:
        reason = f"calls {family.title} a {kind.upper()}, but it is a {family.kind.upper()}"
        raise _refusal(text, f"{reason}. Write '{found or family.default}'.")
    if found is None:
        raise _refusal(text, f"is no size of {family.title}. {_nearest_sizes(family, size)}")
    return found


def _sized(family: Family, size: str) -> Accelerator | None:
    """The shape of this size, None if there is none: `-8`, `x4`, `-2x4`, `-8-4t` or nothing."""
    if not size:
        return family.default
    number, dash, host = size[1:].partition("-")
    if "x" in number and all(map(_number, number.split("x"))):
        shapes = family.by_topology(number)
    else:
        shapes = family.by_number(_number(number))
    if not dash:
        return first_with_others(shapes)
    fitting = (shape for shape in shapes if shape.kind == "tpu" and host == f"{shape.chips_per_host}t")
    return next(fitting, None)


def first_with_others(shapes: Iterable[Accelerator]) -> Accelerator | None:
    """The first of the shapes that carry a name, which knows the others; None if there are none."""
    found = tuple(shapes)
    return replace(found[0], others=found[1:]) if found else None


def _number(text: str) -> int | None:
    """A positive number as people write it: no sign, no leading zero, at most six digits."""
    plain = text.isascii() and text.isdecimal() and len(text) <= 6 and text[0] != "0"
    return int(text) if plain else None


def _refusal(text: str, reason: str) -> InvalidAccelerator:
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return InvalidAccelerator(f"accelerator={shown!r} {reason}")


def _examples(kind: str, number: int) -> str:
    """For a number without a name: the everyday names that have it."""
    known = {str(row.accelerator) for row in known_accelerators()}
    everyday = ("gpu-l4", "gpu-a100", "gpu-h100", "tpu-v5e", "tpu-v6e", "tpu-v5p")
    names = [name for start in everyday if start.startswith(kind) and (name := f"{start}-{number}") in known]
    return f"Say which: {_listed(names or [name for name in _BARE.values() if name.startswith(kind)])}."


def _nearest_names(body: str) -> str:
    from difflib import get_close_matches

    from kinetic_core.accelerators.shapes import families

    offered = [family for family in families() if not family.retired]
    spellings = {str(row.accelerator): str(row.accelerator) for family in offered for row in family.rows}
    for family in offered:
        for name in (family.name, *family.aliases):
            spellings |= {name: str(family.default), f"{family.kind}-{name}": str(family.default)}
    close = [spellings[match] for match in get_close_matches(body, spellings, n=5, cutoff=0.5)]
    nearest = f"Nearest: {_listed(list(dict.fromkeys(close)))}. " if close else ""
    tpus, gpus = (", ".join(f.name for f in offered if f.kind == kind) for kind in ("tpu", "gpu"))
    return f"{nearest}TPUs are {tpus}; GPUs are {gpus}; or write 'cpu'."


def _nearest_sizes(family: Family, size: str) -> str:
    from math import prod

    asked = [_number(part) or 0 for part in size[1:].partition("-")[0].split("x")]
    number = prod(asked) * (family.cores_per_number if len(asked) > 1 else 1)
    shapes = [row.accelerator for row in family.rows]
    nearest = sorted(shapes, key=lambda shape: abs(family.number(shape) - number))[:3]
    absent = family.absent.get(size[1:])
    parts = [*([absent] if absent else []), f"Nearest: {', '.join(shape.describe() for shape in nearest)}"]
    if len(shapes) > len(nearest):
        parts.append(f"All: {', '.join(map(str, shapes))}")
    if family.cores_per_number > 1 and not family.chips_too:
        parts.append(f"The number counts TensorCores, {family.cores_per_number} a chip")
    if family.custom_limit:
        limit = f"multiples of 4 in ascending order, at most {family.custom_limit} chips"
        parts.append(f"Larger topologies AxBxC are {limit}")
    return ". ".join(parts) + "."


def _listed(names: list[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return " or ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))
