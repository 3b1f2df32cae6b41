"""Jobs on a real cluster: what a user sees, whatever happens to the pod."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID, JOB_ID
from kinetic_core.connections import default_connections
from kinetic_core.decorator import RemoteCallable
from kinetic_core.errors import (
    JobCancelled,
    JobConflict,
    UnverifiedResult,
)
from kinetic_core.jobs.listing import summaries
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions
from tests.cluster.jobs import PREPARATION, greet, on_cpu, pods, running, sleep
from tests.cluster.objects import kubectl
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")


@pytest.mark.promise("gke: `STORAGE_EMULATOR_HOST` honoured, and handed to pods")
@pytest.mark.promise("gke: Four variables run the same script on any cluster")
def test_a_call_returns_its_value_and_streams_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert greet("world") == "hello world"
    assert capsys.readouterr().out.count("greeting world") == 1


def test_what_it_raises_is_raised_here() -> None:
    @on_cpu
    def fail() -> None:
        raise ZeroDivisionError("on the cluster")

    with pytest.raises(ZeroDivisionError, match="on the cluster") as caught:
        fail()
    assert "in fail" in "".join(caught.value.__notes__)


def trace_parent() -> str | None:
    return os.environ.get("TRACEPARENT")


@pytest.mark.promise("page: The trace context reaches the pod")
def test_the_trace_of_its_submitter_reaches_the_pod() -> None:
    trace = {"TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    prepared = prepare(Call(trace_parent), RunOptions.checked("cpu"), default_connections())
    handle = kinetic_core.JobHandle.of(submit(prepared, trace))
    assert handle.result(stream_logs=False) == trace["TRACEPARENT"]


@pytest.mark.promise("gke: The outcome is committed once, by the attempt that owns it")
@pytest.mark.promise("gke: `logs()` after pod and node are gone; all hosts")
@pytest.mark.promise("gke: Success removes pod and payload, failure keeps everything")
def test_success_removes_the_job_and_its_payload_only(api: ClusterApi) -> None:
    handle = greet.run_async("nobody else")
    store = handle.place.store
    assert any(store.list(f"jobs/{handle.job_id}/payload-"))
    assert handle.result(stream_logs=False) == "hello nobody else"
    assert api.get("Job", handle.namespace, handle.k8s_name) is None
    wait_for(lambda: pods(api, handle) == [])
    assert not any(store.list(f"jobs/{handle.job_id}/payload-"))
    again = kinetic_core.attach(handle.job_id)
    assert again.status() is JobStatus.SUCCEEDED
    assert again.result(stream_logs=False) == "hello nobody else"
    assert "greeting nobody else" in again.logs()


@pytest.mark.promise("gke: `tail`, `cancel`, `cleanup`")
@pytest.mark.promise("gke: Success removes pod and payload, failure keeps everything")
def test_a_failure_removes_nothing(api: ClusterApi) -> None:
    @on_cpu
    def fail() -> None:
        print("about to fail")
        raise ZeroDivisionError("on the cluster")

    handle = fail.run_async()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="on the cluster"):
            handle.result(stream_logs=False)
    assert api.get("Job", handle.namespace, handle.k8s_name) is not None
    assert len(pods(api, handle)) == 1
    store = handle.place.store
    assert any(store.list(f"jobs/{handle.job_id}/payload-"))
    assert store.find(object_names.result(handle.job_id)) is not None
    assert "about to fail" in kinetic_core.attach(handle.job_id).logs()
    handle.cleanup()
    assert api.get("Job", handle.namespace, handle.k8s_name) is None
    assert list(store.list(f"jobs/{handle.job_id}/")) == []


class _Burglar:
    """Makes whoever unpickles it make a directory."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._place),)


@pytest.mark.promise("gke: Verification by HMAC")
def test_an_outcome_with_another_key_is_refused(tmp_path: Path) -> None:
    """Whoever may write to the bucket cannot make this process unpickle what it likes."""
    inside = tmp_path / "inside"
    handle = kinetic_core.run(accelerator="cpu", queue="nobody")(greet.__wrapped__).run_async("queue")
    header = {
        "protocol": wire.PROTOCOL,
        "job_id": handle.job_id,
        "attempt": 0,
        "state": "succeeded",
        "codec": "pickle",
    }
    forged = wire.encode_frame(header, {"body": pickle.dumps(_Burglar(inside))}, b"0" * 32)
    handle.place.store.create_if_absent(object_names.result(handle.job_id), forged)
    handle.cancel()
    with pytest.raises((UnverifiedResult, JobCancelled), match=handle.job_id):  # forged, or replaced by now
        handle.result(stream_logs=False)
    assert not inside.exists()
    assert handle.status() is JobStatus.CANCELLED
    assert handle.observe().reason in ("Cancelled", "Failed")  # a pod may have begun by then
    handle.cleanup()


