"""Typed, read-only views of the Jobs and Pods that the Kubernetes API shows.

A view wraps the object and copies nothing. Whatever the API leaves out is "", 0, None or empty here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kinetic_core._runner.wire import Failure
from kinetic_core.backends.kubernetes.names import (
    CANCELLED,
    CONTAINER,
    FAILED_COUNT,
    HOST_INDEX,
    IGNORED_COUNT,
    LEADER_WORKER_SET,
    QUEUE,
)

Object = Mapping[str, Any]


def seconds(timestamp: str | None) -> float | None:
    """Convert a Kubernetes timestamp to Unix seconds; None stays None."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else None


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a Job or Pod. `since` is in Unix seconds; `failure` is set by backends only."""

    kind: str
    status: str
    reason: str
    message: str
    since: float | None
    failure: Failure | None

    @classmethod
    def of(cls, shown: Object) -> Condition:
        failure = shown.get("failure")
        return cls(
            shown["type"],
            shown.get("status") or "",
            shown.get("reason") or "",
            shown.get("message") or "",
            seconds(shown.get("lastTransitionTime")),
            None if failure is None else Failure.from_dict(failure),
        )

    @property
    def is_true(self) -> bool:
        return self.status == "True"


NO_CONDITION = Condition("", "", "", "", None, None)


@dataclass(frozen=True, slots=True)
class Termination:
    """End of a container. Times are Unix seconds."""

    exit_code: int | None
    reason: str
    message: str
    signal: int | None
    started_at: float | None
    finished_at: float | None

    @classmethod
    def of(cls, shown: Object) -> Termination:
        return cls(
            shown.get("exitCode"),
            shown.get("reason") or "",
            shown.get("message") or "",
            shown.get("signal"),
            seconds(shown.get("startedAt")),
            seconds(shown.get("finishedAt")),
        )


@dataclass(frozen=True, slots=True)
class View:
    """View of a Job or Pod. `raw` is the object as the API shows it."""

    raw: Object

    @property
    def name(self) -> str:
        return str(self.raw["metadata"].get("name") or "")

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"].get("uid") or "")

    @property
    def created(self) -> str:
        """Return when the object was created, as Kubernetes writes times: to sort by."""
        return str(self.raw["metadata"].get("creationTimestamp") or "")

    @property
    def created_at(self) -> float | None:
        """Return when the object was created, in Unix seconds."""
        return seconds(self.created)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}

    @property
    def is_being_deleted(self) -> bool:
        return "deletionTimestamp" in self.raw["metadata"]

    @property
    def conditions(self) -> dict[str, Condition]:
        """Return the conditions by type."""
        return {kind: Condition.of(shown) for kind, shown in self.shown_conditions.items()}

    @property
    def shown_conditions(self) -> dict[str, Object]:
        """Return the conditions by type as the API shows them, to put them into another view."""
        return {each["type"]: each for each in self._status.get("conditions") or ()}

    @property
    def true_conditions(self) -> dict[str, Condition]:
        """Return the conditions that hold, by type."""
        return {kind: each for kind, each in self.conditions.items() if each.is_true}

    @property
    def failed_count(self) -> int:
        """Return how many of the attempts before spent the user's retries, as the Job controller counts."""
        return int(self.annotations.get(FAILED_COUNT) or 0)

    @property
    def attempt(self) -> int:
        """Return how many attempts of the index ended before this one; a LeaderWorkerSet's Job has it too."""
        return self.failed_count + int(self.annotations.get(IGNORED_COUNT) or 0)

    @property
    def _status(self) -> Object:
        return self.raw.get("status") or {}

    @property
    def _spec(self) -> Object:
        return self.raw.get("spec") or {}


@dataclass(frozen=True, slots=True)
class Pod(View):
    """Pod of a job, and the container in it that runs user code."""

    @property
    def phase(self) -> str:
        return str(self._status.get("phase") or "")

    @property
    def reason(self) -> str:
        return str(self._status.get("reason") or "")

    @property
    def message(self) -> str:
        return str(self._status.get("message") or "")

    @property
    def node(self) -> str:
        return str(self._spec.get("nodeName") or "")

    @property
    def host(self) -> int:
        """Return the number of the pod's host in its slice; 0 for a job of one host."""
        return int(self.annotations.get(HOST_INDEX) or 0)

    @property
    def is_live(self) -> bool:
        """Return whether the pod holds a node, or will."""
        return self.phase in ("Pending", "Running")

    @property
    def is_running(self) -> bool:
        """Return whether the container runs."""
        return "running" in self._state

    @property
    def started_at(self) -> float | None:
        """Return when the container began, in Unix seconds."""
        for state in (self._state.get("running"), self._state.get("terminated")):
            if state and state.get("startedAt"):
                return seconds(state["startedAt"])
        return None

    @property
    def waiting(self) -> tuple[str, str]:
        """Return reason and message why the container waits, both "" if it does not."""
        waiting = self._state.get("waiting") or {}
        return waiting.get("reason") or "", waiting.get("message") or ""

    @property
    def termination(self) -> Termination | None:
        """Return how the container ended; None if it has not."""
        shown = self._state.get("terminated")
        return None if shown is None else Termination.of(shown)

    @property
    def exit_code(self) -> int | None:
        """Return the container's exit code; None if it has not ended."""
        ended = self.termination
        return None if ended is None else ended.exit_code

    @property
    def _state(self) -> Object:
        """Return the container's state, one of running, waiting and terminated; {} if it has none yet."""
        for status in self._status.get("containerStatuses") or ():
            if status.get("name") == CONTAINER:
                return status.get("state") or {}
        return {}


@dataclass(frozen=True, slots=True)
class Job(View):
    """View of the Kubernetes Job of a job."""

    @property
    def is_cancelled(self) -> bool:
        """Return whether the Job was told to end."""
        return CANCELLED in self.annotations

    @property
    def runs_in_set(self) -> bool:
        """Return whether a LeaderWorkerSet runs the Job's pods."""
        return LEADER_WORKER_SET in self.labels

    @property
    def is_suspended(self) -> bool:
        """Return whether the Job is suspended."""
        return bool(self._spec.get("suspend"))

    @property
    def queue(self) -> str | None:
        """Return the Kueue queue the Job waits in, or came from."""
        return self.labels.get(QUEUE)

    @property
    def hosts(self) -> int:
        return int(self._spec.get("completions") or 1)

    @property
    def retries(self) -> int:
        """Return how many failures of user code are retried."""
        return self._spec.get("backoffLimitPerIndex") or 0


Pods = Sequence[Pod]
