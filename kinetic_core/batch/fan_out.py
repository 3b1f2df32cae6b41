"""Starting a batch, and finding one again."""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kinetic_core.batch.handle import BatchHandle
from kinetic_core.batch.inputs import check_mode
from kinetic_core.batch.names import manifest_object
from kinetic_core.batch.own_jobs import attach_own_jobs, start_own_jobs
from kinetic_core.batch.plan import Plan
from kinetic_core.batch.shared import attach_shared, start_shared
from kinetic_core.batch.shared_jobs import NeedsOwnJobs, can_share
from kinetic_core.batch.turns import attach_in_turns, start_in_turns
from kinetic_core.configuration import read_settings
from kinetic_core.errors import BatchNotFound, InvalidRequest, ObjectNotFound
from kinetic_core.lifecycle.backends import known_backend
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.packing import pack

_LOG = logging.getLogger(__name__)
_UNLIMITED_WARNING = 100
_GROUP_ID = re.compile(r"grp-[a-z0-9]([-a-z0-9]{0,34}[a-z0-9])?")


def run_map(
    function: Callable[..., Any],
    options: RunOptions,
    inputs: Iterable[Any],
    *,
    input_mode: str = "auto",
    max_concurrent: int | None = 64,
    retries: int = 0,
    fail_fast: bool = False,
    cancel_running_on_fail: bool = False,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    project: str | None = None,
    cluster: str | None = None,
    group_id: str | None = None,
    skip_done: bool = False,
) -> BatchHandle:
    """Start one job per input and return at once.

    Everything is stored when this returns, and goes on without this process. Only where each input needs a
    Job of its own on a cluster (slices of several hosts, data that is mounted for one input), somebody has to
    create those whose turn has come: a thread of this process does, and of any that attaches to the batch.

    input_mode: how an input becomes arguments, see `batch.inputs.arguments_of`.
    max_concurrent: jobs alive at once; None for no limit.
    retries: extra attempts per input after the function failed.
    fail_fast: launch nothing more after the first failure; with `cancel_running_on_fail`, also stop
        what runs.
    name, tags: kept with the batch.
    group_id: the batch's id, `grp-` and lower-case letters, digits and '-', instead of a random one: the same
        call under the same id, from any process, is the same batch.
    skip_done: with `group_id`, and once all of that batch has ended, run its inputs that have no value again.

    The function and its project are packed once. Raises InvalidRequest for options that cannot be, and
    JobConflict if `group_id` is that of another batch; an input that cannot be submitted is told in
    `BatchHandle.submission_failures`.
    """
    check_mode(input_mode)
    if options.debug:
        raise InvalidRequest("debug=True is for one call, which a person debugs; leave it out of a map")
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
        raise TypeError(f"inputs must be an iterable with an item for each job, not {type(inputs).__name__}")
    items = list(inputs)
    _check(items, max_concurrent, retries, fail_fast, cancel_running_on_fail)
    _check_id(group_id, skip_done)
    options = replace(
        options,
        retries=retries or options.retries,
        project=project or options.project,
        cluster=cluster or options.cluster,
    )
    packed = pack(function, options, calls=[((item,), {}) for item in items], tolerant=True)
    plan = Plan(
        group_id or f"grp-{secrets.token_hex(8)}",
        group_id is None,
        input_mode,
        max_concurrent,
        fail_fast,
        cancel_running_on_fail,
        name,
        tags or {},
        skip_done,
    )
    if can_share(packed):
        with suppress(NeedsOwnJobs):
            return start_shared(packed, items, plan)
    if packed.backend.turns:
        return start_in_turns(packed, items, plan)
    return start_own_jobs(packed, items, plan)


def attach_batch(
    group_id: str,
    project: str | None = None,
    cluster: str | None = None,
    poll_interval: float = 10.0,
    poll_timeout: float | None = 1800.0,
    *,
    backend: str | None = None,
    goes_on: bool = True,
) -> BatchHandle:
    """The handle of a batch started by any process, from what is stored of it.

    Where inputs wait for a client that creates their Jobs, this process goes on with that, together with
    others; not with `goes_on=False`, to look or to cancel only.
    While its submitter is still at work, a thread looks every `poll_interval` seconds for jobs that are
    new; inputs without a job after `poll_timeout` seconds (None: never) count as unavailable.
    Raises BatchNotFound (a FileNotFoundError) if no such batch is stored.
    """
    opened = known_backend(backend, read_settings().with_arguments(project=project, cluster=cluster))
    try:
        manifest = json.loads(opened.store.read(manifest_object(group_id)))
    except ObjectNotFound:
        raise BatchNotFound(f"no batch {group_id} in {opened.store.uri}") from None
    if "reference" in manifest:
        return attach_shared(opened, manifest, poll_interval, poll_timeout)
    if "line" in manifest:
        return attach_own_jobs(opened, manifest, poll_interval, poll_timeout, goes_on=goes_on)
    return attach_in_turns(opened, manifest, poll_interval, poll_timeout)


def _check_id(group_id: str | None, skip_done: bool) -> None:
    if skip_done and group_id is None:
        raise InvalidRequest("skip_done=True goes on with an earlier batch: say which with group_id=")
    if group_id is None:
        return
    if not isinstance(group_id, str):
        raise TypeError(f"group_id={group_id!r} must be a text such as 'grp-sweep-7'")
    if not _GROUP_ID.fullmatch(group_id):
        raise InvalidRequest(
            f"group_id={group_id!r} must be 'grp-' and lower-case letters, digits and '-', 40 at most"
        )


def _check(
    items: list[Any], max_concurrent: int | None, retries: int, fail_fast: bool, cancel_running_on_fail: bool
) -> None:
    if not items:
        raise InvalidRequest("inputs is empty: there is nothing to map over")
    for option, value in (("max_concurrent", max_concurrent), ("retries", retries)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise TypeError(f"{option}={value!r} must be a whole number")
    if max_concurrent is not None and max_concurrent < 1:
        raise InvalidRequest(f"max_concurrent={max_concurrent} must be at least 1, or None for no limit")
    if retries < 0:
        raise InvalidRequest(f"retries={retries} must not be negative")
    if cancel_running_on_fail and not fail_fast:
        raise InvalidRequest("cancel_running_on_fail=True needs fail_fast=True")
    if max_concurrent is None and len(items) > _UNLIMITED_WARNING:
        _LOG.warning("starting %d jobs with no limit; max_concurrent= sets one", len(items))
