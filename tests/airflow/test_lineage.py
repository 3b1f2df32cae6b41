"""What OpenLineage learns of a task's job: data, source, hardware and cost.

The Airflow of these tests has an XCom backend of its own besides, and so shows what that sees of tasks.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kinetic_core import Data
from kinetic_core.connections import default_connections
from kinetic_core.job import JobReference, JobStatus
from tests.airflow_provider.records_of_jobs import ended, record, reference

pytestmark = pytest.mark.airflow

HERE = Path(__file__).parent
PRICES = 'currency = "EUR"\n[on_demand]\ngpu-l4 = 3.6\n'


def train(shard: Any, more: Any) -> int:
    return len(more)


def operator(**arguments: Any) -> Any:
    from airflow_provider.operators.kinetic import KineticOperator

    return KineticOperator(task_id="train", python_callable=train, **arguments)


def names(datasets: list[Any]) -> list[tuple[str, str]]:
    return [(each.namespace, each.name) for each in datasets]


@pytest.mark.promise("scale: OpenLineage: inputs, outputs, source")
def test_data_in_arguments_and_volumes_is_read() -> None:
    from airflow.sdk import Asset

    task = operator(
        op_args=[Data("gs://bucket/shards/3/")],
        op_kwargs={"more": {"deep": [Data("hf://owner/set?split=train"), Data("gs://bucket/shards/3/")]}},
        volumes={"/all": Data("gs://whole/", fuse=True)},
        inlets=[Asset("gs://bucket/declared")],
    )
    lineage = task.get_openlineage_facets_on_start()
    assert names(lineage.inputs) == [
        ("gs://bucket", "shards/3"),
        ("hf://huggingface.co", "owner/set"),
        ("gs://whole", "/"),
        ("gs://bucket", "declared"),
    ]
    assert lineage.outputs == []
    assert lineage.job_facets["sourceCode"].sourceCode.startswith("def train(shard: Any")
    assert lineage.run_facets == {}


def test_source_stays_here_if_openlineage_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__DISABLE_SOURCE_CODE", "True")
    assert operator().get_openlineage_facets_on_start().job_facets == {}


@pytest.mark.promise("scale: … run facets with accelerator and cost")
def test_a_job_that_has_ended_tells_its_hardware_and_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    monkeypatch.setenv("KINETIC_PRICES", str(tmp_path / "prices.toml"))
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "model").write_bytes(b"12345")
    task = operator(backend="local")
    told = record(
        end=ended(JobStatus.FAILED, "user error"),
        backend="local",
        accelerator="gpu-l4-2",
        output_dir=str(outputs),
        store_uri=(tmp_path / "kinetic").as_uri(),
    )
    task.record = told
    lineage = task.get_openlineage_facets_on_complete(None)
    facet = lineage.run_facets["kinetic_job"]
    assert (facet.jobId, facet.accelerator, facet.backend) == (told.reference.job_id, "gpu-l4-2", "local")
    assert (facet.status, facet.failureClass, facet.attempts) == ("FAILED", "user error", 2)
    assert facet.phases == {"queue": 3.0, "function": 60.0}
    assert (facet.chipSeconds, facet.coreSeconds) == (120.0, 0.0)
    assert (facet.cost, facet.currency) == (pytest.approx(0.12), "EUR")
    assert names(lineage.outputs) == [("file", str(outputs))]
    statistics = lineage.outputs[0].outputFacets["outputStatistics"]
    assert (statistics.size, statistics.fileCount) == (5, 1)
    (tmp_path / "prices.toml").unlink()
    again = task.get_openlineage_facets_on_complete(None).run_facets["kinetic_job"]
    assert (again.cost, again.jobId) == (None, facet.jobId), "without prices the rest is told"
    task.record = replace(told, reference=replace(told.reference, output_dir=str(tmp_path / "none")))
    assert task.get_openlineage_facets_on_complete(None).outputs == []


def told_of_batch(place: JobReference, run_seconds: float | None) -> tuple[Any, Any]:
    """What is told of a batch of two inputs: its facet and its lineage."""
    from airflow_provider.lineage import before_the_end, of_batch

    lineage = before_the_end(operator(), train, ())
    of_batch(lineage, default_connections(), place, 2, 1, run_seconds)
    return lineage.run_facets["kinetic_batch"], lineage


def test_a_batch_that_has_ended_tells_its_outputs_and_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    monkeypatch.setenv("KINETIC_PRICES", str(tmp_path / "prices.toml"))
    place = reference(
        "grp-0123456789abcdef",
        backend="local",
        accelerator="gpu-l4-2",
        output_dir=f"{tmp_path}/outputs/",
        store_uri=(tmp_path / "kinetic").as_uri(),
    )
    for index in range(3):
        (tmp_path / f"outputs/{index}").mkdir(parents=True)
        (tmp_path / f"outputs/{index}/vectors").write_bytes(b"12345")
    facet, lineage = told_of_batch(place, 60.0)
    assert (facet.inputs, facet.failed, facet.accelerator) == (2, 1, "gpu-l4-2")
    assert (facet.runSeconds, facet.chipSeconds, facet.coreSeconds) == (60.0, 120.0, 0.0)
    assert (facet.cost, facet.currency) == (pytest.approx(0.12), "EUR")
    assert names(lineage.outputs) == [("file", f"{tmp_path}/outputs/*")]
    statistics = lineage.outputs[0].outputFacets["outputStatistics"]
    assert (statistics.size, statistics.fileCount) == (10, 2), "of its two inputs"
    unknown, lineage = told_of_batch(replace(place, output_dir=f"{tmp_path}/none/"), None)
    assert (unknown.runSeconds, unknown.chipSeconds, unknown.cost) == (None, 0.0, None)
    assert lineage.outputs == []


def test_a_task_without_a_job_tells_what_it_would_have_read() -> None:
    task = operator(op_args=[Data("gs://bucket/a")])
    assert names(task.get_openlineage_facets_on_complete(None).inputs) == [("gs://bucket", "a")]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, list[Any]]]]:
    """An Airflow with OpenLineage's provider and an XCom backend of its own, and what OpenLineage tells of a
    run's tasks, by task and state.
    """
    from conftest import Cases
    from demo_airflow import DemoAirflow

    home = tmp_path_factory.mktemp("lineage").resolve()
    project = home / "project"
    shutil.copytree(HERE / "lineage_dags", project / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    (project / "pyproject.toml").write_text("[project]\nname = 'lineage'\nversion = '0'\n")
    (home / "prices.toml").write_text(PRICES)
    file = home / "events.jsonl"
    (home / "xcoms").mkdir()
    transport = {"type": "file", "log_file_path": str(file), "append": True}
    settings = {
        "XDG_CACHE_HOME": str(home / "cache"),
        "KINETIC_PRICES": str(home / "prices.toml"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE / "stand_ins"), os.environ.get("PYTHONPATH")])),
        "KEPT_ELSEWHERE": str(home / "xcoms"),
        "AIRFLOW__CORE__XCOM_BACKEND": "kept_elsewhere.Files",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "120",
    }
    airflow = DemoAirflow(home, project / "dags", extra=settings)
    try:
        airflow.start()
        cases = Cases(airflow)
        cases.start("elsewhere")
        assert cases.end("lineage") == "failed"
        found = airflow.until(lambda: all_told(file), 120, "OpenLineage to tell how each task ended")
        yield cases, found
    finally:
        airflow.stop(patience=0)


def all_told(file: Path) -> dict[str, list[Any]]:
    """The events by task and type; none until each task has told how it ended.

    A worker tells that after Airflow has its task's state, and so maybe after the run has ended.
    """
    found: dict[str, list[Any]] = {}
    for line in file.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # not one that is being written
            event = json.loads(line)
            found.setdefault(f"{event['job']['name']} {event['eventType']}", []).append(event)
    last = ("lineage.train COMPLETE", "lineage.fail FAIL", "lineage.square COMPLETE")
    return found if all(name in found for name in last) else {}


def names_in(event: Any, direction: str) -> set[tuple[str, str]]:
    return {(each["namespace"], each["name"]) for each in event[direction]}


@pytest.mark.promise("scale: OpenLineage: inputs, outputs, source")
@pytest.mark.promise("scale: … run facets with accelerator and cost")
def test_airflow_tells_what_a_job_read_and_wrote(events: Any) -> None:
    cases, found = events
    (event,) = found["lineage.train COMPLETE"]
    dags = cases.airflow.home / "project" / "dags"
    assert names_in(event, "inputs") == {("file", str(dags / "shard.txt")), ("file", str(dags))}
    (job,) = [each["reference"] for each in cases.values("lineage", "train", "kinetic_job")]
    written = [each for each in event["outputs"] if each["name"].endswith(job["job_id"])]
    outputs = written or event["outputs"]
    statistics = [each["outputFacets"].get("outputStatistics") for each in outputs]
    assert [(each["size"], each["fileCount"]) for each in statistics if each] == [(8, 1)]
    assert any(each["name"] == "/models/one" for each in event["outputs"]), "its outlet is told, too"
    facet = event["run"]["facets"]["kinetic_job"]
    assert (facet["jobId"], facet["accelerator"]) == (job["job_id"], "gpu-l4-2")
    assert (facet["status"], facet["currency"]) == ("SUCCEEDED", "EUR")
    assert facet["cost"] == pytest.approx(facet["chipSeconds"] / 1000, abs=6e-5), "chipSeconds are rounded"
    assert "def train" in event["job"]["facets"]["sourceCode"]["sourceCode"]


def test_airflow_tells_how_a_job_failed(events: Any) -> None:
    _, found = events
    (event,) = found["lineage.fail FAIL"]
    facet = event["run"]["facets"]["kinetic_job"]
    assert (facet["status"], facet["failureClass"]) == ("FAILED", "user error")


@pytest.mark.promise("scale: OpenLineage: inputs, outputs, source")
@pytest.mark.promise("scale: … run facets with accelerator and cost")
def test_airflow_tells_of_a_batch(events: Any) -> None:
    cases, found = events
    (event,) = found["lineage.square COMPLETE"]
    facet = event["run"]["facets"]["kinetic_batch"]
    assert (facet["inputs"], facet["failed"], facet["accelerator"]) == (3, 1, "gpu-l4-2")
    (record,) = cases.values("lineage", "square", "kinetic_batch")
    assert facet["batchId"] == record["reference"]["job_id"]
    assert facet["runSeconds"] == pytest.approx(record["run_seconds"], abs=1e-3)
    assert facet["runSeconds"] > 0
    assert facet["chipSeconds"] == pytest.approx(2 * facet["runSeconds"], abs=0.06)
    assert (facet["cost"], facet["currency"]) == (pytest.approx(facet["chipSeconds"] / 1000, abs=6e-5), "EUR")
    (written,) = event["outputs"]
    assert written["name"].endswith(f"/outputs/{facet['batchId']}-*")
    statistics = written["outputFacets"]["outputStatistics"]
    assert (statistics["size"], statistics["fileCount"]) == (2, 2), "each input with a value has written one"
    numbers = cases.airflow.home / "project" / "dags" / "numbers.jsonl"
    assert names_in(event, "inputs") == {("file", str(numbers))}


def kept(cases: Any, dag_id: str, task_id: str) -> Any:
    """The value of a task, as the XCom backend keeps it."""
    (place,) = cases.values(dag_id, task_id)
    return json.loads(Path(place).read_text())


def rows(cases: Any, dag_id: str) -> dict[str, dict[str, Any]]:
    """What the page shows of a run, by task."""
    url = f"{cases.api.url}/kinetic/api/dags/{dag_id}/runs/{quote(cases.runs[dag_id])}/jobs"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
        told = json.load(answer)
    assert told["troubles"] == []
    return {each["task_id"]: each for each in told["jobs"]}


@pytest.mark.promise("scale: It works with XCom backends of one's own")
@pytest.mark.promise(
    "scale: Where a worker is needed it ends the task, and the ADR says when",
    "an XCom backend of its own",
)
def test_values_go_through_an_xcom_backend(events: Any) -> None:
    """A worker hands them to it, a reference and a batch's sequence too, and the next task has them back."""
    cases, _ = events
    assert cases.end("elsewhere") == "success"
    assert kept(cases, "elsewhere", "numbers") == [0, 1, 2, 3]
    assert "signature" in json.dumps(kept(cases, "elsewhere", "boxed"))
    assert kept(cases, "elsewhere", "used")[:1] == ["BatchValues"]
    assert kept(cases, "elsewhere", "used")[1:] == [[6, 10, 15], [1]]
    places = cases.values("elsewhere", "single")
    assert [json.loads(Path(place).read_text()) for place in places] == [6, 10, 15]
    log = cases.log("elsewhere", "numbers")
    assert "a worker ends this task after its job: [core] xcom_backend is a class of its own" in log
    assert log.count("DAG bundles loaded") == 2, log


