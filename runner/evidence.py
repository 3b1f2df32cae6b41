"""Evidence of a child that left no outcome: how it died, and whether memory ran out."""

from __future__ import annotations

import signal
import sys
import time

from . import memory, wire
from .attempt import Job
from .outcome import Outcome
from .phases import times
from .watch import Ending


def death(
    ending: Ending, last_lines: tuple[str, ...], gauge: memory.MemoryGauge, remark: str = ""
) -> Outcome:
    """Return the outcome of a child that left none; `last_lines` are its last lines of output."""
    killed = ending.signal == signal.SIGKILL and not ending.terminated
    if killed and gauge.kills() > 0:
        kind = wire.FailureClass.OUT_OF_MEMORY
        text = memory.ran_out("the process", gauge.limit, gauge.all_time_peak() or gauge.peak)
    elif ending.terminated:
        kind, text = wire.FailureClass.PREEMPTED, "the process was told to stop"
    elif ending.signal is not None:
        kind, text = wire.FailureClass.USER_ERROR, f"the process was killed by {_signal_name(ending.signal)}"
    else:
        kind = wire.FailureClass.USER_ERROR
        text = f"the process exited with code {ending.exit_code} before the function returned (os._exit?)"
    code = None if ending.signal is not None or ending.terminated else ending.exit_code
    failure = wire.Failure(
        kind,
        text + remark,
        "execute",
        exit_code=code,
        signal=ending.signal,
        last_lines=last_lines,
    )
    return Outcome("failed", "none", {}, failure)


def facts(job: Job, started: float) -> dict[str, object]:
    """Return facts for the outcome's header: which attempt it was, where and when."""
    return {
        "job_id": job.job_id,
        "attempt": job.attempt,
        "pod_uid": job.pod_uid,
        "key_id": job.key_id,
        "python": ".".join(map(str, sys.version_info[:3])),
        "peak_memory": _peak_memory(),
        "times": {"started": started, **times(job), "finished": time.time()},
    }


def _peak_memory() -> int:
    """Return the most memory that any one process of user code had, in bytes."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2) of either system
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
