"""One job in detail, from real jobs of this machine and from stores that hold what a cluster's job left."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.access import ENVIRONMENT
from airflow_provider.records import BuildWait, EarlierJob, JobEnd, JobRecord
from airflow_provider.ui.detail import TAIL_BYTES, airflow_phases, detail, silence, tail
from airflow_provider.ui.places import Places, environment, settings_of
from airflow_provider.ui.rows import Instance, Times
from kinetic_core._runner import object_names
from kinetic_core.backends.base import backend_of
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import default_connections
from kinetic_core.errors import ClusterUnreachable, StoreError
from kinetic_core.job import JobStatus
from kinetic_core.jobs.cancel import cancel, cleanup
from kinetic_core.jobs.observe import find, wait
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.airflow_provider.records_of_jobs import ended, identity, instance, record
from tests.conftest import wait_for


def talk(folder: str) -> None:
    import os
    import time

    outputs = Path(os.environ["KINETIC_OUTPUT_DIR"])
    (outputs / "weights.bin").write_bytes(b"1234")
    (outputs / os.fsdecode(b"caf\xe9.bin")).touch()
    print("<script>alert(1)</script>", flush=True)
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    print("done")


class Kept:
    """A backend of which only the store is left."""

    name = "gke"
    key = "kept"
    cluster = None
    namespace = None

    def __init__(self, store: Any) -> None:
        self.store = store


@pytest.mark.promise("page: Links, outputs")
@pytest.mark.usefixtures("local_jobs")
def test_a_job_that_runs_and_then_has_ended(tmp_path: Path) -> None:
    who = replace(identity(), run_began=tmp_path.name)
    options = RunOptions.checked(accelerator="cpu")
    reference = submit(
        prepare(Call(talk, (str(tmp_path),), {}), options, default_connections(), job_id=who.job_id())
    )
    told = JobRecord.of(who, reference)
    alive = Instance("train", -1, "", "deferred", 1, told)
    backend = Places().of(reference, settings_of(ENVIRONMENT))
    wait_for(lambda: detail(alive, told, backend)["status"] == "RUNNING")
    shown = detail(alive, told, backend)
    assert shown["phases"][-1]["name"] == "running"
    (tmp_path / "go").touch()
    seen = wait(backend_of(reference, default_connections()), reference)
    ended = replace(told, end=JobEnd.of(seen, ()))
    shown = detail(replace(alive, state="success", record=ended), ended, backend)
    assert (shown["status"], shown["log"]) == ("SUCCEEDED", ["<script>alert(1)</script>", "done"])
    assert shown["outputs"] == [{"name": r"caf\udce9.bin", "size": 0}, {"name": "weights.bin", "size": 4}]
    assert [link["name"] for link in shown["links"]] == ["Outputs"]
    assert shown["troubles"] == []


@pytest.mark.usefixtures("local_jobs")
def test_a_job_whose_end_nobody_recorded_is_asked_for(tmp_path: Path) -> None:
    """Somebody has marked its task failed, and its worker had no time to say how the job ended."""
    who = replace(identity(), run_began=tmp_path.name)
    call = Call(talk, (str(tmp_path),), {})
    options = RunOptions.checked(accelerator="cpu")
    reference = submit(prepare(call, options, default_connections(), job_id=who.job_id()))
    told = JobRecord.of(who, reference)
    marked = Instance("train", -1, "", "failed", 1, told)
    backend = Places().of(reference, settings_of(ENVIRONMENT))
    where = reference.namespace, reference.job_id, 0, 0
    wait_for(lambda: b"alert" in (backend.log(*where) or b""))  # before it starts its end has another message
    cancel(backend, reference)
    shown = detail(marked, told, backend)
    assert (shown["status"], shown["message"]) == ("CANCELLED", "cancelled by a user")
    assert "function" in {each["name"] for each in shown["phases"]}
    cleanup(backend, reference, gcs=False)
    assert detail(marked, told, backend)["status"] == "CANCELLED"  # by what is stored
    cleanup(backend, reference)
    shown = detail(marked, told, backend)
    said = "the task is failed; how its job ended was not recorded; its Job has gone"
    assert (shown["status"], shown["message"]) == ("UNKNOWN", said)


@pytest.mark.usefixtures("local_jobs")
def test_the_worker_of_a_call_is_shown_and_no_other_job(tmp_path: Path) -> None:
    who = replace(identity(), run_began=tmp_path.name)
    options = RunOptions.checked(accelerator="cpu", warm=60)
    prepared = prepare(Call(print, ("hello",), {}), options, default_connections(), job_id=who.job_id())
    reference = submit(prepared)
    backend = Places().of(reference, settings_of(ENVIRONMENT))
    seen = wait(backend, reference)
    told = JobRecord.of(who, reference, JobEnd.of(seen, ()))
    worker = detail(Instance("train", -1, "", "success", 1, told), told, backend)["worker"]
    assert {name: worker[name] for name in ("job_id", "state", "calls", "idle_seconds")} == {
        "job_id": reference.worker,
        "state": "idle",
        "calls": 1,
        "idle_seconds": 60.0,
    }
    assert worker["phases"][-1]["name"] == "idle"
    planted = JobRecord.of(who, replace(reference, worker=reference.job_id), JobEnd.of(seen, ()))
    assert detail(Instance("train", -1, "", "success", 1, planted), planted, backend)["worker"] is None
    own = find(backend, reference.worker)
    assert own is not None
    cancel(backend, own)
    ended = detail(Instance("train", -1, "", "success", 1, told), told, backend)["worker"]
    assert ended["state"] == "cancelled"


@pytest.mark.promise("page: Links, outputs")
def test_a_command_finds_the_job_in_a_new_shell(tmp_path: Path, local_jobs: Path) -> None:
    """As the demo's jobs are found, whose Airflow has a store of its own."""
    who = replace(identity(), run_began=tmp_path.name)
    call, options = Call(print, ("hello",), {}), RunOptions.checked(accelerator="cpu")
    reference = submit(prepare(call, options, default_connections(), job_id=who.job_id()))
    seen = wait(backend_of(reference, default_connections()), reference)
    told = JobRecord.of(who, reference, JobEnd.of(seen, ()))
    backend = Places().of(reference, settings_of(ENVIRONMENT))
    shown = detail(Instance("train", -1, "", "success", 1, told), told, backend)
    assert shown["environment"] == f"KINETIC_LOCAL_STORE={local_jobs / 'local'}"
    program = f"{sys.executable} -c 'from kinetic_core.cli.main import main; main()'"
    command = f"{program} jobs logs {reference.job_id}"
    script = f"{shown['environment']} {command} && ! {command}"
    new = {name: value for name, value in os.environ.items() if not name.startswith("KINETIC_")}
    done = subprocess.run(["sh", "-c", script], env=new, capture_output=True, text=True, check=True)
    assert done.stdout == "hello\n"


