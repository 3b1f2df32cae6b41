"""Bundle of a function: its project and data are stored once, and many jobs call the function.

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
from urllib.parse import unquote, urlparse

from kinetic_core._runner import object_names
from kinetic_core._runner.object_names import outputs_prefix
from kinetic_core._runner.wire import is_encodable
from kinetic_core.backends.base import Backend, backend_name, open_backend
from kinetic_core.backends.kubernetes.bootstrap import StoredArchive, client_archive, runner_archive
from kinetic_core.bound_method import BoundMethod
from kinetic_core.connections import Connections
from kinetic_core.data.data import Data
from kinetic_core.data.sources import Shop, StoredData, check_data, store
from kinetic_core.errors import InvalidRequest, UnpicklableArgument
from kinetic_core.job import BucketMount, Budget, Fallback, JobSpec, Step, StepBegun
from kinetic_core.jobs.image import Image, find_image, give
from kinetic_core.jobs.references import ResultReference
from kinetic_core.jobs.runner_archive import note_runner, store_archive
from kinetic_core.options import RunOptions
from kinetic_core.project.callables import callable_name, source_file
from kinetic_core.project.environment import capture
from kinetic_core.project.imported_modules import check_ships, reached
from kinetic_core.project.module_variables import change_notices, changed_variables
from kinetic_core.project.payload import PackedFunction, pack_arguments, pack_function
from kinetic_core.project.root import Project, locate_project
from kinetic_core.project.serialization import ProjectModules
from kinetic_core.project.tree import StoredTree, store_project
from kinetic_core.settings import Settings


class Recorder:
    """Pickling hook of one call, which notes the data that the call's pickle refers to."""

    def __init__(self, substitutes: Substitutes) -> None:
        self._substitutes = substitutes
        self.data: dict[Data, None] = {}

    def __call__(self, obj: Any) -> tuple[Any, ...] | None:
        """Return the persistent id of an object, and note the object if it is Data."""
        if type(obj) is Data:
            self.data[obj] = None
        return self._substitutes(obj)


class Substitutes:
    """Persistent ids of the data in one bundle, for jobs that read the store at `store_uri`.

    Until `store` has been called, data is only noted, so that a call which cannot be pickled is refused
    before anything is stored.
    """

    def __init__(self, store_uri: str) -> None:
        self._store_uri = store_uri
        self.found: dict[Data, None] = {}
        self._stored: dict[Data, StoredData] = {}

    def __call__(self, obj: Any) -> tuple[Any, ...] | None:
        """Return the persistent id that stands for an object in a pickle, None if it is pickled itself."""
        kind = type(obj)
        if kind is Data:
            self.found[obj] = None
            stored = self._stored.get(obj)
            return "data", stored.source if stored else None
        if kind is ResultReference:
            if obj.store_uri != self._store_uri:
                raise InvalidRequest(
                    f"a value of {obj.job_id} lies in {obj.store_uri}, and this job reads "
                    f"{self._store_uri} only"
                )
            return "result", obj.store_uri, obj.object_name, obj.sha256
        return None

    @property
    def is_complete(self) -> bool:
        """Return whether all data found so far is stored, so that pickles made now are final."""
        return self.found.keys() <= self._stored.keys()

    def note(self, data: Iterable[Data]) -> None:
        """Add data that no pickle contains: volumes."""
        self.found |= dict.fromkeys(data)

    def paths(self) -> list[Path]:
        """Return the paths of local data, which the project's tree leaves out."""
        return [Path(data.path) for data in self.found if data.is_local]

    def check(self, connections: Connections) -> None:
        """Raise InvalidRequest or StoreError for data that does not exist, before anything is stored."""
        for data in self.found.keys() - self._stored.keys():
            check_data(data, connections)

    @property
    def size(self) -> int:
        """Return the size of all stored data in bytes."""
        return sum(stored.size for stored in self._stored.values())

    def store(self, shop: Shop) -> tuple[str, ...]:
        """Store the data that was found and is not stored yet; return notices about the data."""
        notices: list[str] = []
        for data in [data for data in self.found if data not in self._stored]:
            self._stored[data] = store(data, shop)
            notices += [f"{data!r}: {notice}" for notice in self._stored[data].notices]
            if data.fuse and not shop.mounts:
                notices.append(f"{data!r} is copied, not mounted: nothing can be mounted here")
        return tuple(notices)

    def source(self, data: Data) -> dict[str, Any]:
        """Return the payload's source of stored data."""
        return self._stored[data].source

    def volume(self, mount: str, data: Data) -> tuple[dict[str, Any], BucketMount | None]:
        """Return the source of a volume, and its mount if the volume is a directory of a bucket."""
        stored = self._stored[data]
        if stored.mount is None or stored.source["file"] is not None:
            return stored.source, stored.mount
        return {**stored.source, "path": mount}, replace(stored.mount, path=mount)

    def mounts(self, found: Iterable[Data]) -> tuple[BucketMount, ...]:
        """Return the mounts that data in arguments needs."""
        return tuple(mount for data in found if (mount := self._stored[data].mount) is not None)


