"""Images for jobs: really built, really pulled, by one build however many clients ask."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.connections import default_connections
from kinetic_core.errors import ConfigurationError, ImageError, InvalidDependencies
from kinetic_core.images.bundled import Workshop, bundled_image
from kinetic_core.images.dockerfile import Recipe
from kinetic_core.images.frameworks import choose
from kinetic_core.images.requirements import parse_requirements
from kinetic_core.store.gcs import GcsObjectStore
from tests.cluster.images import GOOGLE, LOCATION, REGION, ZONE, Images, own_images

pytestmark = [pytest.mark.alone, pytest.mark.google]


@pytest.fixture(scope="module")
def own_repository() -> Iterator[Images]:
    """One where this process's environment leads, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in GOOGLE.items():
            patch.setenv(name, value)
        with own_images() as images:
            yield images


def recipe(*requirements: str) -> Recipe:
    return Recipe("cpu", choose(parse_requirements(requirements, "requirements", Path()), "cpu"))


def build(images: Images, *requirements: str) -> tuple[str, list[str]]:
    """The image with these requirements, and what was told meanwhile."""
    told: list[str] = []
    workshop = Workshop.of_cluster(
        default_connections().with_arguments(project="test-project", zone=ZONE, cluster=images.cluster)
    )
    return bundled_image(recipe(*requirements), workshop, told.append, default_connections()), told


def address(images: Images, *requirements: str) -> str:
    return Workshop.of_cluster(
        default_connections().with_arguments(project="test-project", zone=ZONE, cluster=images.cluster)
    ).address(recipe(*requirements).tag)


PROGRAM = f"""
import sys
from tests.cluster.test_images import Workshop, bundled_image, default_connections, recipe
connections = default_connections().with_arguments(
    project="test-project", zone={ZONE!r}, cluster=sys.argv[1]
)
workshop = Workshop.of_cluster(connections)
print(bundled_image(recipe(sys.argv[2]), workshop, lambda line: print(line, flush=True), connections))
"""


@kinetic_core.run(accelerator="cpu", requirements=["six==1.17.0"])
def imported() -> tuple[str, str]:
    import os

    import six

    return six.__version__, os.environ["KERAS_BACKEND"]


@pytest.mark.promise("data: One pipeline for all image modes")
@pytest.mark.promise("data: jax by default, overridable")
@pytest.mark.promise("data: Built by Cloud Build, log streamed, digest pinned")
@pytest.mark.promise("data: No Docker on the client; the client is not installed in pods")
@pytest.mark.promise("data: Warm bundled submit: ≤ 2 more requests")
def test_a_job_runs_in_the_image_built_for_it(images: Images) -> None:
    handle = imported.run_async()
    assert handle.image_uri.startswith(
        f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}/base@sha256:"
    )
    assert handle.result(stream_logs=False) == ("1.17.0", "jax")
    before = images.builds, images.requests
    again = imported.run_async()
    assert again.image_uri == handle.image_uri
    assert images.builds == before[0]
    assert images.requests - before[1] <= 2
    again.cancel()


@pytest.mark.promise("data: `-e` and local paths refused with the line, before building")
def test_what_cannot_be_installed_is_refused_before_a_build(images: Images) -> None:
    before = images.requests
    with pytest.raises(InvalidDependencies, match=r"requirements:1: '\.' is a path"):
        kinetic_core.run(accelerator="cpu", requirements=["-e ."])(imported.__wrapped__).run_async()
    assert images.requests == before


