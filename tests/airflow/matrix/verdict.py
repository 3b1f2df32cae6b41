"""What was seen of a cell, which promises it breaks, and how to say what happened: pure functions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from matrix.cells import BY_NAME, BY_TRIGGER, Phase, Then, TriggerPhase


@dataclass(frozen=True)
class Evidence:
    """A cell's end.

    `executions`: Unix times at which the user's function began. `acted`: when the action was over.
    `quiet`: seconds from then until no job lived and the task had ended, None if that never came.
    `value`: the task's XCom; `outcomes`: how the stored jobs ended, the earliest first. `legs`: how many
    workers the last try had, of a task that its trigger should end.
    """

    action: str
    phase: str
    state: str
    tries: int
    executions: tuple[float, ...]
    overlaps: int
    acted: float
    quiet: float | None
    value: Any
    outcomes: tuple[str, ...]
    legs: int = 0
    note: str = ""
    trouble: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        return cls(
            **{**fields, "executions": tuple(fields["executions"]), "outcomes": tuple(fields["outcomes"])}
        )


QUIET_SECONDS = 60.0


def broken(seen: Evidence) -> list[str]:
    """The promises that do not hold; none if all do."""
    if seen.trouble:
        return [seen.trouble]
    action = BY_NAME[seen.action]
    found = []
    if seen.overlaps:
        found.append(f"{seen.overlaps} executions lived beside another")
    if seen.quiet is None or (action.then is Then.KILLED and seen.quiet > QUIET_SECONDS):
        found.append(f"a job lived on for more than {QUIET_SECONDS:g} s")
    if seen.state not in action.states:
        found.append(f"the task ended as {seen.state}, not as {' or '.join(action.states)}")
    if action.name.endswith(BY_TRIGGER) and action.then is not Then.KILLED and seen.legs != 1:
        found.append(f"{seen.legs} workers had its last try, and its trigger did not end it")
    return found + _THEN[action.then](seen)


def _killed(seen: Evidence) -> list[str]:
    found = []
    if len(seen.executions) > 1:
        found.append("the function ran again")
    if seen.phase in (Phase.FINISHED, TriggerPhase.PUSHED) and seen.outcomes != ("SUCCEEDED",):
        found.append(f"the outcome was lost: {seen.outcomes}")
    return found


def _again(seen: Evidence) -> list[str]:
    if not seen.executions or seen.executions[-1] < seen.acted:
        return ["the function did not run again"]
    before, unended = seen.outcomes[:-1], seen.phase in (Phase.QUEUED, Phase.RUNNING)
    if unended and (not before or "SUCCEEDED" in before):
        return [f"the job of before was not ended: {seen.outcomes}"]
    return _last_value(seen)


def _goes_on(seen: Evidence) -> list[str]:
    found = [] if len(seen.executions) == 1 else [f"the function ran {len(seen.executions)} times"]
    return found + _last_value(seen)


def _last_value(seen: Evidence) -> list[str]:
    expected = f"execution {len(seen.executions)}"
    return [] if seen.value == expected else [f"the result is {seen.value!r}, not {expected!r}"]


_THEN = {Then.KILLED: _killed, Then.AGAIN: _again, Then.GOES_ON: _goes_on}


def sentence(seen: Evidence) -> str:
    """What happened, in a few words."""
    state = "deleted" if seen.state == "gone" else seen.state
    ran = {0: "the function never ran", 1: "one execution"}.get(
        len(seen.executions), f"{len(seen.executions)} executions, one after the other"
    )
    parts = [state, ran]
    if BY_NAME[seen.action].then is Then.KILLED and seen.outcomes:
        parts.append("outcome kept" if seen.outcomes[-1] == "SUCCEEDED" else "job cancelled")
    if seen.tries > 1:
        parts.append(f"try {seen.tries}")
    return "; ".join([*parts, *([seen.note] if seen.note else [])])
