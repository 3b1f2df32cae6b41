"""Base images that somebody has published: one for each kind of accelerator and Python."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import kinetic_core
from kinetic_core.errors import ConfigurationError
from kinetic_core.image.google_api import GoogleApi
from kinetic_core.image.registry import Repository
from kinetic_core.image.registry_protocol import PublicRegistry

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
