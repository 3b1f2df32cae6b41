"""Where Airflow keeps its logs in S3 or in Azure, its own components write the lines of jobs: seen live, and
in the end each once, although no component sees the files of another and a triggerer is lost.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from conftest import CLUSTER, Cases
from log_stores import S3, ApartAirflow, Azure, azurite
from remote_airflow import give_sign, make_project, signs

LOCAL = {"KINETIC_BACKEND": "local"}
STORES = {"s3": S3, "azure": Azure}


def missing() -> list[str]:
    """What `make other-logs-test` installs and this environment lacks."""
    lacking = [] if azurite() else ["azurite"]
    for name in ("apache-airflow-providers-amazon", "apache-airflow-providers-microsoft-azure", "moto"):
        try:
            version(name)
        except PackageNotFoundError:
            lacking.append(name)
    return lacking


pytestmark = [
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(missing()), reason=f"no {', '.join(missing())}: use `make other-logs-test`"),
]


class Talking(Cases):
    """An Airflow with its logs in one of the stores, whose jobs wait for signs."""

    def __init__(self, airflow: ApartAirflow, place: str, folder: Path | None) -> None:
        super().__init__(airflow)
        self._place, self._folder = place, folder

    def give_sign(self, name: str) -> None:
        """End the job that waits for a sign of this name."""
        if self._folder is None:
            give_sign(f"{self._place}-{name}")
        else:
            Path(f"{self._folder}-{name}").touch()

    def trigger_logs(self, dag_id: str) -> list[str]:
        """The names of those logs of triggers that are in the store."""
        return [
            name for name in self.airflow.store.names() if f"dag_id={dag_id}/" in name and ".trigger." in name
        ]


@pytest.fixture(scope="module", params=["s3-local", "azure-local", "s3-pods", "azure-pods"])
def talking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    store, _, place = request.param.partition("-")
    home = tmp_path_factory.mktemp(request.param).resolve()
    folder = home / "sign" if place == "local" else None
    if folder is None and not CLUSTER:
        pytest.skip("no KUBECONFIG and KINETIC_TEST_IMAGE: see the cluster's README")
    project = make_project(
        home, "remote_dags", f"{signs()}-{request.param}" if folder is None else folder.as_uri()
    )
    where = {**CLUSTER, "KINETIC_BACKEND": "gke"} if folder is None else LOCAL
    extra = {**where, "XDG_CACHE_HOME": str(home / "cache")}
    airflow = ApartAirflow(home, project, extra=extra, store=STORES[store]())
    try:
        airflow.start()
        yield Talking(airflow, request.param, folder)
    finally:
        airflow.stop()


def printed(log: str) -> list[int]:
    return [int(number) for number in re.findall(r"line (\d+) of the pod", log)]


def is_seen(cases: Talking, dag_id: str, task_id: str, state: str = "deferred", after: int = 0) -> bool:
    """Whether a task instance is in a state, and a line of its job after the first ones is in its log."""
    return (
        cases.instance(dag_id, task_id)["state"] == state
        and max(printed(cases.log(dag_id, task_id)), default=-1) >= after
    )


def reach(cases: Talking, dag_id: str, task_id: str, after: int = 0) -> None:
    cases.reach(
        dag_id, task_id, lambda _: is_seen(cases, dag_id, task_id, after=after), "to be seen to print"
    )


@pytest.mark.promise("scale: Task logs in S3 and Azure")
@pytest.mark.promise("airflow: Live while deferred")
@pytest.mark.promise(
    "airflow: Complete after pod, node and triggerer are gone",
    "S3 and Azure, by stand-ins: triggerer lost with its disk",
)
def test_lines_are_seen_while_deferred_and_once_in_the_end(talking: Talking) -> None:
    talking.start("talking")
    reach(talking, "talking", "talk", after=5)
    assert "showing its lines from here on" in talking.log("talking", "talk")
    talking.airflow.lose_triggerer()
    log = talking.log("talking", "talk")
    assert printed(log) == [], "what only the triggerer had"
    assert "started a job on cpu" in log
    talking.airflow.start_component("triggerer")
    reach(talking, "talking", "talk", after=20)
    log = printed(talking.log("talking", "talk"))
    assert log == list(range(len(log))), "another triggerer shows them from the first one on"
    talking.give_sign("talk")
    assert talking.end("talking") == "failed"
    talking.airflow.lose_triggerer()
    try:
        assert printed(talking.log("talking", "talk")) == list(range(talking.value("talking", "talk")))
        log = talking.log("talking", "failing")
        assert printed(log) == [0, 1, 2]
        assert log.index("line 2 of the pod") < log.index("ValueError: at the end")
    finally:
        talking.airflow.start_component("triggerer")
    assert [name for name in talking.airflow.store.names() if ".kinetic" in name] == []


@pytest.mark.promise("scale: Progress in the log, and on the page", "how many inputs have ended")
@pytest.mark.promise("scale: Task logs in S3 and Azure")
def test_whoever_waits_for_a_job_writes_its_lines(talking: Talking) -> None:
    """A task that a worker ends after its trigger, one whose worker waits, and a batch."""
    talking.start("all_kinds")
    unseen = {
        "split": lambda: is_seen(talking, "all_kinds", "split"),
        "held": lambda: is_seen(talking, "all_kinds", "held", "running"),
        "square": lambda: (
            talking.instance("all_kinds", "square")["state"] == "deferred"
            and "0 of 3 inputs have ended" in talking.log("all_kinds", "square")
        ),
    }

    def are_seen() -> bool:
        for name in [name for name, ask in unseen.items() if ask()]:
            del unseen[name]
            talking.give_sign(name)
        return not unseen

    talking.airflow.until(are_seen, 900, "all tasks to be seen to print")
    assert talking.end("all_kinds") == "success"
    lines = talking.value("all_kinds", "split")["lines"]
    assert printed(talking.log("all_kinds", "split")) == list(range(lines))
    assert printed(talking.log("all_kinds", "held")) == list(range(talking.value("all_kinds", "held")))
    assert talking.log("all_kinds", "square").count("3 of 3 inputs have ended") == 1


@pytest.mark.promise("scale: Task logs in S3 and Azure", "a line may be there twice")
def test_a_stalled_triggerer_that_comes_back_repeats_its_lines(talking: Talking) -> None:
    """Airflow has given the trigger to another one, and keeps the logs of both."""
    airflow = talking.airflow
    talking.start("stalled")
    reach(talking, "stalled", "talk", after=5)
    first = airflow.processes.pop("triggerer")
    os.killpg(first.pid, signal.SIGSTOP)
    try:
        airflow.start_second_triggerer()
        disk = airflow.disk("triggerer")
        airflow.until(lambda: any(disk.rglob("dag_id=stalled/**/*.log")), 600, "another one to take over")
        os.killpg(first.pid, signal.SIGCONT)
        airflow.until(lambda: talking.trigger_logs("stalled"), 600, "the first one's log in the store")
        talking.give_sign("stalled")
        assert talking.end("stalled") == "success"
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(90)
        airflow.lose_triggerer()
        airflow.start_component("triggerer")
    times = Counter(printed(talking.log("stalled", "talk")))
    assert set(times) == set(range(talking.value("stalled", "talk")))
    assert set(times.values()) == {1, 2}
