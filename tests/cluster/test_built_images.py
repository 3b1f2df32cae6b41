"""What is in images that are built, and what is said of builds that fail, in a repository of their own."""

from __future__ import annotations

import base64
import gzip
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core._runner.wire import PROTOCOL
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.connections import default_connections
from kinetic_core.errors import ConfigurationError, ImageError
from kinetic_core.images.bundled import Workshop, bundled_image
from kinetic_core.images.dockerfile import Recipe
from kinetic_core.images.frameworks import choose
from kinetic_core.images.requirements import parse_requirements
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.images import ZONE, Images
from tests.cluster.machine import stopped
from tests.cluster.objects import stored

pytestmark = [pytest.mark.alone, pytest.mark.google]
REGISTRY = os.environ.get("TESTCLUSTER_REGISTRY", "http://10.88.0.1:5000")
"""Every registry of the test cluster, as its README says."""
COUNT = 50


def build(images: Images, requirement: str, say: Callable[[str], None]) -> str:
    recipe = Recipe("cpu", choose(parse_requirements([requirement], "requirements", Path()), "cpu"))
    workshop = Workshop.of_cluster(
        default_connections().with_arguments(project="test-project", zone=ZONE, cluster=images.cluster)
    )
    return bundled_image(recipe, workshop, say, default_connections())


@pytest.mark.promise("data: Built by Cloud Build, log streamed, digest pinned")
@pytest.mark.promise("data: Build that fails at step 2")
def test_of_several_steps_the_one_that_failed_is_shown(images: Images) -> None:
    """The base is built first, then its dependencies: the lines of the latter are told. All are while it is
    built, not when it has ended.
    """
    told: list[tuple[float, str]] = []
    with pytest.raises(ImageError, match="in step 'dependencies'") as caught:
        build(images, "no-such-package-anywhere==2", lambda line: told.append((time.monotonic(), line)))
    text = str(caught.value)
    assert "no-such-package-anywhere was not found" in text
    assert "Step #2" in text
    assert "Step #0" not in text
    base, dependencies = (next(at for at, line in told if line.startswith(f"Step #{n}")) for n in (0, 2))
    assert dependencies - base > 1.0, "uv and Python are installed in between"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A `uv.lock` as uv writes it, with hashes."""
    facts = (
        'name = "locked"',
        'version = "0"',
        'requires-python = ">=3.11"',
        'dependencies = ["six==1.16.0"]',
    )
    (tmp_path / "pyproject.toml").write_text("\n".join(("[project]", *facts)))
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "lock", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path / "uv.lock"


@pytest.mark.promise("data: `uv.lock`, `pylock.toml`, PEP 723")
@pytest.mark.promise("data: 50 canaries × images: 0")
def test_no_secret_is_in_an_image(
    images: Images, lock: Path, api: ClusterApi, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submitter has them in its environment while it is built, and its job has them by reference. The
    registry is down for a moment, too.
    """
    values = {f"CANARY_{number}": f"canary-{secrets.token_hex(12)}" for number in range(COUNT)}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
    api.create("Secret", namespace, {"metadata": {"name": "of-the-image"}, "data": encoded})
    references = {name: f"of-the-image/{name}" for name in values}

    @kinetic_core.run(accelerator="cpu", requirements=lock, secrets=references)
    def version() -> tuple[str, int]:
        import os

        import six

        return str(six.__version__), len([name for name in os.environ if name.startswith("CANARY_")])

    with images.fault(match=f"GET .*/kn-{images.cluster}/packages", status=503, times=2):
        handle = version.run_async()
    assert set(images.builds.values()) == {1}
    assert handle.result(stream_logs=False) == ("1.16.0", COUNT)
    seen = [*contents(handle.image_uri), *builds(images)]
    assert any(b"six.py" in content for content in seen), "it was looked where the requirement is"
    for value in values.values():
        forms = (value.encode(), base64.b64encode(value.encode()))
        assert not any(form in content for form in forms for content in seen)


def contents(image_uri: str) -> list[bytes]:
    """Manifest, configuration and layers of an image, unpacked."""
    name, _, digest = image_uri.partition("/")[2].partition("@")

    def get(kind: str, digest: str) -> bytes:
        kinds = (
            "application/vnd.oci.image.manifest.v1+json,application/vnd.docker.distribution.manifest.v2+json"
        )
        request = urllib.request.Request(f"{REGISTRY}/v2/{name}/{kind}/{digest}", headers={"Accept": kinds})
        with urllib.request.urlopen(request) as answer:
            body: bytes = answer.read()
            return body

    manifest = get("manifests", digest)
    described = json.loads(manifest)
    parts = [get("blobs", each["digest"]) for each in (described["config"], *described["layers"])]
    return [manifest, *(gzip.decompress(part) if part[:2] == b"\x1f\x8b" else part for part in parts)]


def builds(images: Images) -> list[bytes]:
    """What the builds left in their bucket."""
    store = GcsObjectStore.at(f"test-project-kn-{images.cluster}-builds")
    found = [store.read(info.name) for info in store.list("")]
    return [gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body for body in found]


@pytest.mark.promise("data: Runner protocol checked before submission")
def test_a_base_image_of_another_protocol_is_refused_first(
    images: Images, location: str, tmp_path: Path
) -> None:
    """The registry is one on this machine, as far as the client can tell: those are asked without TLS."""
    dockerfile = tmp_path / "Dockerfile"
    plain = Path(__file__).with_name("Dockerfile.base").read_text()
    dockerfile.write_text(f"{plain}LABEL dev.kinetic.protocol={PROTOCOL + 1}\n")
    repo = f"{images.cluster}/other"
    kinetic_core.build_image(repo, ["cpu"], dockerfile=dockerfile, progress=lambda _: None)
    before = stored(location, "")
    with FaultProxy(REGISTRY) as near:
        options = {"container_image": "prebuilt", "base_image_repo": f"{near.url.partition('//')[2]}/{repo}"}
        refused = kinetic_core.run(accelerator="cpu", **options)(lambda: 1)
        with pytest.raises(ConfigurationError, match=rf"base-cpu.* for wire protocol {PROTOCOL + 1}, and"):
            refused.run_async()
    assert stored(location, "") == before


SLOW = """
FROM python:3.11-slim
RUN for second in 1 2 3 4 5 6 7 8; do echo second $second; sleep 1; done
"""


@pytest.mark.promise("data: Registry down: at push, at pull, its API")
def test_a_registry_that_is_away_when_a_build_pushes(images: Images, tmp_path: Path) -> None:
    """What could not be pushed is told, with what to do, and the next call builds it again."""
    dockerfile, told = tmp_path / "Dockerfile", list[str]()
    dockerfile.write_text(SLOW)
    repository = Workshop.of_cluster(
        default_connections().with_arguments(project="test-project", zone=ZONE, cluster=images.cluster)
    ).repository.address
    with ExitStack() as meanwhile:

        def say(line: str) -> None:
            if "second 2" in line and not told:
                meanwhile.enter_context(stopped("docker-registry"))
                told.append(line)

        with pytest.raises(ImageError, match="base-cpu: the image was not built") as caught:
            kinetic_core.build_image(repository, ["cpu"], tag="slow", dockerfile=dockerfile, progress=say)
    assert told
    text = str(caught.value)
    assert "refused" in text, "the last lines say what the push met"
    assert "could not be pushed" in text
    assert "artifactregistry.writer" in text
    built = kinetic_core.build_image(
        repository, ["cpu"], tag="slow", dockerfile=dockerfile, progress=lambda _: None
    )
    assert built["cpu"].startswith(f"{repository}/base-cpu@sha256:")
