"""Which attempt a pod is, and whether the one before it may still run."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.attempt import Job, take_job
from kinetic_core._runner.claims import Claim, read_claim, take_number, tell_end
from kinetic_core._runner.outcome import Outcome, leave
from kinetic_core._runner.store import DirectoryStore, MissingObject, Store
from tests.conftest import wait_for
from tests.runner.attempts import JOB, KEY, Attempts

pytestmark = pytest.mark.attack


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return DirectoryStore(f"file://{tmp_path}/store", str(tmp_path / "store"))


def pod(uid: str, failed: int = 0, ignored: int = 0, **fields: object) -> Job:
    told = take_job(
        {
            "KINETIC_STORE": "",
            "KINETIC_JOB_ID": JOB,
            "KINETIC_PAYLOAD_SHA256": "",
            "KINETIC_OUTCOME_KEY": KEY.hex(),
            "KINETIC_FAILED_COUNT": str(failed),
            "KINETIC_IGNORED_COUNT": str(ignored),
            "KINETIC_POD_UID": uid,
            "KINETIC_WORK_DIR": "/nowhere",
        }
    )
    return replace(told, **fields)  # type: ignore[arg-type]


def interrupted(store: Store, job: Job, key: bytes = KEY) -> None:
    """What a runner leaves that SIGTERM has ended."""
    told = {"job_id": job.job_id, "attempt": job.attempt}
    leave(replace(job, outcome_key=bytearray(key)), store, Outcome("failed", "none", {}), told)


def test_counts_are_numbers_of_a_job_never_suspended(store: Store) -> None:
    for failed, ignored in ((0, 0), (1, 0), (1, 1), (1, 2)):
        job, is_next = take_number(pod(f"{failed}-{ignored}", failed, ignored), store)
        assert (job.attempt, job.failed_count, job.ignored_count, is_next) == (
            failed + ignored,
            failed,
            ignored,
            True,
        )


def test_a_resumed_job_goes_on_with_the_next_number(store: Store) -> None:
    take_number(pod("a"), store)
    second, _ = take_number(pod("b", 1, 0), store)
    interrupted(store, second)
    resumed, is_next = take_number(pod("c"), store)
    assert (resumed.attempt, is_next, resumed.since) == (2, True, 2)
    spent = resumed.failed_count, resumed.ignored_count, resumed.uncounted
    assert spent == (1, 0, 1), "what was spent stays spent; a suspension spends nothing"
    after, is_next = take_number(pod("d", 0, 1), store)
    assert (after.attempt, after.failed_count, after.ignored_count, after.since) == (3, 1, 1, 2)
    interrupted(store, after)
    again, is_next = take_number(pod("e"), store)
    assert (again.attempt, again.uncounted, again.since, is_next) == (4, 2, 4, True)


@pytest.mark.parametrize("evidence", ["none", "another key", "another attempt", "another host"])
def test_without_proof_of_the_end_nothing_runs(store: Store, evidence: str) -> None:
    first, _ = take_number(pod("a"), store)
    if evidence == "another key":
        interrupted(store, first, bytes(32))
    if evidence == "another attempt":
        interrupted(store, replace(first, uncounted=7))
        frame = store.read(object_names.attempt_outcome(JOB, 7))
        store.create_if_absent(object_names.attempt_outcome(JOB, 0), frame)
    if evidence == "another host":
        interrupted(store, replace(first, host=1))
        frame = store.read(object_names.attempt_outcome(JOB, 0, 1))
        store.create_if_absent(object_names.attempt_outcome(JOB, 0), frame)
    unsure, is_next = take_number(pod("b"), store)
    assert (unsure.attempt, is_next) == (1, False)
    follower, is_next = take_number(pod("c", 0, 1), store)
    assert (follower.attempt, is_next) == (2, True), "its controller has counted the end of a pod since"
    assert (follower.ignored_count, follower.failed_count) == (0, 0), "a pod that ran nothing spends nothing"
    after, _ = take_number(pod("d", 0, 2), store)
    assert (after.attempt, after.ignored_count) == (3, 1), "one that ran does"


def test_those_that_claimed_nothing_leave_no_gap(store: Store) -> None:
    take_number(pod("a"), store)
    fourth, is_next = take_number(pod("d", 1, 2), store)
    assert (fourth.attempt, fourth.failed_count, fourth.ignored_count, is_next) == (3, 1, 2, True)
    late, is_next = take_number(pod("b", 1, 0), store)
    assert (late.attempt > 3, is_next) == (True, False), "its number has passed; the fourth may be alive"


def test_hosts_and_jobs_claim_for_themselves(store: Store) -> None:
    for job in (pod("a", host=0), pod("b", host=1), pod("c", job_id="job-00000000000000bb")):
        assert take_number(job, store)[0].attempt == 0


def test_what_no_runner_wrote_is_no_claim(store: Store) -> None:
    name = object_names.claim(JOB, 0)
    genuine = Claim(0, "a").content(pod("a"))
    forged = json.dumps({**json.loads(genuine), "spent_failures": -9}).encode()
    for content in (b"", b"{}", b"[1]", b'{"signature": 1}', b"[" * 100_000, forged):
        assert read_claim(content, name, KEY).pod_uid == ""
    assert read_claim(genuine, name, KEY).pod_uid == "a"
    assert read_claim(genuine, object_names.claim(JOB, 0, 1), KEY).pod_uid == "", "of another host"
    store.create_if_absent(name, forged)
    job, is_next = take_number(pod("b"), store)
    assert (job.attempt, job.failed_count, is_next) == (1, 0, False)


def test_two_pods_at_a_time_run_once(attempts: Attempts) -> None:
    marker = attempts.folder / "runs"

    def work() -> str:
        with marker.open("a") as stream:
            stream.write("x")
        time.sleep(0 if (marker.parent / "go").exists() else 60)
        return "value"

    first = attempts.submit(work).start()
    try:
        wait_for(marker.exists, 30)
        assert attempts.run(KINETIC_POD_UID="another") == wire.EXIT_UNSURE
        assert marker.read_text() == "x"
        assert "another pod has claimed the one before" in attempts.log
        (attempts.folder / "go").touch()
        first.send_signal(signal.SIGTERM)  # what suspending does
        assert first.wait(90) == wire.EXIT_INTERRUPTED
        attempts.ignored = 1  # the end of the pod that was turned away
        assert attempts.run() == wire.EXIT_SUCCEEDED
        assert (attempts.outcome().attempt, marker.read_text()) == (2, "xx")
    finally:
        first.kill()


def test_a_first_attempt_finds_no_count_where_there_is_none(attempts: Attempts) -> None:
    """Kubernetes leaves the variable empty, and code asks whether it is."""

    def work() -> str:
        import os

        return os.environ["KINETIC_IGNORED_COUNT"]

    assert attempts.submit(work).run(KINETIC_IGNORED_COUNT="") == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == ""


def test_suspensions_use_up_no_retries(attempts: Attempts) -> None:
    started = attempts.folder / "started"

    def work() -> str:
        import os

        started.write_text(os.environ["KINETIC_IGNORED_COUNT"] or "0")
        time.sleep(60)
        return "never"

    attempts.submit(work)
    for number in range(3):
        pod = attempts.start(KINETIC_POD_UID=f"pod-{number}", KINETIC_INFRASTRUCTURE_RETRIES="0")
        wait_for(lambda: started.exists() and started.read_text(), 30)
        assert (started.read_text(), attempts.is_committed()) == (str(number), False)
        pod.send_signal(signal.SIGTERM)
        assert pod.wait(90) == wire.EXIT_INTERRUPTED
        started.unlink()


def test_a_worker_claims_as_a_pod_does(store: Store) -> None:
    first, is_next = take_number(pod("worker", on_worker=True), store)
    assert (first.attempt, is_next) == (0, True)
    _, is_next = take_number(pod("worker", 1, 0, on_worker=True), store)
    assert not is_next, "counts are no proof: a pod may have run meanwhile"


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (0, 3)])
def test_beside_a_worker_only_its_outcome_is_a_proof(store: Store, counts: tuple[int, int]) -> None:
    first, _ = take_number(pod("worker", on_worker=True), store)
    for number in range(3):
        _, is_next = take_number(pod(f"pod-{number}", counts[0], counts[1] + number), store)
        assert not is_next, "Kubernetes has not counted the end of what the worker runs"
    interrupted(store, first, bytes(32))
    assert not take_number(pod("forged", 9, 9), store)[1]


def test_a_pod_follows_a_worker_that_has_said_its_end(store: Store) -> None:
    first, _ = take_number(pod("worker", on_worker=True), store)
    tell_end(pod("worker", on_worker=True), store)
    after, is_next = take_number(pod("pod"), store)
    assert (after.attempt, is_next) == (first.attempt + 1, True)
    _, is_next = take_number(pod("worker", 1, 0, on_worker=True), store)
    assert not is_next, "the worker's counts say nothing of the pod"


def test_a_pod_that_was_first_keeps_a_worker_out(store: Store) -> None:
    assert take_number(pod("pod"), store)[1]
    assert not take_number(pod("worker", on_worker=True), store)[1]
    assert take_number(pod("next pod", 0, 1), store)[1], "a worker that ran nothing is in nobody's way"


def test_only_what_a_worker_ran_is_told_as_ended(store: Store) -> None:
    take_number(pod("pod"), store)
    tell_end(pod("worker", on_worker=True), store)
    with pytest.raises(MissingObject):
        store.read(object_names.attempt_outcome(JOB, 0))