@pytest.mark.promise("data: Failure shows the step's last lines and what to change")
def test_a_build_that_fails_says_where_and_why(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-of-the-submitter")
    with pytest.raises(ImageError, match="in step 'dependencies'") as caught:
        build(images, "no-such-package-anywhere==1")
    assert "no-such-package-anywhere was not found" in str(caught.value)
    assert "change the requirement" in str(caught.value)
    store = GcsObjectStore.at(f"test-project-kn-{images.cluster}-builds")
    kept = {info.name: store.read(info.name) for info in store.list("")}
    sources = [gzip.decompress(body) for name, body in kept.items() if name.startswith("source/")]
    assert any(b"no-such-package-anywhere" in source for source in sources)
    assert not any(b"canary-of-the-submitter" in body for body in [*kept.values(), *sources])


@pytest.mark.promise("data: Build service 429, 503, lost reply")
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("attrs", {"status": 429}),
        ("attrs>20", {"status": 503}),
        ("attrs>21", {"drop": True}),
        ("attrs>22", {"drop": "before"}),
    ],
)
def test_the_build_service_is_ill(images: Images, name: str, fault: dict[str, object]) -> None:
    with images.fault(match=f"POST .*/{REGION}/builds$", **fault):
        uri, told = build(images, name)
    assert "@sha256:" in uri
    assert any("Installed" in line for line in told)
    assert (
        images.builds[
            Workshop.of_cluster(
                default_connections().with_arguments(
                    project="test-project", zone=ZONE, cluster=images.cluster
                )
            ).address(recipe(name).tag)
        ]
        == 1
    )


@pytest.mark.promise("data: Registry down: at push, at pull, its API")
def test_the_registry_refuses(images: Images) -> None:
    with (
        images.fault(match=f"GET .*/kn-{images.cluster}/packages", status=403, message="denied"),
        pytest.raises(ConfigurationError, match=r"HTTP 403: denied.*guides/images\.md"),
    ):
        build(images, "idna")


def test_there_is_no_repository(images: Images) -> None:
    with pytest.raises(ConfigurationError, match="gcloud artifacts repositories create kn-nowhere"):
        bundled_image(
            recipe("idna"),
            Workshop.of_cluster(
                default_connections().with_arguments(project="test-project", zone=ZONE, cluster="nowhere")
            ),
            print,
            default_connections(),
        )


def test_there_is_no_bucket_for_builds(images: Images) -> None:
    place = Workshop.of_cluster(
        default_connections().with_arguments(project="test-project", zone=ZONE, cluster=images.cluster)
    )
    store = GcsObjectStore.at("test-project-kn-nowhere-builds")
    with pytest.raises(
        ConfigurationError, match="gcloud storage buckets create gs://test-project-kn-nowhere"
    ):
        bundled_image(recipe("idna"), replace(place, store=store), print, default_connections())


@pytest.mark.promise("data: Single flight across threads, processes, machines")
def test_a_builder_that_is_killed_leaves_its_build_to_others(images: Images) -> None:
    requirement = "six!=0.0.1"
    builder = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, images.cluster, requirement], stdout=subprocess.PIPE, text=True
    )
    assert builder.stdout is not None
    for line in builder.stdout:
        if "building the image" in line:
            break
    builder.kill()
    builder.wait()
    builder.stdout.close()
    uri, told = build(images, requirement)
    assert "@sha256:" in uri
    assert images.builds[address(images, requirement)] == 1
    assert told == [] or "somebody builds this image already" in told[0]


@pytest.mark.promise("data: Single flight across threads, processes, machines")
@pytest.mark.promise("data: Two clients racing on a cold image")
@pytest.mark.promise("data: Cold image, 8 threads and 4 processes: 1 build")
def test_many_clients_make_one_build(images: Images) -> None:
    """Eight threads and four processes; the first is slow to start its build, so that all others see it."""
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(build(images, "toolz")[0])) for _ in range(8)]
    with images.fault(match=f"POST .*/{REGION}/builds$", delay=4):
        others = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, images.cluster, "toolz"], stdout=subprocess.PIPE, text=True
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        found += [process.communicate()[0].splitlines()[-1] for process in others]
        for thread in threads:
            thread.join()
    assert len(found) == 12
    assert len(set(found)) == 1
    assert images.builds[address(images, "toolz")] == 1
