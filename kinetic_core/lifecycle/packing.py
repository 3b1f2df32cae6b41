"""Packing a function: its project and data are stored, so that it can be called many times as jobs.

Nothing is stored before the call is known to be sound.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kinetic_core.configuration import Settings, read_settings
from kinetic_core.errors import UnpicklableArgument
from kinetic_core.lifecycle.backends import Backend, backend_name, open_backend
from kinetic_core.lifecycle.data_sources import Shop
from kinetic_core.lifecycle.imaging import Image, find_image
from kinetic_core.lifecycle.notices import give
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.output_places import asked_output_dir
from kinetic_core.lifecycle.shipping import Recorder, Substitutes
from kinetic_core.model.job import BucketMount, Budget, Fallback, JobSpec
from kinetic_core.packaging.callables import callable_name, source_file
from kinetic_core.packaging.capture import capture
from kinetic_core.packaging.payload import PackedFunction, pack_arguments, pack_function
from kinetic_core.packaging.pickling import ProjectModules
from kinetic_core.packaging.project import Project, locate_project, only_notice
from kinetic_core.packaging.tree import StoredTree, store_project

_LOG = logging.getLogger(__name__)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Packed:
    """A function and its project, stored and ready to be called many times."""

    function: Callable[..., Any]
    packed_function: PackedFunction
    spec: JobSpec
    backend: Backend
    settings: Settings
    options: RunOptions
    image: Image
    tree: str
    tree_bytes: int
    volumes: tuple[Mapping[str, Any], ...]
    buckets: tuple[BucketMount, ...]
    """The mounts that the volumes and the function itself need."""
    shop: Shop
    substitutes: Substitutes

    @property
    def function_name(self) -> str:
        return self.packed_function.name

    @property
    def dependencies(self) -> Mapping[str, Any] | list[Mapping[str, Any] | None] | None:
        """What the job installs; of a job with several accelerators, for each."""
        others = [fallback.dependencies for fallback in self.spec.fallbacks]
        return [self.image.dependencies, *others] if others else self.image.dependencies


def pack(
    function: Callable[..., Any],
    options: RunOptions,
    settings: Settings | None = None,
    *,
    backend: Backend | None = None,
    calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]] = (),
    tolerant: bool = False,
    progress: Progress = lambda _phase: None,
    dry: bool = False,
    build_patience: float | None = None,
) -> Packed:
    """Pack a function, its project and volumes, and store the files the store lacks.

    `backend`: instead of the one that options and settings name.
    `calls`: the arguments the function will be called with, to find the data in them: data below the
    project is stored as data, not again with the project. `tolerant` leaves arguments that cannot be
    pickled to be told when they are addressed. `dry` builds no image. Raises InvalidRequest or one of its
    kinds, ConfigurationError, ImageError or StoreError; before anything is stored if the call is at fault.
    Raises ImageBuilding if building takes longer than `build_patience` seconds.
    """
    settings = options.settings(settings or read_settings())
    name = backend_name(options.backend, options.accelerator.hosts, settings)
    backend = backend or open_backend(name, settings)
    if backend.name == "local":
        options = replace(options, fallbacks=())  # this machine has capacity for the first
    progress("packing")
    function = function.__func__ if isinstance(function, staticmethod) else function
    spec, notices = _checked_spec(function, options, settings, backend)
    source = source_file(function)
    project = locate_project(source, package_root=settings.package_root)
    own = getattr(function, "__module__", None) or ""
    modules = ProjectModules(str(project.root), own, ships_paths=options.debug)
    substitutes = Substitutes()
    in_function = Recorder(substitutes)
    packed_function = pack_function(function, project, modules, in_function)
    for args, kwargs in calls:
        _note_data(args, kwargs, modules, substitutes, tolerant)
    substitutes.note(options.volumes.values())
    substitutes.check(settings.project)
    find = partial(
        find_image, settings=settings, backend=backend, project=project, script=source, progress=progress
    )
    image, fallbacks = _images(options, partial(find, dry=dry, patience=build_patience))
    progress("uploading")
    tree = _stored_project(project, substitutes.paths(), backend, settings, progress)
    shop = _shop(backend, settings, progress)
    about_data: tuple[str, ...] = ()
    if substitutes.found:
        about_data = substitutes.store(shop)
        packed_function = pack_function(function, project, modules, substitutes)
    give(project.root, (*notices, *only_notice(project), *tree.notices, *about_data))
    volumes = {mount: substitutes.volume(mount, data) for mount, data in options.volumes.items()}
    return Packed(
        function,
        packed_function,
        replace(spec, fallbacks=fallbacks),
        backend,
        settings,
        options,
        image,
        tree.sha256,
        tree.size,
        tuple({"mount": mount, "source": source} for mount, (source, _) in volumes.items()),
        (*(bucket for _, bucket in volumes.values() if bucket), *substitutes.mounts(in_function.data)),
        shop,
        substitutes,
    )


def _checked_spec(
    function: Callable[..., Any], options: RunOptions, settings: Settings, backend: Backend
) -> tuple[JobSpec, tuple[str, ...]]:
    """The call's options as the backend accepts them, and notices about them."""
    environment, notices = capture(options.capture_env_vars, os.environ)
    if environment:
        _LOG.info("captured environment variables: %s", ", ".join(environment))
    spec = JobSpec(
        function_name=callable_name(function),
        accelerator=options.accelerator,
        backend=backend.name,
        namespace=settings.namespace,
        memory=options.memory,
        timeout=options.timeout,
        capacity_timeout=options.capacity_timeout,
        retries=options.retries,
        infrastructure_retries=options.infrastructure_retries,
        pod=options.pod,
        environment=environment,
        container_image=options.container_image,
        mounts=tuple(options.volumes),
        debug_wait=settings.debug_wait if options.debug else None,
        budget=_budget(options, settings),
    )
    asked = asked_output_dir(options, settings)
    if asked is not None:
        backend.check_output_dir(asked)
    return spec, (*notices, *backend.check(spec))


