"""The values a call turns into: what was asked, who it is, what is known of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any, Self

from kinetic_core._runner.wire import PROTOCOL, Failure, FailureClass, is_encodable
from kinetic_core.accelerators.grammar import Accelerator
from kinetic_core.errors import ProtocolMismatch


class JobStatus(Enum):
    """Observable status of a job.

    A job past its deadline or its budget is FAILED; the observation's failure class says why.
    """

    PENDING = "PENDING"
    """Created, not running: waiting for a queue, a slot, a node or an image."""

    RUNNING = "RUNNING"
    """Its runner has started. A restart after a lost node returns it to PENDING."""

    SUCCEEDED = "SUCCEEDED"
    """Final: the function returned and its value is committed."""

    FAILED = "FAILED"
    """Final: the job has no value, and no further attempt will be made."""

    CANCELLED = "CANCELLED"
    """Final: somebody cancelled the job, or its batch was stopped before it started."""

    NOT_FOUND = "NOT_FOUND"
    """Neither the backend nor the object store knows the job."""

    @property
    def is_terminal(self) -> bool:
        """Whether no later status can follow."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)

    @property
    def ended_without_value(self) -> bool:
        """Whether the job is known to have ended, and not by returning."""
        return self in (JobStatus.FAILED, JobStatus.CANCELLED)

    @classmethod
    def after(cls, failure: Failure | None) -> JobStatus:
        """Return the final status of a job that this failure ended."""
        cancelled = failure is not None and failure.failure_class == FailureClass.CANCELLED
        return cls.CANCELLED if cancelled else cls.FAILED


def in_job() -> bool:
    """Return whether this is a job's user code, or a process that user code has started."""
    return "KINETIC_JOB_ID" in os.environ  # the runner sets it


ClusterName = tuple[str, str, str]
"""Project, zone and name of a cluster, as Google names it."""


@dataclass(frozen=True, slots=True)
class PodOptions:
    """What a user may say about the pod besides its accelerator. Means something on a cluster only.

    docs/reference/options.md says what each means. `cpu` is in cores, `disk` in bytes, `lease` and
    `hang_after` are in seconds. `secrets` maps a variable's name to `secret/key`, or to
    `projects/P/secrets/S/versions/V`.
    """

    cpu: float | None = None
    disk: int | None = None
    reservation: str | None = None
    flex_start: bool = False
    priority_class: str | None = None
    queue: str | None = None
    service_account: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    run_as_root: bool = False
    cache_volume: str | None = None
    lease: float | None = None
    hang_after: float | None = None
    security_context: Mapping[str, Any] = field(default_factory=dict)

    @property
    def managed_secrets(self) -> dict[str, str]:
        """Those of Secret Manager, which the runner reads."""
        return {name: place for name, place in self.secrets.items() if place.startswith("projects/")}

    @property
    def cluster_secrets(self) -> dict[str, str]:
        """Those of the namespace, which the kubelet sets."""
        return {name: place for name, place in self.secrets.items() if not place.startswith("projects/")}


@dataclass(frozen=True, slots=True)
class BucketMount:
    """What of a bucket is mounted, for reading, at which absolute path. `folder` "" is all of it."""

    path: str
    bucket: str
    folder: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """Hardware for a job that finds no capacity for what it asked for first, and the image for it.

    `image_name` says what is in the image, whoever built it; `dependencies` is what the job installs there.
    """

    accelerator: Accelerator
    image_uri: str
    image_name: str
    dependencies: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job may cost, and what an hour of each of its accelerators, all hosts of it, costs."""

    amount: float
    currency: str
    hourly: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One call, resolved and validated: everything a manifest is made from except what ships.

    `memory` is in bytes per host; `timeout` in seconds from the job's creation; `retries` counts extra
    attempts after user errors, `infrastructure_retries` those after what was not the user's fault.
    `environment` is applied before the user's code is unpickled. `mounts` are the absolute paths at which
    the job finds its volumes; those that are also in `buckets` are mounted from one. `shipped` are the bytes
    of project, data and arguments. `debug_wait` is how many seconds the function waits for a debugger; None
    for a job that is not debugged. `capacity_timeout` is how many seconds the job waits for each accelerator
    that has another after it. `warm` is for how many seconds its pod waits for further calls; None for a pod
    of the job's own. `reuse` is what these calls share, "process" or "fork"; None for nothing.
    A method of an instance (instances.py) runs on the worker of that `instance`, an id; only a call that
    `makes_instance` may get a new worker.
    """

    function_name: str
    accelerator: Accelerator
    backend: str
    namespace: str = "default"
    memory: int | None = None
    timeout: float | None = None
    retries: int = 0
    infrastructure_retries: int = 10
    grace: float = 30.0
    output_dir: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    pod: PodOptions = PodOptions()
    container_image: str | None = None
    mounts: tuple[str, ...] = ()
    buckets: tuple[BucketMount, ...] = ()
    group_id: str | None = None
    group_index: int | None = None
    shipped: int = 0
    debug_wait: float | None = None
    fallbacks: tuple[Fallback, ...] = ()
    capacity_timeout: float = 600.0
    budget: Budget | None = None
    warm: float | None = None
    reuse: str | None = None
    instance: str = ""
    makes_instance: bool = False


