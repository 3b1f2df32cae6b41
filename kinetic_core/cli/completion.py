"""What a shell completes words of the command with, besides ids of jobs and names of profiles."""

from __future__ import annotations


def accelerator_names() -> list[str]:
    """Return the names that `--accelerator` takes, `cpu` first."""
    from kinetic_core.accelerators.grammar import known_accelerators

    return ["cpu", *(row.accelerator.name for row in known_accelerators() if row.accelerator.kind != "cpu")]