def asked_output_dir(options: RunOptions, settings: Settings) -> str | None:
    """Return the chosen output directory, a relative path resolved against this process's directory.

    Raises InvalidRequest for a path whose name is not UTF-8, because no record can hold it.
    """
    asked = options.output_dir or settings.output_dir
    if asked is None:
        return None
    if "://" not in asked:
        asked = os.path.abspath(os.path.expanduser(asked))  # noqa: PTH100, PTH111  resolve() follows links
    if not is_encodable(asked):
        raise InvalidRequest(f"output_dir={asked!r} cannot be encoded as UTF-8; give another directory")
    return asked


def output_dir(asked: str | None, store_uri: str, job_id: str, index: int | None) -> str:
    """Return the chosen directory, else the job's own; inputs of a batch get one for each `index`."""
    if asked is not None:
        return asked if index is None else f"{asked.rstrip('/')}/{index}"
    uri = f"{store_uri}/{outputs_prefix(job_id)}"
    return unquote(urlparse(uri).path) if uri.startswith("file://") else uri


_LOG = logging.getLogger(__name__)

Progress = Callable[[str], None]


def place(
    options: RunOptions, connections: Connections, backend: Backend | None = None
) -> tuple[RunOptions, Backend]:
    """Return the backend of a call, and the options with the one machine that its accelerator's name means.

    Asks the cluster for its pools only where several machines carry the name (ADR 0059). Raises as
    `open_backend` and `backend_name` do, and InvalidRequest if the machine does not go with other options.
    """
    first = options.accelerator

    def opened(hosts: int) -> Backend:
        hosts = 1 if options.warm is not None else hosts  # workers are Jobs, of several hosts, too
        return open_backend(backend_name(options.backend, hosts, connections), connections)

    there = backend or opened(first.hosts)
    if options.warm is not None and there.name == "pathways":
        raise InvalidRequest(
            "warm= does not go with KINETIC_BACKEND=pathways: a worker is a Job; give backend='gke', or "
            "leave warm= out"
        )
    if not first.others or options.fallbacks:  # several accelerators have one host each
        return options, there
    found = there.meaning(first)
    if found is not None and found != first:
        _LOG.warning(
            "kinetic: accelerator %s is taken for %s: the cluster has no pool of %s",
            *(first, found.describe(), first.describe()),
        )
        options = options.on(first.meaning(found))
        if backend is None:
            there = opened(found.hosts)
    elif there.name != "local":
        _LOG.info("accelerator %s", first.describe())
    return options, there


@dataclass(frozen=True)
class Packed:
    """Function and project, stored and ready to be called many times."""

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
    client_package: StoredArchive | None
    """The stored archive of this package; None for jobs that have it from this interpreter."""

    @property
    def function_name(self) -> str:
        return self.packed_function.name

    @property
    def dependencies(self) -> Mapping[str, Any] | list[Mapping[str, Any] | None] | None:
        """Return what the job installs; for several accelerators, a list with an entry for each."""
        others = [fallback.dependencies for fallback in self.spec.fallbacks]
        return [self.image.dependencies, *others] if others else self.image.dependencies


