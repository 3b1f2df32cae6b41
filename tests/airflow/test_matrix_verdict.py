"""What the matrix calls a broken promise, and that its page says what its results say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matrix.cells import (
    ACTIONS,
    ENDED_BY_TRIGGER,
    OF_EXECUTOR,
    WAITING,
    Phase,
    TriggerPhase,
    all_cells,
    one_of_each,
)
from matrix.page import load, page
from matrix.verdict import Evidence, broken, sentence

IN_PART = ("3.1.8-pods", "3.3.2-pods", "3.1.8")
"""Where not all actions were tried, but each in all of its phases."""
SAMPLED = ("3.3.2-celery", "3.3.2-pods-kubernetes")
"""Where actions were tried in some of their phases only."""
DOCUMENTS = Path(__file__).parents[2] / "docs" / "explanation"
KILLED = Evidence(
    action="mark_failed",
    phase=Phase.RUNNING,
    state="failed",
    tries=1,
    executions=(10.0,),
    overlaps=0,
    acted=20.0,
    quiet=3.0,
    value=None,
    outcomes=("FAILED",),
)
CLEARED = replace(
    KILLED,
    action="clear",
    state="success",
    executions=(10.0, 25.0),
    value="execution 2",
    tries=2,
    outcomes=("FAILED", "SUCCEEDED"),
)
BY_TRIGGER = replace(CLEARED, action="clear_by_trigger", phase=TriggerPhase.PUSHED, legs=1)
MOVED = replace(
    KILLED, action="triggerer_killed", state="success", value="execution 1", outcomes=("SUCCEEDED",)
)


@pytest.mark.parametrize("seen", [KILLED, CLEARED, MOVED, BY_TRIGGER])
def test_what_went_as_promised(seen: Evidence) -> None:
    assert broken(seen) == []


@pytest.mark.promise("airflow: At most one live execution")
@pytest.mark.promise("airflow: No lost result")
@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (replace(KILLED, overlaps=1), "beside another"),
        (replace(KILLED, quiet=None), "lived on"),
        (replace(KILLED, quiet=61.0), "lived on"),
        (replace(KILLED, state="success"), "ended as success"),
        (replace(KILLED, executions=(10.0, 25.0)), "ran again"),
        (replace(KILLED, phase=Phase.FINISHED), "outcome was lost"),
        (replace(CLEARED, executions=(10.0,), value="execution 1"), "did not run again"),
        (replace(CLEARED, value="execution 1"), "not 'execution 2'"),
        (replace(CLEARED, phase=Phase.QUEUED, outcomes=("SUCCEEDED", "SUCCEEDED")), "was not ended"),
        (replace(CLEARED, outcomes=("SUCCEEDED",)), "was not ended"),
        (replace(MOVED, executions=(10.0, 25.0), value="execution 2"), "ran 2 times"),
        (replace(MOVED, value=None), "the result is None"),
        (replace(BY_TRIGGER, legs=2), "2 workers had its last try"),
        (replace(KILLED, action="mark_failed_by_trigger", phase=TriggerPhase.PUSHED), "outcome was lost"),
        (replace(MOVED, trouble="AirflowTrouble: waited"), "waited"),
    ],
)
def test_what_breaks_a_promise(seen: Evidence, says: str) -> None:
    assert says in "; ".join(broken(seen))


def test_what_happened_in_words() -> None:
    assert sentence(KILLED) == "failed; one execution; job cancelled"
    assert sentence(CLEARED) == "success; 2 executions, one after the other; try 2"


@pytest.mark.promise("airflow: `.ci/run` runs one cell of every action on the newest Airflow")
def test_every_action_has_a_cell_in_every_short_run() -> None:
    assert [cell.action for cell in one_of_each()] == list(ACTIONS)
    actions = (*ACTIONS, *ENDED_BY_TRIGGER)
    assert len({cell.dag_id for cell in all_cells()}) == sum(len(action.phases) for action in actions)


@pytest.mark.promise("scale: Results in the generated page")
@pytest.mark.promise("airflow: Every action × phase, as `make matrix`, runs in parallel")
@pytest.mark.promise("airflow: The table is generated from the program's own run")
def test_the_page_is_what_was_seen() -> None:
    results = sorted(DOCUMENTS.glob("airflow-actions/airflow-*.json"), reverse=True)
    runs = dict(map(load, results))
    assert runs
    assert (DOCUMENTS / "airflow-actions.md").read_text() == page(runs)
    known = {(cell.action.name, cell.phase) for cell in all_cells(*OF_EXECUTOR)}
    for version, cells in runs.items():
        tried = {(seen.action, seen.phase) for seen in cells}
        every = {each.name for each in (*ACTIONS, *ENDED_BY_TRIGGER)}
        actions = {seen.action for seen in cells} if version in IN_PART else every
        if version in SAMPLED:
            assert tried <= known, version
        else:
            assert tried == {cell for cell in known if cell[0] in actions}, version
        assert [(seen.action, seen.phase) for seen in cells if broken(seen)] == []


def test_actions_of_celery_have_its_columns_only() -> None:
    told = replace(MOVED, action="celery_killed", phase=WAITING, tries=2)
    text = page({"3.3.2": [MOVED], "3.3.2-celery": [told]})
    assert "## Airflow 3.3.2 with CeleryExecutor\n" in text
    assert (
        "| kill -9 of its Celery worker and supervisor, another is started | 3.3.2 with CeleryExecutor |\n"
        in text
    )
    assert f"| {WAITING} | success; one execution; try 2 |\n" in text
    assert "Celery worker" not in page({"3.3.2": [MOVED]}).partition("\n## ")[2]


def test_actions_of_kubernetes_have_its_columns_only() -> None:
    told = replace(MOVED, action="pod_evicted", phase=WAITING, tries=2)
    text = page({"3.3.2": [MOVED], "3.3.2-pods-kubernetes": [told]})
    assert "## Airflow 3.3.2 with pods and KubernetesExecutor\n" in text
    assert f"| {WAITING} | success; one execution; try 2 |\n" in text
    assert "the pod is evicted" not in page({"3.3.2": [MOVED]})


def test_evidence_survives_a_file() -> None:
    assert Evidence.from_dict(json.loads(json.dumps(CLEARED.to_dict()))) == CLEARED
