"""The `bundled` image: found by its tag, or built, and then pinned by its digest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError, ImageError
from kinetic_core.images.build_lock import Order, build_once, source_object
from kinetic_core.images.cloud_build import TIMEOUT, CloudBuild, place_of
from kinetic_core.images.dockerfile import PACKAGE, Recipe
from kinetic_core.images.registry import GoogleApi, Json, Repository, region_of
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.store.protocol import ObjectStore

_REMEMBERED_SECONDS = 600.0
"""How long a client believes that an image it has seen is still there."""


class _Flights:
    """Look-ups and builds of one client's images that are under way or were lately done."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_image: dict[tuple[str, str], tuple[float, Future[str]]] = {}


@dataclass(frozen=True)
class Workshop:
    """Where images are built and kept: everything but what is in them."""

    repository: Repository
    builds: CloudBuild
    registry: GoogleApi
    store: ObjectStore
    account: str

    @classmethod
    def of_cluster(cls, connections: Connections, patience: float | None = None) -> Workshop:
        """Return that of the GKE cluster in the settings: `kn-{cluster}`, its bucket and account for builds.

        `patience` is that of its `CloudBuild`. Raises ConfigurationError without a project.
        """
        settings = connections.settings
        project, zone, cluster = settings.project, settings.zone, settings.cluster
        if not project:
            raise ConfigurationError(
                "no container image: set KINETIC_PROJECT to the project that builds and keeps images, or "
                "pass container_image= (or KINETIC_CONTAINER_IMAGE) with what your function imports"
            )
        store = GcsObjectStore.at(f"{project}-kn-{cluster}-builds", connections)
        account = f"kn-{cluster}-builds@{project}.iam.gserviceaccount.com"
        return cls(
            Repository.of_cluster(project, zone, cluster),
            CloudBuild(GoogleApi("cloudbuild", connections), project, region_of(zone), store, patience),
            GoogleApi("artifactregistry", connections),
            store,
            f"projects/{project}/serviceAccounts/{account}",
        )

    def check_bucket(self) -> None:
        """Raise ConfigurationError if the bucket for builds cannot be used."""
        try:
            self.store.find("images")
        except ConfigurationError as exc:
            raise ConfigurationError(
                f"builds need {self.store.uri}, which does not exist or may not be seen by this account. "
                f"Make it once: gcloud storage buckets create {self.store.uri} --uniform-bucket-level-access"
            ) from exc

    def address(self, tag: str) -> str:
        return f"{self.repository.address}/{PACKAGE}:{tag}"


def bundled_image(
    recipe: Recipe, workshop: Workshop, say: Callable[[str], None], connections: Connections
) -> str:
    """The recipe's image, `address@sha256:…`; built if the repository does not have it.

    All threads of a client share one look-up and one build, and its failure. Raises ImageError or
    ConfigurationError.
    """
    tag = recipe.tag
    key = workshop.repository.address, tag
    flights = connections.get((_Flights,), _Flights)
    with flights.lock:
        began, flight = flights.by_image.get(key, (0.0, None))
        fresh = flight is None or (
            flight.done()
            and (flight.exception() is not None or time.monotonic() - began > _REMEMBERED_SECONDS)
        )
        if fresh:
            flight = Future()
            flights.by_image[key] = time.monotonic(), flight
    assert flight is not None  # noqa: S101  made above if it was not there
    if fresh:
        try:
            flight.set_result(_found_or_built(recipe, tag, workshop, say))
        except BaseException as exc:
            told = (
                exc
                if isinstance(exc, Exception)
                else ImageError(
                    "the image was not built: waiting for the build was interrupted. Submit again"
                )
            )
            flight.set_exception(told)
            raise
    return f"{workshop.repository.address}/{PACKAGE}@{flight.result()}"


def _found_or_built(recipe: Recipe, tag: str, workshop: Workshop, say: Callable[[str], None]) -> str:
    def present() -> str | None:
        return workshop.repository.digest(workshop.registry, PACKAGE, tag)

    if (digest := present()) is not None:
        return digest
    workshop.repository.check(workshop.registry)
    workshop.check_bucket()
    order = Order(tag, present, lambda mark: _request(recipe, workshop, mark))
    return build_once(order, workshop.builds, workshop.store, say)


def _request(recipe: Recipe, workshop: Workshop, mark: str) -> Json:
    """What to ask Cloud Build for; the source is uploaded. The base is built only if it is not there."""
    base, image = workshop.address(recipe.base_tag), workshop.address(recipe.tag)
    known = workshop.repository.digest(workshop.registry, PACKAGE, recipe.base_tag)
    source = source_object(recipe.tag, mark)
    pinned = f"{workshop.repository.address}/{PACKAGE}@{known}" if known else base
    workshop.store.create_if_absent(source, recipe.context(pinned))
    building = step("base", "build", "-f", "Dockerfile.base", "-t", base, ".")
    steps = [] if known else [building, step("base-push", "push", base)]
    return request_of(workshop, source, [*steps, step("dependencies", "build", "-t", image, ".")], image)


def request_of(workshop: Workshop, source: str, steps: Sequence[Json], image: str) -> Json:
    """What to ask Cloud Build for; `image`, which the steps make, is pushed in the end."""
    bucket, prefix = place_of(workshop.store)
    return {
        "source": {"storageSource": {"bucket": bucket, "object": prefix + source}},
        "steps": list(steps),
        "images": [image],
        "timeout": TIMEOUT,
        "serviceAccount": workshop.account,
        "logsBucket": workshop.store.uri,
        "options": {"logging": "GCS_ONLY", "logStreamingOption": "STREAM_ON"},
    }


def step(name: str, *arguments: str) -> Json:
    """A step of a build: docker, with these arguments."""
    return {"id": name, "name": "gcr.io/cloud-builders/docker", "args": list(arguments)}
