"""Reference to another job's value: small enough for any message, resolved where it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.chunks import input_of
from kinetic_core.backends.kubernetes.names import JOB_NAME
from kinetic_core.errors import MalformedObject, OtherCluster, OtherNamespace
from kinetic_core.job import JobReference

MARKER = "__kinetic_result__"
_VERSION = 1


@dataclass(frozen=True)
class ResultReference:
    """Location, digest and type of a job's value. `object_name` may name a part of an object.

    As an argument of another job, at any depth, the reference becomes the value inside that job. `load()`
    gets the value here. `to_dict()` is plain JSON, for XCom and other messages.
    """

    store_uri: str
    object_name: str
    sha256: str
    job_id: str
    type_name: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON that `is_reference` recognises."""
        return {MARKER: _VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict()`. Raises TypeError for a missing field."""
        return cls(**{f.name: str(values[f.name]) for f in fields(cls) if f.name in values})

    def load(self, *, trust_store: bool = False) -> Any:
        """Read the value from the store, and compare its digest with the reference's.

        A pickled value is loaded only with `trust_store=True`, because loading runs code that whoever can
        write both the store and this reference chooses. Raises UnverifiedResult.
        """
        from kinetic_core.jobs.collect import load_reference

        return load_reference(self, trust_store)


def is_reference(value: Any) -> bool:
    """Return whether a value is the `to_dict()` of a reference that this version understands."""
    return type(value) is dict and value.get(MARKER) == _VERSION


def names_outcome(place: str, job_id: str) -> bool:
    """Return whether a place can have the outcome of a job: an object of its own, or a part of a segment."""
    span, child = object_names.span_of(place), input_of(job_id)
    if span is None or child is None:
        return place == object_names.result(job_id)
    own = f"{re.escape(object_names.batch(child[0], ''))}(rounds/[0-9]+/)?outcomes/[0-9-]+"
    return re.fullmatch(own + re.escape(object_names.SEGMENT_END), span[0]) is not None


_LONGEST = 4096
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def checked_reference(stored: object, job_id: str, backend: Backend) -> JobReference:
    """Return the reference of a job or batch from the data that the store has under its id.

    Raises MalformedObject for data that no client of this backend writes; OtherCluster, OtherNamespace for
    a job of another place than the settings name; ProtocolMismatch.
    """
    try:
        reference = JobReference.from_dict(stored)  # type: ignore[arg-type]  # it checks that
    except TypeError as exc:
        raise MalformedObject(f"the handle of {job_id} in {backend.store.uri} is unreadable: {exc}") from exc
    if wrong := _fault(reference, job_id, backend):
        raise MalformedObject(f"the handle of {job_id} in {backend.store.uri} names {wrong}; not used")
    return _placed(reference, backend)


def check_label(namespace: str) -> None:
    """Raise Malformed for an invalid name of a namespace, which could lead a request elsewhere."""
    if not _LABEL.fullmatch(namespace):
        raise wire.Malformed(f"{namespace!r} is not a namespace")


def check_namespace(namespace: str, job_id: str, backend: Backend) -> None:
    """Raise OtherNamespace if the stored job or batch belongs to another namespace than the settings name."""
    if backend.namespace not in (None, namespace):
        raise OtherNamespace(
            f"{job_id} is a job of namespace {namespace}, the settings name {backend.namespace}; name it "
            "with namespace=, --namespace or in a profile to get at it"
        )


def _fault(reference: JobReference, job_id: str, backend: Backend) -> str:
    """Return what in a reference no client writes; "" if it is valid."""
    for each in fields(reference):
        value = getattr(reference, each.name)
        if isinstance(value, str) and not (len(value) <= _LONGEST and value.isprintable()):
            return f"a {each.name} that cannot be shown"
    if reference.job_id != job_id or reference.store_uri != backend.store.uri:
        return "another job or store"
    if (reference.backend == "local") != (backend.name == "local"):
        return f"backend {reference.backend!r}"
    if not _LABEL.fullmatch(reference.namespace):
        return f"namespace {reference.namespace!r}"
    if reference.worker and not _LABEL.fullmatch(reference.worker):
        return f"worker {reference.worker!r}"
    ids = {job_id, reference.group_id or job_id}
    if reference.k8s_name not in {JOB_NAME.format(each) for each in ids}:
        return f"Job {reference.k8s_name!r}"
    if reference.group_id is not None and job_id not in (
        reference.group_id,
        f"{reference.group_id}-{reference.group_index}",
    ):
        return f"batch {reference.group_id!r}"
    if backend.name != "local" and not (reference.output_dir or "gs://").startswith("gs://"):
        return f"outputs in {reference.output_dir!r}"
    if not reference.created_at:
        return "no time"
    return ""


def _placed(reference: JobReference, backend: Backend) -> JobReference:
    """Return the reference with the cluster and namespace of the settings."""
    check_namespace(reference.namespace, reference.job_id, backend)
    if backend.cluster == reference.cluster or backend.name == "local":
        return reference
    if backend.cluster is not None and reference.cluster is not None:
        project, zone, cluster = reference.cluster
        raise OtherCluster(
            f"{reference.job_id} is a job of cluster {cluster} (project {project}, zone {zone}); name "
            "them with project= and cluster=, or in a profile, to get at it"
        )
    project, zone, cluster = backend.cluster or (reference.project, "", "")
    return replace(reference, project=project, zone=zone, cluster_name=cluster)
