"""From a call to a job that could be created: pack the function and its project, address it.

A batch packs once and addresses many times. Nothing is stored before the call is known to be sound.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kinetic_core.cluster.names import JOB_NAME
from kinetic_core.configuration import Settings, read_settings
from kinetic_core.errors import UnpicklableArgument
from kinetic_core.lifecycle.backends import Backend, backend_name, open_backend
from kinetic_core.lifecycle.data_sources import Shop
from kinetic_core.lifecycle.digests import spec_digest
from kinetic_core.lifecycle.imaging import Image, find_image
from kinetic_core.lifecycle.notices import give
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.output_places import asked_output_dir, output_dir
from kinetic_core.lifecycle.shipping import Recorder, Substitutes
from kinetic_core.model.job import BucketMount, JobReference, JobSpec
from kinetic_core.packaging.callables import callable_name, check_arguments, source_file
from kinetic_core.packaging.capture import capture
from kinetic_core.packaging.payload import PackedFunction, pack_arguments, pack_function, payload_frame
from kinetic_core.packaging.pickling import ProjectModules
from kinetic_core.packaging.project import locate_project, only_notice
from kinetic_core.packaging.tree import store_project

_LOG = logging.getLogger(__name__)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Call:
    """A function and what to call it with."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Group:
    """A job's place in a batch."""

    group_id: str
    kind: str
    index: int


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


