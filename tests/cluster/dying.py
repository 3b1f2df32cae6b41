"""A call with several accelerators, and processes that make it and die at one of their requests."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from kinetic_core.connections import default_connections
from kinetic_core.jobs.handle import JobHandle
from kinetic_core.jobs.submit import Call, prepare, submit
from kinetic_core.options import RunOptions

CHOICES = ["tpu-v6e-8", "cpu"]
"""Of which the test cluster has no node, and many."""
_JOBS = r"POST /apis/batch/v1/namespaces/[^/]+/jobs"
_CANCELLED = r"GET .*%2Fcancelled\?.*"
POINTS = [
    (r"GET .*%2Fhandle.json\?.*", 1, "before"),  # the payload is stored
    (r"POST /upload/.* .*/handle\.json", 1, "after"),  # and the handle
    (_JOBS, 1, "before"),
    (_JOBS, 1, "after"),
    (_CANCELLED, 1, "after"),  # it will move on now
    (_JOBS, 2, "before"),  # the first choice is passed over
    (_JOBS, 2, "after"),  # there are two Jobs
    (r"DELETE .*", 1, "before"),
    (r"DELETE .*", 1, "after"),
]
"""Which request, the how many-th of its kind, and on which side of it a process dies."""
_PAYLOAD = r"(POST .*/batch/storage/.*|DELETE .*%2Fpayload-.*)"
CLEANING = r"POST .*/batch/storage/.*|DELETE .*"
"""Requests that remove something."""
COLLECTING = [
    (request, 1, side)
    for request in (r"GET /storage/.*%2Fresult\?alt=media.*", r"DELETE /apis/batch/.*", _PAYLOAD)
    for side in ("before", "after")
]
"""The same of a process whose job has ended: it reads the value, and removes the Job and the payload."""


def leave_a_trace(name: str) -> str:
    """Each run leaves an object of its own among the job's outputs."""
    bucket, _, prefix = os.environ["KINETIC_OUTPUT_DIR"].removeprefix("gs://").partition("/")
    query = urllib.parse.urlencode({"uploadType": "media", "name": f"{prefix}/{os.urandom(8).hex()}"})
    address = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/{bucket}/o?{query}"
    urllib.request.urlopen(address, name.encode()).close()
    return name


@contextmanager
def client(script: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs the script, with this project's modules, until it is killed."""
    here = Path(__file__)
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(here.parents[2])!r})\n{script}"],
        env={**os.environ, "KINETIC_PACKAGE_ROOT": str(here.parent), **environment},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """What it has printed first."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def job_id(first: str, point: int) -> str:
    return f"{first[:-2]}{point:02d}"


def start(identity: str, *, choose: bool = True) -> JobHandle:
    """Make the call, under that id; not to `choose` is to have the second of the accelerators only."""
    patience = {"capacity_timeout": 1} if choose else {}
    accelerator = CHOICES if choose else CHOICES[1]
    options = RunOptions.checked(accelerator, cpu=0.1, **patience)  # all at once, on a node of two cores
    return JobHandle.of(
        submit(prepare(Call(leave_a_trace, ("once",)), options, default_connections(), job_id=identity))
    )


def main(first: str, *, collecting: bool = False) -> None:
    """A process for each point, which ends there as by SIGKILL; its job id is `first` with the point's number
    in the last two digits. They die while the job begins, or while they collect. Fails if one got to its
    end.
    """
    children, points = [], COLLECTING if collecting else POINTS
    for number in range(len(points)):
        child = os.fork()
        if child == 0:
            die_at(*points[number])
            handle = start(job_id(first, number), choose=not collecting)
            handle.result(timeout=180, stream_logs=False, cleanup=collecting)
            os._exit(0)
        children.append(child)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if set(ends) != {9}:
        raise SystemExit(f"not all died: {ends}")


def die_in_turn(action: Callable[[], object], numbers: Iterable[int], pattern: str = ".*") -> int:
    """Processes, one after the other, that do the same, and end at their n-th such request as by SIGKILL,
    until one comes to its end; how many died. Fails if one ends in another way.
    """
    for died, number in enumerate(numbers):
        child = os.fork()
        if child == 0:
            die_at(pattern, number, "after")
            action()
            for thread in threading.enumerate():
                if thread.name.startswith("kinetic-cleanup"):
                    thread.join()
            os._exit(0)
        if (end := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) == 0:
            return died
        if end != 9:
            raise SystemExit(f"the process that was to die at request {number} ended with {end}")
    raise SystemExit("no process came to its end")


def _stored_name(body: object) -> str:
    """Return " " and the name of the object that a request's body stores; "" if it stores none."""
    name = re.search(rb'"name": "([^"]+)"', body[:2000]) if isinstance(body, bytes) else None
    return f" {name[1].decode()}" if name else ""


def die_at(pattern: str, nth: int, side: str) -> None:
    """End this process as by SIGKILL before or after its n-th request that matches the pattern.

    A request is its method and its path, and after a blank the name of the object that its body stores.
    """
    import urllib3

    numbers = itertools.count(1)  # threads may share it
    send, ask, answer = urllib3.HTTPConnectionPool.urlopen, HTTPConnection.request, HTTPConnection.getresponse
    last: set[int] = set()

    def dies(method: str, path: str, body: object) -> bool:
        request = f"{method} {path}{_stored_name(body)}"
        found = re.fullmatch(pattern, request) is not None and next(numbers) == nth
        if found and side == "before":
            os._exit(9)
        return found

    def sending(self: Any, method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        is_last = dies(method, url, kwargs.get("body"))
        try:
            return send(self, method, url, *args, **kwargs)
        finally:  # if nobody answered, too
            if is_last:
                os._exit(9)

    def asking(self: Any, method: str, url: str, body: Any = None, headers: Any = None) -> None:
        if dies(method, url, body):
            last.add(id(self))
        try:
            ask(self, method, url, body, headers or {})
        except OSError:
            if id(self) in last:
                os._exit(9)
            raise

    def answering(self: Any) -> Any:
        try:
            return answer(self)
        finally:
            if id(self) in last:
                os._exit(9)

    urllib3.HTTPConnectionPool.urlopen = sending  # type: ignore[method-assign]
    HTTPConnection.request = asking  # type: ignore[assignment,method-assign]  # as the store sends
    HTTPConnection.getresponse = answering  # type: ignore[method-assign]
