"""Keys that sign outcomes, derived so that they can be derived again when a job's Kubernetes object is gone.

Each namespace has a secret that submitters may read and its pods may not. A Job's key is the HMAC of a
*key id* under that secret; the key id says whose job it is, of which call, with a random part and a digest
of the job's function and outputs, and is no secret. The Job carries both, and every outcome names its key id:
whoever can read the namespace's secret can verify an outcome for as long as it is stored, on any machine
(ADR 0046), and, if it does, the function and outputs in the job's handle (ADR 0068).
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.names import KEY_ID, OUTCOME_KEY
from kinetic_core.errors import KineticError
from kinetic_core.job import JobReference
from kinetic_core.store.documents import read_start
from kinetic_core.store.protocol import ObjectInfo

UNVERIFIED = "Unverified"
"""Reason of an observation: the signature of the stored outcome cannot be verified."""
_LONGEST = 400
_PARTS = 4
"""Owner, digest of the call, random part, digest of function and outputs."""
_ON = "@"
"""Stands in the key id of a call before that of its worker."""
_OF_WORKER = ":worker"
"""End of the key ids of workers. Keys of calls are derived from no other key: else whoever knows the key of
one job could sign for any other.
"""
_MARK_BYTES = 16
_LANE = re.compile(r"-l\d+")
"""What the id of a lane has after that of its map."""


def verified_header(
    backend: Backend,
    reference: JobReference,
    frame: bytes,
    job: Mapping[str, Any] | None,
    name: str | None = None,
) -> dict[str, Any]:
    """Verify and return the header of a job's outcome, of which `frame` has at least the head.

    The Job's key counts if the Job exists. `name` is the object that was read; default: the job's
    outcome. Raises wire.FrameError for a frame that is not signed with the key, or belongs to another job or
    attempt.
    """
    key = outcome_key(job) or Keys(backend, reference.namespace).of_frame(frame, reference)
    if key is None:
        raise wire.SignatureError("its job's Kubernetes object is gone, and no key of the namespace signs it")
    header = wire.decode_head(frame, key)
    object_names.require_place(header, reference.job_id, name)
    return header


def new_key(backend: Backend, namespace: str, owner: str, spec_digest: str) -> tuple[str, str]:
    """Make a key id and its key, in hex, for a Job of the job or the batch `owner`.

    Where the namespace's secret cannot be read the key is random, and lost with the Job.
    """
    return _with_key(backend, namespace, f"{owner}:{spec_digest}:{secrets.token_hex(8)}")


def job_key(backend: Backend, reference: JobReference) -> tuple[str, str]:
    """Make a key id and its key, in hex, for a Job of its own; see `new_key`."""
    return _with_key(backend, reference.namespace, _key_id(reference))


def new_worker_key(backend: Backend, namespace: str, owner: str, identity: str) -> tuple[str, str]:
    """Make a key id and its key, in hex, for the Job of a worker, whose calls have keys derived from it."""
    return _with_key(backend, namespace, f"{owner}:{identity}:{secrets.token_hex(8)}{_OF_WORKER}")


def _with_key(backend: Backend, namespace: str, key_id: str) -> tuple[str, str]:
    secret = backend.signing_secret(namespace, make=True)
    return key_id, secrets.token_hex(32) if secret is None else wire.signing_key(secret, key_id).hex()


def outcome_key(job: Mapping[str, Any] | None) -> bytes | None:
    """Return the key that signs outcomes, from the Job that carries it; None when the Job is gone."""
    value = variable(job, OUTCOME_KEY)
    return bytes.fromhex(value) if value else None


def key_id_of(job: Mapping[str, Any] | None) -> str:
    """Return the id of the key in a Job; "" when the Job is gone."""
    return variable(job, KEY_ID)


def variable(job: Mapping[str, Any] | None, name: str) -> str:
    """Return the value of a runner's variable in a Job's manifest; "" if it is not set."""
    if job is None:
        return ""
    container = job["spec"]["template"]["spec"]["containers"][0]
    return next((str(each.get("value") or "") for each in container["env"] if each["name"] == name), "")


def call_key(
    backend: Backend, namespace: str, worker_key: bytes, worker_key_id: str, reference: JobReference
) -> tuple[str, str]:
    """Make a key id and its key, in hex, for a call on a worker, which can derive the key as well.

    The key id has a mark that only submitters can make: the worker's key alone signs for no job.
    """
    told = _key_id(reference)
    secret = backend.signing_secret(namespace)
    mark = secrets.token_hex(_MARK_BYTES) if secret is None else _mark(secret, told, worker_key_id)
    key_id = f"{told}:{mark}{_ON}{worker_key_id}"
    return key_id, wire.call_key(worker_key, key_id).hex()


def _mark(secret: bytes, told: str, worker_key_id: str) -> str:
    """Return what shows that a submitter of the namespace has given a call to a worker."""
    return hmac.digest(secret, f"call {told}{_ON}{worker_key_id}".encode(), "sha256")[:_MARK_BYTES].hex()


def _key_id(reference: JobReference) -> str:
    parts = reference.job_id, reference.spec_digest, secrets.token_hex(8), _handle_digest(reference)
    return ":".join(parts)


def _handle_digest(reference: JobReference) -> str:
    told = json.dumps([reference.func_name, reference.output_dir])
    return wire.digest(told.encode())[:32]


def vouches(key_id: str, reference: JobReference) -> bool:
    """Return whether the key id of a verified outcome confirms function and outputs of the job's handle.

    That of a batch, and of a job that an earlier version has submitted, confirms nothing.
    """
    parts = key_id.partition(_ON)[0].split(":")
    return len(parts) >= _PARTS and hmac.compare_digest(parts[_PARTS - 1], _handle_digest(reference))


def _derived(secret: bytes, key_id: str) -> bytes | None:
    """Derive the key of that id from the secret of its namespace; that of a call from its worker's key.

    None for a call that no submitter has given to that worker.
    """
    told, _, worker_key_id = key_id.partition(_ON)
    if not worker_key_id:
        return wire.signing_key(secret, key_id)
    told, _, mark = told.rpartition(":")
    if not hmac.compare_digest(mark.encode(), _mark(secret, told, worker_key_id).encode()):
        return None
    return wire.call_key(wire.signing_key(secret, worker_key_id), key_id)


class Keys:
    """Keys of outcomes in one namespace, from the existing Jobs in `jobs` and from the namespace's secret."""

    def __init__(self, backend: Backend, namespace: str, jobs: Iterable[Mapping[str, Any]] = ()) -> None:
        self._backend, self._namespace = backend, namespace
        self._known = {key_id_of(job): key for job in jobs if (key := outcome_key(job)) is not None}

    def of(
        self, key_id: str, job_id: str, group_id: str | None = None, spec_digest: str = ""
    ) -> bytes | None:
        """Return the key that a key id gives for a job's outcome; None if it cannot be derived.

        The key of a batch's Job, or of a lane of a map, gives each of its inputs a key of its own. With
        `spec_digest` the key must be for that call.
        """
        owner, _, rest = key_id.partition(":")
        is_lane = group_id is not None and _LANE.fullmatch(owner.removeprefix(group_id)) is not None
        if len(key_id) > _LONGEST or (owner not in (job_id, group_id) and not is_lane):
            return None
        if spec_digest and rest.partition(":")[0] != spec_digest:
            return None
        if _ON in key_id and not key_id.endswith(_OF_WORKER):
            return None
        key = self._known.get(key_id)
        if key is None:
            secret = self._backend.signing_secret(self._namespace)
            if secret is None:
                return None
            key = _derived(secret, key_id)
        if key is None or owner == job_id:
            return key
        index = job_id.removeprefix(f"{group_id}-")
        return wire.input_key(key, int(index)) if index.isdecimal() else None

    def of_frame(self, frame: bytes, reference: JobReference) -> bytes | None:
        """Return the key that the head of a job's stored outcome names. Raises wire.FrameError."""
        header = wire.decode_head(frame)
        told = str(header.get("key_id") or "")
        return self.of(told, reference.job_id, reference.group_id, reference.spec_digest)

    def state_of(self, outcome: ObjectInfo, group_id: str | None = None) -> str:
        """Return the state in a listed outcome; "" if it is unsigned, or the key that signs it is unknown."""
        told = outcome.metadata.get(wire.STATE)
        job_id = outcome.name.split("/")[1]
        if told is None:
            return self._read_state(outcome.name, job_id, group_id)
        state, _, rest = told.partition(" ")
        key_id, _, _ = rest.partition(" ")
        key = self.of(key_id, job_id, group_id)
        signed = key is not None and wire.sealed_state(job_id, state, key_id, key)
        return state if signed and hmac.compare_digest(signed.encode(), told.encode()) else ""

    def _read_state(self, name: str, job_id: str, group_id: str | None) -> str:
        """Read the state from the outcome itself, for a listing without metadata."""
        try:
            start = read_start(self._backend.store, name)
            header = wire.decode_head(start)
            key = self.of(str(header.get("key_id") or ""), job_id, group_id)
            if key is None:
                return ""
            object_names.require_place(wire.decode_head(start, key), job_id)
        except (KineticError, wire.FrameError):
            return ""
        return str(header.get("state"))
