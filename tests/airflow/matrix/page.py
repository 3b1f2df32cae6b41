"""`docs/explanation/airflow-actions.md` from what was seen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from matrix.cells import ACTIONS, ENDED_BY_TRIGGER, OF_EXECUTOR, STEPS, Action, Phase, TriggerPhase, all_cells
from matrix.verdict import Evidence, broken, sentence

_HEAD = """\
# What becomes of a task when somebody interferes

Written by `make matrix` from what it saw; not edited by hand. The program runs a task on the local backend
or, where it says *with pods*, on a Kubernetes cluster, brings its job into a phase, lets something happen,
and looks. For every cell it checks that at most one execution of the function, or pod of the task, ever
lives, that no job or pod is left 60 seconds after a triggerer is alive, that no result is lost, that nothing
is cancelled because a trigger merely moved, and that *Clear* runs the function again. With no triggerer
alive, the API server ends a job that nobody wants any more. Where it says *with CeleryExecutor*, two Celery
workers run the tasks; *with pods and KubernetesExecutor*, each worker is a pod of that cluster.

The phases: the worker is *submitting*, just before the job is created; the job is *queued* for a free slot
or node; it is *running*; it has *finished* and its outcome is about to be collected.

"""
_TRIGGERS = """\
## A task that its trigger ends

The tasks above have a callback, so that a worker ends them. These have none: the trigger pushes the value
and ends the task ([ADR 0065](../adr/0065-a-task-is-one-leg.md)). The phases: the job is *running*; it has
*finished*, and the trigger is about to collect its outcome; the value is *pushed*, and the trigger is about
to tell Airflow that the task has ended. Of each task that goes on or runs again, the last try had one worker.

"""
_WORKERS = """\
## A worker that is stopped between two steps

With `retries=1`. A worker that is told to stop asks for its task's state: these tasks were not ended.
"""
_NAMES = {"celery": "CeleryExecutor", "kubernetes": "KubernetesExecutor"}
_OF_ONE_EXECUTOR = tuple(action for actions in OF_EXECUTOR.values() for action in actions)


def label(version: str, place: str, executor: str = "") -> str:
    """A version of Airflow, where its jobs ran if not on the local backend, and what ran its tasks if not
    LocalExecutor; as files name them.
    """
    return "-".join(filter(None, (version, place, executor)))


def save(path: Path, version: str, found: Iterable[Evidence]) -> None:
    """Keep what was seen in an Airflow as JSON; of cells that were not walked this time, what is there."""
    kept = {(seen.action, seen.phase): seen for seen in (load(path)[1] if path.exists() else [])}
    kept |= {(seen.action, seen.phase): seen for seen in found}
    cells = [kept[key] for cell in all_cells(*OF_EXECUTOR) if (key := (cell.action.name, cell.phase)) in kept]
    path.write_text(json.dumps({"airflow": version, "cells": [seen.to_dict() for seen in cells]}, indent=1))


def load(path: Path) -> tuple[str, list[Evidence]]:
    kept = json.loads(path.read_text())
    return kept["airflow"], [Evidence.from_dict(fields) for fields in kept["cells"]]


def page(runs: Mapping[str, Iterable[Evidence]]) -> str:
    """The page; `runs` by their labels, those of the newest Airflow first."""
    kept = {version: {(seen.action, seen.phase): seen for seen in found} for version, found in runs.items()}
    sections = [_HEAD]
    for version, cells in kept.items():
        sections.append(f"## Airflow {_title(version)}\n\n{_walked(cells.values())}\n\n")
        sections += [*_table(ACTIONS, Phase, cells), "\n"]
    sections.append(_TRIGGERS)
    for version, cells in kept.items():
        if any(action.name == name for action in ENDED_BY_TRIGGER for name, _ in cells):
            sections.append(f"### Airflow {_title(version)}\n\n")
            sections += [*_table(ENDED_BY_TRIGGER, TriggerPhase, cells), "\n"]
    sections.append(_WORKERS)
    for action in filter(_is_of_worker, (*ACTIONS, *ENDED_BY_TRIGGER, *_OF_ONE_EXECUTOR)):
        runs_of_it = {
            version: cells
            for version, cells in kept.items()
            if action not in _OF_ONE_EXECUTOR or any((action.name, step) in cells for step in action.phases)
        }
        if runs_of_it:
            sections.append(f"\n| {action.title} | {' | '.join(map(_title, runs_of_it))} |\n")
            sections.append(f"|---|{'|'.join('---' for _ in runs_of_it)}|\n")
            for step in action.phases:
                shown = (_shown(cells.get((action.name, step))) for cells in runs_of_it.values())
                sections.append(f"| {step} | {' | '.join(shown)} |\n")
    return "".join(sections)


def _is_of_worker(action: Action) -> bool:
    return set(action.phases) <= set(STEPS)


def _table(
    actions: Iterable[Action], phases: Collection[str], cells: Mapping[tuple[str, str], Evidence]
) -> Iterator[str]:
    yield f"| what happens | {' | '.join(phases)} |\n|---|{'---|' * len(phases)}\n"
    for action in actions:
        if not _is_of_worker(action) and any((action.name, phase) in cells for phase in action.phases):
            shown = (
                _shown(cells.get((action.name, phase))) if phase in action.phases else "no case"
                for phase in phases
            )
            yield f"| {action.title} | {' | '.join(shown)} |\n"


def _title(label: str) -> str:
    version, *others = label.split("-")
    return " with ".join(filter(None, (version, " and ".join(_NAMES.get(each, each) for each in others))))


def _walked(cells: Collection[Evidence]) -> str:
    """When cells were tried, how many a day, and which actions have none."""
    days = Counter(datetime.fromtimestamp(seen.acted, UTC).date().isoformat() for seen in cells)
    told = [f"{count} cells on {day}" for day, count in sorted(days.items())]
    tried = {seen.action for seen in cells}
    lacking = [action.title for action in ACTIONS if action.name not in tried]
    if not tried & {action.name for action in ENDED_BY_TRIGGER}:
        lacking.append("tasks that their trigger ends")
    return f"Tried: {', '.join(told)}." + (f" Not tried here: {'; '.join(lacking)}." if lacking else "")


def _shown(seen: Evidence | None) -> str:
    if seen is None:
        return "not tried"
    troubles = broken(seen)
    return f"**{'; '.join(troubles)}**" if troubles else sentence(seen)
