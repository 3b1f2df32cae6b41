"""What keras-kinetic documents of pods, images and hardware, through `kinetic_core.compat`, on a cluster."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.compat.credentials import ensure_credentials
from kinetic_core.compat.job_status import JobStatus
from kinetic_core.store.gcs import GcsObjectStore
from tests.cluster.conftest import KUBECONFIG
from tests.cluster.images import LOCATION, Images
from tests.cluster.jobs import pods
from tests.cluster.machine import NODES, relabelled
from tests.conftest import Kinetic, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gke")]
on_cpu = kinetic.run(accelerator="cpu")


@on_cpu
def tell(*names: str) -> dict[str, str | None]:
    print("told", flush=True)
    return {name: os.environ.get(name) for name in names}


@on_cpu
def leave(code: int) -> None:
    print("leaving at once", flush=True)
    os._exit(code)


@on_cpu
def write(path: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("x")


def test_the_object_of_a_job(api: ClusterApi) -> None:
    handle = tell.run_async("JOB_ID")
    job: Any = api.get("Job", handle.namespace, handle.k8s_name)
    labels = job["metadata"]["labels"]
    assert (labels["app"], labels["job-id"]) == ("kinetic", handle.job_id)
    (pod,) = wait_for_pods(api, handle)
    assert pod["metadata"]["labels"]["job-id"] == handle.job_id
    assert pod["spec"]["restartPolicy"] == "Never"
    names = {one["name"] for one in pod["spec"]["containers"][0]["env"]}
    assert {"JOB_ID", "GCS_BUCKET"} <= names
    assert handle.result(timeout=300) == {"JOB_ID": handle.job_id}
    assert api.get("Job", handle.namespace, handle.k8s_name) is None


def wait_for_pods(api: ClusterApi, handle: kinetic.JobHandle) -> list[dict[str, Any]]:
    wait_for(lambda: pods(api, handle), 60)
    return pods(api, handle)


@pytest.mark.parametrize(
    ("accelerator", "spot", "platforms"),
    [("l4", True, "cuda"), ("gpu-nvidia-l4:spot", False, "cuda"), ("tpu-v5e-2x2", False, "tpu,cpu")],
)
def test_a_job_lands_on_its_accelerator(
    api: ClusterApi, accelerator: str, spot: bool, platforms: str
) -> None:
    handle = kinetic.run(accelerator=accelerator, spot=spot)(tell.function).run_async("JAX_PLATFORMS")
    (pod,) = wait_for_pods(api, handle)
    asked = parse_accelerator(f"{accelerator}:spot" if spot else accelerator)
    assert asked.node_selector().items() <= pod["spec"]["nodeSelector"].items()
    assert asked.device_resources().items() <= pod["spec"]["containers"][0]["resources"]["limits"].items()
    assert handle.result(timeout=300, cleanup=False) == {"JAX_PLATFORMS": platforms}
    assert "kinetic: asked for" in (handle.logs() or ""), "these nodes have no devices, and the log says so"
    handle.cleanup()


def test_a_value_outlives_the_kubernetes_object(api: ClusterApi) -> None:
    handle = tell.run_async("JOB_ID")
    wait_for(lambda: handle.status() is JobStatus.SUCCEEDED, 120)
    api.delete("Job", handle.namespace, handle.k8s_name)
    wait_for(lambda: handle.status() is JobStatus.NOT_FOUND, 60)
    assert handle.job_id not in [job.job_id for job in kinetic.list_jobs()]
    assert kinetic.attach(handle.job_id).result(timeout=60) == {"JOB_ID": handle.job_id}


def test_a_process_that_just_ends_is_told_by_its_code() -> None:
    handle = leave.run_async(7)
    with pytest.raises(RuntimeError, match="7") as caught:
        handle.result(timeout=300)
    assert handle.job_id in str(caught.value) + "".join(getattr(caught.value, "__notes__", ()))
    handle.cleanup()


def test_an_image_that_cannot_be_pulled_is_named() -> None:
    handle = kinetic.run(accelerator="cpu", container_image="localhost/none/such:1")(
        tell.function
    ).run_async()
    with pytest.raises(RuntimeError, match="localhost/none/such:1"):
        handle.result(timeout=300)
    handle.cleanup()


def test_where_a_pod_may_not_write_it_is_told_where_it_may() -> None:
    handle = write.run_async("/data/out.txt")
    with pytest.raises(PermissionError) as caught:
        handle.result(timeout=300)
    told = "".join(caught.value.__notes__)
    assert "user 1000" in told
    assert "run_as_root=True" in told
    handle.cleanup()
    assert (
        kinetic.run(accelerator="cpu", volumes={"/data": kinetic.Data(__file__)})(write.function)(
            "/data/out.txt"
        )
        is None
    )


def test_data_of_a_bucket_is_copied_or_mounted(location: str, tmp_path: Path) -> None:
    store = GcsObjectStore.at(f"{location}/theirs-{secrets.token_hex(4)}")
    for name in ("set/a.txt", "set/b.txt", "weights.h5"):
        store.create_if_absent(name, name.encode())
    (tmp_path / "here").mkdir()
    (tmp_path / "here/own.txt").write_text("own")
    mounted = kinetic.Data(f"{store.uri}/set/", fuse=True)

    @kinetic.run(accelerator="cpu", volumes={"/mounted": mounted})
    def look(folder: str, one: str, fused: str, own: str, pair: tuple[str, dict[str, str]]) -> list[Any]:
        def names(path: str) -> list[str]:
            return sorted(each.name for each in Path(path).iterdir())

        return [
            names(folder),
            Path(one).read_text(),
            names(fused),
            names(own),
            names("/mounted"),
            os.access("/mounted", os.W_OK),
            (pair[0] == folder, names(pair[1]["again"])),
        ]

    folder = kinetic.Data(f"{store.uri}/set/")
    both = ["a.txt", "b.txt"]
    assert look(
        folder,
        kinetic.Data(f"{store.uri}/weights.h5"),
        mounted,
        kinetic.Data(str(tmp_path / "here"), fuse=True),
        (folder, {"again": folder}),
    ) == [both, "weights.h5", both, ["own.txt"], both, False, (True, both)]


def test_the_command_sees_the_same_jobs(request: pytest.FixtureRequest) -> None:
    command: Kinetic = request.getfixturevalue("kinetic")
    handle = tell.run_async()
    wait_for(lambda: handle.status() is JobStatus.SUCCEEDED, 120)
    assert command("jobs", "status", handle.job_id).out.startswith(f"{handle.job_id}: SUCCEEDED")
    assert handle.job_id in command("jobs", "list").out
    assert "told" in command("jobs", "logs", handle.job_id, "--tail", "5").out
    assert command("jobs", "logs", handle.job_id, "-f", "-n", "1").code == 2
    assert command("jobs", "result", handle.job_id, "--no-cleanup", "--timeout", "60").out == "{}\n"
    assert command("jobs", "cancel", handle.job_id, "--cleanup-timeout", "5").code == 0
    assert command("jobs", "cleanup", handle.job_id, "--k8s", "--gcs").code == 0
    assert handle.status() is JobStatus.NOT_FOUND


def test_a_debugged_job_is_attached_to_and_kept() -> None:
    handle = kinetic.run(accelerator="cpu", debug=True)(tell.function).run_async()
    assert handle.debug
    session = handle.debug_attach(0)
    assert session.poll() is None
    kinetic.debug.cleanup_port_forward(session)
    assert session.poll() is not None
    assert handle.status() is JobStatus.RUNNING
    handle.cleanup()


@pytest.mark.alone
@pytest.mark.google
def test_credentials_are_a_token(google: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No gcloud is there to be run, and the kubeconfig stays as it was."""
    before = Path(KUBECONFIG).read_bytes()
    monkeypatch.setenv("PATH", "")
    ensure_credentials("test-project", "us-central1-a", "kinetic-cluster")
    assert Path(KUBECONFIG).read_bytes() == before


