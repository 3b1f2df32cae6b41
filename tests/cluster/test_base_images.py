"""Base images for `container_image="prebuilt"`: built by the command, used by jobs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.errors import ConfigurationError
from tests.cli.published import PUBLISHED, misfits
from tests.cluster.images import LOCATION, Images
from tests.conftest import Kinetic

pytestmark = [pytest.mark.alone, pytest.mark.google]


@pytest.mark.promise("data: One pipeline for all image modes")
@pytest.mark.promise("data: By accelerator category and Python minor")
@pytest.mark.promise("data: Installed at pod start from a lock, as the user, in a venv")
@pytest.mark.promise("data: Existence and Python minor checked before submission")
@pytest.mark.promise("data: `build_image(...)`, shared with the CLI verb")
@pytest.mark.promise("command: `build-image`: its answer, a build that fails ends with 3 (W65)")
@pytest.mark.promise("command: … of verbs that need a cloud or a debugger")
def test_a_base_image_gets_the_packages_at_the_jobs_start(images: Images, kinetic: Kinetic) -> None:
    repository = f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}"
    options = {"accelerator": "cpu", "container_image": "prebuilt"}
    job = kinetic_core.run(**options, requirements=["cowsay==6.1", "cloudpickle"])

    @job
    def installed() -> tuple[str, bool, str]:
        import os
        import subprocess

        import cloudpickle
        import cowsay

        done = subprocess.run(
            ["python", "-c", "import cowsay, cloudpickle; print('ok')"], capture_output=True
        )
        inside = cloudpickle.__file__.startswith(os.environ["VIRTUAL_ENV"])
        return cowsay.__version__, inside, done.stdout.decode().strip()

    with pytest.raises(ConfigurationError, match=r"no base image .*it has none of that kind.*build_image"):
        installed.run_async()
    told = kinetic(*verb_for(repository, _dockerfile()), "--json")
    assert (told.code, misfits(told.json, PUBLISHED["build-image/1"])) == (0, [])
    assert told.json["images"]["cpu"].startswith(f"{repository}/base-cpu@sha256:")
    assert "cpu: Step #" in told.err
    kind, built = kinetic(*verb_for(repository, _dockerfile())).out.split()  # built anew
    assert (kind, built.startswith(f"{repository}/base-cpu@sha256:")) == ("cpu:", True)
    handle = installed.run_async()
    assert handle.image_uri == built
    assert handle.result(stream_logs=False) == ("6.1", False, "ok")
    impossible = kinetic_core.run(**options, requirements=["no-such-package-anywhere"])(lambda: 1)
    with pytest.raises(kinetic_core.errors.JobMisconfigured, match="no-such-package-anywhere was not found"):
        impossible.run_async().result(stream_logs=False)


def verb_for(repository: str, file: Path) -> list[str]:
    return ["build-image", "--category", "cpu", "--repo", repository, "--dockerfile", str(file)]


@pytest.mark.promise("command: `build-image`: its answer, a build that fails ends with 3 (W65)")
def test_a_base_image_that_cannot_be_built_fails_the_verb(
    images: Images, kinetic: Kinetic, tmp_path: Path
) -> None:
    repository = f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}"
    file = tmp_path / "Dockerfile"
    file.write_text("FROM python:3.11-slim\nRUN echo not today && false\n")
    told = kinetic(*verb_for(repository, file), "--json")
    assert (told.code, told.json["error"]) == (3, "ImageError")
    assert "base-cpu: " in told.json["message"]
    assert "not today" in told.err


def _dockerfile() -> Path:
    return Path(__file__).parent / "Dockerfile.base"


@pytest.mark.promise("data: `build_image(...)`, shared with the CLI verb")
def test_a_base_image_on_docker_hub(images: Images) -> None:
    """The stand-in's registry is every registry; nobody can be asked about a digest there."""
    repo = images.cluster
    built = kinetic_core.build_image(repo, ["cpu"], dockerfile=_dockerfile(), progress=lambda _: None)
    assert built["cpu"].startswith(f"{repo}/base-cpu:")
    options = {"container_image": "prebuilt", "base_image_repo": repo, "requirements": ["cowsay==6.1"]}
    job = kinetic_core.run(accelerator="cpu", **options)(lambda: __import__("cowsay").__version__)
    assert job.run_async().result(stream_logs=False) == "6.1"


@pytest.mark.promise("data: Cache volume (PVC or CSI)")
@pytest.mark.attack
def test_packages_never_come_from_the_cache_volume(images: Images, namespace: str) -> None:
    """The nodes' disk is this machine's: a directory of it is the volume. All pods may write it."""
    repository = f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}"
    kinetic_core.build_image(repository, ["cpu"], dockerfile=_dockerfile(), progress=lambda _: None)
    name, folder = f"{namespace}-wheels", Path("/var/tmp", f"{namespace}-wheels")
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    common = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    volume = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": namespace, "name": "wheels"},
    }
    kubectl("create", {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
    claim = {"name": "wheels", "namespace": namespace}
    kubectl("create", {"kind": "PersistentVolumeClaim", "metadata": claim, "spec": common})
    try:
        options = {"container_image": "prebuilt", "requirements": ["cowsay==6.1"], "cache_volume": "wheels"}
        job = kinetic_core.run(accelerator="cpu", **options)(lambda: __import__("cowsay").__version__)
        assert job.run_async().result(stream_logs=False) == "6.1"
        assert not any("cowsay" in path.name for path in folder.rglob("*"))
    finally:
        kubectl("delete", {"kind": "PersistentVolume", "metadata": {"name": name}})
        shutil.rmtree(folder)


def kubectl(verb: str, body: dict[str, object]) -> None:
    """For kinds that the product never touches."""
    text = json.dumps({"apiVersion": "v1", **body})
    command = ["kubectl", verb, "-f", "-", *(["--wait=false"] if verb == "delete" else [])]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True)


@pytest.mark.promise("data: Custom URI: contract checked at start, clear message")
def test_an_image_without_python_says_so(images: Images) -> None:
    repository = f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}"
    file = Path(__file__).parent / "Dockerfile.nothing"
    built = kinetic_core.build_image(
        repository, ["cpu"], tag="bare", dockerfile=file, progress=lambda _: None
    )
    handle = kinetic_core.run(accelerator="cpu", container_image=built["cpu"])(lambda: 1).run_async()
    with pytest.raises(kinetic_core.errors.JobMisconfigured, match="python3") as caught:
        handle.result(stream_logs=False)
    print(caught.value)
    assert "PATH" in str(caught.value)
