"""Which image a job runs in: the one that is named, one with its dependencies, or this interpreter."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic_core._runner.wire import digest
from kinetic_core.configuration import Settings
from kinetic_core.errors import InvalidRequest
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.notices import give
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.packaging.project import Project

if TYPE_CHECKING:
    from kinetic_core.image.bundled import Workshop
    from kinetic_core.image.runtimes import Installation

BUNDLED = "bundled"
PREBUILT = "prebuilt"
_REFERENCE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
"""https://github.com/distribution/reference"""


@dataclass(frozen=True, slots=True)
class Image:
    """A container image: `uri` is what runs, `name` says what is in it, whoever built it."""

    uri: str
    name: str
    dependencies: Mapping[str, Any] | None = None
    """What the job installs before its function is loaded, see `runner/dependencies.py`."""


def find_image(
    options: RunOptions,
    settings: Settings,
    backend: Backend,
    project: Project,
    script: Path | None,
    progress: Callable[[str], None],
    *,
    dry: bool = False,
    patience: float | None = None,
) -> Image:
    """The image for a call, built first if it has to be; `dry` only names what would be built.

    Raises InvalidDependencies before anything is built, ImageError if it cannot be, ImageBuilding if that
    takes longer than `patience` seconds, ConfigurationError.
    """
    if backend.name == "local":
        unused = "requirements= is not installed by backend 'local': jobs have what this interpreter has"
        give(project.root, () if options.requirements is None else (unused,))
        return Image(sys.executable, "")
    asked = options.container_image or settings.container_image or BUNDLED
    if asked not in (BUNDLED, PREBUILT):
        if not _REFERENCE.fullmatch(asked):
            raise InvalidRequest(
                f"container_image={asked!r} is neither {BUNDLED!r} nor {PREBUILT!r}, nor an image's name "
                "such as 'us-docker.pkg.dev/project/repository/image:tag'"
            )
        if options.requirements is not None:
            raise InvalidRequest(
                f"requirements= is not used with container_image={asked!r}, which has what it has; drop one "
                "of them, or use 'bundled' or 'prebuilt'"
            )
        return Image(asked, asked)
    installation = _installation(options, project, script, progress, has_framework=asked == PREBUILT)
    give(project.root, installation.notices)  # not after minutes of building
    if asked == PREBUILT:
        return _prebuilt(options, settings, installation, project)
    return _bundled(options, settings, installation, progress, dry=dry, patience=patience)


def _installation(
    options: RunOptions,
    project: Project,
    script: Path | None,
    progress: Callable[[str], None],
    *,
    has_framework: bool,
) -> Installation:
    from kinetic_core.image.discovery import find_dependencies
    from kinetic_core.image.lock_files import environment
    from kinetic_core.image.runtimes import choose

    accelerator = options.accelerator
    target = environment(accelerator.architecture)
    found = find_dependencies(options.requirements, root=project.root, script=script, target=target)
    progress(f"dependencies: {found.source or 'none stated'}")
    return choose(found, accelerator.kind, has_framework=has_framework)


def _bundled(
    options: RunOptions,
    settings: Settings,
    installation: Installation,
    progress: Callable[[str], None],
    *,
    dry: bool,
    patience: float | None,
) -> Image:
    from kinetic_core.image.bundled import bundled_image
    from kinetic_core.image.recipe import Recipe

    accelerator = options.accelerator
    if accelerator.architecture != "amd64":
        raise InvalidRequest(
            f"accelerator={str(accelerator)!r} needs an image for {accelerator.architecture}, and Cloud "
            "Build makes them for amd64: pass container_image= with one of your own"
        )
    recipe, workshop = Recipe(accelerator.kind, installation), _workshop(options, settings, patience)
    name = workshop.address(recipe.tag)
    uri = name if dry else bundled_image(recipe, workshop, progress)
    return Image(uri, name)


def _prebuilt(options: RunOptions, settings: Settings, installation: Installation, project: Project) -> Image:
    from kinetic_core.image.prebuilt import base_image

    repository = (
        options.base_image_repo or settings.base_image_repo or _workshop(options, settings).repository.address
    )
    dependencies = {
        "lines": list(installation.lines),
        "constraints": list(installation.constraints),
        "options": list(installation.uv_options),
    }
    uri, notices = base_image(repository, options.accelerator.kind)
    give(project.root, notices)
    if not installation.lines:
        return Image(uri, uri.partition("@")[0])
    name = f"{uri.partition('@')[0]} {digest(json.dumps(dependencies, sort_keys=True).encode())}"
    return Image(uri, name, dependencies)


def _workshop(options: RunOptions, settings: Settings, patience: float | None = None) -> Workshop:
    from kinetic_core.image.bundled import Workshop

    return Workshop.of_cluster(
        options.project or settings.project,
        options.zone or settings.zone,
        options.cluster or settings.cluster,
        patience,
    )
