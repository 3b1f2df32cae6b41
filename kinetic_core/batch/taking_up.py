"""A batch of this machine under an id of the user's: made, completed or run again by whoever asks for it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core._runner import wire
from kinetic_core.batch.digests import batch_digest
from kinetic_core.batch.names import child_id, failure_object, finished_object, manifest_object
from kinetic_core.batch.plan import Plan
from kinetic_core.batch.single_jobs import store_manifest, submit_input
from kinetic_core.errors import JobConflict, ObjectExists, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend, Turns
from kinetic_core.lifecycle.ending import index_object
from kinetic_core.lifecycle.observing import find
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.lifecycle.settling import look
from kinetic_core.model.line import Line
from kinetic_core.model.states import JobStatus

DIGEST = "spec_digest"
"""Of a manifest: what the call was. A batch whose id was drawn has none."""


def take_up(
    packed: Packed, items: Sequence[Any], plan: Plan, line: Line
) -> tuple[Mapping[str, Any], dict[int, Exception]]:
    """Make those jobs of the batch that are missing; its manifest, and why jobs could not be made just now.

    Missing are those that a submitter which died has not made; with `skip_done`, and if nothing of the batch
    lives, those without a value, of which all but outputs is removed before. Raises JobConflict if
    the id is another batch's.
    """
    turns, namespace = packed.backend.turns, packed.spec.namespace
    assert turns is not None  # noqa: S101  only there inputs wait for their turn
    digest = batch_digest(packed, items, plan)
    with turns.take_up(namespace, line) as (waiting, is_idle):
        manifest = _manifest(packed, plan, len(items), digest)
        batch = _Stored(packed.backend, turns, namespace, plan.group_id, len(items))
        begin_anew = plan.skip_done and is_idle
        missing = batch.without_value() if begin_anew else batch.never_made()
        if missing:
            batch.forget(missing, may_start=begin_anew)
        each = replace(packed, backend=waiting)
        made = {index: submit_input(each, plan, index, items[index]) for index in missing}
        batch.tell_submitted()
    return manifest, {index: job for index, job in made.items() if isinstance(job, Exception)}


@dataclass(frozen=True)
class _Stored:
    """A batch of which nobody else makes jobs meanwhile."""

    backend: Backend
    turns: Turns
    namespace: str
    group_id: str
    size: int

    def without_value(self) -> list[int]:
        return [index for index in range(self.size) if self._status(index) is not JobStatus.SUCCEEDED]

    def never_made(self) -> list[int]:
        """Not those that were made, and removed since."""
        try:
            finished = json.loads(self.backend.store.read(finished_object(self.group_id)))
            submitters_left: Iterable[int] = finished["dropped"]
        except ObjectNotFound:
            submitters_left = range(self.size)
        return [
            index
            for index in submitters_left
            if self._status(index) is JobStatus.NOT_FOUND
            and self.backend.store.find(failure_object(self.group_id, index)) is None
        ]

    def forget(self, indexes: Collection[int], *, may_start: bool) -> None:
        """Know nothing of these inputs any more; `may_start` if the batch was stopped, too.

        Whoever finds this half done shall make them: that not all is submitted comes first.
        """
        store = self.backend.store
        store.delete(finished_object(self.group_id))
        if may_start:
            store.delete(wire.stop_object(self.group_id))
        self.turns.forget(self.namespace, [child_id(self.group_id, index) for index in indexes])
        for index in indexes:
            reference = find(self.backend, child_id(self.group_id, index))
            if reference is not None:
                store.delete(index_object(reference))
            store.delete_all(f"jobs/{child_id(self.group_id, index)}/")
            store.delete(failure_object(self.group_id, index))

    def tell_submitted(self) -> None:
        """All inputs are submitted, whatever a supervisor that came before has written."""
        store, name = self.backend.store, finished_object(self.group_id)
        content = json.dumps({"dropped": []}).encode()
        if store.find(name) is not None and store.read(name) != content:
            store.delete(name)
        with suppress(ObjectExists):
            store.create(name, content)

    def _status(self, index: int) -> JobStatus:
        reference = find(self.backend, child_id(self.group_id, index))
        return JobStatus.NOT_FOUND if reference is None else look(self.backend, reference).status


def _manifest(packed: Packed, plan: Plan, size: int, digest: str) -> Mapping[str, Any]:
    store = packed.backend.store
    try:
        manifest: dict[str, Any] = json.loads(store.read(manifest_object(plan.group_id)))
    except ObjectNotFound:
        store.delete_all(wire.batch_object(plan.group_id, ""))  # what a clean-up that was killed has left
        return store_manifest(packed, plan, size, namespace=packed.spec.namespace, **{DIGEST: digest})
    if manifest.get(DIGEST) != digest:
        raise JobConflict(
            f"{plan.group_id} exists already and is another batch (other function, inputs, files or "
            "options); use another group_id"
        )
    return manifest
