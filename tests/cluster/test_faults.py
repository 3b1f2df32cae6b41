"""Faults of the store and of the API server at every step of a job: one job, one execution, one result."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core._runner import object_names
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.errors import JobBudgetExceeded
from kinetic_core.testing.fault_proxy import FaultProxy
from kinetic_core.testing.faulty_server import Faults
from tests.conftest import wait_for

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # of Google's client
LINES = [f"line {number}" for number in range(200)]

UPLOADS = {
    "pack": "packs/",
    "tree": "trees/",
    "payload": "/payload-",
    "handle": "/handle.json",
    "index": "index/",
    "runner": "runners/",
    "claim": "/claim.json",
    "log": "/log/00000000",
    "result": '/result"',
}
"""Objects that are stored, in this order: six by the submitter, three by the pod."""
DOWNLOADS = {
    "runner": r"runners/\w+.zip\?alt",
    "outcome of an earlier attempt": r"/result\?alt",
    "cancelled": r"/cancelled\?alt",
    "payload": r"/payload-\w+.pkl\?alt",
    "tree": r"trees/\w+.json\?alt",
    "pack": r"packs/\w+.zip\?alt",
}
"""Objects that a pod reads, in this order."""


@kinetic_core.run(accelerator="cpu", cpu=0.1)
def work(seconds: float = 0.0) -> str:
    import time

    for number in range(200):
        print(f"line {number}", flush=True)
        time.sleep(seconds / 200)
    return "done"


def check(api: ClusterApi, handle: kinetic_core.JobHandle) -> None:
    """It ended well, was one job, ran once, and every line of its log is kept once."""
    assert handle.result(stream_logs=False, cleanup=False, timeout=240) == "done"
    found = api.list("Job", handle.namespace, {"labelSelector": f"{JOB_ID}={handle.job_id}"})
    assert len(found["items"]) == 1
    store = handle.place.store
    attempts = store.list(f"jobs/{handle.job_id}/attempts/")
    assert [info.name for info in attempts if info.name.endswith("claim.json")] == [
        object_names.claim(handle.job_id, 0)
    ]
    assert (handle.logs() or "").splitlines() == LINES
    handle.cleanup()
    assert api.get("Job", handle.namespace, handle.k8s_name) is None


STORE_FAULTS: dict[str, Callable[[Faults, str], None]] = {
    "503": lambda faults, match: faults.answer(match, 503, times=2),
    "429": lambda faults, match: faults.answer(match, 429, headers={"Retry-After": "1"}),
    "timeout": lambda faults, match: faults.silence(match, 1.5),
    "dropped": lambda faults, match: faults.drop(match, times=2),
    "lost": lambda faults, match: faults.lose_reply(match),
    "cut": lambda faults, match: faults.cut_reply(match, 3),
}


@pytest.mark.promise("gke: GCS 503, timeout, 412 at each step")
@pytest.mark.parametrize("fault", STORE_FAULTS)
def test_the_store_stumbles_at_every_step(api: ClusterApi, store_proxy: FaultProxy, fault: str) -> None:
    for pattern in UPLOADS.values():
        STORE_FAULTS[fault](store_proxy.faults, f"(?s)POST .*upload.*{pattern}")
    for pattern in DOWNLOADS.values():
        STORE_FAULTS[fault](store_proxy.faults, f"GET .*{pattern}")
    handle = work.run_async()
    STORE_FAULTS[fault](store_proxy.faults, r"GET .*/result\?alt")
    check(api, handle)


@pytest.mark.promise("gke: GCS 503, timeout, 412 at each step")
def test_a_name_said_to_be_taken_that_is_free_at_every_step(api: ClusterApi, store_proxy: FaultProxy) -> None:
    for pattern in UPLOADS.values():
        store_proxy.faults.answer(f"(?s)POST .*upload.*{pattern}", 412)
    check(api, work.run_async())


@pytest.mark.promise("gke: GCS 503, timeout, 412 at each step")
@pytest.mark.parametrize("step", ["payload", "claim"])
def test_a_store_that_is_silent(api: ClusterApi, store_proxy: FaultProxy, step: str) -> None:
    store_proxy.faults.silence(f"(?s)POST .*upload.*{UPLOADS[step]}", 600)
    check(api, work.run_async())


def test_a_pod_is_deleted_while_its_store_is_silent(api: ClusterApi, store_proxy: FaultProxy) -> None:
    """Killed within a request by the kubelet, the runner would seem to be killed by user code."""
    handle = work.run_async(seconds=20)
    store = handle.place.store
    wait_for(lambda: any("/log/" in info.name for info in store.list(f"jobs/{handle.job_id}/")), 60)
    store_proxy.faults.silence(".", 600, times=None)
    query = {"labelSelector": f"{JOB_ID}={handle.job_id}"}
    (pod,) = api.list("Pod", handle.namespace, query)["items"]
    api.delete("Pod", handle.namespace, pod["metadata"]["name"])
    wait_for(lambda: pod["metadata"]["name"] not in str(api.list("Pod", handle.namespace, query)), 60)
    store_proxy.faults.clear()
    store_proxy.disconnect()
    assert handle.result(stream_logs=False, cleanup=False, timeout=120) == "done"
    handle.cleanup()


@pytest.mark.promise("command: … or cancels")
def test_a_budget_is_kept_though_the_store_is_silent(
    store_proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the log nor the note of what it has cost keeps the runner from looking at the time."""
    (tmp_path / "prices.toml").write_text('currency = "EUR"\n[on_demand]\ncpu = 3600\n')
    monkeypatch.setenv("KINETIC_PRICES", str(tmp_path / "prices.toml"))
    store_proxy.faults.silence("(?s)POST .*upload.*/(log/|spending)", 600, times=2)
    handle = kinetic_core.run(accelerator="cpu", budget=15)(work.__wrapped__).run_async(600.0)
    with pytest.raises(JobBudgetExceeded, match=r"cost (1[5-9]|[23]\d)[.\d]* EUR of budget=15"):
        handle.result(stream_logs=False, cleanup=False, timeout=180)
    handle.cleanup()


