"""From a packed function and its arguments to a job that could be created."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kinetic_core.cluster.names import JOB_NAME
from kinetic_core.configuration import Settings
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.lifecycle.digests import spec_digest
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.output_places import asked_output_dir, output_dir
from kinetic_core.lifecycle.packing import Packed, Progress, pack
from kinetic_core.lifecycle.shipping import Recorder
from kinetic_core.model.job import BucketMount, JobReference, JobSpec
from kinetic_core.packaging.callables import check_arguments
from kinetic_core.packaging.payload import pack_arguments, payload_frame
from kinetic_core.packaging.pickling import Pickled

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """A function and what to call it with."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Group:
    """A job's place in a batch; no index stands for all of its inputs."""

    group_id: str
    kind: str
    index: int | None


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
    pickled, mounts = pickle_arguments(packed, args, arguments)
    substitutes = packed.substitutes
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
        buckets=tuple(dict.fromkeys((*packed.buckets, *mounts))),
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
        dependencies=packed.dependencies,
        secrets=spec.pod.managed_secrets,
    )
    reference = reference_of(packed, spec, name, digest, group)
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
    build_patience: float | None = None,
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
        build_patience=build_patience,
    )
    return address(packed, call.args, arguments, job_id=job_id)


def pickle_arguments(
    packed: Packed, args: tuple[Any, ...], arguments: dict[str, Any]
) -> tuple[Pickled, tuple[BucketMount, ...]]:
    """The arguments of one call, pickled, and what must be mounted for them; data in them is stored.

    Raises TypeError if they do not fit, UnpicklableArgument if one cannot travel.
    """
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
    return pickled, tuple(substitutes.mounts(recorder.data))


def timestamp() -> str:
    """Now, as `JobReference.created_at` has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reference_of(
    packed: Packed, spec: JobSpec, job_id: str, digest: str, group: Group | None
) -> JobReference:
    """Who a job is."""
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
        created_at=timestamp(),
        group_id=group.group_id if group else None,
        group_kind=group.kind if group else None,
        group_index=group.index if group else None,
        debug=packed.options.debug,
        store_uri=packed.backend.store.uri,
        spec_digest=digest,
        output_dir=spec.output_dir or "",
        choices=",".join(map(str, packed.options.choices)) if spec.fallbacks else "",
    )
