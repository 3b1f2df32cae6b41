"""When two calls are the same call: a digest that another process computes alike."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kinetic_core.packaging.pickling import ProjectModules, ProjectPickler, Substitute

if TYPE_CHECKING:
    from kinetic_core.lifecycle.packing import Packed

Parts = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


def spec_digest(packed: Packed, arguments: bytes, call: Parts | None) -> str:
    """SHA-256 over all that decides what a job does, in hex; not its id, not where outputs go.

    `call` asks for a digest that does not depend on the process: pickles of the same values differ
    between processes in the order of sets and in the ids cloudpickle gives to classes.
    """
    spec = packed.spec
    asked: dict[str, Any] = {
        "accelerator": str(spec.accelerator),
        "backend": spec.backend,
        "namespace": spec.namespace,
        "memory": spec.memory,
        "timeout": spec.timeout,
        "retries": spec.retries,
        "pod": asdict(spec.pod),
        "image": packed.image.name,
        "environment": dict(spec.environment),
        "tree": packed.tree,
        "volumes": [dict(volume) for volume in packed.volumes],
        "output_dir": packed.options.output_dir,
        "debug": packed.options.debug,
    }
    if spec.fallbacks:
        asked["fallbacks"] = [(str(one.accelerator), one.image_name) for one in spec.fallbacks]
    if spec.budget is not None:
        asked["budget"] = spec.budget.amount
    total = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    if call is None:
        total.update(packed.packed_function.pickle.body + b"\0" + arguments)
    else:
        total.update(_stable(call, packed.packed_function.modules, packed.substitutes))
    return total.hexdigest()


class _StablePickler(ProjectPickler):
    """A pickle for comparing only: classes by name (their code is in the tree), sets in a fixed order."""

    def __init__(self, stream: io.BytesIO, project: ProjectModules, substitute: Substitute) -> None:
        super().__init__(stream, project, substitute)
        self._rules = project, substitute

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        kind = type(obj)
        if kind is set or kind is frozenset:
            return "set", sorted(_stable(item, *self._rules) for item in obj)
        if isinstance(obj, type) and obj.__module__ in self._rules[0]:
            return "class", obj.__module__, obj.__qualname__
        return super().persistent_id(obj)


def _stable(value: Any, project: ProjectModules, substitute: Substitute) -> bytes:
    with io.BytesIO() as stream:
        _StablePickler(stream, project, substitute).dump(value)
        return stream.getvalue()
