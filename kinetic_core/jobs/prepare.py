"""Preparation of a job from a packed function and the arguments of one call."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kinetic_core._runner.sizes import shown_size
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.names import JOB_NAME
from kinetic_core.connections import Connections
from kinetic_core.job import BucketMount, JobReference, JobSpec, Step, StepBegun
from kinetic_core.jobs.bundle import Packed, Progress, Recorder, asked_output_dir, output_dir, pack
from kinetic_core.options import RunOptions
from kinetic_core.project.callables import check_arguments
from kinetic_core.project.payload import pack_arguments, payload_frame
from kinetic_core.project.root import Project
from kinetic_core.project.serialization import Pickled, ProjectModules, ProjectPickler, Substitute

if TYPE_CHECKING:
    from kinetic_core.jobs.bundle import Packed

Parts = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]


def spec_digest(packed: Packed, arguments: bytes, call: Parts | None) -> str:
    """Return the SHA-256, in hex, over all that decides what a job does; its id and outputs are left out.

    `call` makes the digest independent of the process: pickles of the same values differ between processes in
    the order of sets and in the ids cloudpickle gives to classes.
    """
    spec = packed.spec
    asked: dict[str, Any] = {
        "accelerator": spec.accelerator.asked,
        "backend": "gke" if spec.accelerator.others else spec.backend,
        "namespace": spec.namespace,
        "memory": spec.memory,
        "timeout": spec.timeout,
        "retries": spec.retries,
        "pod": asdict(spec.pod),
        "image": packed.image.name,
        "environment": dict(spec.environment),
        "tree": packed.tree,
        "volumes": [dict(volume) for volume in packed.volumes],
        "output_dir": packed.options.output_dir,
        "debug": packed.options.debug,
    }
    if packed.packed_function.changes:
        asked["variables"] = repr(packed.packed_function.changes)
    if spec.fallbacks:
        asked["fallbacks"] = [(str(one.accelerator), one.image_name) for one in spec.fallbacks]
    if spec.budget is not None:
        asked["budget"] = spec.budget.amount
    total = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    if call is None:
        total.update(packed.packed_function.pickle.body + b"\0" + arguments)
    else:
        total.update(_stable(call, packed.packed_function.modules, packed.substitutes))
    return total.hexdigest()


class _StablePickler(ProjectPickler):
    """Pickler for comparison only: classes by name (their code is in the tree), sets in a fixed order."""

    def __init__(self, stream: io.BytesIO, project: ProjectModules, substitute: Substitute) -> None:
        super().__init__(stream, project, substitute)
        self._rules = project, substitute

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        kind = type(obj)
        if kind is set or kind is frozenset:
            return "set", sorted(_stable(item, *self._rules) for item in obj)
        if isinstance(obj, type) and obj.__module__ in self._rules[0]:
            return "class", obj.__module__, obj.__qualname__
        return super().persistent_id(obj)


def _stable(value: Any, project: ProjectModules, substitute: Substitute) -> bytes:
    with io.BytesIO() as stream:
        _StablePickler(stream, project, substitute).dump(value)
        return stream.getvalue()


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """Function and arguments. `project` ships with the function; None: the project of its file."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    project: Project | None = None


@dataclass(frozen=True)
class Group:
    """Place of a job in a batch; without an index it stands for all inputs."""

    group_id: str
    kind: str
    index: int | None


@dataclass(frozen=True)
class Prepared:
    """Complete call: submitting it stores the payload and creates the job."""

    backend: Backend
    spec: JobSpec
    reference: JobReference
    payload: bytes
    is_new: bool = False
    """Whether the id was generated for this call, so that no job can have it yet."""

    @property
    def spec_digest(self) -> str:
        """Return the digest by which two calls are equal, over everything but job id and output directory."""
        return self.reference.spec_digest


def address(
    packed: Packed,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    job_id: str | None = None,
    group: Group | None = None,
) -> Prepared:
    """Complete a packed function with the arguments of one call, and store the data in the arguments.

    With a `job_id` the call's digest is comparable between processes, so that a repeated submission is
    recognised. Raises TypeError if the arguments do not fit, UnpicklableArgument if one cannot be pickled.
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
        client_package=packed.client_package,
    )
    reference = reference_of(packed, spec, name, digest, group)
    return Prepared(packed.backend, spec, reference, payload, is_new=job_id is None or group is not None)


def prepare(
    call: Call,
    options: RunOptions,
    connections: Connections,
    *,
    job_id: str | None = None,
    backend: Backend | None = None,
    progress: Progress = lambda _phase: None,
    dry: bool = False,
    build_patience: float | None = None,
) -> Prepared:
    """Pack and address one call, and note how long each step took.

    Raises as `pack` and `address` do, before anything is stored.
    """
    arguments = dict(call.kwargs or {})
    check_arguments(call.function, call.args, arguments)
    steps = _Steps(progress)
    packed = pack(
        call.function,
        options,
        connections,
        backend=backend,
        calls=[(call.args, arguments)],
        progress=steps,
        dry=dry,
        build_patience=build_patience,
        project=call.project,
    )
    prepared = address(packed, call.args, arguments, job_id=job_id)
    return replace(prepared, reference=replace(prepared.reference, preparation=steps.told()))


class _Steps:
    """Progress of preparing a job that also notes when each step began."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._begun: list[tuple[Step, float]] = []

    def __call__(self, line: str) -> None:
        if isinstance(line, StepBegun):
            self._begun.append((line.step, time.monotonic()))
        self._progress(line)

    def told(self) -> str:
        """Return the steps until now, each with its seconds, in the format of `JobReference.preparation`."""
        ends = [*(at for _, at in self._begun[1:]), time.monotonic()]
        return " ".join(f"{step}={end - at:.3f}" for (step, at), end in zip(self._begun, ends, strict=True))


def pickle_arguments(
    packed: Packed, args: tuple[Any, ...], arguments: dict[str, Any]
) -> tuple[Pickled, tuple[BucketMount, ...]]:
    """Pickle the arguments of one call, storing the data in them; return the pickle and the mounts it needs.

    Raises TypeError if the arguments do not fit, UnpicklableArgument if one cannot be pickled.
    """
    check_arguments(packed.function, args, arguments)
    modules, substitutes = packed.packed_function.modules, packed.substitutes
    recorder = Recorder(substitutes)
    pickled = pack_arguments(args, arguments, modules, recorder)
    if not substitutes.is_complete:
        substitutes.check(packed.backend.connections)
        substitutes.store(packed.shop)
        pickled = pack_arguments(args, arguments, modules, substitutes)
    if len(pickled.body) > packed.settings.payload_warn_bytes > 0:
        _LOG.warning("the arguments are %s; Data(...) ships files once", shown_size(len(pickled.body)))
    return pickled, tuple(substitutes.mounts(recorder.data))


def timestamp(at: float | None = None) -> str:
    """Return a time in Unix seconds, by default now, in the format of `JobReference.created_at`."""
    told = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return f"{told.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def reference_of(
    packed: Packed, spec: JobSpec, job_id: str, digest: str, group: Group | None
) -> JobReference:
    """Build the reference of a job."""
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
