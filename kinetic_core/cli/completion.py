"""What a shell completes words of the command with, besides ids of jobs and names of profiles."""

from __future__ import annotations

from kinetic_core.settings import BACKENDS


def accelerator_names(incomplete: str) -> list[str]:
    """Return the names that `--accelerator` takes, `cpu` first; other spellings once begun.

    Others are those of the GKE labels (`nvidia-l4-4`), and those without `tpu-` or `gpu-` (`v5e-4`).
    """
    from kinetic_core.accelerators.grammar import known_accelerators

    known = [row.accelerator for row in known_accelerators() if row.accelerator.kind != "cpu"]
    names = ["cpu", *(one.name for one in known)]
    if not any(name.startswith(incomplete) for name in names):
        names = [one.name.removeprefix(f"{one.kind}-") for one in known]
        names += [f"{one.label}-{one.chips}" for one in known if one.kind == "gpu"]
    return [name for name in names if name.startswith(incomplete)]


def statuses() -> list[str]:
    """Return the statuses that a stored job can have."""
    from kinetic_core.job import JobStatus

    return [one.value.lower() for one in JobStatus if one is not JobStatus.NOT_FOUND]


def batch_ids() -> list[str]:
    """Return the ids of the newest batches; none where the store does not answer."""
    from kinetic_core.backends.base import known_backend
    from kinetic_core.batches.submit import batches
    from kinetic_core.connections import default_connections
    from kinetic_core.errors import KineticError

    try:
        found = batches(known_backend(None, default_connections()))
    except KineticError:
        return []
    return [str(one["group_id"]) for one in found[:30]]


COMPLETIONS = {"backend": lambda: list(BACKENDS)}
"""What completes the value of an option that all verbs have, by the setting that it replaces."""
