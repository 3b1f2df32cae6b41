"""Submission of a batch, and attaching to a stored one."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack

from kinetic_core._runner import object_names
from kinetic_core.backends.base import Backend, known_backend
from kinetic_core.batches.client_driven import attach_client_driven, start_client_driven
from kinetic_core.batches.definition import Plan, batch_digest, manifest_object
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.indexed import (
    NeedsOwnJobs,
    attach_indexed,
    can_share,
    output_dirs,
    start_indexed,
    submit_batch,
)
from kinetic_core.batches.lanes import attach_on_lanes, start_on_lanes
from kinetic_core.batches.rounds import check_lanes, submit_on_lanes
from kinetic_core.batches.supervised import (
    DIGEST,
    SupervisedScheduler,
    attach_supervised,
    start_supervised,
    take_up,
)
from kinetic_core.connections import Connections
from kinetic_core.errors import BatchNotFound, InvalidRequest, KineticError, ObjectNotFound
from kinetic_core.job import JobReference, Line
from kinetic_core.jobs.bundle import Packed, pack
from kinetic_core.jobs.cost import hourly_cost
from kinetic_core.jobs.inputs import CLIENT_DRIVEN, INDEXED, ON_LANES, SUPERVISED, read_manifest
from kinetic_core.jobs.prepare import Group, reference_of
from kinetic_core.option_checks import can_be_warm
from kinetic_core.options import MAP_OPTIONS, MapKeywords, RunOptions
from kinetic_core.terminal import Progress

_LOG = logging.getLogger(__name__)
_UNLIMITED_WARNING = 100


@MAP_OPTIONS.describes
def run_map(
    function: Callable[..., Any],
    options: RunOptions,
    connections: Connections,
    inputs: Iterable[Any],
    **asked: Unpack[MapKeywords],
) -> BatchHandle:
    """Start one job per input and return at once.

    Everything is stored when this returns, and runs without this process, except where each input needs a Job
    of its own on a cluster (slices of several hosts, data that is mounted for one input): then a client must
    create each Job when its turn comes, in a thread of this process or of any that attaches to the batch.

    The function and its project are packed once. Raises InvalidRequest for invalid options, JobConflict if
    `group_id` belongs to another batch; an input that cannot be submitted is in
    `BatchHandle.submission_failures`.
    """
    items = _checked_inputs(options, inputs)
    values = _checked_values(asked, len(items))
    plan = _plan(values)
    options = replace(
        options,
        retries=values["retries"] or options.retries,
        project=values.get("project", options.project),
        cluster=values.get("cluster", options.cluster),
        warm=values.get("warm", options.warm),
    )
    if options.warm is not None:
        can_be_warm(options)
        check_lanes(options, replace(plan, max_concurrent=asked.get("max_concurrent")))
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((item,), {}) for item in items]
    with Progress() as progress:
        packed = pack(function, options, connections, calls=calls, tolerant=True, progress=progress.say)
        progress.submitting(0, len(items))
        batch = _start(packed, items, plan, progress)
    cost = hourly_cost(str(packed.spec.accelerator), connections.settings)
    progress.batch_submitted(batch.group_id, packed.spec.function_name, len(items), cost)
    return batch


def _start(packed: Packed, items: list[Any], plan: Plan, progress: Progress) -> BatchHandle:
    """Start the batch with the scheduler that fits its jobs."""
    if packed.spec.warm is not None:
        return start_on_lanes(packed, items, plan)
    if can_share(packed):
        with suppress(NeedsOwnJobs):
            return start_indexed(packed, items, plan)
    if packed.backend.supervised_queue:
        return start_supervised(packed, items, plan, progress)
    return start_client_driven(packed, items, plan)


def _checked_inputs(options: RunOptions, inputs: Iterable[Any]) -> list[Any]:
    """Return the inputs of a map. Raises InvalidRequest or TypeError if there is none, or no map of them."""
    if options.debug:
        raise InvalidRequest("debug=True is for one call, which a person debugs; leave it out of a map")
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
        raise TypeError(f"inputs must be an iterable with an item for each job, not {type(inputs).__name__}")
    items = list(inputs)
    if not items:
        raise InvalidRequest("inputs is empty: there is nothing to map over")
    return items


def _checked_values(asked: MapKeywords, count: int) -> dict[str, Any]:
    """Return the options of a map with their defaults, and warn about those that do nothing or too much."""
    values = MAP_OPTIONS.check("run_async_map", **asked)
    if values["cancel_running_on_fail"] and not values["fail_fast"]:
        _LOG.warning("cancel_running_on_fail=True has no effect without fail_fast=True")
    if values["skip_done"] and "group_id" not in values:
        raise InvalidRequest("skip_done=True goes on with an earlier batch: say which with group_id=")
    if values["max_concurrent"] is None and count > _UNLIMITED_WARNING:
        _LOG.warning("starting %d jobs with no limit; max_concurrent= sets one", count)
    return values


def _plan(values: Mapping[str, Any]) -> Plan:
    """Return the plan of a map's batch from its checked options."""
    return Plan(
        group_id=values.get("group_id") or f"grp-{secrets.token_hex(8)}",
        is_new="group_id" not in values,
        input_mode=values["input_mode"],
        max_concurrent=values["max_concurrent"],
        fail_fast=values["fail_fast"],
        cancel_running=values["cancel_running_on_fail"] and values["fail_fast"],
        name=values.get("name"),
        tags=values.get("tags", {}),
        skip_done=values["skip_done"],
    )


