"""The command against a real cluster: requests it makes, what doctor finds, what reap removes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.backends.base import open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID
from kinetic_core.client import default_client
from kinetic_core.connections import default_connections
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.inputs import forget
from tests.cluster.jobs import sleep
from tests.cluster.roles import USER, documented_role
from tests.conftest import Kinetic, wait_for

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.alone]


@kinetic_core.run(accelerator="cpu")
def quick(x: int) -> int:
    print(f"got {x}")
    return x + 1


@kinetic_core.run(accelerator="cpu", queue="nobody")
def never(x: int) -> int:
    return x


COUNTED = """
import logging, sys
from kinetic_core.cli.main import build
logger = logging.getLogger("urllib3.connectionpool")
logger.setLevel(logging.DEBUG)
logger.addHandler(logging.StreamHandler())
build()(sys.argv[1:], prog_name="kinetic")
"""


def requests(*words: str) -> list[str]:
    """Those of a process that does nothing else, to the API server and to the store: nothing is watched."""
    done = subprocess.run([sys.executable, "-c", COUNTED, *words], capture_output=True, text=True, check=True)
    return [line for line in done.stderr.splitlines() if " HTTP/1.1" in line]


@pytest.mark.promise("command: `jobs list/status/logs/watch/result/cancel/cleanup/explain/outputs`")
@pytest.mark.promise("command: `jobs list` with 1,000 jobs ≤ 1.5 s, ≤ 5 requests")
@pytest.mark.promise(
    "command: `jobs status` ≤ 3 requests; one more, for the key that verifies its outcome, of a job "
    "whose Job is gone"
)
def test_few_requests_tell_everything(kinetic: Kinetic) -> None:
    done, waiting, running = quick.run_async(1), never.run_async(1), sleep.run_async(600)
    told = kinetic("jobs", "result", done.job_id, "--no-cleanup")
    assert told.out == "2\n"
    wait_for(lambda: running.status() is kinetic_core.JobStatus.RUNNING)
    assert 0 < len(found := requests("jobs", "list")) <= 5, found
    for handle in (done, waiting, running):
        assert 0 < len(found := requests("jobs", "status", handle.job_id)) <= 3, found
    running.cancel()  # of a job without its Job the outcome is verified by the namespace's Secret, one more
    assert 0 < len(found := requests("jobs", "status", running.job_id)) <= 4, found
    done.result(stream_logs=False)
    assert 0 < len(found := requests("jobs", "status", done.job_id)) <= 4, found
    states = {one["job_id"]: one["status"] for one in kinetic("jobs", "list", "--json").json["jobs"]}
    assert (states[done.job_id], states[waiting.job_id]) == ("SUCCEEDED", "PENDING")
    assert kinetic("jobs", "logs", done.job_id).out == "got 1\n"
    assert kinetic("jobs", "cancel", waiting.job_id).code == 0
    assert "cancelled" in kinetic("jobs", "result", waiting.job_id).err


@kinetic_core.run(accelerator="cpu", retries=1)
def second_time(seconds: float) -> None:
    time.sleep(seconds)
    if os.environ["KINETIC_FAILED_COUNT"] == "0":
        raise ValueError("not the first time")


@pytest.mark.promise("command: Cost: accelerator-seconds by phase")
def test_what_a_job_has_cost(kinetic: Kinetic, tmp_path: Path) -> None:
    """By the cluster's own records and the runner's: both attempts, and what no hardware was held for."""
    handle = second_time.run_async(2.0)
    handle.result(cleanup=False, stream_logs=False)
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\n[on_demand]\ncpu = 3600\n')
    told = kinetic("cost", handle.job_id, "--prices", str(prices), "--json").json
    (job,) = told["jobs"]
    seconds = job["seconds"]
    assert (job["problem"], job["units"]) == ("", 1)
    assert seconds["running"] >= 3  # 4, but Kubernetes tells an attempt's begin and end in whole seconds
    assert seconds["pulling"] >= 0  # the image may be there
    assert all(each >= 0 for each in seconds.values())
    assert told["amount"] == pytest.approx(sum(told["core_seconds"].values()))
    lasted = time.time() - datetime.fromisoformat(handle.created_at).timestamp()
    assert sum(seconds.values()) <= lasted + 1
    handle.cleanup()


@pytest.mark.promise(
    "command: … a real one-second job on the chosen accelerator",
    "cpu and a TPU's labelled node",
)
@pytest.mark.promise("command: … on GKE, a kubeconfig and the local backend")
def test_doctor_runs_a_job(kinetic: Kinetic) -> None:
    assert kinetic("doctor", "-a", "tpu-v5e-4").code == 0
    told = kinetic("doctor", "--job", "--json")
    assert (told.code, told.json["ok"]) == (0, True)
    assert "ran for a second" in told.json["checks"][-1]["found"]
    told = kinetic("doctor", "-a", "tpu-v5e-4", "--job", "--json")
    assert (told.code, "tpu-v5e-4: Python" in told.json["checks"][-1]["found"]) == (0, True)


@pytest.mark.promise("command: … on GKE, a kubeconfig and the local backend", "stand-in for Google's APIs")
def test_doctor_on_gke(google: object, kinetic: Kinetic, monkeypatch: pytest.MonkeyPatch) -> None:
    told = kinetic("doctor", "--json")
    found = {check["name"]: check for check in told.json["checks"]}
    assert (told.code, found["Google APIs"]["outcome"]) == (0, "ok")
    probed = kinetic("doctor", "--job", "--json").json["checks"][-1]
    assert (probed["name"], probed["outcome"], "cpu: Python" in probed["found"]) == ("job", "ok", True)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    default_client().close()
    told = kinetic("doctor")
    assert told.code == 5
    assert "gcloud auth application-default login" in told.out
    assert "needs: API server" in told.out


@pytest.mark.promise("command: `accelerators`, `--live` too")
def test_pools_of_the_cluster_are_told_with_the_accelerators(google: object, kinetic: Kinetic) -> None:
    listed = kinetic("accelerators", "--live", "--json").json["accelerators"]
    having = {one["name"]: one["pools"] for one in listed if one["pools"]}
    assert having
    assert all(pool in kinetic("accelerators", "--live").out for pools in having.values() for pool in pools)


@pytest.mark.promise("command: … each with a fix")
def test_doctor_names_what_is_not_permitted(kinetic: Kinetic, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = Path(os.environ["KUBECONFIG"]).with_name("developer.kubeconfig")
    monkeypatch.setenv("KINETIC_KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("KINETIC_NAMESPACE", "kube-public")
    told = kinetic("doctor")
    assert told.code == 5
    assert "not permitted in kube-public: create jobs" in told.out
    assert "permissions: bind the role of docs/guides/clusters.md" in told.out


def test_doctor_says_that_nobody_can_verify_outcomes_later(
    api: ClusterApi, namespace: str, kinetic: Kinetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = Path(os.environ["KUBECONFIG"]).with_name("developer.kubeconfig")
    monkeypatch.setenv("KINETIC_KUBECONFIG", str(kubeconfig))
    refused = "create secrets, get secrets kinetic-signing"
    with documented_role(api, namespace, {**USER, "name": "developer"}) as role:
        assert refused not in kinetic("doctor").out
        rules = [rule for rule in role["rules"] if rule["resources"] != ["secrets"]]
        api.patch("Role", namespace, role["metadata"]["name"], {"rules": rules})
        wait_for(lambda: f"so that less is told or done: {refused}" in kinetic("doctor").out)


@pytest.mark.promise("command: Wrong project")
def test_wrong_settings_are_user_errors_a_silent_cloud_none(
    google: object, kinetic: Kinetic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gke: dict[str, str]
) -> None:
    handle = never.run_async(2)
    told = kinetic("jobs", "status", handle.job_id, "--cluster", "elsewhere")
    assert (told.code, "is a job of cluster kinetic-cluster" in told.err) == (2, True)
    told = kinetic("reap", "--project", "nowhere")
    assert (told.code, "KINETIC_PROJECT" in told.err) == (2, True)
    monkeypatch.setenv("KINETIC_BUCKET", "no-such-bucket")
    told = kinetic("jobs", "list")
    assert (told.code, "'no-such-bucket' does not exist" in told.err) == (2, True)
    handle.cancel()


@pytest.mark.promise("command: `batch list/status/results/cancel` (W62)")
def test_a_batch_is_one_line_and_one_thing_to_reap(kinetic: Kinetic, api: ClusterApi, namespace: str) -> None:
    batch, kept = never.run_async_map(range(500)), never.run_async_map([1, 2])
    listed = {one["job_id"]: one for one in kinetic("jobs", "list", "--json").json["jobs"]}
    assert not [job_id for job_id in listed if job_id.startswith(f"{batch.group_id}-")]
    assert (listed[batch.group_id]["status"], listed[batch.group_id]["inputs"]) == ("PENDING", 500)
    assert "0 of 500 succeeded" in kinetic("jobs", "list").out
    handles = [handle.job_id for handle in kinetic_core.list_jobs() if handle.group_id == batch.group_id]
    assert handles == [f"{batch.group_id}-{index}" for index in range(500)]
    forget(open_backend("gke", default_connections()).store, batch.group_id)
    told = kinetic("reap").out
    assert batch.group_id in told
    assert kept.group_id not in told
    assert kinetic("reap", "--apply").code == 0
    query = {"labelSelector": GROUP_ID}
    (job,) = api.list("Job", namespace, query)["items"]
    assert job["metadata"]["labels"][GROUP_ID] == kept.group_id
    kept.cancel()
    kept.cleanup()
    assert kinetic("reap").out == "nothing to remove\n"


@pytest.mark.promise("gke: Retention and TTLs")
@pytest.mark.promise("command: `reap`: orphans of dead clients, dry run first")
def test_reap_removes_jobs_of_which_the_store_knows_nothing(
    kinetic: Kinetic, api: ClusterApi, namespace: str
) -> None:
    handle, kept = never.run_async(3), never.run_async(4)
    store = open_backend("gke", default_connections()).store
    store.delete_all(f"jobs/{handle.job_id}/")
    store.delete(index_object(handle))
    told = kinetic("reap")
    assert handle.job_id in told.out
    assert kept.job_id not in told.out
    assert api.get("Job", namespace, handle.k8s_name) is not None
    assert kinetic("reap", "--apply").code == 0
    assert api.get("Job", namespace, handle.k8s_name) is None
    assert kinetic("reap").out == "nothing to remove\n"
    kept.cancel()
