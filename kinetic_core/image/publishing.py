"""Building and publishing base images for `container_image="prebuilt"`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kinetic_core.configuration import read_settings
from kinetic_core.errors import ImageError, InvalidRequest, KineticError
from kinetic_core.image.bundled import Workshop, request_of, step
from kinetic_core.image.dependencies import Dependencies
from kinetic_core.image.google_api import Json
from kinetic_core.image.prebuilt import base_tag
from kinetic_core.image.recipe import Recipe, archive
from kinetic_core.image.registry import Repository
from kinetic_core.image.registry_protocol import PublicRegistry
from kinetic_core.image.runtimes import choose
from kinetic_core.image.single_flight import Order, build_once, source_object

KINDS = ("cpu", "gpu", "tpu")
_TAG = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_HUB = re.compile(r"[a-z0-9]+([._-]+[a-z0-9]+)*/[a-z0-9]+([._-]+[a-z0-9]+)*")
_LOGIN = "docker login --username=$$DOCKERHUB_USERNAME --password-stdin <<< $$DOCKERHUB_TOKEN"
"""Run by Cloud Build's bash, with both variables from Secret Manager; `$$` is its `$`."""
_HUB_SECRETS = {"DOCKERHUB_USERNAME": "dockerhub-username", "DOCKERHUB_TOKEN": "dockerhub-token"}


@dataclass(frozen=True)
class _Publication:
    """What to build, and where to: a repository of Artifact Registry, or None for Docker Hub."""

    workshop: Workshop
    repository: Repository | None
    address: str
    tag: str
    dockerfile: str | None

    def build(self, kind: str, say: Callable[[str], None]) -> str:
        """Build and push one kind; its address, with the digest if that can be known."""
        recipe = Recipe(kind, choose(Dependencies(), kind))
        image = f"{self.address}/base-{kind}"
        source = archive(
            {"Dockerfile": self.dockerfile or recipe.dockerfile_of_base(), "runtime.txt": recipe.runtime}
        )
        content = hashlib.sha256(f"{image}:{self.tag}".encode() + source).hexdigest()[:12]
        name = f"base-{kind}-{content}"

        def request(mark: str) -> Json:
            place = source_object(name, mark)
            self.workshop.store.create(place, source)
            return self._request(place, f"{image}:{self.tag}")

        order = Order(name, lambda: None, request)
        digest = build_once(order, self.workshop.builds, self.workshop.store, say) or _pushed(image, self.tag)
        return f"{image}@{digest}" if digest else f"{image}:{self.tag}"

    def _request(self, source: str, image: str) -> Json:
        request = request_of(self.workshop, source, [step("base", "build", "-t", image, ".")], image)
        if self.repository is not None:
            return request
        login = {**step("login", "-c", _LOGIN), "entrypoint": "bash", "secretEnv": list(_HUB_SECRETS)}
        secrets = f"projects/{self.workshop.repository.project}/secrets"
        available = [
            {"versionName": f"{secrets}/{secret}/versions/latest", "env": variable}
            for variable, secret in _HUB_SECRETS.items()
        ]
        return {
            **request,
            "images": [],
            "steps": [*request["steps"], login, step("push", "push", image)],
            "availableSecrets": {"secretManager": available},
        }


def build_image(
    repo: str | None = None,
    categories: Sequence[str] = KINDS,
    *,
    tag: str | None = None,
    dockerfile: str | Path | None = None,
    project: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    progress: Callable[[str], None] = print,
) -> dict[str, str]:
    """Build and publish base images for `container_image="prebuilt"`; category to `address@sha256:…`.

    repo: `LOCATION-docker.pkg.dev/PROJECT/NAME`, by default the cluster's own repository; or `ACCOUNT/NAME`
        on Docker Hub, with the secrets `dockerhub-username` and `dockerhub-token` in Secret Manager.
    categories: some of `cpu`, `gpu`, `tpu`; each is one build, all at the same time.
    tag: instead of this version; `-py3.12`, or whichever Python this is, follows it.
    dockerfile: a file to build instead of ours. It must install uv, cloudpickle and google-cloud-storage for
        this Python; `runtime.txt`, the framework's requirements, is beside it.
    project, zone, cluster: whose Cloud Build; each falls back to its `KINETIC_*` variable.
    progress: told every line of the builds' logs.

    Raises InvalidRequest, ConfigurationError, or ImageError naming every category that failed.
    """
    settings = read_settings()
    workshop = Workshop.of_cluster(
        project or settings.project, zone or settings.zone, cluster or settings.cluster
    )
    repository = workshop.repository if repo is None else Repository.parse(repo)
    if repository is None and not _HUB.fullmatch(repo or ""):
        raise InvalidRequest(
            f"repo={repo!r} is neither LOCATION-docker.pkg.dev/PROJECT/NAME nor ACCOUNT/NAME"
        )
    if isinstance(categories, str) or not categories or not set(categories) <= set(KINDS):
        raise InvalidRequest(f"categories={categories!r} must be a list with some of {', '.join(KINDS)}")
    if tag is not None and not _TAG.fullmatch(tag):
        raise InvalidRequest(f"tag={tag!r} is no tag: letters, digits, '_', '.' and '-', 100 at most")
    address = str(repo) if repository is None else repository.address
    publication = _Publication(workshop, repository, address, base_tag(tag), _text(dockerfile))
    if repository is not None:
        repository.check(workshop.registry)
    workshop.check_bucket()
    return _all(publication, categories, progress)


def _all(
    publication: _Publication, categories: Sequence[str], progress: Callable[[str], None]
) -> dict[str, str]:
    def build(kind: str) -> str | KineticError:
        try:
            return publication.build(kind, lambda line: progress(f"{kind}: {line}"))
        except KineticError as exc:
            return exc

    with ThreadPoolExecutor(len(KINDS)) as threads:
        done = dict(zip(categories, threads.map(build, categories), strict=True))
    failed = {kind: outcome for kind, outcome in done.items() if isinstance(outcome, KineticError)}
    if failed:
        raise ImageError("\n".join(f"base-{kind}: {error}" for kind, error in failed.items()))
    return {kind: str(uri) for kind, uri in done.items()}


def _text(dockerfile: str | Path | None) -> str | None:
    if dockerfile is None:
        return None
    try:
        return Path(dockerfile).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"dockerfile={str(dockerfile)!r} cannot be read: {exc}") from exc


def _pushed(image: str, tag: str) -> str | None:
    """The digest of what a step pushed, if the registry tells anybody."""
    try:
        return PublicRegistry(image).digest(tag)
    except OSError:
        return None
