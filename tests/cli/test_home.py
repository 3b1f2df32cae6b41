"""`kinetic` alone: what it says of an empty place, of one with jobs, and of one that cannot be asked."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.cli.schemas import SCHEMAS
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.listing import index_metadata
from tests.conftest import Kinetic


@kinetic_core.run(accelerator="cpu")
def reads(shard: int) -> None:
    raise ValueError(f"shard {shard} is corrupt")


def test_without_a_word_it_is_the_verb_home(tmp_path: Path) -> None:
    environment = {"KINETIC_LOCAL_STORE": str(tmp_path), "KINETIC_PROFILES_FILE": str(tmp_path / "none")}
    kinetic = Path(sys.executable).with_name("kinetic")
    told = [
        subprocess.run([kinetic, *words], env=environment, capture_output=True, text=True, check=True)
        for words in ([], ["home"])
    ]
    assert told[0].stdout == told[1].stdout
    assert "jobs run on this machine\n\nno job is waiting or running" in told[0].stdout
    assert "hint: `kinetic run FILE.py:FUNCTION" in told[0].stdout


def test_it_lists_what_runs_and_the_last_failure(
    kinetic: Kinetic, own_jobs: None, request: pytest.FixtureRequest
) -> None:
    failed = reads.run_async(3)
    with pytest.raises(ValueError, match="shard 3"):
        failed.result()
    running: kinetic_core.JobHandle = request.getfixturevalue("running")
    told = kinetic("home", "--json").json
    assert set(told) == {"schema", *SCHEMAS["home"]}
    assert [job["job_id"] for job in told["alive"]] == [running.job_id]
    assert (told["failed"], told["message"]) == (failed.job_id, "ValueError: shard 3 is corrupt")
    shown = kinetic("home").out
    assert "1 running, 0 waiting:\nJOB " in shown
    assert "Running" not in shown, "it waits for nothing"
    assert f"ago: reads, {failed.job_id}\n  ValueError: shard 3 is corrupt\n" in shown
    assert f"hint: `kinetic jobs result {failed.job_id}` shows its traceback\n" in shown
    assert "hint: `kinetic jobs watch`" in shown
    assert re.search(rf"{failed.job_id} .* \d\.\ds", kinetic("jobs", "list").out), "how long it took"


def test_it_lists_an_old_job_that_runs(
    kinetic: Kinetic, own_jobs: None, running: kinetic_core.JobHandle
) -> None:
    store = running.place.store
    for number in range(250):
        newer = replace(running, job_id=f"job-{number:016x}", created_at="2099-01-01T00:00:00Z")
        store.create_if_absent(index_object(newer), b"", index_metadata(newer))
    told = kinetic("home", "--json").json
    assert [job["job_id"] for job in told["alive"]] == [running.job_id]


def test_a_large_batch_hides_no_failure_before_it(
    kinetic: Kinetic, own_jobs: None, running: kinetic_core.JobHandle
) -> None:
    failed = reads.run_async(3)
    with pytest.raises(ValueError, match="shard 3"):
        failed.result()
    store, group_id = running.place.store, "grp-0000000000000001"
    store.delete(index_object(running))
    first = replace(running, group_id=group_id, created_at="2098-01-01T00:00:00Z")
    store.create_if_absent(index_object(first), b"", index_metadata(first))
    for number in range(250):
        later = {"job_id": f"{group_id}-{number}", "created_at": "2099-01-01T00:00:00Z"}
        newer = replace(running, group_id=group_id, **later)
        store.create_if_absent(index_object(newer), b"", index_metadata(newer))
    told = kinetic("home", "--json").json
    assert told["failed"] == failed.job_id
    assert [job["job_id"] for job in told["alive"]] == [running.job_id]


def test_a_batch_says_why_its_first_inputs_failed(kinetic: Kinetic, own_jobs: None) -> None:
    batch = reads.run_async_map(range(7))
    batch.wait()
    told = kinetic("batch", "status", batch.group_id).out
    lines = [" ".join(line.split()) for line in told.splitlines()]
    assert lines[1:4] == [
        "INDEX STATUS ERROR",
        *(f"{n} FAILED ValueError: shard {n} is corrupt" for n in (0, 1)),
    ]
    assert lines[-2:] == ["6 FAILED", f"hint: `kinetic batch results {batch.group_id}` shows all 7 errors"]


def test_a_place_that_cannot_be_asked_is_told(kinetic: Kinetic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "gke")
    done = kinetic("home")
    assert done.code == 0
    assert "its jobs cannot be listed: backend 'gke' needs a bucket" in done.out
    assert "hint: `kinetic doctor`" in done.out
