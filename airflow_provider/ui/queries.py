"""Queries of the page, each answered once for all browsers within a few seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from airflow_provider.access import Access
from airflow_provider.batch_record import BatchRecord
from airflow_provider.records import JobRecord
from airflow_provider.ui.board import Failures, board, input_detail, without_texts
from airflow_provider.ui.detail import UNREAD, detail
from airflow_provider.ui.instances import Subject, instances, runnable_since
from airflow_provider.ui.live import Answers, live_batch, live_rows
from airflow_provider.ui.places import PATIENCE, Places, Remembered
from airflow_provider.ui.rows import (
    Filters,
    Instance,
    costed,
    page,
    row,
    with_shared_builds,
    without_exceptions,
)
from kinetic_core.backends.base import Backend
from kinetic_core.errors import KineticError
from kinetic_core.job import JobReference
from kinetic_core.jobs.cost import Prices, known_prices
from kinetic_core.settings import read_settings

_RUNS = 8
"""DAG runs and tasks that are cached: with five thousand jobs each, tens of megabytes."""
_RUN_SECONDS = 2.0
_CLUSTER_SECONDS = 3.0
_JOB_SECONDS = 2.0
_USAGE_SECONDS = 30.0

Rights = Callable[[str], "Right"]
"""Function from the id of a DAG to what one user may do there."""


class Right(NamedTuple):
    """What a user may do in a DAG, and the DAG's team, "" for none."""

    see: bool = True
    read_logs: bool = True
    cancel: bool = True
    team: str = ""


def everything(_: str) -> Right:
    """Grant everything in every DAG."""
    return Right()


class Rows(NamedTuple):
    """All that is known of a run or a task, before it is narrowed to what a user may see.

    `troubles`: what could not be read, and the DAGs that it is about. `waits`: the task instances of all DAGs
    that wait for the builds of these rows. `prices`: the fields that tell of prices.
    """

    rows: list[dict[str, Any]]
    troubles: Mapping[str, set[str]]
    waits: Sequence[Instance]
    prices: Mapping[str, Any]


def prices_by_settings() -> Prices | None:
    """Return the price table that this process's environment names. Raises ConfigurationError."""
    return known_prices(read_settings())


def _shown(found: Rows, filters: Filters, offset: int, limit: int, rights: Rights) -> dict[str, Any]:
    known = cache(rights)
    seen = [{**each, "team": known(each["dag_id"]).team} for each in found.rows if known(each["dag_id"]).see]
    shown = page(seen, filters, offset, limit)
    shown["jobs"] = [
        each if known(each["dag_id"]).read_logs else without_exceptions(each) for each in shown["jobs"]
    ]
    if any("build" in each for each in shown["jobs"]):
        waits = [each for each in found.waits if known(each.dag_id).see]
        shown["jobs"] = with_shared_builds(shown["jobs"], waits)
    told = (
        trouble for trouble, dag_ids in found.troubles.items() if any(known(each).see for each in dag_ids)
    )
    return {**shown, **found.prices, "troubles": [*told, *found.prices["troubles"]]}


