"""The verbs that the command has."""

from __future__ import annotations

import typer

from kinetic_core.cli.main import build

JOB_VERBS = ("status", "logs", "result", "explain", "debug", "cancel", "cleanup", "outputs", "watch")
"""What `kinetic jobs VERB JOB_ID` can do."""
BATCH_VERBS = ("status", "results", "cancel")
"""What `kinetic batch VERB BATCH_ID` can do."""


def all_verbs() -> list[str]:
    """Their names, `jobs list` among them; other names of a verb are hidden."""
    found: list[str] = []
    for name, one in typer.main.get_command(build()).commands.items():  # type: ignore[attr-defined]
        within = {verb: each for verb, each in getattr(one, "commands", {}).items() if not each.hidden}
        found += [f"{name} {verb}" for verb in within] if within else [name]
    return found
