"""Jobs on a real cluster: what a user sees, whatever happens to the pod."""

from __future__ import annotations

import gc
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.names import JOB_ID
from kinetic_core.errors import (
    ConfigurationError,
    JobCancelled,
    JobConflict,
    JobDeadlineExceeded,
    JobOutOfMemory,
    StoreError,
)
from kinetic_core.lifecycle.observing import watch
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.submission import Call, prepare, submit
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")
on_cpu = kinetic_core.run(accelerator="cpu")


def pods(api: ClusterApi, handle: kinetic_core.JobHandle) -> list[dict[str, Any]]:
    query = {"labelSelector": f"{JOB_ID}={handle.job_id}"}
    found: list[dict[str, Any]] = api.list("Pod", handle.namespace, query)["items"]
    return found


@on_cpu
def greet(name: str) -> str:
    print(f"greeting {name}")
    return f"hello {name}"


@kinetic_core.run(accelerator="tpu-v5p-8")
def greet_from_two(name: str) -> str:
    return f"hello {name}"


@on_cpu
def sleep(seconds: float) -> str:
    import time

    print("sleeping", flush=True)
    time.sleep(seconds)
    return "awake"


def running(handle: kinetic_core.JobHandle) -> None:
    wait_for(lambda: handle.status() is JobStatus.RUNNING, 60)


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


def test_retries_are_attempts_of_one_job() -> None:
    @kinetic_core.run(accelerator="cpu", retries=2)
    def third_time() -> int:
        import os

        failures = int(os.environ["KINETIC_FAILED_COUNT"])
        if failures < 2:
            raise ValueError(f"failure {failures}")
        return failures

    handle = third_time.run_async()
    assert handle.result(stream_logs=False) == 2


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
        <= {"queue", "scheduling", "image", "container", "start", "function", "result"}
    )
    handle.cleanup(k8s=True, gcs=False)
    assert "greeting later" in handle.logs()
    assert "your own code" in str(handle.explain())
    assert handle.status() is JobStatus.SUCCEEDED


def test_cancelling_stops_the_pod_and_says_so(api: ClusterApi) -> None:
    handle = sleep.run_async(600)
    running(handle)
    handle.cancel()
    assert all(pod["status"]["phase"] != "Running" for pod in pods(api, handle))
    with pytest.raises(JobCancelled):
        handle.result(stream_logs=False)
    handle.cancel()


def test_the_deadline_ends_the_job() -> None:
    @kinetic_core.run(accelerator="cpu", timeout=8)
    def too_long() -> None:
        import time

        time.sleep(600)

    with pytest.raises(JobDeadlineExceeded):
        too_long.run_async().result(stream_logs=False)


def test_out_of_memory_is_told() -> None:
    @kinetic_core.run(accelerator="cpu", memory="128Mi")
    def greedy() -> int:
        return len(b"x" * (1 << 30))

    with pytest.raises(JobOutOfMemory) as caught:
        greedy.run_async().result(stream_logs=False)
    assert caught.value.failure is not None


def test_a_deleted_pod_is_replaced_at_no_cost(api: ClusterApi) -> None:
    handle = sleep.run_async(6)
    running(handle)
    (pod,) = pods(api, handle)
    api.delete("Pod", handle.namespace, pod["metadata"]["name"])
    assert handle.result(stream_logs=False, cleanup=False) == "awake"
    handle.cleanup()


def test_a_killed_user_process_is_a_fact() -> None:
    @on_cpu
    def kill_myself() -> None:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(kinetic_core.errors.JobError) as caught:
        kill_myself.run_async().result(stream_logs=False)
    assert caught.value.failure is not None
    assert caught.value.failure.signal == 9


def test_one_id_is_one_job_however_often_it_is_submitted(api: ClusterApi) -> None:
    options = RunOptions.checked(accelerator="cpu")
    prepared = [prepare(Call(str, (7,)), options, job_id="job-00000000000000aa") for _ in range(4)]
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
        submit(prepare(Call(str, (8,)), options, job_id="job-00000000000000aa"))
    handle.cleanup()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of Google's client
@pytest.mark.parametrize(
    "rule",
    [
        {"match": "POST .*upload", "status": 503, "times": 2},
        {"match": "POST .*upload", "drop": "after", "times": 3},
        {"match": "GET .*alt=media", "status": 503, "times": 3},
        {"match": "GET .*alt=media", "drop": "mid-body", "after_bytes": 10, "times": 2},
        {"match": "POST .*upload", "status": 429, "times": 3},
    ],
    ids=lambda rule: f"{rule['match']}-{rule.get('status') or rule['drop']}",
)
def test_a_store_that_stumbles_is_not_noticed(faults: Any, rule: dict[str, Any]) -> None:
    faults(**rule)
    assert greet.run_async("anyway").result(stream_logs=False) == "hello anyway"
    gc.collect()  # else what the client leaked is found in another test


