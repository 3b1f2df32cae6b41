"""Definition of a batch: the options of the batch itself, besides those of its jobs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from kinetic_core._runner import object_names
from kinetic_core._runner.notes import ForgedNote, decode_note, encode_note
from kinetic_core._runner.wire import encodable
from kinetic_core.backends.base import Backend
from kinetic_core.errors import JobConflict, KineticError, ObjectNotFound, StoreError
from kinetic_core.jobs.bundle import Packed
from kinetic_core.jobs.inputs import MANIFEST
from kinetic_core.jobs.prepare import pickle_arguments, spec_digest
from kinetic_core.jobs.signing import Keys, new_key
from kinetic_core.store.documents import read_document

ORIGIN = "origin"
"""Field of a manifest with the origin of the batch's first submission."""


@dataclass(frozen=True)
class Plan:
    """Options of a batch; `is_new` if its id was generated, so that nothing of it can exist yet.

    `origin`: a JSON object of texts that says who submits, on each Job and in the manifest, "" for nobody.
    `environment`: variables that new jobs get besides. Neither is part of the call.
    """

    group_id: str
    is_new: bool
    input_mode: str
    max_concurrent: int | None
    fail_fast: bool
    cancel_running: bool
    name: str | None
    tags: Mapping[str, str]
    skip_done: bool = False
    origin: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, size: int, function_name: str, scheduler: str, **more: Any) -> dict[str, Any]:
        """Return the batch's stored manifest (`batches/{group_id}/manifest.json`, spec 06), of `size` inputs.

        `more`: the fields that only batches of this scheduler have, as `read_manifest` describes them.
        """
        common = {
            "group_id": self.group_id,
            "group_kind": "map",
            "group_name": self.name,
            "tags": dict(self.tags),
            "created_at": time.time(),
            "total_expected": size,
            "submit_fn_name": function_name,
            "scheduler": scheduler,
        }
        return {**common, **({ORIGIN: self.origin} if self.origin else {}), **more}


def other_batch(group_id: str) -> JobConflict:
    """Build the error of a call whose `group_id` belongs to a batch of another call."""
    return JobConflict(
        f"{group_id} exists already and is another batch (other function, inputs, files or options); "
        "use another group_id"
    )


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_of(item: Any, mode: str) -> Arguments:
    """Split one input into positional and keyword arguments.

    `auto`: a dict whose keys could be parameter names gives keywords, a list or tuple gives positional
    arguments, any other value (other dicts too) is the only argument. `single`, `args` and `kwargs` choose
    one of these; a value of the wrong type for them raises TypeError.
    """
    if mode == "args":
        if not isinstance(item, list | tuple):
            raise TypeError(f"input_mode='args' needs a list or tuple per input, not {type(item).__name__}")
        return tuple(item), {}
    if mode == "kwargs":
        if not isinstance(item, Mapping):
            raise TypeError(f"input_mode='kwargs' needs a dict per input, not {type(item).__name__}")
        return (), dict(item)
    if mode == "auto" and isinstance(item, dict) and all(map(_could_be_parameter, item)):
        return (), dict(item)
    if mode == "auto" and isinstance(item, list | tuple):
        return tuple(item), {}
    return (item,), {}