@pytest.mark.promise("scale: It works with XCom backends of one's own")
def test_records_go_around_an_xcom_backend(events: Any) -> None:
    """Airflow's database has them, so that the page, which asks no backend, has a row of each task."""
    cases, _ = events
    assert cases.end("elsewhere") == "success"
    assert not [file.name for file in Path(cases.airflow.home, "xcoms").iterdir() if "kinetic" in file.name]
    found = rows(cases, "elsewhere")
    assert {name: row["status"] for name, row in found.items()} == {
        "numbers": "SUCCEEDED",
        "boxed": "SUCCEEDED",
        "square": "SUCCEEDED",
    }
    (record,) = cases.values("elsewhere", "square", "kinetic_batch")
    assert (record["failed"], record["missing"]) == (1, "1")
    (told,) = cases.values("elsewhere", "numbers", "kinetic_job")
    assert told["reference"]["job_id"] == found["numbers"]["job_id"]


@pytest.mark.promise("scale: It works with XCom backends of one's own")
def test_a_trigger_records_around_an_xcom_backend(events: Any) -> None:
    """Of a task that somebody ends while it is deferred its trigger reads the record, and writes it."""
    cases, _ = events
    cases.start("ended_elsewhere")
    for task_id, key in (("long_job", "kinetic_job"), ("long_batch", "kinetic_batch")):
        cases.reach(
            "ended_elsewhere",
            task_id,
            lambda found, name=task_id: (
                found["state"] == "deferred" and "no worker is held" in cases.log("ended_elsewhere", name)
            ),
            "to be watched by a trigger",
        )
        path = f"/dags/ended_elsewhere/dagRuns/{cases.runs['ended_elsewhere']}/taskInstances/{task_id}"
        cases.api.call("PATCH", path, {"new_state": "failed"})

        record = cases.airflow.until(
            lambda name=task_id, of=key: next(
                filter(is_over, cases.values("ended_elsewhere", name, of)), None
            ),
            120,
            f"{task_id} to be recorded as cancelled",
        )
        assert record.get("ended_by", "") == ("" if task_id == "long_job" else "somebody has ended the task")
    assert rows(cases, "ended_elsewhere").keys() == {"long_job", "long_batch"}


def is_over(record: dict[str, Any]) -> bool:
    """Whether the record of a job or a batch says how it ended."""
    return bool(record.get("end") or record.get("ended_by"))