def attach_batch(
    connections: Connections,
    group_id: str,
    project: str | None = None,
    cluster: str | None = None,
    poll_interval: float = 10.0,
    poll_timeout: float | None = 1800.0,
    *,
    namespace: str | None = None,
    backend: str | None = None,
    goes_on: bool = True,
) -> BatchHandle:
    """Return the handle of a batch that any process started.

    Where inputs wait for a client that creates their Jobs, this process does so together with other clients;
    with `goes_on=False` it only looks or cancels.
    While the submitter is still at work, a thread looks every `poll_interval` seconds for new jobs; inputs
    without a job after `poll_timeout` seconds (None: never) count as unavailable.
    Raises BatchNotFound (a FileNotFoundError) if no such batch is stored, OtherCluster or OtherNamespace if
    the batch belongs to another cluster or namespace than arguments or settings name.
    """
    place = connections.with_arguments(project=project, cluster=cluster, namespace=namespace)
    opened = known_backend(backend, place)
    return attach_stored(opened, group_id, poll_interval, poll_timeout, goes_on=goes_on)


def attach_stored(
    backend: Backend,
    group_id: str,
    poll_interval: float = 10.0,
    poll_timeout: float | None = 1800.0,
    *,
    goes_on: bool = True,
    reads: bool = True,
) -> BatchHandle:
    """Return the handle of a batch in the store of this backend; otherwise as `attach_batch`.

    Unless it `reads`, as much as can be is known by how inputs ended alone, and not by what they left.
    """
    manifest = _manifest(backend, group_id)
    if manifest["scheduler"] == INDEXED:
        return attach_indexed(backend, group_id, manifest, poll_interval, poll_timeout)
    if manifest["scheduler"] == ON_LANES:
        return attach_on_lanes(backend, group_id, manifest, reads=reads)
    if manifest["scheduler"] == CLIENT_DRIVEN:
        return attach_client_driven(backend, manifest, poll_interval, poll_timeout, goes_on=goes_on)
    return attach_supervised(backend, manifest, poll_interval, poll_timeout)


def cancel_stored(backend: Backend, group_id: str) -> None:
    """Start no further input of a stored batch and stop those that run; return when none of them does.

    Idempotent; values that are stored stay. Raises BatchNotFound, and as `attach_batch` does.
    """
    manifest = _manifest(backend, group_id)
    if manifest["scheduler"] == SUPERVISED:
        size = manifest["total_expected"]
        with Progress() as progress:
            progress.cancelling(0, size)
            SupervisedScheduler(backend, manifest).cancel_stored(size, progress.cancelling)
        return
    batch = attach_stored(backend, group_id, goes_on=False, reads=False)
    try:
        batch.cancel()
    finally:
        batch.close()


def _manifest(backend: Backend, group_id: str) -> dict[str, Any]:
    try:
        return read_manifest(backend.store, group_id)
    except ObjectNotFound:
        raise BatchNotFound(f"no batch {group_id} in {backend.store.uri}") from None


def submit_clientless(packed: Packed, items: Sequence[Any], plan: Plan) -> JobReference:
    """Store and create a batch that needs no client, without observing it; return its reference.

    Submitting the same batch under the same id again adopts it, and creates what is missing. Raises
    InvalidRequest if each input needs a Job that a client must create, JobConflict if the id belongs to
    another batch, StoreError or the cluster's error if the batch cannot be created.
    """
    if packed.spec.warm is not None:
        check_lanes(packed.options, plan)
        return submit_on_lanes(packed, items, plan).reference
    if can_share(packed):
        with suppress(NeedsOwnJobs):
            return submit_batch(packed, items, plan)[0]
    if packed.backend.supervised_queue is None:
        raise InvalidRequest(
            f"{packed.function_name}: slices of several hosts, lease=, several accelerators and Data that is "
            "mounted for one input need a Job for each input, which a client must create: map the task with "
            "expand() instead, or leave that option out"
        )
    line = Line(plan.group_id, len(items), plan.max_concurrent, plan.fail_fast, plan.cancel_running)
    digest, group = batch_digest(packed, items, plan), Group(plan.group_id, "map", None)
    spec = replace(packed.spec, output_dir=output_dirs(packed, plan.group_id))
    whole = reference_of(packed, spec, plan.group_id, digest, group)  # submitted before any input begins
    take_up(packed, items, plan, line)
    return whole


def call_digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of the call that a stored batch runs, to compare with `batch_digest`; "" for none."""
    if manifest["scheduler"] in (INDEXED, ON_LANES):
        return str(manifest["reference"]["spec_digest"])
    return str(manifest.get(DIGEST) or "")


def batches(backend: Backend) -> list[dict[str, Any]]:
    """Return the manifests of all batches, newest first; an unreadable one is left out with a warning.

    `group_id`, `name`, `function`, `inputs`, `created_at` (Unix seconds), `submitted`.
    """
    store = backend.store
    over = {info.name for info in store.list("batches/", object_names.finished("*"))}
    found = []
    for info in store.list("batches/", manifest_object("*")):
        try:
            manifest = read_manifest(store, info.name.split("/")[1])
            found.append({
                "group_id": manifest["group_id"],
                "name": manifest.get("group_name"),
                "function": manifest["submit_fn_name"],
                "inputs": manifest["total_expected"],
                "created_at": manifest["created_at"],
                "submitted": object_names.finished(manifest["group_id"]) in over,
            })  # fmt: skip
        except (KineticError, ValueError) as exc:
            _LOG.warning("leaving %s out of the list: %s", info.name, exc)
    return sorted(found, key=lambda one: -one["created_at"])
