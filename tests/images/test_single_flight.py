"""One build for one image, whoever dies on the way. The real services are in tests/cluster/test_images.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.connections import default_connections
from kinetic_core.errors import ConfigurationError, ImageBuilding, ImageError, StoreRefused
from kinetic_core.images.bundled import Workshop, bundled_image
from kinetic_core.images.cloud_build import CloudBuild, Following
from kinetic_core.images.dockerfile import Recipe
from kinetic_core.images.frameworks import choose
from kinetic_core.images.registry import PATIENCE, GoogleApi, Repository, region_of
from kinetic_core.images.requirements import parse_requirements
from kinetic_core.store.protocol import ObjectStore
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.google_project import FakeGoogle

_numbers = itertools.count()


def recipe(*requirements: str) -> Recipe:
    return Recipe("cpu", choose(parse_requirements(requirements, "requirements", Path()), "cpu"))


class Clock:
    """Time that passes only while somebody sleeps; `at` runs once its moment has come."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: list[tuple[float, Callable[[], object]]] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for due in [entry for entry in self.at if entry[0] <= self.now]:
            self.at.remove(due)
            due[1]()

    def __call__(self) -> float:
        return self.now


def workshop(google: FakeGoogle, store: ObjectStore | None = None, clock: Clock | None = None) -> Workshop:
    """A client of its own: nothing but the services and the store is shared with others."""
    clock = clock or Clock()
    store = store or MemoryObjectStore()
    api = GoogleApi("cloudbuild", default_connections(), google.ask, clock.sleep, clock)
    builds = CloudBuild(api, "p", "us-central1", store)
    repository = Repository("p", "us", f"kn-{next(_numbers)}")
    return Workshop(
        repository,
        builds,
        GoogleApi("artifactregistry", default_connections(), google.ask, clock.sleep, clock),
        store,
        "a",
    )


def built(google: FakeGoogle, where: Workshop, *requirements: str) -> str:
    return bundled_image(recipe(*requirements), where, lambda _: None, default_connections()).partition("@")[
        2
    ]


def test_built_once_then_found() -> None:
    google = FakeGoogle()
    first = workshop(google)
    digest = built(google, first, "six")
    assert digest == built(google, workshop(google, first.store), "six")
    assert len(google.builds) == 1
    assert [info.name for info in first.store.list("source/")] == []


def test_a_log_that_may_not_be_read_fails_no_build() -> None:
    def closed(operation: str, name: str) -> None:
        if operation == "read" and name.startswith("log-"):
            raise ConfigurationError("403: the reader may not")

    google = FakeGoogle()
    assert built(google, workshop(google, MemoryObjectStore(fault=closed)), "six")


def test_a_source_that_may_not_be_deleted_fails_no_build(caplog: pytest.LogCaptureFixture) -> None:
    def closed(operation: str, name: str) -> None:
        if operation == "delete":
            raise StoreRefused(f"403: {name} may not be deleted")

    google, store = FakeGoogle(), MemoryObjectStore(fault=closed)
    assert built(google, workshop(google, store), "six").startswith("sha256:")
    (source,) = (info.name for info in store.list("source/"))
    assert f"the source of build build-1 stays in {store.uri}: 403: {source} may not be" in caplog.text


def test_who_does_not_want_to_wait_is_told_which_build_it_is() -> None:
    google, clock = FakeGoogle(looks=20), Clock()
    impatient = workshop(google, clock=clock)
    impatient = replace(impatient, builds=replace(impatient.builds, patience=5))
    with pytest.raises(ImageBuilding, match="is still being built") as caught:
        built(google, impatient, "six")
    assert clock.now < 10
    following = Following(impatient.builds, caught.value.build["build_id"])
    while (digest := following.look(lambda _: None)) is None:
        clock.sleep(5)
    assert digest == built(google, workshop(google, impatient.store), "six")
    assert len(google.builds) == 1
    assert not any(impatient.store.list("source/"))


def test_who_waits_for_nothing_misses_no_line_of_the_log() -> None:
    google, lines = FakeGoogle(looks=3), list[str]()
    first = workshop(google)
    quiet = replace(first, builds=replace(first.builds, patience=0))
    for is_own in (True, False):
        with pytest.raises(ImageBuilding) as caught:
            built(google, quiet, "six")
        first.store.create_if_absent("log-build-1.txt", b"Step #0\n")
        assert (caught.value.is_own, caught.value.build["told"]) == (is_own, "0")
    following = Following(first.builds, "build-1", int(caught.value.build["told"]))
    following.look(lines.append)
    assert lines == ["Step #0"]


def test_a_known_image_costs_one_request_and_then_none() -> None:
    google = FakeGoogle()
    built(google, workshop(google), "six")
    google.requests.clear()
    other = workshop(google)
    built(google, other, "six")
    built(google, other, "six")
    assert len(google.requests) == 1


@pytest.mark.promise("data: Dependency layer apart from the base layer")
def test_the_base_is_built_with_the_first_image_only() -> None:
    google = FakeGoogle()
    first = workshop(google)
    built(google, first, "six")
    google.tags[recipe("six").base_tag] = "sha256:base"
    built(google, workshop(google, first.store), "attrs")
    steps = [[step["id"] for step in build["steps"]] for build in google.builds.values()]
    assert steps == [["base", "base-push", "dependencies"], ["dependencies"]]


def test_a_claim_whose_builder_died_is_taken_over() -> None:
    google, store, clock = FakeGoogle(), MemoryObjectStore(), Clock()
    store.create_if_absent(f"images/{recipe('six').tag}/000000/claim", b'{"mark": "kinetic-dead"}')
    built(google, workshop(google, store, clock), "six")
    assert clock.now >= 150
    assert len(google.builds) == 1
    assert store.read(f"images/{recipe('six').tag}/000000/build") == b""


