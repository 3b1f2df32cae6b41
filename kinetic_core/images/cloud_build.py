"""Cloud Build: start a build, once, and follow it. https://cloud.google.com/build/docs/api/reference/rest"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from kinetic_core.connections import Connections
from kinetic_core.errors import ImageBuilding, ImageError, KineticError
from kinetic_core.images.registry import GoogleApi, Json, Unanswered
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.store.protocol import ObjectStore

_LOG = logging.getLogger(__name__)
LIVE = ("PENDING", "QUEUED", "WORKING")
TIMEOUT = "3600s"
"""The service ends a build after this; no client has to be there."""
_POLL_SECONDS = 1.0
_POLLS_SLOWLY_AFTER = 30.0
_LAST_LINES = 20
_NOT_PUSHED = (
    "It was built and could not be pushed: submit again if the registry was away; if it refuses, the builds' "
    "account needs roles/artifactregistry.writer on the repository"
)
_ADVICE = {
    "base": "The base image could not be made: look at the versions of jax, keras, torch or tensorflow",
    "base-push": _NOT_PUSHED,
    "push": "It was built, and Docker Hub did not take it: submit again, or see what the account may push",
    "login": "Docker Hub refuses the secrets dockerhub-username and dockerhub-token of Secret Manager",
    "dependencies": "A dependency could not be installed: change the requirement that these lines name, or "
    "use container_image= for what needs system libraries",
}


@dataclass(frozen=True)
class CloudBuild:
    """The builds of one region of a project, with a store for sources and logs.

    `patience`: seconds after which `follow` no longer waits; None for as long as it takes. With 0 it tells
    nothing of the log either: somebody else follows the build.
    """

    api: GoogleApi
    project: str
    region: str
    store: ObjectStore
    patience: float | None = None

    @property
    def _path(self) -> str:
        return f"projects/{self.project}/locations/{self.region}/builds"

    def start(self, build: Json, mark: str) -> str:
        """Create a build that carries `mark` as a tag, and return its id.

        One whose answer was lost is found by its mark, and not created again.
        """

        def create() -> Json:
            try:
                made = self.api.once("POST", self._path, {**build, "tags": [mark, *build.get("tags", ())]})
            except Unanswered:
                if (found := self.find(mark)) is not None:
                    return found
                raise
            if made is None:
                raise ImageError(f"Cloud Build has no {self._path}: look at KINETIC_PROJECT and KINETIC_ZONE")
            return dict(made["metadata"]["build"])

        made = self.api.patiently(create)
        assert made is not None  # noqa: S101  create() returns one or raises
        return str(made["id"])

    def find(self, mark: str) -> Json | None:
        """The build that carries a mark."""
        found = self.api.get(self._path, filter=f'tags="{mark}"') or {}
        return next(iter(found.get("builds", ())), None)

    def page(self, build_id: str) -> str:
        """Where people see a build."""
        return (
            f"https://console.cloud.google.com/cloud-build/builds;region={self.region}/{build_id}"
            f"?project={self.project}"
        )

    def get(self, build_id: str) -> Json | None:
        return self.api.get(f"{self._path}/{build_id}")

    def cancel(self, build_id: str) -> None:
        self.api.once("POST", f"{self._path}/{build_id}:cancel", {})

    def follow(self, build_id: str, say: Callable[[str], None], *, is_own: bool = False) -> str:
        """Tell a build's log while it runs; the digest (`sha256:…`) of its last image, "" if it
        has none. `is_own`: the caller has started it.

        Raises ImageError, with the failing step's last lines, if it does not succeed; ImageBuilding if it
        takes too long.
        """
        following, started = Following(self, build_id), self.api.clock()
        tell = say if self.patience != 0 else _nothing
        while (digest := following.look(tell)) is None:
            waited = self.api.clock() - started
            if self.patience is not None and waited >= self.patience:
                place = {"project": self.project, "region": self.region, "store_uri": self.store.uri}
                told = following.told if self.patience else 0
                build = {**place, "build_id": build_id, "told": str(told), "page": self.page(build_id)}
                text = f"the image is still being built: {self.page(build_id)}"
                raise ImageBuilding(text, build, is_own=is_own)
            self.api.sleep(_POLL_SECONDS * (3 if waited > _POLLS_SLOWLY_AFTER else 1))
        return digest


def _nothing(_: str) -> None:
    """Take a line that somebody else shows."""


class Following:
    """One build, looked at now and then. `told`: how many lines of its log have been told."""

    def __init__(self, builds: CloudBuild, build_id: str, told: int = 0) -> None:
        self._builds, self._id, self.told = builds, build_id, told
        self._log = _Log(builds.store, f"log-{build_id}.txt")

    @classmethod
    def of(cls, build: Mapping[str, str], connections: Connections) -> Self:
        """The build that an ImageBuilding names."""
        place = connections.with_settings(replace(connections.settings, project=build["project"]))
        store = GcsObjectStore.at(build["store_uri"], place)
        builds = CloudBuild(GoogleApi("cloudbuild", place), build["project"], build["region"], store)
        return cls(builds, build["build_id"], int(build.get("told", 0)))

    def tell(self, say: Callable[[str], None]) -> None:
        """What is new in its log; nothing if that cannot be read now."""
        self._log.read_on()
        for line in self._log.lines[self.told :]:
            say(line)
        self.told = max(self.told, len(self._log.lines))

    def look(self, say: Callable[[str], None]) -> str | None:
        """Tell what is new in its log; the digest of its image once there is one, None while it runs.

        Raises ImageError if it has failed.
        """
        build = self._builds.get(self._id)
        if build is None:
            raise ImageError(f"build {self._id} has gone from Cloud Build; submit again")
        self.tell(say)
        if build["status"] == "SUCCESS":
            self._delete_source(build)
            pushed = (build.get("results") or {}).get("images")
            return str(pushed[-1]["digest"]) if pushed else ""
        if build["status"] not in LIVE:
            raise _failed(build, self._log.lines)
        return None

    def _delete_source(self, build: Json) -> None:
        """Delete what the image was built from. The image is there: a refusal fails no build."""
        store = self._builds.store
        source = str(build["source"]["storageSource"]["object"])
        try:
            store.delete(source.removeprefix(place_of(store)[1]))
        except KineticError as exc:
            _LOG.warning("the source of build %s stays in %s: %s", self._id, store.uri, exc)


def place_of(store: ObjectStore) -> tuple[str, str]:
    """The bucket of a store, and what comes before the names of its objects there."""
    bucket, _, prefix = store.uri.removeprefix("gs://").partition("/")
    return bucket, f"{prefix}/" if prefix else ""


class _Log:
    """The log object of a build, which grows."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store, self._name, self._offset, self._partial = store, name, 0, b""
        self.lines: list[str] = []

    def read_on(self) -> None:
        """Add what has come to `lines`. A log that is not there yet, or may not be read, is no failure."""
        try:
            piece = self._store.read(self._name)[self._offset :]
        except KineticError:
            return
        self._offset += len(piece)
        *whole, self._partial = (self._partial + piece).split(b"\n")
        self.lines += [line.decode(errors="replace").rstrip("\r") for line in whole]


def _failed(build: Json, lines: list[str]) -> ImageError:
    """What failed, what it said last, and what to change."""
    steps = [
        step for step in build.get("steps", ()) if step.get("status") in ("FAILURE", "TIMEOUT", "CANCELLED")
    ]
    step = steps[0] if steps else {}
    number = build.get("steps", []).index(step) if step else None
    own = [line for line in lines if line.startswith(f"Step #{number}")] if step else lines
    told = "\n".join(f"    {line}" for line in (own or lines)[-_LAST_LINES:])
    failure = build.get("failureInfo") or {}
    detail = build.get("statusDetail") or failure.get("detail") or ""
    not_pushed = str(failure.get("type")).startswith("PUSH_")  # by the service itself, after all steps
    advice = _ADVICE.get(str(step.get("id")), _NOT_PUSHED if not_pushed else "The log says more")
    place = f" in step {step['id']!r}" if step.get("id") else ""
    return ImageError(
        f"the image was not built: {build['status']}{place}: {detail}\n"
        f"{told}\n{advice}. The whole log: {build.get('logUrl', build['id'])}"
    )
