"""How attempts end on a real cluster, and what is made of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.errors import (
    JobBudgetExceeded,
    JobDeadlineExceeded,
    JobOutOfMemory,
)
from tests.cluster.jobs import evict, greet, on_cpu, pods, running, sleep
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")


def test_retries_are_attempts_of_one_job() -> None:
    @kinetic_core.run(accelerator="cpu", cpu=0.1, retries=2)
    def third_time() -> int:

        failures = int(os.environ["KINETIC_FAILED_COUNT"])
        if failures < 2:
            raise ValueError(f"failure {failures}")
        return failures

    handle = third_time.run_async()
    assert handle.result(stream_logs=False) == 2


@pytest.mark.promise("airflow: With none alive: the deadline, or `kinetic reap`")
def test_the_deadline_ends_the_job() -> None:
    @kinetic_core.run(accelerator="cpu", cpu=0.1, timeout=40)  # a busy machine needs ten to begin
    def too_long() -> None:

        print("begun", flush=True)
        time.sleep(600)

    with pytest.raises(JobDeadlineExceeded) as caught:
        too_long.run_async().result(stream_logs=False)
    assert caught.value.failure is not None
    assert (caught.value.failure.failure_class, caught.value.failure.last_lines) == ("deadline", ("begun",))


@pytest.mark.promise("command: … or cancels")
def test_the_budget_ends_the_job_over_all_its_attempts(
    api: ClusterApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "prices.toml"
    table.write_text('currency = "EUR"\n[on_demand]\ncpu = 3600\n[spot]\ntpu-v6e = 0.1\n')
    monkeypatch.setenv("KINETIC_PRICES", str(table))
    spot_first = kinetic_core.run(accelerator=["tpu-v6e-1:spot", "cpu"], capacity_timeout=1, budget=9)
    handle = spot_first(sleep.__wrapped__).run_async(600)
    running(handle)
    (pod,) = pods(api, handle)
    api.delete("Pod", handle.namespace, pod["metadata"]["name"])
    spent = r"cost (9|[1-5]\d)[.\d]* EUR of budget=9: \d+ s of cpu at 3600 EUR an hour, in 2 attempts"
    with pytest.raises(JobBudgetExceeded, match=spent):
        handle.result(stream_logs=False, timeout=180)


@pytest.mark.promise("gke: Pod deleted under us, eviction, real OOM")
def test_out_of_memory_is_told() -> None:
    @kinetic_core.run(accelerator="cpu", cpu=0.1, memory="128Mi")
    def greedy() -> int:
        print("greedy", flush=True)
        return len(b"x" * (1 << 30))

    with pytest.raises(JobOutOfMemory) as caught:
        greedy.run_async().result(stream_logs=False)
    failure = caught.value.failure
    assert failure is not None
    assert (failure.failure_class, failure.last_lines) == ("out of memory", ("greedy",))


@pytest.mark.promise("gke: Preempted, evicted, lost node: free of charge")
@pytest.mark.promise("gke: Pod deleted under us, eviction, real OOM")
def test_a_deleted_pod_is_replaced_at_no_cost(api: ClusterApi) -> None:
    handle = sleep.run_async(6)
    running(handle)
    (pod,) = pods(api, handle)
    api.delete("Pod", handle.namespace, pod["metadata"]["name"])
    assert handle.result(stream_logs=False, cleanup=False) == "awake"
    handle.cleanup()


@pytest.mark.promise("gke: Preempted, evicted, lost node: free of charge")
@pytest.mark.promise("gke: Pod deleted under us, eviction, real OOM")
@pytest.mark.promise("batches: Restart within the same job, no user retry spent")
def test_an_evicted_pod_is_replaced_at_no_cost(api: ClusterApi) -> None:
    handle = sleep.run_async(6)
    running(handle)
    (pod,) = pods(api, handle)
    evict(api, pod)
    assert handle.result(stream_logs=False, cleanup=False) == "awake"
    assert handle.observe().attempt == 1
    handle.cleanup()


@pytest.mark.promise("gke: Every failure: class, exit code, reason, last lines, before deletion")
@pytest.mark.promise("gke: Exit codes 0, 1, 137, 143; SIGTERM during user code")
def test_every_way_to_end_is_told(api: ClusterApi) -> None:
    @on_cpu
    def leave(code: int) -> None:

        for word in ("packing", f"leaving with {code}"):
            print(word, flush=True)
        os._exit(code)

    codes = (0, 1, 65, 137, 143)
    jobs = [leave.run_async(code) for code in codes]
    for code, job in zip(codes, jobs, strict=True):
        with pytest.raises(kinetic_core.errors.JobFailed, match=f"exited with code {code}") as caught:
            job.result(stream_logs=False)
        failure = caught.value.failure
        assert failure is not None
        assert (failure.failure_class, failure.exit_code, failure.signal) == ("user error", code, None)
        assert failure.last_lines == ("packing", f"leaving with {code}")


@pytest.mark.promise("gke: Image, unschedulable, account, secret, admission, webhook named in plain words")
def test_a_secret_that_does_not_exist_ends_the_job() -> None:
    function = kinetic_core.run(accelerator="cpu", secrets={"WORD": "nowhere/word"})(greet.__wrapped__)
    with pytest.raises(kinetic_core.errors.JobMisconfigured, match='secret "nowhere" not found') as caught:
        function.run_async("nobody").result(timeout=90, stream_logs=False)
    assert caught.value.failure is not None
    assert caught.value.failure.failure_class == "configuration"


@pytest.mark.promise("gke: What can never run is refused within 30 s")
@pytest.mark.promise("gke: No such image; impossible accelerator; no service account")
def test_an_image_that_does_not_exist_ends_the_job(api: ClusterApi) -> None:
    image = "10.88.0.1:5000/no/such/image:1"
    handle = kinetic_core.run(accelerator="cpu", container_image=image)(greet.__wrapped__).run_async("nobody")
    with pytest.raises(kinetic_core.errors.JobMisconfigured, match="image cannot be pulled") as caught:
        handle.result(timeout=90, stream_logs=False)
    assert caught.value.failure is not None
    assert caught.value.failure.failure_class == "image"
    wait_for(lambda: not [pod for pod in pods(api, handle) if pod["status"]["phase"] == "Pending"])
    handle.cleanup()
