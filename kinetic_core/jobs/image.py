"""Image of a job: the named one, one with its dependencies, or this interpreter."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic_core._runner.wire import digest
from kinetic_core.backends.base import Backend
from kinetic_core.connections import Connections
from kinetic_core.errors import InvalidRequest
from kinetic_core.job import Step, StepBegun
from kinetic_core.options import RunOptions
from kinetic_core.project.root import Project

if TYPE_CHECKING:
    from kinetic_core.images.bundled import Workshop
    from kinetic_core.images.frameworks import Installation
    from kinetic_core.images.requirements import Dependencies

_LOG = logging.getLogger(__name__)
_given: set[tuple[Path, str]] = set()


def give(project: Path, notices: Iterable[str]) -> None:
    """Log each notice, once for a project in this process."""
    for notice in notices:
        if (project, notice) not in _given:
            _given.add((project, notice))
            _LOG.warning("kinetic: %s", notice)


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
    """Container image: `uri` is what runs, `name` describes its contents, whoever built it."""

    uri: str
    name: str
    dependencies: Mapping[str, Any] | None = None
    """Packages that the job installs before its function is loaded, see `runner/dependencies.py`."""


def find_image(
    options: RunOptions,
    connections: Connections,
    backend: Backend,
    project: Project,
    script: Path | None,
    progress: Callable[[str], None],
    *,
    function: str = "",
    dry: bool = False,
    patience: float | None = None,
) -> Image:
    """Find the image for a call, and build it if it is missing; `dry` only names what would be built.

    `function` is the top-level name of the script that the call is for. Raises InvalidDependencies before
    anything is built, ImageError if the build fails, ImageBuilding if the build takes longer than `patience`
    seconds, ConfigurationError.
    """
    if backend.name == "local":
        unused = "requirements= is not installed by backend 'local': jobs have what this interpreter has"
        give(project.root, () if options.requirements is None else (unused,))
        return Image(sys.executable, "")
    asked = options.container_image or connections.settings.container_image or BUNDLED
    if asked not in (BUNDLED, PREBUILT):
        if not _REFERENCE.fullmatch(asked):
            raise InvalidRequest(
                f"container_image={asked!r} is neither {BUNDLED!r} nor {PREBUILT!r}, nor an image's name "
                "such as 'us-docker.pkg.dev/project/repository/image:tag'"
            )
        if options.requirements is not None:
            raise InvalidRequest(
                f"requirements= cannot be combined with container_image={asked!r}: drop one of them, or use "
                "'bundled' or 'prebuilt'"
            )
        return Image(asked, asked)
    from kinetic_core.images.frameworks import choose

    found = _dependencies(options, project, script, function)
    progress(StepBegun(Step.BUILD, f"dependencies: {found.source or 'none stated'}"))
    installation = choose(found, options.accelerator.kind, has_framework=asked == PREBUILT)
    give(project.root, installation.notices)  # not after minutes of building
    if asked == PREBUILT:
        return _prebuilt(options, connections, installation, project)
    return _bundled(options, connections, installation, progress, dry=dry, patience=patience)


def _dependencies(options: RunOptions, project: Project, script: Path | None, function: str) -> Dependencies:
    """What the files say, and what the function imports besides."""
    from kinetic_core.images.discovery import find_dependencies
    from kinetic_core.images.imported import with_imports
    from kinetic_core.images.lock_files import environment

    target = environment(options.accelerator.architecture)
    found = find_dependencies(
        options.requirements, root=project.base or project.root, script=script, target=target
    )
    places = [project.root / path for path in project.sys_path]
    return with_imports(found, script, function, [*places, *(each.directory for each in project.elsewhere)])


def _bundled(
    options: RunOptions,
    connections: Connections,
    installation: Installation,
    progress: Callable[[str], None],
    *,
    dry: bool,
    patience: float | None,
) -> Image:
    from kinetic_core.images.bundled import bundled_image
    from kinetic_core.images.dockerfile import Recipe

    accelerator = options.accelerator
    if accelerator.architecture != "amd64":
        raise InvalidRequest(
            f"accelerator={str(accelerator)!r} needs an image for {accelerator.architecture}, and Cloud "
            "Build makes them for amd64: pass container_image= with one of your own"
        )
    recipe, workshop = Recipe(accelerator.kind, installation), _workshop(options, connections, patience)
    name = workshop.address(recipe.tag)
    uri = name if dry else bundled_image(recipe, workshop, progress, connections)
    return Image(uri, name)


def _prebuilt(
    options: RunOptions, connections: Connections, installation: Installation, project: Project
) -> Image:
    from kinetic_core.images.base_images import base_image

    repository = (
        options.base_image_repo
        or connections.settings.base_image_repo
        or _workshop(options, connections).repository.address
    )
    dependencies = {
        "lines": list(installation.lines),
        "constraints": list(installation.constraints),
        "options": list(installation.uv_options),
    }
    uri, notices = base_image(repository, options.accelerator.kind, connections)
    give(project.root, notices)
    if not installation.lines:
        return Image(uri, uri.partition("@")[0])
    name = f"{uri.partition('@')[0]} {digest(json.dumps(dependencies, sort_keys=True).encode())}"
    return Image(uri, name, dependencies)


def _workshop(options: RunOptions, connections: Connections, patience: float | None = None) -> Workshop:
    from kinetic_core.images.bundled import Workshop

    place = connections.with_settings(options.settings(connections.settings))
    return Workshop.of_cluster(place, patience)