def test_only_a_store_that_is_not_found_is_named(tmp_path: Path) -> None:
    usual = read_settings({}).local_store
    odd = tmp_path / "it's; a store"
    assert environment(LocalBackend(usual)) == ""
    assert shlex.split(environment(LocalBackend(odd))) == [f"KINETIC_LOCAL_STORE={odd}"]
    assert environment("nobody knows where it is") == ""
    assert environment(Kept(MemoryObjectStore("memory://jobs"))) == ""  # type: ignore[arg-type]


PHASES = [
    {"name": "upload", "began": 20.0, "seconds": 4.0},
    {"name": "function", "began": 24.0, "seconds": 6.0},
]


def of_airflow(
    times: Times, phases: list[dict[str, Any]], build: BuildWait | None = None, *, is_over: bool = False
) -> list[tuple[str, float]]:
    one = replace(instance(end=ended() if is_over else None), times=times, build=build, job_try=1)
    told = airflow_phases(one, phases)
    return [(each["name"], each["seconds"]) for each in (*told["before"], *told["after"])]


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
def test_what_airflow_took_is_before_and_after_the_job() -> None:
    found = of_airflow(Times(10.0, 11.0, 14.0, 33.0), PHASES, is_over=True)
    assert found == [
        ("airflow scheduler", 1.0),
        ("airflow queue", 3.0),
        ("airflow worker", 6.0),
        ("airflow end", 3.0),
    ]
    assert sum(seconds for _, seconds in found) + 10.0 == 33.0 - 10.0, "all of the task's time has a name"


LEGS = {
    "of the leg that submits": Times(13.0, 14.0, 3.0, None),
    "of the leg that ends the task": Times(31.0, 32.0, 3.0, 36.0),
}


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
@pytest.mark.parametrize("times", LEGS.values(), ids=LEGS)
def test_a_build_and_the_leg_after_it_are_told_by_the_task(times: Times) -> None:
    """Airflow keeps the start of the first leg, and the scheduler's times of the last one alone."""
    build = BuildWait(1, 5.0, 12.0, 15.0)
    expected = [
        ("airflow worker", 2.0),
        ("build", 7.0),
        ("airflow queue", 3.0),
        ("airflow worker", 5.0),
    ]
    assert of_airflow(times, PHASES, build)[:4] == expected


