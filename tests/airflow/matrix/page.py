"""`docs/explanation/airflow-actions.md` from what was seen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from matrix.cells import ACTIONS, STEPS, Phase, all_cells
from matrix.verdict import Evidence, broken, sentence

_HEAD = """\
# What becomes of a task when somebody interferes

Written by `make matrix` from what it saw; not edited by hand. The program runs a task on the local backend
or, where it says *with pods*, on a Kubernetes cluster, brings its job into a phase, lets something happen,
and looks. For every cell it checks that at most one execution of the function, or pod of the task, ever
lives, that no job or pod is left 60 seconds after a triggerer is alive, that no result is lost, that nothing
is cancelled because a trigger merely moved, and that *Clear* runs the function again. With no triggerer
alive, a job that nobody wants any more ends at its `timeout`, or by `kinetic reap`.

The phases: the worker is *submitting*, just before the job is created; the job is *queued* for a free slot
or node; it is *running*; it has *finished* and its outcome is about to be collected.

"""
_WORKERS = """\
## A worker that is stopped between two steps

With `retries=1`. A worker that is told to stop asks for its task's state: these tasks were not ended.
"""


def label(version: str, place: str) -> str:
    """A version of Airflow, and where its jobs ran if not on the local backend; as files name them."""
    return f"{version}-{place}" if place else version


def save(path: Path, version: str, found: Iterable[Evidence]) -> None:
    """Keep what was seen in an Airflow as JSON; of cells that were not walked this time, what is there."""
    kept = {(seen.action, seen.phase): seen for seen in (load(path)[1] if path.exists() else [])}
    kept |= {(seen.action, seen.phase): seen for seen in found}
    cells = [kept[key] for cell in all_cells() if (key := (cell.action.name, cell.phase)) in kept]
    path.write_text(json.dumps({"airflow": version, "cells": [seen.to_dict() for seen in cells]}, indent=1))


def load(path: Path) -> tuple[str, list[Evidence]]:
    kept = json.loads(path.read_text())
    return kept["airflow"], [Evidence.from_dict(fields) for fields in kept["cells"]]


def page(runs: Mapping[str, Iterable[Evidence]]) -> str:
    """The page; `runs` by their labels, those of the newest Airflow first."""
    kept = {version: {(seen.action, seen.phase): seen for seen in found} for version, found in runs.items()}
    sections = [_HEAD]
    for version, cells in kept.items():
        sections.append(
            f"## Airflow {_title(version)}\n\n| what happens | {' | '.join(Phase)} |\n|---|---|---|---|---|\n"
        )
        for action in ACTIONS:
            if action.phases != STEPS:
                shown = (
                    _shown(cells.get((action.name, phase))) if phase in action.phases else "no case"
                    for phase in Phase
                )
                sections.append(f"| {action.title} | {' | '.join(shown)} |\n")
        sections.append("\n")
    sections.append(_WORKERS)
    for action in ACTIONS:
        if action.phases == STEPS:
            sections.append(f"\n| {action.title} | {' | '.join(map(_title, kept))} |\n")
            sections.append(f"|---|{'|'.join('---' for _ in kept)}|\n")
            for step in STEPS:
                shown = (_shown(cells.get((action.name, step))) for cells in kept.values())
                sections.append(f"| {step} | {' | '.join(shown)} |\n")
    return "".join(sections)


def _title(label: str) -> str:
    return label.replace("-", " with ")


def _shown(seen: Evidence | None) -> str:
    if seen is None:
        return "not tried"
    troubles = broken(seen)
    return f"**{'; '.join(troubles)}**" if troubles else sentence(seen)