def test_a_large_result_and_a_store_that_stumbles(api: ClusterApi, store_proxy: FaultProxy) -> None:
    @kinetic_core.run(accelerator="cpu")
    def large() -> bytes:
        return b"0123456789abcdef" * (40 << 16)

    store_proxy.faults.answer("(?s)POST .*uploadType=resumable", 503)
    store_proxy.faults.lose_reply("PUT .*upload_id", skip=1)
    store_proxy.faults.cut_request("PUT .*upload_id", 5 << 20, skip=2)
    store_proxy.faults.cut_reply(r"GET .*/result\?alt", 20 << 20)
    assert large.run_async().result(stream_logs=False, timeout=120) == b"0123456789abcdef" * (40 << 16)


API_FAULTS: dict[str, Callable[[Faults, str], None]] = {
    "503": lambda faults, match: faults.answer(match, 503, body=b'{"message": "away"}', times=2),
    "429": lambda faults, match: faults.answer(match, 429, headers={"Retry-After": "1"}, times=2),
    "dropped": lambda faults, match: faults.drop(match, times=2),
    "lost": lambda faults, match: faults.lose_reply(match),
    "cut": lambda faults, match: faults.cut_reply(match, 20),
    "silent": lambda faults, match: faults.silence(match, 5),
}
API_STEPS = {
    "account": "GET .*/serviceaccounts/",
    "create": "POST .*/jobs$",
    "list jobs": r"GET .*/jobs\?(?!.*watch)",
    "list pods": r"GET .*/pods\?(?!.*watch)",
    "list events": r"GET .*/events\?(?!.*watch)",
    "delete": r"DELETE .*/jobs\?",
}
WATCHES = [rf"GET .*/{kind}\?.*watch=true" for kind in ("jobs", "pods")]


@pytest.mark.promise("gke: An ambiguous create is read back")
@pytest.mark.promise("gke: A failed read never fails or restarts a job")
@pytest.mark.parametrize("fault", API_FAULTS)
def test_the_api_server_stumbles_at_every_step(api: ClusterApi, api_proxy: FaultProxy, fault: str) -> None:
    for pattern in API_STEPS.values():
        API_FAULTS[fault](api_proxy.faults, pattern)
    check(api, work.run_async())


def _watch_says_gone(faults: Faults, match: str) -> None:
    event = {
        "type": "ERROR",
        "object": {"kind": "Status", "code": 410, "message": "too old resource version"},
    }
    faults.answer(match, 200, body=json.dumps(event).encode() + b"\n", times=2)


WATCH_FAULTS: dict[str, Callable[[Faults, str], None]] = {
    "410": lambda faults, match: faults.answer(match, 410, body=b'{"message": "too old"}', times=3),
    "410 in it": _watch_says_gone,
    "503": lambda faults, match: faults.answer(match, 503, times=3),
    "429": lambda faults, match: faults.answer(match, 429, headers={"Retry-After": "1"}, times=3),
    "dropped": lambda faults, match: faults.drop(match, times=3),
    "ends at once": lambda faults, match: faults.answer(match, 200, times=3),
    "cut": lambda faults, match: faults.cut_reply(match, 500, times=3),
}


@pytest.mark.promise("gke: 410, silent sockets, 429, 5xx")
@pytest.mark.parametrize("fault", WATCH_FAULTS)
def test_a_watch_breaks_off(api: ClusterApi, api_proxy: FaultProxy, fault: str) -> None:
    for pattern in WATCHES:
        WATCH_FAULTS[fault](api_proxy.faults, pattern)
    check(api, work.run_async(3.0))


@pytest.mark.promise("gke: 410, silent sockets, 429, 5xx")
@pytest.mark.slow
def test_a_silent_watch_is_not_believed_for_ever(api: ClusterApi, api_proxy: FaultProxy) -> None:
    for pattern in WATCHES:
        api_proxy.faults.silence(pattern, 600, after_bytes=1)
    check(api, work.run_async(3.0))


