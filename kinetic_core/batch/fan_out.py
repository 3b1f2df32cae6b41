"""Starting a batch, and finding one again."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from kinetic_core.batch.board import Board
from kinetic_core.batch.handle import BatchHandle, finish
from kinetic_core.batch.inputs import arguments_of, check_mode
from kinetic_core.batch.names import child_id, failure_object, finished_object, manifest_object
from kinetic_core.configuration import read_settings
from kinetic_core.errors import BatchNotFound, InvalidRequest, KineticError, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend, known_backend
from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.hub import hub_for
from kinetic_core.lifecycle.observing import find
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.packing import Packed, pack
from kinetic_core.lifecycle.preparing import Group, address
from kinetic_core.lifecycle.submission import submit

_LOG = logging.getLogger(__name__)
_UNLIMITED_WARNING = 100


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
) -> BatchHandle:
    """Start one job per input and return at once; submission goes on in a thread of this process.

    input_mode: how an input becomes arguments, see `batch.inputs.arguments_of`.
    max_concurrent: jobs alive at once; None for no limit.
    retries: extra attempts per input after the function failed.
    fail_fast: launch nothing more after the first failure; with `cancel_running_on_fail`, also stop
        what runs.
    name, tags: kept with the batch.

    The function and its project are packed once. Raises InvalidRequest for options that cannot be;
    an input that cannot be submitted is told in `BatchHandle.submission_failures`.
    """
    check_mode(input_mode)
    if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
        raise TypeError(f"inputs must be an iterable with an item for each job, not {type(inputs).__name__}")
    items = list(inputs)
    _check(items, max_concurrent, retries, fail_fast, cancel_running_on_fail)
    options = replace(
        options,
        retries=retries or options.retries,
        project=project or options.project,
        cluster=cluster or options.cluster,
    )
    packed = pack(function, options, calls=[((item,), {}) for item in items], tolerant=True)
    group_id = f"grp-{secrets.token_hex(8)}"
    manifest: dict[str, Any] = {
        "group_id": group_id,
        "group_kind": "map",
        "group_name": name,
        "tags": dict(tags or {}),
        "created_at": time.time(),
        "total_expected": len(items),
        "submit_fn_name": packed.function_name,
    }
    packed.backend.store.create(manifest_object(group_id), json.dumps(manifest, sort_keys=True).encode())
    board = Board(len(items))
    submitter = _Submitter(
        packed, group_id, items, input_mode, max_concurrent, fail_fast, cancel_running_on_fail, board
    )
    submitter.start()
    return BatchHandle(group_id, name, tags or {}, board, packed.backend)


def attach_batch(
    group_id: str,
    project: str | None = None,
    cluster: str | None = None,
    poll_interval: float = 10.0,
    poll_timeout: float | None = 1800.0,
    *,
    backend: str | None = None,
) -> BatchHandle:
    """The handle of a batch started by any process, from what is stored of it.

    While its submitter is still at work, a thread looks every `poll_interval` seconds for jobs that are
    new; inputs without a job after `poll_timeout` seconds (None: never) count as unavailable.
    Raises BatchNotFound (a FileNotFoundError) if no such batch is stored.
    """
    opened = known_backend(backend, read_settings().with_arguments(project=project, cluster=cluster))
    try:
        manifest = json.loads(opened.store.read(manifest_object(group_id)))
    except ObjectNotFound:
        raise BatchNotFound(f"no batch {group_id} in {opened.store.uri}") from None
    board = Board(int(manifest["total_expected"]))
    reader = _Reader(opened, group_id, board, poll_interval, poll_timeout)
    if not reader.look():
        threading.Thread(target=reader.run, name=f"kinetic-{group_id}", daemon=True).start()
    return BatchHandle(group_id, manifest.get("group_name"), manifest.get("tags") or {}, board, opened)


@dataclass(frozen=True)
class _Submitter:
    """Submits a batch's inputs, as many at a time as may live at once."""

    packed: Packed
    group_id: str
    items: list[Any]
    mode: str
    max_concurrent: int | None
    fail_fast: bool
    cancel_running: bool
    board: Board

    def start(self) -> None:
        """Submit in a thread that is no daemon: a script that ends now still submits all its inputs."""
        with ExitStack() as kept:
            kept.enter_context(hub_for(self.packed.backend, self.packed.spec.namespace).held())
            threading.Thread(
                target=self._run, args=(kept.pop_all(),), name=f"kinetic-{self.group_id}"
            ).start()

    def _run(self, observing: ExitStack) -> None:
        with observing:
            self._submit_all()
            finish(self.packed.backend, self.group_id, self.board)

    def _submit_all(self) -> None:
        error: BaseException | None = None
        try:
            for index, item in enumerate(self.items):
                if not self._may_launch():
                    break
                self._launch(index, item)
            if self.cancel_running:
                self._wait_and_cancel()
        except Exception as exc:  # noqa: BLE001  told to whoever waits for the batch
            _LOG.exception("submitting %s failed", self.group_id)
            error = exc
        self.board.finish(error)

    def _may_launch(self) -> bool:
        board = self.board

        def ready() -> bool | None:
            if self.fail_fast and (board.failed() or board.submission_failures):
                board.stopping = True
            free = self.max_concurrent is None or board.active() < self.max_concurrent
            return True if board.stopping or free else None

        board.wait_for(ready, None, self.group_id)
        if not board.stopping and self.packed.backend.store.find(finished_object(self.group_id)):
            board.stop(cancel=True)  # somebody who attached to the batch has cancelled it
        return not board.stopping

    def _launch(self, index: int, item: Any) -> None:
        try:
            args, kwargs = arguments_of(item, self.mode)
            group = Group(self.group_id, "map", index)
            prepared = address(self.packed, args, kwargs, job_id=child_id(self.group_id, index), group=group)
            handle = JobHandle.of(submit(prepared))
        except Exception as exc:  # noqa: BLE001  this input's failure; the others go on
            note = json.dumps({"type": type(exc).__name__, "message": str(exc)}).encode()
            self.packed.backend.store.create(failure_object(self.group_id, index), note)
            with self.board.changed:
                self.board.submission_failures[index] = exc
                self.board.changed.notify_all()
        else:
            self.board.add(index, handle)
            if self.board.cancelled:
                handle.cancel()

    def _wait_and_cancel(self) -> None:
        board = self.board
        board.wait_for(
            lambda: True if board.failed() or board.submission_failures or board.active() == 0 else None,
            None,
            "",
        )
        with board.changed:
            living = [job for i, job in enumerate(board.jobs) if job is not None and i not in board.ended]
        for job in living:
            job.cancel()


