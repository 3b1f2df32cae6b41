"""Section `[kinetic]` of Airflow's configuration: one table, from which everything about an option comes.

A row is a field of `Config`: its name, its type, its default, and an `Option`. The provider's metadata, the
values in force, their checks and docs/reference/airflow-configuration.md are made of the rows.
"""

# No `from __future__ import annotations`: the annotations of `Config` are the table, and are evaluated.

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Protocol, Self, cast, get_args

from kinetic_core.errors import ConfigurationError

SECTION = "kinetic"
DESCRIPTION = "How tasks and triggers of the Kinetic provider wait, retry, log and look for orphans."
VERSION = "0.1.0"
"""Version of the provider that has brought the options."""


@dataclass(frozen=True, slots=True)
class Option:
    """Documentation of an option, in sentences, and its least value."""

    doc: str
    minimum: float = 0


class Source(Protocol):
    """Numbers of Airflow's configuration."""

    def getint(self, section: str, key: str, *, fallback: int) -> int:
        """Return a whole number. Raises AirflowConfigException for any other text."""

    def getfloat(self, section: str, key: str, *, fallback: float) -> float:
        """Return a number. Raises AirflowConfigException for any other text."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Values of the section's options."""

    # fmt: off
    defer_after: Annotated[float, Option(
        "Seconds for which a worker waits for a new job before it defers. A job that ends sooner needs no "
        "second start of a worker. A task that its trigger can end defers at once, unless its job runs on a "
        "warm worker.")] = 2.0
    event_delay: Annotated[float, Option(
        "Seconds between a deferral and the earliest event that resumes its task in a worker. Airflow's "
        "scheduler fails a task that is resumed too soon (apache/airflow#71580).")] = 10.0
    trigger_retries: Annotated[int, Option(
        "Number of triggers of one try that may fail and be replaced. After them the worker itself "
        "waits.")] = 3
    outage_interval: Annotated[float, Option(
        "Seconds between two requests to a cluster, store or connection that does not answer.",
        minimum=0.1)] = 30.0
    submit_patience: Annotated[float, Option(
        "Seconds for which a worker repeats the submission of a job while the cluster or the store does not "
        "answer. After them the try fails.")] = 1800.0
    kill_patience: Annotated[float, Option(
        "Seconds for which a killed trigger asks for the state of its task while Airflow does not answer. "
        "After them the job is left to the search for orphans.")] = 200.0
    orphan_interval: Annotated[float, Option(
        "Seconds between two searches of a triggerer or the API server for live jobs whose tasks are over.",
        minimum=5)] = 25.0
    orphan_places: Annotated[int, Option(
        "Number of stores and namespaces that the Variable `kinetic_places` keeps for the search.",
        minimum=1)] = 50
    build_poll_interval: Annotated[float, Option(
        "Seconds between two requests of a trigger, or of a worker that may not defer, for the state and the "
        "log of an image's build.",
        minimum=1)] = 5.0
    log_poll_interval: Annotated[float, Option(
        "Seconds between two requests of a trigger for the lines of a job that prints nothing. A log is read "
        "for the first time when its job has run for five seconds, then every second while it prints.",
        minimum=1)] = 10.0
    outputs_poll_interval: Annotated[float, Option(
        "Seconds between two looks of an asset watcher for jobs that have stored outputs.",
        minimum=1)] = 30.0
    followed_jobs: Annotated[int, Option(
        "Number of running jobs whose lines a triggerer shows at once. Each takes a thread and a connection. "
        "The lines of other jobs are shown when they have ended.")] = 100
    trigger_lines_per_second: Annotated[int, Option(
        "Number of lines a second that all triggers of a triggerer show together. Each line takes half a "
        "millisecond of the triggerer's event loop.",
        minimum=1)] = 200
    final_log_lines: Annotated[int, Option(
        "Number of lines shown at most, the last ones, when a job has ended.",
        minimum=1)] = 5000
    connection_ttl: Annotated[float, Option(
        "Seconds for which a triggerer uses a connection before it reads the connection again.")] = 60.0
    connection_test_timeout: Annotated[float, Option(
        "Seconds that the *Test* button of a connection takes at most.",
        minimum=1)] = 10.0
    page_task_instances: Annotated[int, Option(
        "Number of task instances that the page of a DAG run or task reads at most.",
        minimum=1)] = 20_000
    page_runs: Annotated[int, Option(
        "Number of DAG runs, the latest ones, that the page of a task shows.",
        minimum=1)] = 10
    # fmt: on

    @classmethod
    def read(cls, source: Source) -> Self:
        """Return the values in force. Raises ConfigurationError for a value that is too small."""
        found: dict[str, int | float] = {}
        for row in rows():
            if row.type == "integer":
                found[row.name] = source.getint(SECTION, row.name, fallback=int(row.default))
            else:
                found[row.name] = source.getfloat(SECTION, row.name, fallback=row.default)
            value, least = found[row.name], row.option.minimum
            if not (math.isfinite(value) and value >= least):
                raise ConfigurationError(
                    f"[{SECTION}] {row.name} = {value} in Airflow's configuration cannot be used: set "
                    f"it to a number of at least {least:g}"
                )
        return cls(**found)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table. `type` is Airflow's word for it, `integer` or `float`."""

    name: str
    type: str
    default: float
    option: Option


def rows() -> list[Row]:
    """Return the rows of the table in their order."""
    found = []
    for field in fields(Config):
        kind, option = get_args(field.type)
        found.append(
            Row(field.name, "integer" if kind is int else "float", cast("float", field.default), option)
        )
    return found


def section() -> Mapping[str, object]:
    """Return the section as an item of `config` in the provider's metadata."""
    return {
        "description": DESCRIPTION,
        "options": {
            row.name: {
                "description": row.option.doc,
                "version_added": VERSION,
                "type": row.type,
                "example": None,
                "default": str(row.default),
            }
            for row in rows()
        },
    }


@cache
def config() -> Config:
    """Return the values in force in this process, which reads them once."""
    return Config.read(_airflows())


def default_deferrable(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a task without `deferrable=` defers: as `AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE` says.

    Without that variable the task defers: a worker that is held for hours is what a Kinetic task is meant to
    avoid. A value in `airflow.cfg` does not count, because Airflow writes its own default, false, into each
    new file (ADR 0055). Raises ConfigurationError for a variable that is neither true nor false.
    """
    text = environment.get(_DEFERRABLE, "true").strip().lower()
    if text not in ("true", "t", "1", "false", "f", "0"):
        raise ConfigurationError(f"{_DEFERRABLE} is {text!r}: set it to True or False")
    return text in ("true", "t", "1")


_DEFERRABLE = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"


def _airflows() -> Any:
    from airflow_provider.airflow_sdk import conf

    return conf