def _budget(options: RunOptions, settings: Settings) -> Budget | None:
    if options.budget is None:
        return None
    from kinetic_core.lifecycle.costing import priced_budget

    return priced_budget(options.budget, options.choices, settings)


def _images(options: RunOptions, find: Callable[[RunOptions], Image]) -> tuple[Image, tuple[Fallback, ...]]:
    """The image for the accelerator, and the fallbacks with theirs: one for all that need the same."""
    found: dict[tuple[str, str], Image] = {}
    for one in options.choices:
        if (one.kind, one.architecture) not in found:
            found[one.kind, one.architecture] = find(replace(options, accelerator=one))
    images = [found[one.kind, one.architecture] for one in options.choices]
    fallbacks = (
        Fallback(one, image.uri, image.name, image.dependencies)
        for one, image in zip(options.fallbacks, images[1:], strict=True)
    )
    return images[0], tuple(fallbacks)


def _note_data(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modules: ProjectModules,
    substitutes: Substitutes,
    tolerant: bool,
) -> None:
    """Find the data in the arguments of one call."""
    try:
        pack_arguments(args, kwargs, modules, substitutes)
    except UnpicklableArgument:
        if not tolerant:
            raise


def _stored_project(
    project: Project, without: list[Path], backend: Backend, settings: Settings, progress: Progress
) -> StoredTree:
    return store_project(
        project,
        backend.store,
        cache=settings.cache,
        default_excludes=settings.default_excludes,
        without=[*without, settings.local_store, settings.cache],
        warn_bytes=settings.project_warn_bytes,
        progress=progress,
    )


def _shop(backend: Backend, settings: Settings, progress: Progress) -> Shop:
    return Shop(
        backend.store,
        settings.cache,
        mounts=backend.name != "local",
        project=settings.project,
        hub_endpoint=settings.hub_endpoint,
        progress=progress,
    )