def pack(
    function: Callable[..., Any],
    options: RunOptions,
    connections: Connections,
    *,
    backend: Backend | None = None,
    calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]] = (),
    tolerant: bool = False,
    progress: Progress = lambda _phase: None,
    dry: bool = False,
    build_patience: float | None = None,
    project: Project | None = None,
) -> Packed:
    """Pack a function, its project and volumes, and store the files the store lacks.

    `backend`, `project`: in place of those that options, settings and the function's file name.
    `calls`: the arguments the function will be called with; data in them that lies below the project is
    stored as data only. `tolerant` leaves arguments that cannot be pickled to `address`, which reports them.
    `dry` builds no image.

    Raises InvalidRequest or a subclass, ConfigurationError, ImageError or StoreError; before anything is
    stored if the call is at fault. Raises ImageBuilding if the build takes longer than `build_patience`
    seconds.
    """
    connections = connections.with_settings(options.settings(connections.settings))
    settings = connections.settings
    options, backend = place(options, connections, backend)
    if backend.name == "local":
        options = replace(options, fallbacks=())  # this machine has capacity for the first
    progress(StepBegun(Step.PACK, "packing"))
    function = function.__func__ if isinstance(function, staticmethod) else function
    spec, notices = _checked_spec(function, options, settings, backend)
    source = source_file(function)
    project = project or locate_project(source, package_root=settings.package_root)
    code = _code(function, project, calls, options, backend, settings, tolerant=tolerant)
    code.substitutes.check(connections)
    find = partial(
        find_image,
        connections=connections,
        backend=backend,
        project=project,
        script=source,
        progress=progress,
        function=getattr(function, "__qualname__", type(function).__qualname__).partition(".")[0],
        dry=dry,
        patience=build_patience,
    )
    image, spec = _images(options, spec, find)
    progress(StepBegun(Step.UPLOAD, "uploading"))
    return _stored(code, spec, options, backend, settings, image, notices, progress)


@dataclass(frozen=True)
class _Code:
    """Code of a call before it is stored: the function, its project, and what data they refer to."""

    function: Callable[..., Any]
    packed: PackedFunction
    project: Project
    modules: ProjectModules
    substitutes: Substitutes
    data: Iterable[Data]
    """The data that the function itself refers to; `substitutes` has that of arguments and volumes, too."""


def _code(
    function: Callable[..., Any],
    project: Project,
    calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]],
    options: RunOptions,
    backend: Backend,
    settings: Settings,
    *,
    tolerant: bool,
) -> _Code:
    """Pickle the function, and check that what it imports ships; see `pack`."""
    modules = _modules_of(function, project)
    substitutes = Substitutes(backend.store.uri)
    in_function = Recorder(substitutes)
    packed = pack_function(function, project, modules, in_function)
    for args, kwargs in calls:
        _note_data(args, kwargs, modules, substitutes, tolerant)
    imported = reached(modules)
    check_ships(project, modules, imported, settings.default_excludes)
    packed = replace(packed, changes=changed_variables(imported))
    substitutes.note(options.volumes.values())
    return _Code(function, packed, project, modules, substitutes, in_function.data)


def _stored(
    code: _Code,
    spec: JobSpec,
    options: RunOptions,
    backend: Backend,
    settings: Settings,
    image: Image,
    notices: Iterable[str],
    progress: Progress,
) -> Packed:
    """Store the project and the data, and say once what the user should know of them."""
    project, packed, substitutes = code.project, code.packed, code.substitutes
    tree, client_package = _stored_project(project, substitutes.paths(), backend, settings, progress)
    shop = _shop(backend, settings, progress)
    about_data = substitutes.store(shop)
    if substitutes.found:  # only now it is known where the data lies
        again = pack_function(code.function, project, code.modules, substitutes)
        packed = replace(again, changes=packed.changes)
    changes = change_notices(packed.changes)
    give(project.root, (*notices, *project.notices, *changes, *tree.notices, *about_data))
    volumes, buckets = _volumes(options, substitutes)
    return Packed(
        code.function,
        packed,
        spec,
        backend,
        settings,
        options,
        image,
        tree.sha256,
        tree.size,
        volumes,
        (*buckets, *substitutes.mounts(code.data)),
        shop,
        substitutes,
        client_package,
    )