def test_a_bucket_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_BUCKET", "no-such-bucket")
    with pytest.raises(ConfigurationError, match=r"'no-such-bucket' does not exist.*KINETIC_BUCKET"):
        greet("nobody")


def test_a_user_without_permission_is_told_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_KUBECONFIG", os.environ["KINETIC_KUBECONFIG"].replace("admin", "developer"))
    with pytest.raises(ConfigurationError, match=r"may not create jobs in namespace .*clusters\.md"):
        greet("nobody")


def test_a_missing_namespace_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_NAMESPACE", "nowhere")
    with pytest.raises(ConfigurationError, match="no namespace 'nowhere'"):
        greet("nobody")


def test_data_and_volumes_are_there(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.txt").write_text("1")
    data = kinetic_core.Data(str(tmp_path / "set"))

    @kinetic_core.run(accelerator="cpu", volumes={"/data": data})
    def read(path: str) -> tuple[str, str]:
        return Path(path, "one.txt").read_text(), Path("/data/one.txt").read_text()

    assert read.run_async(data).result(stream_logs=False) == ("1", "1")


def test_the_documented_role_is_enough(
    api: ClusterApi, namespace: str, gke: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "clusters.md"
    (role,) = re.findall(r"```yaml\n(.*?)```", guide.read_text(), re.DOTALL)
    api.create("Role", namespace, yaml.safe_load(role))
    binding = {
        "metadata": {"name": "kinetic-user"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kinetic-user"},
        "subjects": [{"kind": "User", "name": "developer", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    api.create("RoleBinding", namespace, binding)
    monkeypatch.setenv("KINETIC_KUBECONFIG", gke["KINETIC_KUBECONFIG"].replace("admin", "developer"))
    try:
        assert greet("developer") == "hello developer"
        assert greet_from_two("a slice") == "hello a slice"
        handle = sleep.run_async(600)
        running(handle)
        assert handle.logs() is not None
        handle.cancel()
        handle.cleanup()
    finally:
        api.delete("RoleBinding", namespace, "kinetic-user")


def test_what_is_asked_for_the_pod_reaches_it(api: ClusterApi, namespace: str) -> None:
    import base64

    value = base64.b64encode(b"sesame").decode()
    api.create("Secret", namespace, {"metadata": {"name": "door"}, "data": {"word": value}})

    @kinetic_core.run(
        accelerator="cpu",
        cpu=0.5,
        disk="1Gi",
        labels={"team": "research"},
        node_selector={"kubernetes.io/hostname": "node-0"},
        tolerations=[{"key": "reserved", "operator": "Exists"}],
        secrets={"WORD": "door/word"},
    )
    def word() -> str:
        import os

        return os.environ["WORD"]

    handle = word.run_async()
    assert handle.result(stream_logs=False, cleanup=False) == "sesame"
    (pod,) = pods(api, handle)
    assert pod["metadata"]["labels"]["team"] == "research"
    assert pod["spec"]["nodeName"] == "node-0"
    requests = pod["spec"]["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["ephemeral-storage"]) == ("500m", str(1 << 30))
    handle.cleanup()


def test_a_secret_that_does_not_exist_ends_the_job() -> None:
    function = kinetic_core.run(accelerator="cpu", secrets={"WORD": "nowhere/word"})(greet.__wrapped__)
    with pytest.raises(kinetic_core.errors.JobMisconfigured, match='secret "nowhere" not found'):
        function.run_async("nobody").result(timeout=60, stream_logs=False)


def test_a_map_runs_as_one_batch() -> None:
    batch = greet.run_async_map(["a", "b", "c"], max_concurrent=3)
    assert batch.results() == ["hello a", "hello b", "hello c"]


def test_the_manifest_asks_for_the_accelerators_nodes(api: ClusterApi) -> None:
    handle = kinetic_core.run(accelerator="tpu-v5e-4")(greet.__wrapped__).run_async("tpu")
    assert handle.result(stream_logs=False, cleanup=False) == "hello tpu"
    (pod,) = pods(api, handle)
    assert pod["spec"]["nodeName"] == "node-2"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"] == "4"
    assert json.loads(json.dumps(pod))["spec"]["securityContext"]["runAsNonRoot"] is True
    handle.cleanup()
    assert Path(__file__).exists()


def test_an_image_that_does_not_exist_ends_the_job(api: ClusterApi) -> None:
    image = "10.88.0.1:5000/no/such/image:1"
    handle = kinetic_core.run(accelerator="cpu", container_image=image)(greet.__wrapped__).run_async("nobody")
    with pytest.raises(kinetic_core.errors.JobMisconfigured, match="image cannot be pulled") as caught:
        handle.result(timeout=60, stream_logs=False)
    assert caught.value.failure is not None
    assert caught.value.failure.failure_class == "image"
    wait_for(lambda: not [pod for pod in pods(api, handle) if pod["status"]["phase"] == "Pending"])
    handle.cleanup()


def test_an_exceeded_quota_is_named_while_the_job_waits_for_it(api: ClusterApi) -> None:
    name = f"kinetic-quota-{os.getpid()}"
    api.create("Namespace", "", {"metadata": {"name": name}})
    api.create("ResourceQuota", name, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    seen: list[Any] = []
    handle = kinetic_core.run(accelerator="cpu", namespace=name)(greet.__wrapped__).run_async("patient")
    subscription = watch(handle, seen.append)
    try:
        wait_for(lambda: seen and seen[-1].reason == "FailedCreate", 30)
        assert "exceeded quota: none" in seen[-1].message
        assert seen[-1].status is JobStatus.PENDING
        api.delete("ResourceQuota", name, "none")
        assert handle.result(timeout=60, stream_logs=False) == "hello patient"
    finally:
        subscription.close()
        api.delete("Namespace", "", name)


def test_what_keeps_pods_from_being_made_is_named(api: ClusterApi, namespace: str) -> None:
    missing = kinetic_core.run(accelerator="cpu", service_account="nobody")(greet.__wrapped__).run_async("x")
    wait_for(lambda: missing.observe().reason == "FailedCreate", 10)
    assert 'serviceaccount "nobody" not found' in missing.observe().message
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    name = f"kinetic-{os.getpid()}"
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [
            {
                "expression": "object.metadata.?labels.team.orValue('') != 'intruders'",
                "message": "intruders run nothing here",
            }
        ],
    }
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
    }
    base = "/apis/admissionregistration.k8s.io/v1"
    kinds = {"validatingadmissionpolicies": policy, "validatingadmissionpolicybindings": binding}
    for kind, spec in kinds.items():
        api._call("POST", f"{base}/{kind}", {"metadata": {"name": name}, "spec": spec})
    try:
        labels = {"team": "intruders"}
        denied = kinetic_core.run(accelerator="cpu", labels=labels)(greet.__wrapped__)
        seen: list[Any] = []

        def is_denied() -> bool:  # a policy takes some seconds to be known to the API server
            handle = denied.run_async("x")
            wait_for(lambda: handle.observe().reason not in ("", "Created"), 10)
            seen.append(handle.observe())
            handle.cancel()
            return bool(seen[-1].reason == "FailedCreate")

        wait_for(is_denied, 60)
        assert "intruders run nothing here" in seen[-1].message
    finally:
        for kind in kinds:
            api._call("DELETE", f"{base}/{kind}/{name}")
        missing.cancel()


def test_a_job_in_a_queue_says_so() -> None:
    handle = kinetic_core.run(accelerator="cpu", queue="research")(greet.__wrapped__).run_async("x")
    wait_for(lambda: handle.observe().reason == "Queued", 10)
    assert "'research'" in handle.observe().message
    handle.cancel()
    assert handle.status() is JobStatus.FAILED
    handle.cleanup()


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_clock_that_is_wrong_does_no_harm(minutes: int) -> None:
    """This machine's clock, against those of the cluster and the store."""
    program = (
        "import time\n"
        "true_time = time.time\n"
        f"time.time = lambda: true_time() + {60 * minutes}\n"
        "import kinetic_core\n"
        "@kinetic_core.run(accelerator='cpu')\n"
        "def add(a, b):\n"
        "    print('adding')\n"
        "    return a + b\n"
        "handle = add.run_async(1, 2)\n"
        "print(handle.result(timeout=60, stream_logs=False, cleanup=False))\n"
        "print(handle.job_id in [job.job_id for job in kinetic_core.list_jobs()])\n"
        "print(all(0 <= phase.seconds < 900 for phase in handle.explain().phases))\n"
        "handle.cleanup()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["3", "True", "True"], done.stderr


def test_an_accelerator_that_is_taken_is_named(api: ClusterApi) -> None:
    holder = kinetic_core.run(accelerator="tpu-v5e-4")(sleep.__wrapped__).run_async(8)
    running(holder)
    waiting = kinetic_core.run(accelerator="tpu-v5e-4")(greet.__wrapped__).run_async("second")
    wait_for(lambda: waiting.observe().reason == "Unschedulable", 20)
    assert "Insufficient google.com/tpu" in waiting.observe().message
    assert waiting.result(timeout=60, stream_logs=False) == "hello second"
    holder.result(stream_logs=False)


def test_the_api_server_may_go_away_while_a_job_runs(api: ClusterApi) -> None:
    handle = sleep.run_async(6)
    running(handle)
    testcluster = Path(os.environ.get("TESTCLUSTER", "../shared/cluster/testcluster"))
    if not testcluster.exists():
        pytest.skip(f"no {testcluster} to restart the API server with")
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(handle.result(stream_logs=False)))
    thread.start()
    subprocess.run([testcluster, "stop", "kube-apiserver"], check=True, capture_output=True)
    try:
        submitted: list[str] = []
        other = threading.Thread(
            target=lambda: submitted.append(greet.run_async("late").result(stream_logs=False))
        )
        other.start()
        time.sleep(5)
    finally:
        subprocess.run([testcluster, "start", "kube-apiserver"], check=True, capture_output=True)
    thread.join(60)
    other.join(60)
    assert (results, submitted) == (["awake"], ["hello late"])


def test_a_long_log_arrives_whole_and_once(capfd: pytest.CaptureFixture[str]) -> None:
    @on_cpu
    def loud() -> int:
        for number in range(20_000):
            print(f"line {number}")
        return 20_000

    handle = loud.run_async()
    assert handle.result(stream_logs=True, cleanup=False) == 20_000
    assert capfd.readouterr().out.splitlines() == [f"line {number}" for number in range(20_000)]
    assert (handle.logs() or "").count("\n") == 20_000
    handle.cleanup()


def test_a_log_that_the_node_has_rotated_is_whole(capfd: pytest.CaptureFixture[str]) -> None:
    """The nodes keep 10 MiB and serve the newest file; who comes late reads the rest from the store."""

    @on_cpu
    def flood() -> str:
        import time

        for number in range(26_000):
            print(f"{number:06d} " + "x" * 993)
        print("all printed", flush=True)
        time.sleep(8)
        return "done"

    handle = flood.run_async()
    wait_for(lambda: len(handle.logs() or "") > 26_000_000, 60)
    assert handle.status() is JobStatus.RUNNING
    expected = [f"{number:06d}" for number in range(26_000)]
    assert [line[:6] for line in (handle.logs() or "").splitlines()[:26_000]] == expected
    assert handle.result(stream_logs=True, cleanup=False) == "done"
    assert [line[:6] for line in capfd.readouterr().out.splitlines()[:26_000]] == expected
    assert [line[:6] for line in (handle.logs() or "").splitlines()[:26_000]] == expected
    handle.cleanup()


def test_the_log_of_a_running_job_is_there_at_once() -> None:
    handle = sleep.run_async(5)
    running(handle)
    time.sleep(1)
    assert handle.logs() == "sleeping\n"
    assert handle.result(stream_logs=False) == "awake"


def test_an_evicted_pod_is_replaced_at_no_cost(api: ClusterApi) -> None:
    handle = sleep.run_async(6)
    running(handle)
    (pod,) = pods(api, handle)
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{handle.namespace}/pods/{name}/eviction"
    api._call("POST", path, {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})
    assert handle.result(stream_logs=False, cleanup=False) == "awake"
    assert handle.observe().attempt == 1
    handle.cleanup()


def test_a_bucket_one_may_not_write_to_is_named(emulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"closed-{os.getpid()}"
    body = json.dumps({"name": name, "mode": "forbidden"}).encode()
    urllib.request.urlopen(f"{emulator}/emulator/bucket", body).close()
    monkeypatch.setenv("KINETIC_BUCKET", name)
    with pytest.raises(StoreError, match=rf"in gs://{name}: not permitted .*roles/storage.objectUser"):
        greet("nobody")


@pytest.mark.parametrize("stored", [0, 1, 2], ids=["payload", "handle", "index"])
def test_a_submitter_killed_at_any_step_is_resumed_by_the_next(
    api: ClusterApi, faults: Any, stored: int
) -> None:
    job_id = f"job-{secrets.token_hex(8)}"
    call, options = Call(str, (7,)), RunOptions.checked(accelerator="cpu")
    prepared = prepare(call, options, job_id=job_id)  # the project is stored now
    program = (
        "from kinetic_core.lifecycle.options import RunOptions\n"
        "from kinetic_core.lifecycle.submission import Call, prepare, submit\n"
        f"submit(prepare(Call(str, (7,)), RunOptions.checked(accelerator='cpu'), job_id={job_id!r}))\n"
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
