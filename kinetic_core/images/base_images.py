"""Base images that somebody has published: one for each kind of accelerator and Python."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import kinetic_core
from kinetic_core._runner.wire import PROTOCOL
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError, ImageError, InvalidRequest, KineticError
from kinetic_core.google_cloud import credentials
from kinetic_core.images.build_lock import Order, build_once, source_object
from kinetic_core.images.bundled import Workshop, request_of, step
from kinetic_core.images.dockerfile import PROTOCOL_LABEL, PYTHON_LABEL, Recipe, archive
from kinetic_core.images.frameworks import choose
from kinetic_core.images.registry import GoogleApi, Json, PublicRegistry, Repository
from kinetic_core.images.requirements import Dependencies

Labels = Callable[[str, str], Mapping[str, str]]
"""Those of an image, by its name and digest."""
_PYTHON = ".".join(map(str, sys.version_info[:2]))


def base_tag(tag: str | None = None) -> str:
    """The tag of base images: this version, or `tag`, for this Python."""
    return f"{tag or kinetic_core.__version__}-py{_PYTHON}"


def told_labels(connections: Connections) -> Labels:
    """Return a function that asks for the labels of an image, none if its registry does not tell them here.

    A client asks once, because what a digest names never changes.
    """

    def asked(name: str, digest: str) -> Mapping[str, str]:
        try:
            google = name.partition("/")[0].endswith("-docker.pkg.dev")
            token = credentials(connections, connections.settings.google_account).token() if google else ""
            return PublicRegistry(name, token).labels(digest)
        except (OSError, ValueError, ConfigurationError):
            return {}

    return lambda name, digest: connections.get((told_labels, name, digest), lambda: asked(name, digest))


def base_image(
    repository: str,
    kind: str,
    connections: Connections,
    api: GoogleApi | None = None,
    labels: Labels | None = None,
) -> tuple[str, tuple[str, ...]]:
    """The base image of a kind in a repository, pinned by its digest, and notices about it.

    Raises ConfigurationError if it is not there for this Python, or says that it is for another Python or
    wire protocol. A registry that gives no answer without credentials is left to the node: the image is then
    named by its tag, with a notice.
    """
    place, package, tag = Repository.parse(repository), f"base-{kind}", base_tag()
    name = f"{repository.rstrip('/')}/{package}"
    if place is not None:
        api = api or GoogleApi("artifactregistry", connections)
        digest = place.digest(api, package, tag)
        others = place.tags(api, package) if digest is None else []
    else:
        registry = PublicRegistry(name)
        try:
            digest = registry.digest(tag)
            others = registry.tags() if digest is None else []
        except OSError as exc:
            return f"{name}:{tag}", (f"whether {name}:{tag} exists is not known here: {exc}",)
    if digest is None:
        raise _absent(repository, kind, f"{name}:{tag}", others)
    if refusal := _refusal((labels or told_labels(connections))(name, digest)):
        raise ConfigurationError(f"the base image {name}:{tag} {refusal}. {_remedy(repository, kind)}")
    return f"{name}@{digest}", ()


def _refusal(labels: Mapping[str, str]) -> str:
    """What an image says against itself; one with a Dockerfile of its own may say nothing."""
    wanted = ((PYTHON_LABEL, "Python", _PYTHON), (PROTOCOL_LABEL, "wire protocol", str(PROTOCOL)))
    for label, what, here in wanted:
        if (told := labels.get(label, here)) != here:
            return f"says that it is for {what} {told}, and this is {what} {here}"
    return ""


def _absent(repository: str, kind: str, name: str, tags: Sequence[str]) -> ConfigurationError:
    others = sorted(tag for tag in tags if "-py" in tag)
    known = f"it has {', '.join(others)}" if others else "it has none of that kind"
    return ConfigurationError(
        f"there is no base image {name} for Python {_PYTHON}: {known}. " + _remedy(repository, kind)
    )


def _remedy(repository: str, kind: str) -> str:
    return (
        f"Publish it with kinetic_core.build_image({repository!r}, categories=[{kind!r}]), submit from "
        "a Python it has, or use container_image='bundled'"
    )


KINDS = ("cpu", "gpu", "tpu")
_TAG = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_HUB = re.compile(r"[a-z0-9]+([_-]+[a-z0-9]+)*")
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
            self.workshop.store.create_if_absent(place, source)
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
    connections: Connections,
    repo: str | None = None,
    categories: Sequence[str] = KINDS,
    *,
    tag: str | None = None,
    dockerfile: str | Path | None = None,
    progress: Callable[[str], None] = print,
) -> dict[str, str]:
    """Build and publish base images for `container_image="prebuilt"`; category to `address@sha256:…`.

    repo: `LOCATION-docker.pkg.dev/PROJECT/NAME`, by default the cluster's own repository; or an `ACCOUNT` of
        Docker Hub, with the secrets `dockerhub-username` and `dockerhub-token` in Secret Manager.
    categories: some of `cpu`, `gpu`, `tpu`; each is one build, all at the same time.
    tag: instead of this version; `-py3.12`, or whichever Python this is, follows it.
    dockerfile: a file to build instead of ours. It must install uv, cloudpickle and google-cloud-storage for
        this Python; `runtime.txt`, the framework's requirements, is beside it.
    project, zone, cluster: whose Cloud Build; each falls back to its `KINETIC_*` variable.
    progress: told every line of the builds' logs.

    Raises InvalidRequest, ConfigurationError, or ImageError naming every category that failed.
    """
    workshop = Workshop.of_cluster(connections)
    repository = workshop.repository if repo is None else Repository.parse(repo)
    if repository is None and not _HUB.fullmatch(repo or ""):
        raise InvalidRequest(
            f"repo={repo!r} is neither LOCATION-docker.pkg.dev/PROJECT/NAME nor the name of an account of "
            "Docker Hub, where repositories are not nested"
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
