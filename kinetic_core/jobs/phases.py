"""Phases of a job's life: the name of each, and what it counts as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class PhaseKind:
    """Kind of a phase: what it counts as in costs, whether a pod has its container, what shortens it.

    `doing` is what an attempt does in the phase, for people who wait for their function to begin or return.
    """

    use: str
    has_container: bool
    advice: str
    doing: str = ""


WAITING, PULLING, INSTALLING, RUNNING, IDLE = USES = ("waiting", "pulling", "installing", "running", "idle")
"""Uses of a job's time. A job holds no hardware only while it is waiting."""

PHASES: Mapping[str, PhaseKind] = {
    "packing": PhaseKind(
        WAITING, False, "the function and its project were packed; .kineticignore leaves files out"
    ),
    "build": PhaseKind(
        WAITING, False, "its image was found or built, once for all jobs with the same dependencies"
    ),
    "capacity": PhaseKind(
        WAITING, False, "accelerators before the one it got had none; name those first that you really get"
    ),
    "upload": PhaseKind(
        WAITING, False, "what the store lacked was uploaded, the call was stored and its Job made"
    ),
    "queue": PhaseKind(
        WAITING,
        False,
        "a queue or a quota decides; ask for less, or for more quota",
    ),
    "scheduling": PhaseKind(
        WAITING, False, "no node was free; a pool with a spare node takes the next job at once"
    ),
    "scale-up": PhaseKind(
        WAITING, False, "a node pool grew for it: minutes; a pool that keeps a node needs none of them"
    ),
    "container": PhaseKind(PULLING, False, "the node made the container"),
    "image": PhaseKind(
        PULLING, False, "the node pulled the image: a smaller one, or image streaming, is quicker"
    ),
    "hosts": PhaseKind(
        IDLE,
        False,
        "it waited for the other hosts of its slice: their nodes, their images",
        doing="waiting for the other hosts of the slice",
    ),
    "start": PhaseKind(
        INSTALLING,
        True,
        "the runner started and fetched the project; fewer files are quicker",
        doing="fetching the project",
    ),
    "dependencies": PhaseKind(
        INSTALLING,
        True,
        "the runner installed packages; a bundled image has them",
        doing="installing packages",
    ),
    "data": PhaseKind(
        INSTALLING,
        True,
        "the runner fetched the data: less of it, a cache volume, or fuse=True is quicker",
        doing="fetching the data",
    ),
    "debugger": PhaseKind(IDLE, True, "it waited for a debugger to attach", doing="waiting for a debugger"),
    "running": PhaseKind(
        RUNNING,
        True,
        "the runner prepared, then called your code; after a few seconds it says how long each takes",
    ),
    "function": PhaseKind(RUNNING, True, "your own code"),
    "calls": PhaseKind(WAITING, True, "the worker ran calls, each of which counts its own time"),
    "idle": PhaseKind(IDLE, True, "the worker waited for calls, all in all; a smaller warm= ends it sooner"),
    "result": PhaseKind(
        IDLE, True, "the outcome was stored; a smaller result is quicker", doing="storing the result"
    ),
    "replacement": PhaseKind(WAITING, False, "an attempt had ended and the next had not begun"),
    "termination": PhaseKind(
        WAITING, True, "the runner had ended; its pod and its Job were still to be told to have ended"
    ),
    "unknown": PhaseKind(
        WAITING, False, "its pods are gone, and neither their runner nor an event says what they did"
    ),
}
"""Phases by name. A new phase is a row here, and a mark in `timeline`."""
_ADVICE_HERE = {
    "queue": "it waited for CPU slots of this machine, or for its turn; fewer cores are free sooner",
    "scheduling": "its process was made",
    "termination": "the function's process had ended; that was still to be recorded",
    "unknown": "its processes are gone, and have not noted what they did",
}
"""Advice for phases on a machine, which has no nodes, quotas and pods."""


@dataclass(frozen=True)
class Phase:
    """Phase of a job's life. `began` is in Unix seconds, `seconds` its length so far.

    `name`: packing, build (of its image), upload, capacity (of accelerators given up for another), queue,
    scheduling, scale-up, image, container, hosts (of a slice), running (of an attempt whose runner has not
    told the next five apart), start, dependencies, data, debugger, function, calls and idle (of a worker),
    result, replacement (between attempts), termination (from the runner's end to the job's), or unknown (of
    pods that are gone).
    """

    name: str
    attempt: int
    began: float
    seconds: float

    @property
    def end(self) -> float:
        """Return when the phase ended, or now for the current phase, in Unix seconds."""
        return self.began + self.seconds

    @property
    def advice(self) -> str:
        """Return the phase's cause and what would shorten the phase."""
        return PHASES[self.name].advice

    @property
    def has_container(self) -> bool:
        """Return whether a pod has its container during the phase; False for an unknown phase."""
        return self.name in PHASES and PHASES[self.name].has_container


@dataclass(frozen=True)
class LocalPhase(Phase):
    """Phase of a job of backend `local`."""

    @property
    def advice(self) -> str:
        """Return the phase's cause and what would shorten the phase on one machine."""
        return _ADVICE_HERE.get(self.name) or super().advice