class Step(StrEnum):
    """Step of preparing a job."""

    PACK = "pack"
    BUILD = "build"
    UPLOAD = "upload"


_STEP_TIMES = re.compile(rf"((?:{'|'.join(Step)})=\d{{1,6}}\.\d{{3}}(?: |$))*")
"""What a reference says of its preparation."""
_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
}
"""Types that values may have, by how the field of a reference is annotated."""


def is_timestamp(text: str) -> bool:
    """Whether it is a point in time as references have it."""
    try:
        datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return False
    return True


@dataclass(frozen=True)
class JobReference:
    """The JSON-safe identity of a job: with it any process on any machine can observe and collect it.

    `zone` and `cluster_name` are empty for a cluster that is not known by the GKE API's names. `choices` are
    all accelerators of a job that has several, `accelerator` first, with commas between. `worker` is the id
    of the worker that a call was given to, "" for a job with a pod of its own. `preparation` are the steps of
    preparing the job before `created_at`, in order, each with its seconds: `pack=0.210 upload=1.730`.
    """

    job_id: str
    backend: str
    project: str
    cluster_name: str
    zone: str
    namespace: str
    bucket_name: str
    k8s_name: str
    image_uri: str
    accelerator: str
    func_name: str
    display_name: str
    created_at: str
    group_id: str | None = None
    group_kind: str | None = None
    group_index: int | None = None
    debug: bool = False
    store_uri: str = ""
    spec_digest: str = ""
    output_dir: str = ""
    choices: str = ""
    worker: str = ""
    preparation: str = ""
    protocol: int = PROTOCOL

    @property
    def hardware(self) -> str:
        """The accelerators that were asked for."""
        return self.choices or self.accelerator

    @property
    def steps(self) -> list[tuple[Step, float]]:
        """The steps of preparing the job, in order, and how many seconds each took."""
        told = (step.partition("=") for step in self.preparation.split())
        return [(Step(name), float(seconds)) for name, _, seconds in told]

    @property
    def preparation_seconds(self) -> float:
        """How long preparing the job took before `created_at`."""
        return sum(seconds for _, seconds in self.steps)

    @property
    def cluster(self) -> ClusterName | None:
        """The cluster by the GKE API's names, None if it is not known by them."""
        return (self.project, self.zone, self.cluster_name) if self.zone else None

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, ready for JSON."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict()`; unknown keys are ignored, so that a later version's handles load.

        Raises TypeError for a missing or malformed field, ProtocolMismatch for another wire protocol.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"a reference is an object, not {type(values).__name__}")
        if values.get("protocol", PROTOCOL) != PROTOCOL:
            raise ProtocolMismatch(
                f"job {values.get('job_id')} speaks wire protocol {values['protocol']}, "
                f"this client {PROTOCOL}. Use the version of airflow-provider-kinetic that submitted it"
            )
        known = {f.name: _KINDS[str(f.type)] for f in fields(cls)}
        for name, kinds in known.items():
            if name in values and type(values[name]) not in kinds:
                raise TypeError(f"{name!r} of a reference is {type(values[name]).__name__}")
            if isinstance(values.get(name), str) and not is_encodable(values[name]):
                raise TypeError(f"{name!r} of a reference cannot be encoded as UTF-8")
        reference = cls(**{key: value for key, value in values.items() if key in known})
        if reference.created_at and not is_timestamp(reference.created_at):
            raise TypeError(f"'created_at' of a reference is {reference.created_at[:40]!r}, not a time")
        if not _STEP_TIMES.fullmatch(reference.preparation):
            raise TypeError(
                f"'preparation' of a reference is {reference.preparation[:40]!r}, not steps with seconds"
            )
        return reference


@dataclass(frozen=True, slots=True)
class JobObservation:
    """What is known of a job now. Times are Unix seconds; absent facts are None.

    `reason` is one CamelCase word a program can compare (as Kubernetes writes them: `Unschedulable`,
    `WaitingForSlot`, `DeadlineExceeded`); `message` is the sentence for people. `moves_on_at` is when a job
    that waits for capacity goes to its next accelerator, or one in a queue is given up for its timeout.
    `overdue`: its timeout is over, and its node does not say whether it has ended.
    """

    status: JobStatus
    reason: str = ""
    message: str = ""
    attempt: int = 0
    created_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    failure: Failure | None = None
    moves_on_at: float | None = None
    overdue: bool = False

    @property
    def is_terminal(self) -> bool:
        return self.status.is_terminal


@dataclass(frozen=True, slots=True)
class ChunkObservation(JobObservation):
    """What is known of a Job that runs many inputs of a batch: of which, and how those ended that have."""

    inputs: frozenset[int] = frozenset()
    succeeded: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Line:
    """Of its `size` jobs `limit` run at once, None for all.

    `fail_fast` starts none after one has failed; `cancel_running` also ends those that run.
    """

    group_id: str
    size: int
    limit: int | None
    fail_fast: bool
    cancel_running: bool


class StepBegun(str):
    """Line of progress with which a step begins; other lines are plain text."""

    __slots__ = ("step",)
    step: Step

    def __new__(cls, step: Step, line: str) -> Self:
        made = super().__new__(cls, line)
        made.step = step
        return made