class Questions:
    """Answers for one API server, in its event loop; databases, stores and clusters are read in threads."""

    def __init__(
        self,
        places: Places | None = None,
        prices: Callable[[], Prices | None] = prices_by_settings,
        known: Callable[[Subject], list[Instance]] = instances,
    ) -> None:
        """Ask nothing yet. `known` returns the task instances of a subject, by default from the database."""
        self._places = places or Places()
        self._prices = prices
        self._known = known
        self._instances: Remembered[list[Instance]] = Remembered(_RUN_SECONDS, _RUNS)
        self._answers = Answers(
            Remembered(_CLUSTER_SECONDS), Remembered(_CLUSTER_SECONDS), Remembered(_USAGE_SECONDS)
        )
        self._rows: Remembered[Rows] = Remembered(_RUN_SECONDS, _RUNS)
        self._details: Remembered[dict[str, Any]] = Remembered(_JOB_SECONDS)
        self._boards: Remembered[dict[str, Any]] = Remembered(_CLUSTER_SECONDS, _RUNS)
        self._failures = Failures()

    async def jobs(
        self, subject: Subject, filters: Filters, offset: int, limit: int, rights: Rights = everything
    ) -> Mapping[str, Any]:
        """Return a page of the rows, the `currency` of costs, and under `troubles` what could not be read.

        `rights` says of which DAGs anything is shown or counted, and whose texts of exceptions are shown.
        """

        async def ask() -> Rows:
            found = await self._of(subject)
            rows, troubles = await live_rows(found, self._places, self._answers)
            waits = await self._waits(rows)
            prices, trouble = await asyncio.to_thread(self._known_prices)
            of_prices = {"troubles": trouble, "currency": prices.currency if prices else None}
            return Rows([costed(each, prices) for each in rows], troubles, waits, of_prices)

        known = await self._rows.get(subject, ask, 3 * PATIENCE)
        return await asyncio.to_thread(_shown, known, filters, offset, limit, rights)

    async def _waits(self, rows: Sequence[Mapping[str, Any]]) -> list[Instance]:
        """Return the task instances of all DAGs that wait for the builds of these rows."""
        pages = {each["build"]["page"] for each in rows if "build" in each}
        if not pages:
            return []
        return [
            each
            for each in await self._of(Subject())
            if (wait := each.waits_for_image) is not None and wait.page in pages
        ]

    def _known_prices(self) -> tuple[Prices | None, list[str]]:
        """Return the server's price table, or the reason why there is none."""
        try:
            return self._prices(), []
        except KineticError as error:
            return None, [str(error)]

    async def job(self, dag_id: str, run_id: str, job_id: str) -> Mapping[str, Any] | None:
        """Return one job in detail, None if no task instance of the run has it."""
        found = await self._of(Subject(dag_id, run_id))
        for instance in found:
            record = instance.record
            if record is not None and record.reference.job_id == job_id:
                return await self._detail(instance, record)
        return None

    async def batch(
        self, dag_id: str, run_id: str, group_id: str, offset: int, rights: Rights = everything
    ) -> Mapping[str, Any] | None:
        """Return the board of a batch from an input on, None if no task instance of the run has the batch."""
        found = await self._with_batch(dag_id, run_id, group_id)
        if found is None:
            return None
        instance, record = found

        async def ask() -> dict[str, Any]:
            home = await self._home(record.reference, record.access)
            live = None
            if instance.living is record and not isinstance(home, str):
                seen = await live_batch(record, home, self._answers)
                live = None if isinstance(seen, str) else seen
            return await asyncio.to_thread(board, instance, record, home, offset, self._failures, live)

        try:
            shown = await self._boards.get((group_id, offset), ask, PATIENCE)
        except TimeoutError:
            trouble = f"no answer about {group_id} within {PATIENCE:g} s"
            shown = await asyncio.to_thread(board, instance, record, trouble, offset, self._failures)
        may = await asyncio.to_thread(rights, dag_id)
        priced = await asyncio.to_thread(self._priced, shown)
        return priced if may.read_logs else without_texts(priced)

    async def input(self, dag_id: str, run_id: str, group_id: str, index: int) -> Mapping[str, Any] | None:
        """Return one input of a batch in detail, None if no task instance of the run has it."""
        found = await self._with_batch(dag_id, run_id, group_id)
        if found is None or not 0 <= index < found[1].size:
            return None
        record = found[1]

        async def ask() -> dict[str, Any]:
            home = await self._home(record.reference, record.access)
            return await asyncio.to_thread(input_detail, record, index, home)

        try:
            return await self._details.get((group_id, index), ask, PATIENCE)
        except TimeoutError:
            return input_detail(record, index, f"no answer about input {index} within {PATIENCE:g} s")

    async def _with_batch(
        self, dag_id: str, run_id: str, group_id: str
    ) -> tuple[Instance, BatchRecord] | None:
        for instance in await self._of(Subject(dag_id, run_id)):
            if instance.batch is not None and instance.batch.reference.job_id == group_id:
                return instance, instance.batch
        return None

    async def _home(self, reference: JobReference, access: Access) -> Backend | str:
        """Return the backend of a job or batch, or the reason why it is unknown."""
        try:
            return await self._places.home(reference, access)
        except KineticError as error:
            return str(error)

    async def _detail(self, instance: Instance, record: JobRecord) -> Mapping[str, Any]:
        job_id = record.reference.job_id

        async def ask() -> dict[str, Any]:
            home = await self._home(record.reference, record.access)
            return await asyncio.to_thread(self._detailed, instance, record, home)

        try:
            return await self._details.get(job_id, ask, PATIENCE)
        except TimeoutError:
            trouble = f"no answer about {job_id} within {PATIENCE:g} s"
            return row(instance, None, trouble) | {"silence": UNREAD, "troubles": [trouble]}

    def _detailed(self, instance: Instance, record: JobRecord, home: Backend | str) -> dict[str, Any]:
        if instance.times.are_of_later_leg:
            since = runnable_since(instance)
            instance = replace(instance, times=replace(instance.times, runnable=since))
        return self._priced(detail(instance, record, home))

    def _priced(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        prices, troubles = self._known_prices()
        return costed(shown, prices) | {
            "troubles": [*shown["troubles"], *troubles],
            "currency": prices.currency if prices else None,
        }

    async def _of(self, subject: Subject) -> list[Instance]:
        return await self._instances.get(
            subject, lambda: asyncio.to_thread(self._known, subject), 3 * PATIENCE
        )