def test_a_build_for_which_a_worker_waits_is_a_phase() -> None:
    found = of_airflow(Times(1.0, 2.0, 3.0, None), PHASES, BuildWait(1, 5.0, 12.0, 12.0))
    queue = [("airflow scheduler", 1.0), ("airflow queue", 1.0)]
    assert found == [*queue, ("airflow worker", 2.0), ("build", 7.0), ("airflow worker", 8.0)]


def test_a_build_whose_end_nobody_noted_ends_with_the_task() -> None:
    found = of_airflow(Times(1.0, 2.0, 3.0, 9.0), [], BuildWait(1, 5.0))
    assert found[-2:] == [("airflow worker", 2.0), ("build", 4.0)]


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
def test_the_hold_before_a_resumption_has_its_name() -> None:
    """A trigger resumes no task within seconds of its deferral: that is no time of Airflow's queue."""
    ended_by_a_worker = Times(38.0, 39.0, 14.0, 43.0)
    found = of_airflow(ended_by_a_worker, PHASES, BuildWait(1, 15.0, 16.0, 19.0, sent=18.5), is_over=True)
    assert found == [
        ("airflow worker", 1.0),
        ("build", 1.0),
        ("airflow resumption", 2.5),
        ("airflow queue", 0.5),
        ("airflow worker", 1.0),
        ("airflow resumption", 8.0),
        ("airflow scheduler", 1.0),
        ("airflow end", 4.0),
    ]
    one = replace(instance(end=ended()), times=ended_by_a_worker, job_try=1)
    held, *others = airflow_phases(one, PHASES)["after"]
    assert "held within seconds of the deferral" in held["why"]
    assert [each["name"] for each in others if "why" in each] == ["airflow end"]
    adopted = replace(one, try_number=2)
    assert [each["name"] for each in airflow_phases(adopted, PHASES)["after"]] == ["airflow end"]


@pytest.mark.promise("page: Waiting time by cause as a small timeline")
def test_the_end_by_a_worker_is_told_apart() -> None:
    """The worker has noted when it went on: what was before is Airflow's queue, what is after is its own."""
    one = replace(instance(), times=Times(38.0, 39.0, 14.0, 43.0), job_try=1)

    def after(resumed: float | None, times: Times = one.times) -> list[tuple[str, float]]:
        told = record(end=replace(ended(), resumed=resumed))
        phases = airflow_phases(replace(one, record=told, times=times), PHASES)["after"]
        return [(each["name"], each["seconds"]) for each in phases]

    held = [("airflow resumption", 8.0), ("airflow scheduler", 1.0)]
    assert after(41.5) == [*held, ("airflow queue", 2.5), ("airflow worker", 1.5)]
    assert after(None) == [*held, ("airflow end", 4.0)], "of a record of an earlier version"
    began_after_a_build = Times(18.0, 19.0, 14.0, 43.0)
    assert after(19.5, began_after_a_build) == [("airflow worker", 13.0)]
    ended_by_its_trigger = Times(10.0, 11.0, 14.0, 33.0)
    assert after(None, ended_by_its_trigger) == [("airflow end", 3.0)]


def test_times_of_another_leg_or_try_are_left_out() -> None:
    def names(times: Times, phases: list[dict[str, Any]], *, is_over: bool) -> list[str]:
        return [name for name, _ in of_airflow(times, phases, is_over=is_over)]

    ended_by_a_worker = Times(31.0, 32.0, 14.0, 36.0)
    end_of_two_legs = ["airflow resumption", "airflow scheduler", "airflow end"]
    assert names(ended_by_a_worker, PHASES, is_over=True) == ["airflow worker", *end_of_two_legs]
    known = replace(ended_by_a_worker, runnable=12.5)
    told = of_airflow(known, PHASES, is_over=True)
    assert told[:2] == [("airflow scheduler and queue", 1.5), ("airflow worker", 6.0)]
    has_adopted = Times(40.0, 41.0, 44.0, None)
    assert names(has_adopted, PHASES, is_over=False) == []
    assert names(replace(has_adopted, runnable=39.0), PHASES, is_over=False) == []
    waits = Times(10.0, 11.0, None, None)
    assert names(waits, [], is_over=False) == ["airflow scheduler"]