def _could_be_parameter(key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier() and not iskeyword(key)


def batch_digest(packed: Packed, items: Sequence[Any], plan: Plan, written: bytes = b"") -> str:
    """Return the SHA-256, in hex, over all that decides what a batch does, comparable between processes.

    Inputs that cannot be pickled count by their type. `written` replaces the inputs of a batch with a
    generated id, which is compared with no other batch.
    """
    if plan.is_new:
        return spec_digest(packed, written, None)
    asked = {"mode": plan.input_mode, "fail_fast": plan.fail_fast, "cancel_running": plan.cancel_running}
    try:
        return spec_digest(packed, b"", (packed.function, tuple(items), asked))
    except Exception:  # noqa: BLE001  whatever an input's own pickling raises: it is told as that input's failure
        known = (item if _travels(packed, item, plan) else type(item).__qualname__ for item in items)
        return spec_digest(packed, b"", (packed.function, tuple(known), asked))


def _travels(packed: Packed, item: Any, plan: Plan) -> bool:
    try:
        pickle_arguments(packed, *arguments_of(item, plan.input_mode))
    except Exception:  # noqa: BLE001  as for the first pickling
        return False
    return True


def manifest_object(group_id: str) -> str:
    return object_names.batch(group_id, MANIFEST)


def failure_object(group_id: str, index: int) -> str:
    """Return the name of the note why an input could not be submitted."""
    return object_names.batch(group_id, f"failures/{index:06d}.json")


def inputs_object(group_id: str, sha256: str) -> str:
    """Return the name of the arguments of all inputs, for inputs that share a Job."""
    return object_names.batch(group_id, f"inputs-{sha256}")


def line_object(group_id: str, line: str) -> str:
    """Return the name of the queue: the jobs of all inputs, for inputs that wait for a Job of their own."""
    return object_names.batch(group_id, f"line-{line}")


def resumption_object(group_id: str, number: int) -> str:
    """Return the name of the object that lets inputs without a value run again.

    `number` counts the resumptions; for inputs that share Jobs it is the number of the new chunk.
    """
    return resumptions(group_id) + str(number)


def resumptions(group_id: str) -> str:
    """Return the prefix of the names of all resumptions."""
    return object_names.batch(group_id, "resumed-")


_LOG = logging.getLogger(__name__)
_SUBMISSION = "submission"
"""Word in place of a call's digest in the ids of keys that sign why inputs could not be submitted."""


def note_failure(backend: Backend, namespace: str, group_id: str, index: int, error: Exception) -> None:
    """Store a signed note why an input could not be submitted, unless there is such a note."""
    name = failure_object(group_id, index)
    key_id, key = new_key(backend, namespace, group_id, _SUBMISSION)
    told = {"type": type(error).__name__, "message": encodable(str(error)), "key_id": key_id}
    backend.store.create_if_absent(name, encode_note(bytes.fromhex(key), name, told))


def noted_failures(backend: Backend, namespace: str, group_id: str) -> dict[int, Exception]:
    """Read all notes why inputs could not be submitted, by index.

    A malformed or forged note is left out, with a warning.
    """
    prefix = failure_object(group_id, 0).rpartition("/")[0] + "/"
    found: dict[int, Exception] = {}
    for info in backend.store.list(prefix):
        index = info.name[len(prefix) :].removesuffix(".json")
        try:
            if index.isdecimal() and (error := noted_failure(backend, namespace, group_id, int(index))):
                found[int(index)] = error
        except StoreError as exc:
            _LOG.warning("leaving %s out: %s", info.name, exc)
    return found


def dropped_inputs(backend: Backend, group_id: str) -> frozenset[int] | None:
    """Read which inputs of a finished submission got no job; None before its end. Raises MalformedObject."""
    try:
        finished = read_document(backend.store, object_names.finished(group_id), dropped=list)
    except ObjectNotFound:
        return None
    return frozenset(index for index in finished["dropped"] if type(index) is int)


def noted_failure(backend: Backend, namespace: str, group_id: str, index: int) -> KineticError | None:
    """Return why this input could not be submitted, None if no submitter has noted a failure.

    A note must be signed with a key of the namespace's secret, because any pod could write a note. Raises
    MalformedObject.
    """
    name = failure_object(group_id, index)
    try:
        note = read_document(backend.store, name, type=str, message=str)
    except ObjectNotFound:
        return None
    key = Keys(backend, namespace).of(str(note.get("key_id")), group_id, spec_digest=_SUBMISSION)
    if key is None:
        _LOG.warning("leaving %s out: no key that namespace %s is known to have signs it", name, namespace)
        return None
    try:
        decode_note(key, name, json.dumps(note).encode())
    except ForgedNote as exc:
        _LOG.warning("leaving %s out: %s", name, exc)
        return None
    return KineticError(f"{note['type']}: {note['message']}")
