"""What keras-kinetic promises of a submission, its objects and its log when something fails, on a cluster."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.errors import ConfigurationError
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.objects import stored
from tests.conftest import wait_for
from tests.hugging_face import FakeHub

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gke")]
LINES = [f"line {number}" for number in range(100)]
on_cpu = kinetic.run(accelerator="cpu")
later = kinetic.run(accelerator="cpu", queue="nobody-starts-it")


def work(seconds: float = 0.0) -> str:
    for number in range(100):
        print(f"line {number}", flush=True)
        time.sleep(seconds / 100)
    return "done"


def names(*folders: str) -> list[list[str]]:
    return [sorted(path.name for path in Path(folder).iterdir()) for folder in folders]


def start(api: ClusterApi, handle: kinetic.JobHandle) -> None:
    """Let a job run that waits in a queue which nobody serves."""
    api.patch("Job", handle.namespace, handle.k8s_name, {"spec": {"suspend": False}})


def jobs_of(api: ClusterApi, handle: kinetic.JobHandle) -> list[Any]:
    found: list[Any] = api.list("Job", handle.namespace, {"labelSelector": f"{JOB_ID}={handle.job_id}"})[
        "items"
    ]
    return found


def test_a_create_whose_answer_is_lost_is_the_job_that_exists(api: ClusterApi, api_proxy: FaultProxy) -> None:
    api_proxy.faults.lose_reply("POST .*/jobs$")
    handle = on_cpu(work).run_async()
    assert len(jobs_of(api, handle)) == 1
    assert handle.result(timeout=300) == "done"
    assert jobs_of(api, handle) == []


def test_of_a_submission_that_fails_nothing_is_left(location: str) -> None:
    on_cpu(work).run_async().cleanup()  # what all jobs share is stored
    before = stored(location, "")
    with pytest.raises(ConfigurationError, match="no namespace 'nowhere'"):
        kinetic.run(accelerator="cpu", namespace="nowhere")(work).run_async()
    assert stored(location, "") == before


def test_a_value_is_not_lost_because_cleaning_up_fails(
    api_proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    handle = on_cpu(work).run_async()
    api_proxy.faults.answer("DELETE .*/jobs", 403, times=None)
    assert handle.result(timeout=300) == "done"
    assert f"cleaning up after {handle.job_id}" in caplog.text
    api_proxy.faults.clear()
    handle.cleanup()


def test_refusals_of_the_api_server_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who may see the namespace, and not create jobs in it."""
    monkeypatch.setenv("KINETIC_KUBECONFIG", os.environ["KINETIC_KUBECONFIG"].replace("admin", "developer"))
    with pytest.raises(ConfigurationError, match="may not create jobs in namespace"):
        on_cpu(work).run_async()


def test_the_handle_is_stored_before_the_object_is_made(
    api: ClusterApi, api_proxy: FaultProxy, location: str
) -> None:
    def handles() -> set[str]:
        return {name for name in stored(location, "jobs/") if name.endswith("/handle.json")}

    before = handles()
    api_proxy.faults.delay("POST .*/jobs$", 3)
    submitted: list[kinetic.JobHandle] = []
    thread = threading.Thread(target=lambda: submitted.append(on_cpu(work).run_async()))
    thread.start()
    wait_for(lambda: api_proxy.faults.count("POST .*/jobs$"), 60)
    (name,) = handles() - before
    job_id = name.split("/")[1]
    assert kinetic.attach(job_id).job_id == job_id
    thread.join()
    (handle,) = submitted
    assert handle.job_id == job_id
    handle.cleanup()


