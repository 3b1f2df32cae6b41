"""Why inputs of a batch could not be submitted: a note for each, which outlives the submitter."""

from __future__ import annotations

import json

from kinetic_core.batch.names import failure_object
from kinetic_core.errors import KineticError, ObjectExists
from kinetic_core.storage.protocol import ObjectStore


def note_failure(store: ObjectStore, group_id: str, index: int, error: Exception) -> None:
    """Store it, unless there is such a note."""
    note = json.dumps({"type": type(error).__name__, "message": str(error)}).encode()
    try:
        store.create(failure_object(group_id, index), note)
    except ObjectExists:
        return  # another submitter has met the same


def noted_failures(store: ObjectStore, group_id: str) -> dict[int, Exception]:
    """By index."""
    prefix = failure_object(group_id, 0).rpartition("/")[0] + "/"
    names = [info.name for info in store.list(prefix)]
    notes = {int(name[len(prefix) :].removesuffix(".json")): json.loads(store.read(name)) for name in names}
    return {index: KineticError(f"{note['type']}: {note['message']}") for index, note in notes.items()}
