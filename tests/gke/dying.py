"""A call with several accelerators, and processes that make it and die at one of their requests."""

from __future__ import annotations

import os
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from kinetic_core.lifecycle.handle import JobHandle
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.submission import Call, prepare, submit

CHOICES = ["tpu-v6e-8", "cpu"]
"""Of which the test cluster has no node, and many."""


def leave_a_trace(name: str) -> str:
    """Each run leaves an object of its own among the job's outputs."""
    bucket, _, prefix = os.environ["KINETIC_OUTPUT_DIR"].removeprefix("gs://").partition("/")
    query = urllib.parse.urlencode({"uploadType": "media", "name": f"{prefix}/{os.urandom(8).hex()}"})
    address = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/{bucket}/o?{query}"
    urllib.request.urlopen(address, name.encode()).close()
    return name


def job_id(first: str, step: int) -> str:
    return f"{first[:-2]}{step:02d}"


def start(identity: str) -> JobHandle:
    """Make the call, under that id."""
    options = RunOptions.checked(CHOICES, capacity_timeout=1)
    return JobHandle.of(submit(prepare(Call(leave_a_trace, ("once",)), options, job_id=identity)))


def _die_at(step: int) -> None:
    """Count the requests of this process."""
    import urllib3

    left = [step]

    def counted(send: Callable[..., Any]) -> Callable[..., Any]:
        def sending(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return send(*args, **kwargs)

        return sending

    urllib3.HTTPConnectionPool.urlopen = counted(urllib3.HTTPConnectionPool.urlopen)  # type: ignore[method-assign]


def main(first: str, steps: list[int]) -> None:
    """A process for each step, which ends, as by SIGKILL, before its request of that number to the API server
    or the store; its job id is `first` with the step in the last two digits.
    """
    children = []
    for step in steps:
        child = os.fork()
        if child == 0:
            _die_at(step)
            start(job_id(first, step)).result(timeout=60, stream_logs=False, cleanup=False)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