def fail() -> None:
    raise ValueError("shard 3 is corrupt")


@pytest.mark.usefixtures("local_jobs")
def test_a_job_that_failed_shows_what_it_raised(tmp_path: Path) -> None:
    who = replace(identity(), run_began=tmp_path.name)
    options = RunOptions.checked(accelerator="cpu")
    reference = submit(prepare(Call(fail, (), {}), options, default_connections(), job_id=who.job_id()))
    seen = wait(backend_of(reference, default_connections()), reference)
    told = JobRecord.of(who, reference, JobEnd.of(seen, ()))
    shown = detail(
        Instance("train", -1, "", "failed", 1, told), told, Places().of(reference, settings_of(ENVIRONMENT))
    )
    assert (shown["message"], shown["advice"]) == ("ValueError: shard 3 is corrupt", "")
    assert (shown["log"], shown["silence"]) == ([], "it printed nothing")
    assert shown["traceback"].endswith(
        'in fail\n    raise ValueError("shard 3 is corrupt")\nValueError: shard 3 is corrupt\n'
    )


@pytest.mark.promise("page: State, reason, attempts")
@pytest.mark.usefixtures("local_jobs")
def test_why_each_attempt_before_this_one_ended(tmp_path: Path) -> None:
    """Also where its task was told nothing; of no job but the task's own, whatever an XCom names."""
    options = RunOptions.checked(accelerator="cpu", retries=1)
    jobs = []
    for number in (1, 2, 3):
        who = replace(identity(try_number=number), run_began=tmp_path.name)
        call = Call(fail, (), {})
        jobs.append(submit(prepare(call, options, default_connections(), job_id=who.job_id())))
        seen = wait(backend_of(jobs[-1], default_connections()), jobs[-1])
    foreign = replace(identity("other"), run_began=tmp_path.name)
    submit(prepare(call, options, default_connections(), job_id=foreign.job_id()))
    told = JobRecord.of(who, jobs[2], JobEnd.of(seen, ()))
    limit = ("FAILED", "control plane", "Job has reached the specified backoff limit")
    earlier = EarlierJob(2, jobs[1].job_id, *limit), EarlierJob(0, foreign.job_id(), *limit)
    one = Instance("train", -1, "", "failed", 3, told, 3, earlier, who.run_id, who.dag_id)
    shown = detail(one, told, Places().of(jobs[2], settings_of(ENVIRONMENT)))
    found = [
        (each["try_number"], each.get("attempt"), each["job_id"], each["reason"], each["message"])
        for each in shown["earlier"]
    ]
    raised = ("user error", "ValueError: shard 3 is corrupt")
    assert found == [
        (0, None, foreign.job_id(), *limit[1:]),
        (1, None, jobs[0].job_id, *raised),
        (2, None, jobs[1].job_id, *raised),
        (3, 0, jobs[2].job_id, *raised),
    ]
    assert shown["attempts"] == 2


@pytest.mark.promise("page: Log tail")
def test_only_the_end_of_a_long_log_is_read() -> None:
    store, told = MemoryObjectStore("memory://jobs"), record()
    job_id = told.reference.job_id
    for number in range(50):
        text = "".join(f"line {number}.{each} {'x' * 80}\n" for each in range(100))
        store.create_if_absent(object_names.log(job_id, 2, number), text.encode())
    lines = tail(Kept(store), told.reference, 2)  # type: ignore[arg-type]
    assert len(lines) == 200
    assert lines[-1].startswith("line 49.99 ")
    assert sum(map(len, lines)) < TAIL_BYTES
    assert tail(Kept(store), told.reference, 0) == []  # type: ignore[arg-type]


@pytest.mark.attack
def test_the_pages_log_is_as_the_bucket_has_it() -> None:
    """Of what somebody has planted, however large it is, the end is read."""

    class Metered(MemoryObjectStore):
        def read(self, name: str) -> bytes:
            raise AssertionError(f"all of {name} is read")

        def read_range(self, name: str, offset: int, size: int) -> bytes:
            assert size <= TAIL_BYTES
            return super().read(name)[offset : offset + size]

    store, told = Metered("memory://jobs"), record()
    name = object_names.log(told.reference.job_id, 0, 0)
    store.create_if_absent(name, b"x" * (1 << 20) + b"\na planted line\n")
    assert tail(Kept(store), told.reference, 0)[-1] == "a planted line"  # type: ignore[arg-type]