@pytest.mark.attack
def test_what_is_left_of_a_job_is_verified(gke: dict[str, str]) -> None:
    """By another process, once its Kubernetes object is gone: as signed, and as somebody has replaced it."""
    handle = greet.run_async("later")
    assert handle.result(stream_logs=False) == "hello later"
    backend = handle.place
    wait_for(lambda: backend.get(handle.namespace, handle.job_id) is None)  # it asks the watch first
    program = (
        "import kinetic_core, sys; handle = kinetic_core.attach(sys.argv[1]); "
        "print(handle.status().value, handle.observe().reason); print(handle.result(stream_logs=False))"
    )

    def attached() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-c", program, handle.job_id],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
        )
        return done.stdout, done.stderr

    assert attached()[0] == "SUCCEEDED Completed\nhello later\n"
    listed = {job.job_id: job.status for job in summaries(backend)}
    assert listed[handle.job_id] is JobStatus.SUCCEEDED
    name = object_names.result(handle.job_id)
    header, parts = wire.decode_frame(backend.store.read(name))
    (info,) = backend.store.list(name)
    backend.store.delete(name)
    planted = wire.encode_frame({**header, "state": "failed"}, parts, b"0" * 32)
    told = info.metadata[wire.STATE].replace("succeeded", "failed")
    backend.store.create_if_absent(name, planted, {wire.STATE: told})
    out, err = attached()
    assert out == "NOT_FOUND Unverified\n"
    assert "UnverifiedResult" in err
    (left,) = [job for job in summaries(backend) if job.job_id == handle.job_id]
    assert (left.status, left.reason) == (JobStatus.NOT_FOUND, "Unverified")


@pytest.mark.promise("gke: `explain()`: each second, its cause, what would shorten it")
@pytest.mark.promise("gke: `status`, `logs`, `result`, `attach`, `list_jobs` from any machine")
def test_found_again_from_another_process_with_its_log(gke: dict[str, str]) -> None:
    handle = greet.run_async("later")
    program = (
        "import kinetic_core, sys; handle = kinetic_core.attach(sys.argv[1]); "
        "print(handle.result(cleanup=False, stream_logs=False)); print(handle.logs())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, handle.job_id],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[:2] == ["hello later", "greeting later"], done.stderr
    assert handle.job_id in [job.job_id for job in kinetic_core.list_jobs()]
    named = {phase.name for phase in handle.explain().phases}
    assert (
        {"start", "function"}
        <= named
        <= {
            *PREPARATION,
            "queue",
            "scheduling",
            "image",
            "container",
            "start",
            "function",
            "result",
            "termination",
        }
    )
    handle.cleanup(k8s=True, gcs=False)
    assert "greeting later" in handle.logs()
    assert "your own code" in str(handle.explain())
    assert handle.status() is JobStatus.SUCCEEDED


@pytest.mark.promise("gke: `tail`, `cancel`, `cleanup`")
def test_cancelling_stops_the_pod_and_says_so(api: ClusterApi) -> None:
    handle = sleep.run_async(600)
    running(handle)
    handle.cancel()
    assert all(pod["status"]["phase"] != "Running" for pod in pods(api, handle))
    with pytest.raises(JobCancelled):
        handle.result(stream_logs=False)
    handle.cancel()


@pytest.mark.promise("gke: Same digest adopts, another refuses; create is idempotent")
def test_one_id_is_one_job_however_often_it_is_submitted(api: ClusterApi) -> None:
    options = RunOptions.checked(accelerator="cpu")
    prepared = [
        prepare(Call(str, (7,)), options, default_connections(), job_id="job-00000000000000aa")
        for _ in range(4)
    ]
    references: list[Any] = []
    threads = [threading.Thread(target=lambda p=each: references.append(submit(p))) for each in prepared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(reference.job_id, reference.spec_digest) for reference in references}) == 1
    assert len(references) == 4
    handle = kinetic_core.attach("job-00000000000000aa")
    assert handle.result(stream_logs=False, cleanup=False) == "7"
    assert len(pods(api, handle)) == 1
    with pytest.raises(JobConflict):
        submit(prepare(Call(str, (8,)), options, default_connections(), job_id="job-00000000000000aa"))
    handle.cleanup()