def test_a_log_is_followed_through_a_breaking_connection(
    api_proxy: FaultProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    api_proxy.faults.cut_reply("GET .*/log", 300, times=2)
    assert on_cpu(work).run_async(4.0).result(timeout=300, stream_logs=True) == "done"
    assert [line for line in capfd.readouterr().out.splitlines() if line.startswith("line")] == LINES


def test_a_payload_that_was_changed_is_not_loaded(api: ClusterApi) -> None:
    handle = later(work).run_async()
    store = handle.place.store
    (name,) = (info.name for info in store.list(f"jobs/{handle.job_id}/payload-"))
    content = store.read(name)
    store.delete(name)
    store.create_if_absent(name, content[:-1] + bytes([content[-1] ^ 1]))
    start(api, handle)
    with pytest.raises(RuntimeError, match="not the one this job was submitted with"):
        handle.result(timeout=300)
    handle.cleanup()


def test_data_that_went_away_is_named(api: ClusterApi, location: str) -> None:
    store = GcsObjectStore.at(f"{location}/theirs-{secrets.token_hex(4)}")
    store.create_if_absent("weights.h5", b"w")
    handle = later(names).run_async(kinetic.Data(f"{store.uri}/weights.h5"))
    store.delete("weights.h5")
    start(api, handle)
    with pytest.raises(RuntimeError, match=r"weights\.h5 is not there"):
        handle.result(timeout=300)
    handle.cleanup()


def test_data_that_a_lifecycle_rule_removed_is_stored_again(location: str, tmp_path: Path) -> None:
    (tmp_path / "unique.txt").write_text(secrets.token_hex(50))
    on_cpu(names).run_async().cleanup()
    before = set(stored(location, "packs/"))
    assert on_cpu(names)(kinetic.Data(str(tmp_path))) == [["unique.txt"]]
    (pack,) = set(stored(location, "packs/")) - before
    GcsObjectStore.at(location).delete(pack)
    assert on_cpu(names)(kinetic.Data(str(tmp_path))) == [["unique.txt"]]
    assert pack in stored(location, "packs/")


def leave(content: bytes) -> None:
    """Write an object below the output directory, as a checkpoint library does."""
    import urllib.parse
    import urllib.request

    bucket, _, prefix = os.environ["KINETIC_OUTPUT_DIR"].removeprefix("gs://").partition("/")
    query = urllib.parse.urlencode({"uploadType": "media", "name": f"{prefix}/model"})
    address = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/{bucket}/o?{query}"
    urllib.request.urlopen(address, content).close()


def test_outputs_stay_when_the_job_is_collected_and_removed(location: str) -> None:
    handle = on_cpu(leave).run_async(b"weights")
    handle.result(timeout=300)
    handle.cleanup()
    assert stored(location, f"jobs/{handle.job_id}/") == []
    assert GcsObjectStore.at(location).read(f"outputs/{handle.job_id}/model") == b"weights"


def test_a_dataset_without_its_library_says_what_to_add(
    emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"main": {"README.md": b"# set"}, "refs/convert/parquet": {"d/train/0000.parquet": b"PAR1"}}
    with FakeHub({"acme/set": files}, host=str(urlsplit(emulator).hostname)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        handle = on_cpu(names).run_async(kinetic.Data("hf://acme/set"))
        with pytest.raises(RuntimeError, match="no package 'datasets': add it to the requirements"):
            handle.result(timeout=300)
        handle.cleanup()


@pytest.mark.parametrize("fuse", ["dir", "file", "volume"])
def test_a_mounted_bucket_is_in_the_manifest(
    fuse: str, api: ClusterApi, location: str, request: pytest.FixtureRequest
) -> None:
    """Driver, bucket, prefix, read-only, and the annotation that GKE puts its sidecar in for."""
    store = GcsObjectStore.at(f"{location}/theirs-{secrets.token_hex(4)}")
    store.create_if_absent("set/a,b.txt", b"a")
    folder = kinetic.Data(f"{store.uri}/set/", fuse=True)
    asked: dict[str, Callable[[], kinetic.JobHandle]] = {
        "dir": lambda: later(names).run_async(folder),
        "file": lambda: later(names).run_async(kinetic.Data(f"{store.uri}/set/a,b.txt", fuse=True)),
        "volume": lambda: kinetic.run(
            accelerator="cpu", queue="nobody-starts-it", volumes={"/mnt/set": folder}
        )(names).run_async(),
    }
    handle = asked[fuse]()
    request.addfinalizer(handle.cleanup)
    job: Any = api.get("Job", handle.namespace, handle.k8s_name)
    pod = job["spec"]["template"]
    assert pod["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    (volume,) = (each for each in pod["spec"]["volumes"] if "csi" in each)
    attributes = volume["csi"]["volumeAttributes"]
    bucket, _, prefix = store.uri.removeprefix("gs://").partition("/")
    assert (volume["csi"]["driver"], attributes["bucketName"]) == ("gcsfuse.csi.storage.gke.io", bucket)
    assert f"only-dir={prefix}/set" in attributes["mountOptions"]
    (mount,) = (
        each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["name"] == volume["name"]
    )
    assert mount["readOnly"]
    assert mount["mountPath"] == "/mnt/set" or fuse != "volume"
