"""One real Airflow for all tests of this directory, started by the demo's own code."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from collector import collector

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent / "example_dags"))

ORDINARY = ("shapes", "classic", "ended", "failing", "references", "templated", "waiting")
"""DAGs that nobody disturbs; they start together because a deferral takes at least ten seconds."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark the tests whose jobs run on the cluster; the others need none."""
    for item in items:
        if HERE in item.path.parents and "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cluster)


PATIENCE = 900.0
"""Seconds until a task is where it should be: nothing fails because the machine is busy with others."""
SETTINGS = {
    "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    "GOOGLE_APPLICATION_CREDENTIALS": "",  # Google knows Airflow by its connections only
    # A file that has changed is read at once. Reading the others every half minute keeps a processor busy.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}

REGISTRY = os.environ.get("TESTCLUSTER_REGISTRY", "http://10.88.0.1:5000")
"""Where the test cluster's nodes pull images from."""
CLUSTER = (
    {
        "KINETIC_KUBECONFIG": os.environ["KUBECONFIG"],
        "KINETIC_BUCKET": f"test-bucket/airflow-{os.getpid()}",
        "KINETIC_CONTAINER_IMAGE": os.environ["KINETIC_TEST_IMAGE"],
        "KINETIC_TEST_REGISTRY": REGISTRY.rpartition("/")[2],
    }
    if {"KUBECONFIG", "KINETIC_TEST_IMAGE"} <= os.environ.keys()
    else {}
)
"""The settings of a cluster, if the environment has one."""


class Cases:
    """The Airflow under test and what the tests ask of it; `spans` are those it has told of by now."""

    def __init__(self, airflow: Any, spans: Sequence[Any] = ()) -> None:
        self.airflow = airflow
        self.api = airflow.api
        self.runs: dict[str, str] = {}
        self.spans = spans

    def start(self, dag_id: str) -> None:
        """Start a run of a DAG, once."""
        if dag_id not in self.runs:
            self.runs[dag_id] = self.airflow.run(dag_id)

    def end(self, dag_id: str, seconds: float = PATIENCE) -> str:
        """Wait for the run; its state."""
        self.start(dag_id)

        def state() -> str:
            found = self.api.run_state(dag_id, self.runs[dag_id])
            return found if found in ("success", "failed") else ""

        return self.airflow.until(state, seconds, f"{dag_id} to end")

    def instances(self, dag_id: str, task_id: str) -> list[dict[str, Any]]:
        """The task instances of a task, by map index."""
        found = self.api.task_instances(dag_id, self.runs[dag_id])
        return [each for each in found if each["task_id"] == task_id]

    def instance(self, dag_id: str, task_id: str) -> dict[str, Any]:
        (only,) = self.instances(dag_id, task_id)
        return only

    def values(self, dag_id: str, task_id: str, key: str = "return_value") -> list[Any]:
        """What a task's instances pushed."""
        return [self.api.xcom(each, key) for each in self.instances(dag_id, task_id)]

    def value(self, dag_id: str, task_id: str) -> Any:
        (only,) = self.values(dag_id, task_id)
        return only

    def log(self, dag_id: str, task_id: str, attempt: int | None = None) -> str:
        """The log of an unmapped task."""
        return self.api.log(self.instance(dag_id, task_id), attempt)

    def reach(self, dag_id: str, task_id: str, ready: Callable[[dict[str, Any]], Any], what: str) -> Any:
        """Wait until a task instance is as asked; an error has its state and the end of its log."""
        try:
            return self.airflow.until(
                lambda: ready(self.instance(dag_id, task_id)), PATIENCE, f"{dag_id} {what}"
            )
        except RuntimeError as error:
            error.add_note(f"{self.instance(dag_id, task_id)}\n{self.log(dag_id, task_id)[-4000:]}")
            raise

    def links(self, dag_id: str, task_id: str) -> dict[str, str]:
        """The links of an unmapped task, once all are there: Airflow stores them after the task's state."""

        def shown(instance: dict[str, Any]) -> dict[str, str | None] | None:
            links = self.api.links(instance)
            return links if all(links.values()) else None

        found: dict[str, str] = self.reach(dag_id, task_id, shown, "to have its links")
        return found

    def task_process(self, instance: dict[str, Any]) -> int:
        """The process that runs a task instance."""
        from demo_processes import carried_by, processes_of

        title = f"airflow worker -- {instance['id'][:20]}"  # longer titles are cut
        pids = processes_of(self.airflow.home)
        (only,) = (pid for pid in pids if any(word.startswith(title) for word in carried_by(pid)))
        return only

    def jobs(self, dag_id: str, task_id: str) -> list[str]:
        """The states of all jobs a task's log names, in order of their first mention."""
        from kinetic_core.backends.local.backend import LocalBackend
        from kinetic_core.jobs.observe import find, observe

        backend = LocalBackend(self.airflow.home / "kinetic")
        last = self.instance(dag_id, task_id)["try_number"]
        text = "\n".join(self.log(dag_id, task_id, number) for number in range(1, last + 1))
        references = [
            find(backend, job_id) for job_id in dict.fromkeys(re.findall(r"job-[0-9a-f]{16}", text))
        ]
        return [observe(backend, reference).status.value for reference in references if reference]


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """Airflow with the DAGs of `dags/`, in a project of their own; the ordinary ones have been started."""
    from demo_airflow import DemoAirflow

    home = tmp_path_factory.mktemp("airflow").resolve()
    project = home / "project"
    shutil.copytree(HERE / "dags", project / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    (project / "pyproject.toml").write_text("[project]\nname = 'cases'\nversion = '0'\n")
    measured = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE / "stand_ins"), os.environ.get("PYTHONPATH")])),
        "KINETIC_TEST_METRICS": str(home / "metrics"),
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
    }
    extra = {"XDG_CACHE_HOME": str(home / "cache"), **measured, **SETTINGS, **CLUSTER}
    with collector() as (traced, spans):
        airflow = DemoAirflow(home, project / "dags", extra={**extra, **traced})
        try:
            airflow.start()
            running = Cases(airflow, spans)
            for dag_id in ORDINARY:
                running.start(dag_id)
            yield running
        finally:
            airflow.stop(patience=0)


@pytest.fixture(scope="session")
def cluster(cases: Cases) -> Any:
    """The API of the cluster on which jobs of this Airflow can run; skips where there is none."""
    environment = cases.airflow.environment
    if "KINETIC_KUBECONFIG" not in environment:
        pytest.skip(
            "no KUBECONFIG and KINETIC_TEST_IMAGE: start ../shared/cluster/testcluster and eval its env"
        )
    version = ".".join(map(str, sys.version_info[:2]))
    if not environment["KINETIC_CONTAINER_IMAGE"].endswith(f":{version}"):
        pytest.skip("the image of the cluster has another Python, which a job would refuse")
    from kinetic_core.backends.kubernetes.client import ClusterApi
    from kinetic_core.backends.kubernetes.connection import Target

    return ClusterApi(Target(environment["KINETIC_KUBECONFIG"]))