PROJECT = {
    "requirements.txt": "six==1.17.0\njax==0.4.0\n",
    "compat_training.py": (
        "import kinetic_core.compat as kinetic\n\n\n"
        "@kinetic.run(accelerator='tpu-v5e-1')\ndef double(number):\n    return 2 * number\n"
    ),
    "compat_work.py": (
        "def work():\n"
        "    import importlib.util\n\n"
        "    import kinetic_core\n"
        "    from compat_training import double\n\n"
        "    six = importlib.util.find_spec('six') and __import__('six').__version__\n"
        "    return double(4), kinetic_core.__version__, six\n"
    ),
}


@pytest.mark.alone
@pytest.mark.google
@pytest.mark.promise("data: One pipeline for all image modes")
@pytest.mark.parametrize("mode", ["bundled", "prebuilt", "custom"])
def test_the_package_can_be_imported_in_every_image(
    mode: str, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decorated function of another module runs in place; a requirement is installed unless the image is
    the user's.
    """
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    import compat_work  # type: ignore[import-not-found]

    repository = f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}"
    options: dict[str, Any] = {"container_image": mode}
    if mode == "prebuilt":
        file = Path(__file__).with_name("Dockerfile.base")
        from kinetic_core import build_image

        build_image(repository, ["cpu"], dockerfile=file, progress=lambda _: None)
        options["base_image_repo"] = repository
    elif mode == "custom":
        options["container_image"] = "python:3.11-slim"
    try:
        handle = kinetic.run(accelerator="cpu", **options)(compat_work.work).run_async()
        assert (handle.image_uri == "python:3.11-slim") is (mode == "custom")
        doubled, version, six = handle.result(timeout=300)
    finally:
        for name in ("compat_work", "compat_training"):
            sys.modules.pop(name, None)
    assert (doubled, version) == (8, kinetic.__version__)
    assert six == "1.17.0" or mode == "custom"


@pytest.mark.alone
@pytest.mark.slices
def test_a_set_of_one_host_is_a_smoke_test(api: ClusterApi) -> None:
    handle = kinetic.run(accelerator="tpu-v5e-4", backend="pathways")(tell.function).run_async(
        "TPU_WORKER_ID", "KINETIC_ACCELERATOR", "MEGASCALE_NUM_SLICES"
    )
    assert (handle.backend, handle.k8s_name) == ("pathways", f"kinetic-{handle.job_id}")
    (pod,) = wait_for_pods(api, handle)
    assert pod["metadata"]["labels"]["app"] == "kinetic"
    assert handle.result(timeout=300) == {
        "TPU_WORKER_ID": "0",
        "KINETIC_ACCELERATOR": "tpu-v5e-4",
        "MEGASCALE_NUM_SLICES": None,
    }


@pytest.mark.alone
@pytest.mark.slices
def test_a_name_means_what_the_cluster_has(api: ClusterApi) -> None:
    """The two hosts of a slice play a pool that keras-kinetic made; without one the name is one host."""
    on_eight = kinetic.run(accelerator="v6e-8", backend="gke")(tell.function)
    waiting = on_eight.run_async()
    assert waiting.accelerator == "tpu-v6e-8"
    waiting.cleanup()
    with relabelled(api, NODES, "tpu-v6e-8-4t"):
        handle = on_eight.run_async("KINETIC_ACCELERATOR", "TPU_WORKER_HOSTNAMES")
        job: Any = api.get("Job", handle.namespace, handle.k8s_name)
        meant = job["metadata"]["annotations"]["kinetic.dev/hardware"]
        told = handle.result(timeout=300)
    assert meant == parse_accelerator("tpu-v6e-8-4t").describe()
    assert told["KINETIC_ACCELERATOR"] == handle.accelerator == "tpu-v6e-8-4t"
    assert len((told["TPU_WORKER_HOSTNAMES"] or "").split(",")) == 2