@dataclass(frozen=True)
class Prepared:
    """One call, complete: submitting it stores its payload and creates its job."""

    backend: Backend
    spec: JobSpec
    reference: JobReference
    payload: bytes
    is_new: bool = False
    """Whether the id was drawn for this call, so that nothing of it can exist yet."""

    @property
    def spec_digest(self) -> str:
        """What makes two calls the same: everything but the job's id and its output directory."""
        return self.reference.spec_digest


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
) -> Packed:
    """Pack a function, its project and volumes, and store the files the store lacks.

    `backend`: instead of the one that options and settings name.
    `calls`: the arguments the function will be called with, to find the data in them: data below the
    project is stored as data, not again with the project. `tolerant` leaves arguments that cannot be
    pickled to be told when they are addressed. `dry` builds no image. Raises InvalidRequest or one of its
    kinds, ConfigurationError, ImageError or StoreError; before anything is stored if the call is at fault.
    """
    settings = options.settings(settings or read_settings())
    if backend is None:
        name = backend_name(options.backend, options.accelerator.hosts, settings)
        backend = open_backend(name, settings)
    progress("packing")
    function = function.__func__ if isinstance(function, staticmethod) else function
    spec, notices = _checked_spec(function, options, settings, backend)
    project = locate_project(source_file(function), package_root=settings.package_root)
    modules = ProjectModules(str(project.root), getattr(function, "__module__", None) or "")
    substitutes = Substitutes()
    in_function = Recorder(substitutes)
    packed_function = pack_function(function, project, modules, in_function)
    for args, kwargs in calls:
        try:
            pack_arguments(args, kwargs, modules, substitutes)
        except UnpicklableArgument:
            if not tolerant:
                raise
    substitutes.note(options.volumes.values())
    substitutes.check(settings.project)
    image = find_image(options, settings, backend, project, source_file(function), progress, dry=dry)
    progress("uploading")
    tree = store_project(
        project,
        backend.store,
        cache=settings.cache,
        default_excludes=settings.default_excludes,
        without=[*substitutes.paths(), settings.local_store, settings.cache],
        warn_bytes=settings.project_warn_bytes,
        progress=progress,
    )
    shop = Shop(
        backend.store,
        settings.cache,
        mounts=backend.name != "local",
        project=settings.project,
        hub_endpoint=settings.hub_endpoint,
        progress=progress,
    )
    about_data: tuple[str, ...] = ()
    if substitutes.found:
        about_data = substitutes.store(shop)
        packed_function = pack_function(function, project, modules, substitutes)
    give(project.root, (*notices, *only_notice(project), *tree.notices, *about_data))
    volumes = {mount: substitutes.volume(mount, data) for mount, data in options.volumes.items()}
    return Packed(
        function,
        packed_function,
        spec,
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


def address(
    packed: Packed,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    job_id: str | None = None,
    group: Group | None = None,
) -> Prepared:
    """Complete a packed function with the arguments of one call; data in them is stored.

    With a `job_id` the call's digest is comparable between processes, so that a repeated submission is
    known for what it is. Raises TypeError if the arguments do not fit, UnpicklableArgument if one cannot
    travel.
    """
    arguments = dict(kwargs or {})
    check_arguments(packed.function, args, arguments)
    modules, substitutes = packed.packed_function.modules, packed.substitutes
    recorder = Recorder(substitutes)
    pickled = pack_arguments(args, arguments, modules, recorder)
    if not substitutes.is_complete:
        substitutes.check(packed.settings.project)
        substitutes.store(packed.shop)
        pickled = pack_arguments(args, arguments, modules, substitutes)
    if len(pickled.body) > packed.settings.payload_warn_bytes > 0:
        _LOG.warning("the arguments are %d MB; Data(...) ships files once", len(pickled.body) >> 20)
    name = job_id or f"job-{secrets.token_hex(8)}"
    outputs = output_dir(
        asked_output_dir(packed.options, packed.settings),
        packed.backend.store.uri,
        name,
        group.index if group else None,
    )
    spec = replace(
        packed.spec,
        output_dir=outputs,
        buckets=tuple(dict.fromkeys((*packed.buckets, *substitutes.mounts(recorder.data)))),
        group_id=group.group_id if group else None,
        group_index=group.index if group else None,
        shipped=packed.tree_bytes + substitutes.size + len(pickled.body),
    )
    call = (packed.function, args, arguments) if job_id is not None and group is None else None
    digest = spec_digest(packed, pickled.body, call)
    payload = payload_frame(
        packed.packed_function,
        pickled,
        tree=packed.tree,
        env={**spec.environment, "KINETIC_OUTPUT_DIR": outputs},
        volumes=packed.volumes,
        output_dir=outputs,
        spec_digest=digest,
        dependencies=packed.image.dependencies,
        secrets=spec.pod.managed_secrets,
    )
    reference = _reference(packed, spec, name, digest, group)
    return Prepared(packed.backend, spec, reference, payload, is_new=job_id is None or group is not None)


def prepare(
    call: Call,
    options: RunOptions,
    *,
    job_id: str | None = None,
    settings: Settings | None = None,
    backend: Backend | None = None,
    progress: Progress = lambda _phase: None,
    dry: bool = False,
) -> Prepared:
    """Pack and address one call. Raises as `pack` and `address` do, before anything is stored."""
    arguments = dict(call.kwargs or {})
    check_arguments(call.function, call.args, arguments)
    packed = pack(
        call.function,
        options,
        settings,
        backend=backend,
        calls=[(call.args, arguments)],
        progress=progress,
        dry=dry,
    )
    return address(packed, call.args, arguments, job_id=job_id)


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
        retries=options.retries,
        infrastructure_retries=options.infrastructure_retries,
        pod=options.pod,
        environment=environment,
        container_image=options.container_image,
        mounts=tuple(options.volumes),
    )
    asked = asked_output_dir(options, settings)
    if asked is not None:
        backend.check_output_dir(asked)
    return spec, (*notices, *backend.check(spec))


def _reference(packed: Packed, spec: JobSpec, job_id: str, digest: str, group: Group | None) -> JobReference:
    project, zone, cluster_name = packed.backend.cluster or ("", "", "")
    return JobReference(
        job_id=job_id,
        backend=packed.backend.name,
        project=project or packed.settings.project,
        cluster_name=cluster_name,
        zone=zone,
        namespace=spec.namespace,
        bucket_name="",
        k8s_name=JOB_NAME.format(job_id),
        image_uri=packed.image.uri,
        accelerator=str(spec.accelerator),
        func_name=spec.function_name,
        display_name=f"kinetic-{spec.function_name}-{job_id}",
        created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        group_id=group.group_id if group else None,
        group_kind=group.kind if group else None,
        group_index=group.index if group else None,
        store_uri=packed.backend.store.uri,
        spec_digest=digest,
        output_dir=spec.output_dir or "",
    )
