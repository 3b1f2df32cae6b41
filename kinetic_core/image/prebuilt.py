"""Base images that somebody has published: one for each kind of accelerator and Python."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kinetic_core
from kinetic_core.configuration import read_settings
from kinetic_core.errors import ConfigurationError, ImageError, InvalidRequest, KineticError
from kinetic_core.image.bundled import Workshop, request_of
from kinetic_core.image.dependencies import Dependencies
from kinetic_core.image.google_api import GoogleApi, Json
from kinetic_core.image.recipe import Recipe, archive
from kinetic_core.image.registry import Repository
from kinetic_core.image.registry_protocol import PublicRegistry
from kinetic_core.image.runtimes import choose
from kinetic_core.image.single_flight import Order, build_once, source_object

KINDS = ("cpu", "gpu", "tpu")
_PYTHON = ".".join(map(str, sys.version_info[:2]))


def base_tag(tag: str | None = None) -> str:
    """The tag of base images: this version, or `tag`, for this Python."""
    return f"{tag or kinetic_core.__version__}-py{_PYTHON}"


def base_image(repository: str, kind: str, api: GoogleApi | None = None) -> tuple[str, tuple[str, ...]]:
    """The base image of a kind in a repository, pinned by its digest, and notices about it.

    Raises ConfigurationError if it is not there for this Python. A registry that gives no answer without
    credentials is left to the node: the image is then named by its tag, with a notice.
    """
    place, package, tag = Repository.parse(repository), f"base-{kind}", base_tag()
    name = f"{repository.rstrip('/')}/{package}"
    if place is not None:
        api = api or GoogleApi("artifactregistry")
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
    return f"{name}@{digest}", ()


def _absent(repository: str, kind: str, name: str, tags: Sequence[str]) -> ConfigurationError:
    others = sorted(tag for tag in tags if "-py" in tag)
    known = f"it has {', '.join(others)}" if others else "it has none of that kind"
    return ConfigurationError(
        f"there is no base image {name} for Python {_PYTHON}: {known}. Publish it with "
        f"kinetic_core.build_image({repository!r}, categories=[{kind!r}]), submit from a Python it has, or "
        "use container_image='bundled'"
    )


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

    repo: `LOCATION-docker.pkg.dev/PROJECT/NAME`, by default the cluster's own repository.
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
    target = workshop.repository if repo is None else Repository.parse(repo)
    if target is None:
        raise InvalidRequest(
            f"repo={repo!r} is not LOCATION-docker.pkg.dev/PROJECT/NAME, where Cloud Build can push to"
        )
    if isinstance(categories, str) or not categories or not set(categories) <= set(KINDS):
        raise InvalidRequest(f"categories={categories!r} must be a list with some of {', '.join(KINDS)}")
    own = None if dockerfile is None else Path(dockerfile).read_text("utf-8")
    target.check(workshop.registry)
    workshop.check_bucket()

    def build(kind: str) -> str | KineticError:
        try:
            return _build(
                kind, target, base_tag(tag), own, workshop, lambda line: progress(f"{kind}: {line}")
            )
        except KineticError as exc:
            return exc

    with ThreadPoolExecutor(len(KINDS)) as threads:
        done = dict(zip(categories, threads.map(build, categories), strict=True))
    failed = {kind: outcome for kind, outcome in done.items() if isinstance(outcome, KineticError)}
    if failed:
        raise ImageError("\n".join(f"base-{kind}: {error}" for kind, error in failed.items()))
    return {kind: str(uri) for kind, uri in done.items()}


def _build(
    kind: str, target: Repository, tag: str, own: str | None, workshop: Workshop, say: Callable[[str], None]
) -> str:
    recipe = Recipe(kind, choose(Dependencies(), kind))
    image = f"{target.address}/base-{kind}"
    files = {"Dockerfile": own or recipe.dockerfile_of_base(), "runtime.txt": recipe.runtime}
    name = f"{target.name}-base-{kind}-{tag}"

    def request(mark: str) -> Json:
        source = source_object(name, mark)
        workshop.store.create(source, archive(files))
        return request_of(
            workshop, source, [("base", ("build", "-t", f"{image}:{tag}", "."))], f"{image}:{tag}"
        )

    digest = build_once(Order(name, lambda: None, request), workshop.builds, workshop.store, say)
    return f"{image}@{digest}"
