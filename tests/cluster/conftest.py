"""A namespace and a bucket prefix of the test run's own, on a real cluster."""

from __future__ import annotations

import gc
import json
import os
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.client import default_client
from kinetic_core.connections import default_connections
from kinetic_core.google_cloud import credentials
from kinetic_core.testing import make_queue
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.images import GOOGLE, Images, own_images
from tests.cluster.objects import kubectl
from tests.conftest import Kinetic

KUBECONFIG = os.environ.get("KUBECONFIG", "")
IMAGE = os.environ.get("KINETIC_TEST_IMAGE", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def api() -> ClusterApi:
    """The cluster as its administrator; skips where there is none."""
    if not KUBECONFIG or not IMAGE:
        pytest.skip(
            "no KUBECONFIG and KINETIC_TEST_IMAGE: start ../shared/cluster/testcluster and eval its env"
        )
    version = ".".join(map(str, sys.version_info[:2]))
    if not IMAGE.endswith(f":{version}"):
        pytest.skip(f"{IMAGE} has another Python than {version}, which a job would refuse")
    return ClusterApi(Target(KUBECONFIG))


@pytest.fixture(scope="session")
def namespace(api: ClusterApi) -> Iterator[str]:
    """A namespace in which only what passes the *restricted* Pod Security level may run."""
    name = f"kinetic-test-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create("Namespace", "", {"metadata": {"name": name, "labels": labels}})
    for queue in ("research", "nobody", "nobody-starts-it"):
        make_queue(api, name, queue)
    yield name
    api.delete("Namespace", "", name)


@pytest.fixture(scope="session")
def location() -> str:
    return f"test-bucket/{secrets.token_hex(4)}"


@pytest.fixture
def gke(
    api: ClusterApi, namespace: str, location: str, emulator: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The settings of a user of this cluster."""
    settings = {
        "KINETIC_BACKEND": "gke",
        "KINETIC_KUBECONFIG": KUBECONFIG,
        "KINETIC_BUCKET": location,
        "KINETIC_CONTAINER_IMAGE": IMAGE,
        "KINETIC_NAMESPACE": namespace,
        "KINETIC_PACKAGE_ROOT": str(Path(__file__).parent),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


@pytest.fixture
def google(gke: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The settings of somebody with a GKE cluster; a control of the stand-in for Google's APIs."""
    if "GOOGLE_CLOUD_PROJECT" not in GOOGLE:
        pytest.skip("no stand-in for Google's APIs: eval the testcluster's env")
    monkeypatch.delenv("KINETIC_KUBECONFIG")
    for name, value in GOOGLE.items():
        monkeypatch.setenv(name, value)
    base = GOOGLE["CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER"].rstrip("/")

    def control(path: str, **body: Any) -> None:
        data = json.dumps(body).encode()
        urllib.request.urlopen(f"{base}/emulator/{path}", data).close()

    default_client().close()
    good = credentials(default_connections(), None).token()
    default_client().close()
    yield control
    control("token", access_token=good, expires_in=3599)
    default_client().close()
    gc.collect()  # else what the client leaked is found in another test


@pytest.fixture(scope="module")
def own_repository() -> Iterator[Images]:
    """A repository of a module's own in which nothing is, not even a base image."""
    with own_images() as images:
        yield images


@pytest.fixture
def images(gke: dict[str, str], own_repository: Images, monkeypatch: pytest.MonkeyPatch) -> Images:
    """The settings of somebody whose images are built there."""
    return own_repository.use(monkeypatch)


@pytest.fixture
def faults(emulator: str) -> Iterator[Any]:
    """Script faults of the Cloud Storage emulator: `faults(match="...", status=503, times=2)`.

    Without arguments, the rules and how often each was hit. Every rule must have been hit in the end.
    """

    def send(method: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{emulator}/emulator/faults", data, method=method)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    yield lambda **rule: send("POST", rule) if rule else send("GET")
    rules = send("GET")
    send("DELETE")
    assert [rule for rule in rules if not rule["hits"]] == []


@pytest.fixture
def store_proxy(gke: dict[str, str], emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Between everybody, pods too, and a store in which nothing is kept yet."""
    host = str(urlsplit(emulator).hostname)
    with FaultProxy(emulator, host=host) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        monkeypatch.setenv("KINETIC_BUCKET", f"test-bucket/faults-{secrets.token_hex(4)}")
        yield proxy
        gc.collect()  # else what the client leaked is found in another test
    assert proxy.faults.unmet == ()


@pytest.fixture
def api_proxy(gke: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Between this process and the API server."""
    with FaultProxy.to_cluster(Target(KUBECONFIG)) as proxy:
        kubeconfig = proxy.write_kubeconfig(tmp_path / "kubeconfig")
        monkeypatch.setenv("KINETIC_KUBECONFIG", str(kubeconfig))
        yield proxy
        assert proxy.faults.unmet == ()


@pytest.fixture
def place(
    request: pytest.FixtureRequest, google: Any, monkeypatch: pytest.MonkeyPatch, kinetic: Kinetic
) -> Iterator[dict[str, str]]:
    """An empty project (or the one that is the parameter), and names for a cluster and a namespace in it;
    nothing of it stays.
    """
    mark = secrets.token_hex(3)
    project = getattr(request, "param", f"prov-{mark}")
    names = {"PROJECT": project, "CLUSTER": f"c-{mark}", "NAMESPACE": f"prov-{mark}"}
    names["ZONE"] = "us-central1-a"
    monkeypatch.delenv("KINETIC_BUCKET")
    for name, value in names.items():
        monkeypatch.setenv(f"KINETIC_{name}", value)
    # The stand-in has no Compute Engine: nothing answers there, so machine types are not looked at.
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "http://127.0.0.1:9/")
    yield names
    kinetic("down", "--yes")


@pytest.fixture
def claim(namespace: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A PersistentVolumeClaim bound to a directory of this machine, whose kubelets are the nodes'."""
    name = f"cache-{secrets.token_hex(4)}"
    folder = Path("/var/tmp") / name
    folder.mkdir()
    small = getattr(request, "param", None)
    if small is not None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={small}", "tmpfs", str(folder)], check=True)
    folder.chmod(0o777)
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    reference = {"namespace": namespace, "name": name}
    volume = {"capacity": size, "hostPath": {"path": str(folder)}, "claimRef": reference, **common}
    claimed = {"resources": {"requests": size}, "volumeName": name, **common}
    for kind, metadata, spec in (
        ("PersistentVolume", {"name": name}, volume),
        ("PersistentVolumeClaim", {"name": name, "namespace": namespace}, claimed),
    ):
        kubectl(
            "create", "-f", "-", given={"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
        )
    yield name
    delete = ["kubectl", "delete", "--wait=false"]
    subprocess.run([*delete, "-n", namespace, "pvc", name], check=True)
    subprocess.run([*delete, "pv", name], check=True)
    if small is not None:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    shutil.rmtree(folder)