@dataclass(frozen=True)
class _Reader:
    """Fills a board from the store while another process submits."""

    backend: Backend
    group_id: str
    board: Board
    interval: float
    timeout: float | None

    def look(self) -> bool:
        """Read what is stored now; True when submission is over."""
        finished = self.backend.store.find(finished_object(self.group_id)) is not None
        for index in range(self.board.size):
            if self.board.jobs[index] is None and index not in self.board.submission_failures:
                self._read(index)
        with self.board.changed:
            known = sum(job is not None for job in self.board.jobs) + len(self.board.submission_failures)
        if finished or known == self.board.size:
            self.board.finish()
            return True
        return False

    def run(self) -> None:
        deadline = None if self.timeout is None else time.monotonic() + self.timeout
        pause = threading.Event()
        while not pause.wait(self.interval):
            if self.look():
                return
            if self.board.stopping or (deadline is not None and time.monotonic() > deadline):
                with self.board.changed:
                    missing = [i for i, job in enumerate(self.board.jobs) if job is None]
                    self.board.unavailable = {i: child_id(self.group_id, i) for i in missing}
                self.board.finish()
                return

    def _read(self, index: int) -> None:
        reference = find(self.backend, child_id(self.group_id, index))
        if reference is not None:
            self.board.add(index, JobHandle.of(reference))
            return
        try:
            note = json.loads(self.backend.store.read(failure_object(self.group_id, index)))
        except ObjectNotFound:
            return
        with self.board.changed:
            self.board.submission_failures[index] = KineticError(f"{note['type']}: {note['message']}")


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