def leave(api_proxy: FaultProxy) -> None:
    """No request of this process reaches the API server for 20 seconds."""
    api_proxy.faults.drop(".", times=None)
    api_proxy.disconnect()
    threading.Timer(20, api_proxy.faults.clear).start()


@pytest.mark.promise("gke: API server down for 20 s at each step")
@pytest.mark.parametrize("step", ["before", "running", "ending"])
def test_twenty_seconds_without_an_api_server(api: ClusterApi, api_proxy: FaultProxy, step: str) -> None:
    if step == "before":
        leave(api_proxy)
    handle = work.run_async(4.0)
    if step != "before":
        wait_for(lambda: handle.status() is kinetic_core.JobStatus.RUNNING, 60)
        time.sleep(3.0 if step == "ending" else 0.0)
        leave(api_proxy)
    check(api, handle)


def looked_after(job_id: str) -> str:
    """What a new process, which has not watched so far, says of a job and whether it finds it."""
    ask = (
        "import kinetic_core as k\n"
        f"print(k.attach({job_id!r}).status().name, {job_id!r} in [each.job_id for each in k.list_jobs()])"
    )
    ran = subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True)
    return ran.stdout.strip()


@pytest.mark.promise("gke: API server down for 20 s at each step")
def test_whoever_looks_after_jobs_outlasts_the_api_server(api: ClusterApi, api_proxy: FaultProxy) -> None:
    """To attach, list, cancel and clean up, all at once: they wait for the server."""
    ended, finished, lives = work.run_async(), work.run_async(), work.run_async(600.0)
    for handle in (ended, finished):
        handle.result(stream_logs=False, cleanup=False)
    wait_for(lambda: lives.status() is kinetic_core.JobStatus.RUNNING, 60)
    leave(api_proxy)
    begun = time.monotonic()
    with ThreadPoolExecutor() as threads:
        found = threads.submit(looked_after, lives.job_id)
        ends = [threads.submit(finished.cleanup), threads.submit(lives.cancel)]
        collected = threads.submit(ended.result, stream_logs=False, cleanup=False)
        asked: list[Future[Any]] = [found, *ends]
        wait(asked, return_when=FIRST_COMPLETED)
        assert time.monotonic() - begun > 15
    assert found.result() in ("RUNNING True", "FAILED True")
    assert [each.result() for each in ends] == [None, None]
    assert collected.result() == "done"
    assert api.get("Job", finished.namespace, finished.k8s_name) is None
    with pytest.raises(kinetic_core.errors.JobCancelled):
        lives.result(stream_logs=False)
    check(api, ended)


def test_a_cancellation_whose_answers_are_lost(api: ClusterApi, api_proxy: FaultProxy) -> None:
    handle = work.run_async(600.0)
    wait_for(lambda: handle.status() is kinetic_core.JobStatus.RUNNING, 60)
    api_proxy.faults.lose_reply("PATCH .*/jobs/", times=2)
    handle.cancel()
    with pytest.raises(kinetic_core.errors.JobCancelled):
        handle.result(stream_logs=False)
    found: list[Any] = api.list("Pod", handle.namespace, {"labelSelector": f"{JOB_ID}={handle.job_id}"})[
        "items"
    ]
    assert [pod for pod in found if pod["status"]["phase"] == "Running"] == []


@pytest.mark.promise("gke: Live, reconnecting, no doubled line")
def test_a_log_that_is_followed_through_a_breaking_connection(
    api: ClusterApi, api_proxy: FaultProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    api_proxy.faults.cut_reply("GET .*/log", 400, times=3)
    handle = work.run_async(4.0)
    assert handle.result(stream_logs=True, cleanup=False, timeout=180) == "done"
    assert [line for line in capfd.readouterr().out.splitlines() if line.startswith("line")] == LINES
    check(api, handle)


@pytest.mark.slow
@pytest.mark.attack
def test_a_value_outwaits_a_store_away_longer_than_a_request(
    api: ClusterApi, store_proxy: FaultProxy
) -> None:
    """Longer than the 120 s for which the runner repeats one: it has not run again, and was not restarted."""
    handle = work.run_async(seconds=10)
    store = handle.place.store
    wait_for(lambda: any("/log/" in info.name for info in store.list(f"jobs/{handle.job_id}/")), 60)
    store_proxy.faults.answer(".", 503, times=None)
    time.sleep(150)
    query = {"labelSelector": f"{JOB_ID}={handle.job_id}"}
    (pod,) = api.list("Pod", handle.namespace, query)["items"]
    assert pod["status"]["phase"] == "Running"
    store_proxy.faults.clear()
    assert handle.result(stream_logs=False, cleanup=False, timeout=120) == "done"
    (after,) = api.list("Pod", handle.namespace, query)["items"]
    assert after["metadata"]["uid"] == pod["metadata"]["uid"]
    check(api, handle)