def test_data_and_volumes_are_there(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.txt").write_text("1")
    data = kinetic_core.Data(str(tmp_path / "set"))

    @kinetic_core.run(accelerator="cpu", cpu=0.1, volumes={"/data": data})
    def read(path: str) -> tuple[str, str]:
        return Path(path, "one.txt").read_text(), Path("/data/one.txt").read_text()

    assert read.run_async(data).result(stream_logs=False) == ("1", "1")


def surroundings(_number: int = 0) -> dict[str, Any]:
    """What a job sees of its options."""
    environment = {name: os.environ.get(name) for name in ("WORD", "SHARED", "KINETIC_OUTPUT_DIR")}
    return environment | {
        "data": Path("/data/one.txt").read_text(),
        "retries": os.environ["KINETIC_FAILED_COUNT"],
    }


@pytest.fixture
def priority_class() -> Iterator[str]:
    name = f"kinetic-{secrets.token_hex(4)}"
    about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    kubectl("create", "-f", "-", given={**about, "value": 7, "preemptionPolicy": "Never"})
    yield name
    subprocess.run(["kubectl", "delete", "priorityclass", name], check=True)


@pytest.mark.promise("gke: Account `kinetic`, else `default`, said once; secrets by reference")
@pytest.mark.promise("gke: All options of `run`")
@pytest.mark.promise("data: Secrets from Kubernetes, by reference")
@pytest.mark.parametrize("kind", ["call", "map"])
def test_what_is_asked_for_the_pod_reaches_it(
    api: ClusterApi,
    namespace: str,
    location: str,
    tmp_path: Path,
    priority_class: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    secret, account = f"door-{kind}", f"trainer-{kind}"
    api.create("Secret", namespace, {"metadata": {"name": secret}, "stringData": {"word": "sesame"}})
    api.create("ServiceAccount", namespace, {"metadata": {"name": account}})
    (tmp_path / "one.txt").write_text("1")
    monkeypatch.setenv("SHARED", "seen")
    output_dir = f"gs://{location}/of-{kind}"
    function = kinetic_core.run(
        accelerator="cpu",
        cpu=0.5,
        memory="256Mi",
        disk="1Gi",
        timeout=500,
        retries=2,
        infrastructure_retries=3,
        hang_after=300,
        labels={"team": "research"},
        node_selector={"kubernetes.io/hostname": "node-0"},
        tolerations=[{"key": "reserved", "operator": "Exists"}],
        secrets={"WORD": f"{secret}/word"},
        service_account=account,
        priority_class=priority_class,
        security_context={"readOnlyRootFilesystem": True},
        capture_env_vars=["SHARED"],
        output_dir=output_dir,
        volumes={"/data": kinetic_core.Data(str(tmp_path))},
    )(surroundings)
    if kind == "call":
        handle = function.run_async()
        value, label = handle.result(stream_logs=False, cleanup=False), f"{JOB_ID}={handle.job_id}"
    else:
        batch = function.run_async_map([7])
        (handle,), (value,) = batch.jobs, batch.results(cleanup=False)
        label = f"{GROUP_ID}={batch.group_id}"
    assert value.pop("KINETIC_OUTPUT_DIR").startswith(output_dir)
    assert value == {"WORD": "sesame", "SHARED": "seen", "data": "1", "retries": "0"}
    (pod,) = api.list("Pod", namespace, {"labelSelector": label})["items"]
    (job,) = api.list("Job", namespace, {"labelSelector": label})["items"]
    assert pod["metadata"]["labels"]["team"] == "research"
    assert {"key": "reserved", "operator": "Exists"} in pod["spec"]["tolerations"]
    names = "nodeName", "serviceAccountName", "priorityClassName", "priority"
    assert [pod["spec"][name] for name in names] == ["node-0", account, priority_class, 7]
    (container,) = pod["spec"]["containers"]
    requests = container["resources"]["requests"]
    assert (requests["cpu"], requests["ephemeral-storage"]) == ("500m", str(1 << 30))
    assert container["resources"]["limits"]["memory"] == str(256 << 20)
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert (given["KINETIC_HANG_SECONDS"], given["KINETIC_INFRASTRUCTURE_RETRIES"]) == ("300", "3")
    assert job["spec"]["backoffLimitPerIndex"] == 2
    limit = job["spec"].get("activeDeadlineSeconds") or given.get("KINETIC_TIMEOUT")
    assert float(limit) == 500
    handle.cleanup()


def test_a_map_runs_as_one_batch() -> None:
    batch = greet.run_async_map(["a", "b", "c"], max_concurrent=3)
    assert batch.results() == ["hello a", "hello b", "hello c"]


HERE = Path(__file__).parent


@kinetic_core.run(accelerator="cpu", cpu=0.1, retries=1)
def reads_beside_itself() -> str:
    if os.environ["KINETIC_FAILED_COUNT"] == "0":
        raise ValueError("a line of source")
    return (HERE / "jobs.py").read_text()


def test_code_is_that_of_the_workspace(capfd: pytest.CaptureFixture[str]) -> None:
    assert reads_beside_itself() == HERE.joinpath("jobs.py").read_text()
    told = capfd.readouterr().err
    assert "kinetic: attempt 1 of 2 failed: ValueError: a line of source; starting again\n" in told
    assert "kinetic: succeeded in " in told
    with pytest.raises(ValueError, match="a line of source") as caught:
        replace_retries(0)()
    (note,) = caught.value.__notes__
    assert "/kinetic/workspace/test_jobs.py" in note
    assert 'raise ValueError("a line of source")' in note


def replace_retries(retries: int) -> RemoteCallable[[], str]:
    return reads_beside_itself.with_options(replace(reads_beside_itself.options, retries=retries))


@pytest.mark.promise("gke: Node selector, tolerations, resources for CPU, GPU and TPU")
@pytest.mark.alone
def test_the_manifest_asks_for_the_accelerators_nodes(api: ClusterApi) -> None:
    handle = kinetic_core.run(accelerator="tpu-v5e-4")(greet.__wrapped__).run_async("tpu")
    assert handle.result(stream_logs=False, cleanup=False) == "hello tpu"
    (pod,) = pods(api, handle)
    assert pod["spec"]["nodeName"] == "node-2"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"] == "4"
    assert json.loads(json.dumps(pod))["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "kinetic: asked for tpu-v5e-4, and the pod has no TPU device" in (handle.logs() or "")
    handle.cleanup()
    assert Path(__file__).exists()


TRAINING = """
import kinetic_core

RATE = 0.1

class Model:
    pass

@kinetic_core.run(accelerator="tpu-v5e-1")
def scaled(x):
    return x * RATE

def work(model):
    import sys
    import training
    return scaled(4), training.scaled(4), type(model) is training.Model, sys.modules["kinetic_core"].__file__
"""


def test_a_module_with_jobs_is_imported_in_any_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(tmp_path))
    (tmp_path / "training.py").write_text(TRAINING)
    monkeypatch.syspath_prepend(str(tmp_path))
    training = importlib.import_module("training")
    monkeypatch.setattr(training, "RATE", 0.5)
    try:
        handle = kinetic_core.run(accelerator="cpu")(training.work).run_async(training.Model())
        *values, file = handle.result(stream_logs=False)
    finally:
        del sys.modules["training"]
    assert values == [2.0, 2.0, True]
    assert file.startswith("/kinetic/client/")


@pytest.mark.promise("gke: Kill -9 of the client between any two steps, then again")
@pytest.mark.parametrize("stored", [0, 1, 2], ids=["payload", "handle", "index"])
def test_a_submitter_killed_at_any_step_is_resumed_by_the_next(
    api: ClusterApi, faults: Any, stored: int
) -> None:
    job_id = f"job-{secrets.token_hex(8)}"
    call, options = Call(str, (7,)), RunOptions.checked(accelerator="cpu")
    prepared = prepare(call, options, default_connections(), job_id=job_id)  # the project is stored now
    program = (
        "from kinetic_core.options import RunOptions\n"
        "from kinetic_core.jobs.submit import Call, prepare, submit\n"
        "from kinetic_core.connections import default_connections\n"
        "options = RunOptions.checked(accelerator='cpu')\n"
        f"submit(prepare(Call(str, (7,)), options, default_connections(), job_id={job_id!r}))\n"
    )
    if stored:
        faults(match="POST .*upload", delay=0.001, times=stored)
    faults(match="POST .*upload", delay=30)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as submitter:
        wait_for(lambda: faults()[-1]["hits"] == 1, 20)
        submitter.kill()
    handle = kinetic_core.JobHandle.of(submit(prepared))
    assert handle.result(stream_logs=False, cleanup=False) == "7"
    assert len(pods(api, handle)) == 1
    handle.cleanup()
