"""Base images that somebody has published: one for each kind of accelerator and Python."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence

import kinetic_core
from kinetic_core._runner.wire import PROTOCOL
from kinetic_core.cluster.credentials import credentials
from kinetic_core.configuration import read_settings
from kinetic_core.errors import ConfigurationError
from kinetic_core.image.google_api import GoogleApi
from kinetic_core.image.recipe import PROTOCOL_LABEL, PYTHON_LABEL
from kinetic_core.image.registry import Repository
from kinetic_core.image.registry_protocol import PublicRegistry

Labels = Callable[[str, str], Mapping[str, str]]
"""Those of an image, by its name and digest."""
_PYTHON = ".".join(map(str, sys.version_info[:2]))


def base_tag(tag: str | None = None) -> str:
    """The tag of base images: this version, or `tag`, for this Python."""
    return f"{tag or kinetic_core.__version__}-py{_PYTHON}"


@functools.cache
def told_labels(name: str, digest: str) -> Mapping[str, str]:
    """The labels of an image, none if its registry does not tell them here. Asked once in a process: what a
    digest names never changes.
    """
    try:
        google = name.partition("/")[0].endswith("-docker.pkg.dev")
        token = credentials(read_settings().google_account).token() if google else ""
        return PublicRegistry(name, token).labels(digest)
    except (OSError, ValueError, ConfigurationError):
        return {}


def base_image(
    repository: str, kind: str, api: GoogleApi | None = None, labels: Labels = told_labels
) -> tuple[str, tuple[str, ...]]:
    """The base image of a kind in a repository, pinned by its digest, and notices about it.

    Raises ConfigurationError if it is not there for this Python, or says that it is for another Python or
    wire protocol. A registry that gives no answer without credentials is left to the node: the image is then
    named by its tag, with a notice.
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
    if refusal := _refusal(labels(name, digest)):
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