def test_of_a_job_that_is_being_removed_the_rest_is_shown() -> None:
    class Removed(MemoryObjectStore):
        def read_range(self, name: str, offset: int, size: int) -> bytes:
            self.delete(names[0])
            return super().read_range(name, offset, size)

    store, told = Removed("memory://jobs"), record()
    names = [object_names.log(told.reference.job_id, 0, number) for number in range(2)]
    for name in names:
        store.create_if_absent(name, f"of {name[-1]}\n".encode())
    assert tail(Kept(store), told.reference, 0) == ["of 1"]  # type: ignore[arg-type]


def test_the_hosts_of_a_slice_say_which_they_are() -> None:
    store, told = MemoryObjectStore("memory://jobs"), record(accelerator="tpu-v5e-16")
    for host in range(4):
        store.create_if_absent(object_names.log(told.reference.job_id, 0, 0, host), f"I am {host}\n".encode())
    lines = tail(Kept(store), told.reference, 0)  # type: ignore[arg-type]
    assert lines == [f"[host {host}] I am {host}" for host in range(4)]


@pytest.mark.promise("page: Log tail")
def test_a_job_without_lines_says_why() -> None:
    store, told = MemoryObjectStore("memory://jobs"), record()
    kept: Any = Kept(store)

    def said(status: JobStatus, reason: str = "") -> str:
        return silence(kept, told.reference, status.value, reason)

    assert said(JobStatus.RUNNING) == "no line is stored yet"
    assert said(JobStatus.SUCCEEDED) == "no line of it is stored", "all of it has been removed"
    store.create_if_absent(object_names.result(told.reference.job_id), b"")
    assert said(JobStatus.SUCCEEDED) == said(JobStatus.FAILED, "user error") == "it printed nothing"
    assert said(JobStatus.FAILED, "out of memory") == "it printed nothing that was stored"


@pytest.mark.promise("page: Store or cluster down")
def test_a_silent_store_is_told_beside_the_rest() -> None:
    class Broken(MemoryObjectStore):
        def list(self, *_: Any) -> Any:
            raise StoreError("the bucket does not answer")

    of = instance(state="failed", end=ended(JobStatus.FAILED))
    assert of.record is not None
    shown = detail(of, of.record, Kept(Broken("memory://jobs")))  # type: ignore[arg-type]
    assert shown["troubles"] == ["the bucket does not answer"]
    assert (shown["function"], shown["log"]) == ("train", [])
    assert shown["silence"] == "its lines could not be read"


def test_a_job_without_its_connection_is_shown_in_part() -> None:
    of = instance()
    assert of.record is not None
    shown = detail(of, of.record, "there is no connection 'theirs'")
    assert (shown["status"], shown["message"]) == ("UNKNOWN", "there is no connection 'theirs'")
    assert shown["troubles"] == ["there is no connection 'theirs'"]
    assert (shown["namespace"], shown["log"], shown["outputs"]) == ("default", [], [])


def test_a_silent_cluster_is_no_job_that_has_gone() -> None:
    class Unreachable(Kept):
        def get(self, *_: Any) -> Any:
            raise ClusterUnreachable("no route")

    of = instance()
    assert of.record is not None
    shown = detail(of, of.record, Unreachable(MemoryObjectStore("memory://jobs")))  # type: ignore[arg-type]
    assert (shown["message"], shown["troubles"]) == ("no route", ["no route"])


def test_a_job_that_waits_for_a_node_says_what_gives_it_one() -> None:
    """The command or option of it between backticks: that is what the page copies."""

    class Crowded(Kept):
        def get(self, *_: Any) -> Any:
            refused = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "none",
            }
            pod = {"metadata": {"name": "pod"}, "status": {"phase": "Pending", "conditions": [refused]}}
            spec = {"template": {"spec": {"containers": [{"env": []}]}}}
            return {"metadata": {"name": "job"}, "spec": spec, "status": {}}, [pod]

        def events(self, *_: Any) -> tuple[()]:
            return ()

        def remedy(self, accelerator: object) -> str:
            return f"kinetic pool add --accelerator {accelerator}: no pool of the cluster has it"

    of = instance()
    assert of.record is not None
    shown = detail(of, of.record, Crowded(MemoryObjectStore("memory://jobs")))  # type: ignore[arg-type]
    assert (shown["status"], shown["troubles"]) == ("PENDING", [])
    assert shown["advice"] == "`kinetic pool add --accelerator tpu-v6e-8`: no pool of the cluster has it"
