"""What the command costs: its start, and, on the test cluster, requests and seconds of looking at jobs."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from measuring import Verdict, median_seconds, report

import kinetic_core
from kinetic_core._runner import object_names, wire
from kinetic_core.backends.base import open_backend
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import default_connections
from kinetic_core.jobs.cancel import index_object
from kinetic_core.jobs.listing import index_metadata
from kinetic_core.testing import make_queue

KINETIC = str(Path(sys.executable).with_name("kinetic"))
_JOBS = 1000
_COUNTED = """
import logging, sys
from kinetic_core.cli.main import build
logger = logging.getLogger("urllib3.connectionpool")
logger.setLevel(logging.DEBUG)
logger.addHandler(logging.StreamHandler())
build()(sys.argv[1:], prog_name="kinetic")
"""


@kinetic_core.run(accelerator="cpu", queue="nobody")
def never() -> None: ...


def kinetic(*words: str) -> None:
    subprocess.run([KINETIC, *words], check=True, stdout=subprocess.DEVNULL)


def measure() -> list[Verdict]:
    verbs = (("config",), ("accelerators",), ("profile", "list"), ("jobs", "--help"), ("--help",))
    return [started(words) for words in verbs]


def started(words: tuple[str, ...]) -> Verdict:
    seconds = median_seconds(lambda: kinetic(*words), 9)
    return Verdict(f"kinetic {' '.join(words)}: the whole process", seconds, 0.3, "s")


def on_cluster() -> list[Verdict]:
    """A store of a thousand jobs, half of them ended."""
    prefix = f"bench-{secrets.token_hex(3)}"
    os.environ.update({
        "KINETIC_BACKEND": "gke",
        "KINETIC_KUBECONFIG": os.environ["KUBECONFIG"],
        "KINETIC_BUCKET": f"test-bucket/{prefix}",
        "KINETIC_CONTAINER_IMAGE": os.environ["KINETIC_TEST_IMAGE"],
    })  # fmt: skip
    os.environ.pop("GOOGLE_CLOUD_PROJECT", None)
    backend = open_backend("gke", default_connections())
    make_queue(ClusterApi(Target(os.environ["KUBECONFIG"])), "default", "nobody")
    handle = never.run_async()
    try:
        fill(backend.store, handle)
        listing = requests("jobs", "list")
        status = requests("jobs", "status", handle.job_id)
        seconds = median_seconds(lambda: kinetic("jobs", "list"), 5)
    finally:
        handle.cancel()
        handle.cleanup()
    return [
        Verdict(f"jobs list, {_JOBS} jobs: requests", listing, 5, ""),
        Verdict(f"jobs list, {_JOBS} jobs: the whole process", seconds, 1.5, "s"),
        Verdict("jobs status: requests", status, 3, ""),
    ]


def fill(store: Any, handle: kinetic_core.JobHandle) -> None:
    def one(number: int) -> None:
        job = replace(handle, job_id=f"job-{number:016x}", created_at=_stamp(number))
        store.create_if_absent(index_object(job), b"", index_metadata(job))
        if number % 2:
            store.create_if_absent(object_names.result(job.job_id), b"", {wire.STATE: "succeeded"})

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(_JOBS - 1)))


def _stamp(number: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_700_000_000 + number))


def requests(*words: str) -> int:
    """HTTP requests of the command in a process of its own: every client here is built on urllib3."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED, *words],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    return done.stderr.count(b" HTTP/1.1")


if __name__ == "__main__":
    verdicts = measure()
    if os.environ.get("KUBECONFIG") and os.environ.get("KINETIC_TEST_IMAGE"):
        verdicts += on_cluster()
    sys.exit(report(verdicts))
