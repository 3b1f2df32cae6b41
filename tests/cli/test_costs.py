"""`kinetic cost`, on real jobs of the local backend."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import kinetic_core
from airflow_provider.job_of_task import Origin, TaskIdentity, start_or_adopt
from kinetic_core.cli.schemas import SCHEMAS
from kinetic_core.connections import default_connections
from kinetic_core.jobs.submit import Call
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from tests.conftest import Kinetic

pytestmark = pytest.mark.usefixtures("local_jobs")


@kinetic_core.run(accelerator="tpu-v5e-4:spot")
def work(seconds: float) -> None:
    import time

    time.sleep(seconds)


@pytest.fixture(scope="module")
def prices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = tmp_path_factory.mktemp("prices") / "prices.toml"
    table.write_text('currency = "EUR"\n[spot]\ntpu-v5e = 3600\n')
    return table


@pytest.mark.promise("command: … money where a price table is given")
def test_a_job_of_four_chips(kinetic: Kinetic, prices: Path) -> None:
    handle = work.run_async(0.5)
    handle.result(cleanup=False)
    told = kinetic("cost", handle.job_id, "--prices", str(prices), "--json").json
    assert set(told) == {"schema", *SCHEMAS["cost"]}
    (job,) = told["jobs"]
    assert (job["units"], job["problem"], told["without_price"]) == (4, "", [])
    assert job["seconds"]["running"] >= 0.5
    held = sum(told["chip_seconds"].values())
    assert told["amount"] == pytest.approx(held)  # at 3600 an hour, a chip-second is 1
    assert held == pytest.approx(4 * sum(job["seconds"][use] for use in told["chip_seconds"]))
    assert (job["unit"], sum(told["core_seconds"].values())) == ("chip", 0)
    lines = kinetic("cost", handle.job_id, "--prices", str(prices)).out.splitlines()
    assert lines[0].split() == [
        "JOB",
        "ACCELERATOR",
        "WAITING",
        "PULLING",
        "INSTALLING",
        "RUNNING",
        "IDLE",
        "EUR",
    ]
    assert lines[-1].endswith(" EUR")


def test_chips_and_cores_are_never_added_up(kinetic: Kinetic) -> None:
    on_chips, on_cores = (
        work.run_async(0.1),
        kinetic_core.run(accelerator="cpu:2")(work.__wrapped__).run_async(0.1),
    )
    for handle in (on_chips, on_cores):
        handle.result(cleanup=False)
    told = kinetic("cost", on_chips.job_id, on_cores.job_id, "--json").json
    jobs = {job["unit"]: job for job in told["jobs"]}
    assert {unit: job["units"] for unit, job in jobs.items()} == {"chip": 4, "core": 2}
    assert told["chip_seconds"] == pytest.approx(jobs["chip"]["unit_seconds"])
    assert told["core_seconds"] == pytest.approx(jobs["core"]["unit_seconds"])
    both = kinetic("cost", on_chips.job_id, on_cores.job_id).out.splitlines()[-1]
    assert re.fullmatch(r"\d+\.\d chip-seconds and \d+\.\d core-seconds", both)
    assert re.fullmatch(r"\d+\.\d core-seconds", kinetic("cost", on_cores.job_id).out.splitlines()[-1])


@pytest.mark.promise("command: … per batch")
def test_a_batch_without_prices(kinetic: Kinetic) -> None:
    batch = work.run_async_map([0.0, 0.0])
    batch.results()
    told = kinetic("cost", "--batch", batch.group_id, "--json").json
    assert {job["job_id"] for job in told["jobs"]} == {f"{batch.group_id}-{index}" for index in range(2)}
    assert (told["amount"], told["currency"], told["without_price"]) == (None, None, [])
    assert "EUR" not in kinetic("cost", "--batch", batch.group_id).out


@pytest.mark.promise("command: … money where a price table is given")
def test_hardware_without_a_price_is_told(kinetic: Kinetic, prices: Path) -> None:
    handle = kinetic_core.run(accelerator="cpu")(work.__wrapped__).run_async(0.0)
    handle.result()
    done = kinetic("cost", handle.job_id, "--prices", str(prices))
    assert done.code == 0
    assert "no price is known for 1 of 1 jobs" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["job-0000000000000000"], "no job job-0000000000000000"),
        (["job-0000000000000000", "--prices", "absent.toml"], "absent.toml cannot be read"),
        (["--batch", "grp-0000000000000000"], "no batch grp-0000000000000000"),
    ],
)
def test_what_cannot_be_is_exit_code_2(words: list[str], said: str, kinetic: Kinetic) -> None:
    done = kinetic("cost", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize("days", ["36501", "1e12", "inf"])
def test_days_that_no_calendar_has_are_refused(days: str, kinetic: Kinetic) -> None:
    done = kinetic("cost", "--days", days)
    assert (done.code, done.out) == (2, "")
    assert "Invalid value for '--days'" in done.err
    assert "36500" in done.err


def test_a_century_is_not_too_long(kinetic: Kinetic, own_jobs: None) -> None:
    assert "in the last 36500 days, from 19" in kinetic("cost", "--days", "36500").out


def test_the_jobs_of_a_dag_run(kinetic: Kinetic) -> None:
    def started(run_id: str) -> str:
        identity = TaskIdentity("train", run_id, "", "fit", -1, 1)
        origin = Origin.of(identity, "ours")
        call, options = Call(work.__wrapped__, (0.0,), {}), RunOptions.checked(accelerator="cpu")
        return start_or_adopt(call, options, default_connections(), identity, origin=origin).reference.job_id

    mine, _ = started("mine"), started("other")
    origin = ("--origin", "dag_id=train", "--origin", "run_id=mine")
    assert [job["job_id"] for job in kinetic("cost", *origin, "--json").json["jobs"]] == [mine]
    (listed,) = kinetic("jobs", "list", *origin, "--json").json["jobs"]
    assert (listed["job_id"], listed["origin"]["task_id"]) == (mine, "fit")
    assert kinetic("jobs", "list", "--origin", "dag_id=nobody").out == "no jobs\n"
    refused = kinetic("cost", "--origin", "train")
    assert refused.code == 2
    assert "write KEY=VALUE" in refused.err


def test_a_week_is_summed_by_function_and_user(
    kinetic: Kinetic, own_jobs: None, prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_ = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    week = rf"submitted in the last 7 days, from {time_} to {time_}"
    assert re.fullmatch(f"no job was {week}\n", kinetic("cost").out)
    monkeypatch.setenv("KINETIC_USER", "ada")
    work(0.0)
    work.run_async_map([0.0, 0.0]).results()
    monkeypatch.setenv("KINETIC_USER", "bob")
    kinetic_core.run(accelerator="cpu")(work.__wrapped__)(0.0)
    told = kinetic("cost", "--prices", str(prices), "--json").json
    by_user = {group["user"]: group for group in told["groups"]}
    assert [(group["user"], group["function"], group["jobs"]) for group in told["groups"]] == [
        ("ada", "work", 3),  # of chips that have a price, so before those that have none
        ("bob", "work", 1),
    ]
    assert by_user["ada"]["amount"] == pytest.approx(sum(by_user["ada"]["unit_seconds"].values()))
    assert (by_user["bob"]["amount"], told["not_counted"]) == (None, 0)
    title, _, *lines = kinetic("cost", "--limit", "1").out.splitlines()
    assert re.fullmatch(f"jobs that were {week}:", title)
    assert lines[0].split()[:4:2] == ["work", "1"]  # whose: in a list, jobs of one second have no order
    assert lines[-1] == "3 more jobs are not counted: give a higher --limit"
    assert kinetic("cost", "--days", "0").out.startswith("no job was submitted in the last 0 days, from ")


def test_what_a_week_leaves_out_is_said(kinetic: Kinetic, own_jobs: None) -> None:
    handle = work.run_async(0.0)
    handle.result(cleanup=False)
    index = read_settings().local_store / "store" / ".metadata" / "index"
    (entry,) = index.iterdir()
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "inputs": "501"}))
    assert kinetic("cost").out.splitlines()[2].split()[:3:2] == ["work", "501"]
    work(0.0)
    assert kinetic("cost", "--limit", "1").out.splitlines()[-1] in (
        "501 more jobs are not counted: give a higher --limit",
        "1 more jobs are not counted: give a higher --limit",  # in a list, jobs of one second have no order
    )


@pytest.mark.promise("command: … per batch")
def test_a_batch_of_a_dag_run(kinetic: Kinetic, own_jobs: None) -> None:
    batch = work.run_async_map([0.0, 0.0])
    batch.results()
    index = read_settings().local_store / "store" / ".metadata" / "index"
    for entry in index.iterdir():
        entry.write_text(json.dumps({**json.loads(entry.read_text()), "origin": '{"dag_id": "train"}'}))
    told = kinetic("cost", "--origin", "dag_id=train", "--json").json
    assert {job["job_id"] for job in told["jobs"]} == {f"{batch.group_id}-{index}" for index in range(2)}


def test_a_batch_counts_as_one_whatever_its_size(kinetic: Kinetic) -> None:
    single = work.run_async(0.1)
    single.result(cleanup=False)
    batch = work.run_async_map([0.1] * 7)
    batch.results(cleanup=False)
    told = kinetic("cost", "--limit", "2", "--json").json
    (group,) = (each for each in told["groups"] if each["function"] == "work")
    assert group["jobs"] == 8
    assert group["unit_seconds"]["running"] >= 4 * 0.1 * 8
    assert {job["job_id"] for job in told["jobs"]} == {single.job_id, batch.group_id}
    named = kinetic("cost", "--batch", batch.group_id, "--json").json
    assert len(named["jobs"]) == 7