def test_a_build_whose_builder_died_is_followed() -> None:
    google, store = FakeGoogle(), MemoryObjectStore()
    tag = recipe("six").tag
    source = {"storageSource": {"bucket": "b", "object": "source/of-the-dead"}}
    build = {"tags": ["kinetic-dead"], "images": [f"x:{tag}"], "source": source}
    google.ask("POST", "https://x/builds", build)
    store.create_if_absent(f"images/{tag}/000000/claim", b'{"mark": "kinetic-dead"}')
    built(google, workshop(google, store), "six")
    assert list(google.builds) == ["build-1"]
    assert store.read(f"images/{tag}/000000/build") == b"build-1"


def test_a_builder_that_was_taken_for_dead_cancels_and_follows() -> None:
    google, store, clock = FakeGoogle(), MemoryObjectStore(), Clock()
    tag, original = recipe("six").tag, google.ask

    def slow(method: str, url: str, body: object = None) -> tuple[int, object]:
        if method == "POST" and not google.builds:
            store.create_if_absent(f"images/{tag}/000000/build", b"")  # somebody has lost patience
        return original(method, url, body)

    google.ask = slow  # type: ignore[method-assign]
    built(google, workshop(google, store, clock), "six")
    assert [build["status"] for build in google.builds.values()] == ["CANCELLED", "SUCCESS"]


def test_a_failed_build_fails_all_who_waited_for_it() -> None:
    google = FakeGoogle()
    google.ends = ["FAILURE"]
    first = workshop(google)
    with pytest.raises(ImageError, match="not built: FAILURE"):
        built(google, first, "six")
    assert built(google, first, "six").startswith("sha256:")
    assert len(google.builds) == 2


@pytest.mark.parametrize(
    "failed",
    [
        {"failureInfo": {"type": "PUSH_FAILED", "detail": "error pushing image"}},
        {"steps": [{"id": "base-push", "status": "FAILURE"}]},
    ],
)
def test_an_image_that_is_built_and_not_pushed_is_told_so(failed: dict[str, object]) -> None:
    google = FakeGoogle()
    google.ends = ["FAILURE"]
    answer = google.ask

    def ask(method: str, url: str, body: Any = None) -> tuple[int, Any]:
        status, found = answer(method, url, body)
        return status, {**found, **failed} if found.get("status") == "FAILURE" else found

    google.ask = ask  # type: ignore[method-assign]
    with pytest.raises(ImageError, match=r"could not be pushed: submit again.*artifactregistry\.writer"):
        built(google, workshop(google), "six")


def test_an_image_that_was_deleted_is_built_again() -> None:
    google = FakeGoogle()
    first = workshop(google)
    built(google, first, "six")
    google.tags.clear()
    built(google, workshop(google, first.store), "six")
    assert len(google.builds) == 2


def test_patience_ends() -> None:
    google, clock = FakeGoogle(), Clock()
    google.faults = [503] * 1000
    with pytest.raises(ImageError, match="HTTP 503: scripted 503"):
        built(google, workshop(google, clock=clock), "six")
    assert PATIENCE <= clock.now < 2 * PATIENCE
    google.faults = [OSError("reset")] * 1000
    with pytest.raises(ImageError, match="gave no answer: reset"):
        built(google, workshop(google), "six")
    google.faults = [403]
    with pytest.raises(ConfigurationError, match="HTTP 403"):
        built(google, workshop(google), "six")


@pytest.mark.parametrize("fault", [429, 503, OSError("lost")])
def test_one_fault_anywhere_changes_nothing(fault: int | OSError) -> None:
    """At each request in turn."""
    for number in range(8):
        google = FakeGoogle()
        answer, left = google.ask, iter(range(number + 1))

        def ask(method: str, url: str, body: object = None) -> tuple[int, object]:
            if next(left, None) == number:  # noqa: B023  called within this turn of the loop
                google.faults.append(fault)  # noqa: B023
            return answer(method, url, body)  # noqa: B023

        google.ask = ask  # type: ignore[method-assign]
        assert built(google, workshop(google), "six").startswith("sha256:")
        assert len(google.builds) == 1


def test_where_a_clusters_images_are() -> None:
    assert region_of("europe-west4-a") == "europe-west4"
    assert region_of("us-south1-ai1b") == "us-south1"
    assert region_of("nonsense") == region_of("") == "us-central1"
    assert Repository.of_cluster("p", "us-east1-b", "c").address == "us-docker.pkg.dev/p/kn-c"
    assert Repository.of_cluster("p", "me-west1-a", "c").address == "me-west1-docker.pkg.dev/p/kn-c"
    assert Repository.parse("us-docker.pkg.dev/p/r") == Repository("p", "us", "r")
    assert Repository.parse("mycompany/kinetic") is None
    with pytest.raises(ConfigurationError, match="set KINETIC_PROJECT"):
        Workshop.of_cluster(default_connections().with_arguments(project="", zone="z", cluster="c"))


@pytest.mark.promise("data: Tag = digest of normalised inputs and base")
def test_the_tag_is_of_what_is_in_it() -> None:
    assert recipe("six", "attrs").tag == recipe("attrs  # why", "six").tag
    assert recipe("six").tag != recipe("six==1").tag
    assert recipe("six").base_tag == recipe("attrs").base_tag
    assert Recipe("tpu", recipe("six").installation).tag.startswith("tpu-")
    assert recipe("six").context("b") == recipe("six").context("b")