def _volumes(
    options: RunOptions, substitutes: Substitutes
) -> tuple[tuple[Mapping[str, Any], ...], tuple[BucketMount, ...]]:
    """Return the sources of the call's volumes, and the mounts that they need."""
    found = {mount: substitutes.volume(mount, data) for mount, data in options.volumes.items()}
    sources = tuple({"mount": mount, "source": source} for mount, (source, _) in found.items())
    return sources, tuple(bucket for _, bucket in found.values() if bucket)


def _modules_of(function: Callable[..., Any], project: Project) -> ProjectModules:
    """Return the modules of the project as a pickle of the function names them."""
    own = getattr(function, "__module__", None) or ""
    elsewhere = [(str(place.directory), place.path) for place in project.elsewhere]
    return ProjectModules(str(project.root), own, elsewhere=elsewhere)


def _checked_spec(
    function: Callable[..., Any], options: RunOptions, settings: Settings, backend: Backend
) -> tuple[JobSpec, tuple[str, ...]]:
    """Return the call's options as the backend accepts them, and notices about the options."""
    environment, notices = capture(options.capture_env_vars, os.environ)
    if environment:
        _LOG.info("captured environment variables: %s", ", ".join(environment))
    method = function if isinstance(function, BoundMethod) else None
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
        warm=options.warm,
        reuse=options.reuse,
        instance=method.instance if method else "",
        makes_instance=method is not None and method.makes_instance,
    )
    asked = asked_output_dir(options, settings)
    if asked is not None:
        backend.check_output_dir(asked)
    return spec, (*notices, *backend.check(spec))


def _budget(options: RunOptions, settings: Settings) -> Budget | None:
    if options.budget is None:
        return None
    from kinetic_core.jobs.cost import priced_budget

    every = [meaning for choice in options.choices for meaning in choice.meanings]
    return priced_budget(options.budget, every, settings)


def _images(options: RunOptions, spec: JobSpec, find: Callable[[RunOptions], Image]) -> tuple[Image, JobSpec]:
    """Find the image for the accelerator, and those of the fallbacks in `spec`; equal needs share one."""
    found: dict[tuple[str, str], Image] = {}
    for one in options.choices:
        if (one.kind, one.architecture) not in found:
            found[one.kind, one.architecture] = find(replace(options, accelerator=one))
    images = [found[one.kind, one.architecture] for one in options.choices]
    fallbacks = (
        Fallback(one, image.uri, image.name, image.dependencies)
        for one, image in zip(options.fallbacks, images[1:], strict=True)
    )
    return images[0], replace(spec, fallbacks=tuple(fallbacks))


def _note_data(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modules: ProjectModules,
    substitutes: Substitutes,
    tolerant: bool,
) -> None:
    """Note the data in the arguments of one call."""
    try:
        pack_arguments(args, kwargs, modules, substitutes)
    except UnpicklableArgument:
        if not tolerant:
            raise


def _stored_project(
    project: Project,
    without: list[Path],
    backend: Backend,
    settings: Settings,
    progress: Progress,
) -> tuple[StoredTree, StoredArchive | None]:
    """Store the project's tree, and the archives of runner and client package where they are missing.

    The request that looks for the tree looks for the archives too. Returns the tree and the client
    package, None for a backend whose jobs import the package from this interpreter.
    """
    runner = object_names.runner(runner_archive(settings.cache)[0])
    package = None if backend.name == "local" else client_archive(settings.cache)
    beside = [runner, *([object_names.runner(package[0])] if package else [])]
    tree = store_project(
        project,
        backend.store,
        cache=settings.cache,
        default_excludes=settings.default_excludes,
        without=[*without, settings.local_store, settings.cache],
        warn_bytes=settings.project_warn_bytes,
        progress=progress,
        beside=beside,
    )
    if package is not None and beside[1] not in tree.beside:
        store_archive(backend.store, package)
    note_runner(backend, is_there=runner in tree.beside)
    return tree, StoredArchive(package[0], len(package[1])) if package else None


def _shop(backend: Backend, settings: Settings, progress: Progress) -> Shop:
    return Shop(
        backend.store,
        settings.cache,
        mounts=backend.name != "local",
        project=settings.project,
        hub_endpoint=settings.hub_endpoint,
        progress=progress,
    )
