"""What two thousand waiting tasks cost a triggerer, over TLS, in one run.

    .venv-airflow/bin/python benchmarks/triggerer.py

Three event loops one after the other, each in a process of its own, each with as many triggers: ours,
triggers that only sleep, and triggers that poll as `AsyncKubernetesHook.wait_until_job_complete` does (every
ten seconds a new client and a GET). Beside ours the search for forgotten jobs goes on, as in a triggerer; ten
of the jobs are watched by nobody, and Airflow says each time that their tasks run. CPU is that of the loop's
process alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from fake_api import DEPLOYMENT, job_id
from measuring import Verdict, report

TRIGGERS = 2000
_OTHERS = 10
"""Jobs that this triggerer does not watch."""
WINDOW = 60.0
_SETTLED = 30.0
"""Seconds from the start of the triggers to the start of the measurement."""
_POLL_SECONDS = 10.0
_SEARCHES = 2
"""How often forgotten jobs are looked for in that time, at the least."""
Wait = Callable[[int], Awaitable[None]]


def reference_of(number: int) -> dict[str, str]:
    """A queued job, as a trigger gets it."""
    place = {"backend": "gke", "namespace": "default", "store_uri": "gs://bench", "bucket_name": "bench"}
    unset = dict.fromkeys(("project", "cluster_name", "zone", "image_uri", "func_name", "display_name"), "")
    name = {"job_id": job_id(number), "k8s_name": f"kinetic-{job_id(number)}", "accelerator": "gpu-l4"}
    return {**unset, **place, **name, "created_at": "2026-01-01T00:00:00Z"}


async def watch(number: int) -> None:
    """Our trigger."""
    from airflow_provider.triggers.kinetic import KineticJobTrigger

    async for _ in KineticJobTrigger(reference_of(number), [], deferred_at=time.time()).run():
        raise AssertionError("a queued job has ended")


class Search:
    """The search for forgotten jobs, which the triggers share, with answers as Airflow would give them."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        """For how many tasks, at each look."""

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        from airflow_provider.orphans import reconciled
        from kinetic_core.backends.base import backend_of
        from kinetic_core.connections import default_connections
        from kinetic_core.job import JobReference

        reference = JobReference.from_dict(reference_of(0))
        backend = await asyncio.to_thread(backend_of, reference, default_connections())
        async with reconciled(backend, "default", self._states, self._name):
            yield

    async def _states(self, _: str, __: str, task_ids: list[str]) -> Mapping[str, object]:
        self.asked.append(len(task_ids))
        return {f"mapped_{number}": "running" for number in range(TRIGGERS + _OTHERS)}

    async def _name(self) -> str:
        return DEPLOYMENT


async def sleep(number: int) -> None:
    del number
    await asyncio.sleep(10 * WINDOW)


async def poll(number: int) -> None:
    """A new client, hence a new TLS connection, for every look."""
    from kubernetes.aio import client, config

    await asyncio.sleep(_POLL_SECONDS * number / TRIGGERS)
    while True:
        began = time.monotonic()
        configuration = client.Configuration()
        await config.load_kube_config(os.environ["KINETIC_KUBECONFIG"], client_configuration=configuration)
        async with client.ApiClient(configuration) as api:
            await client.BatchV1Api(api).read_namespaced_job_status(f"kinetic-{job_id(number)}", "default")
        await asyncio.sleep(_POLL_SECONDS - (time.monotonic() - began))


async def hold(wait: Wait) -> None:
    """Run all triggers; print the CPU seconds and the requests of the window."""
    search = Search() if wait is watch else None
    async with search.beside() if search else nullcontext():
        triggers = [asyncio.ensure_future(wait(number)) for number in range(TRIGGERS)]
        await asyncio.sleep(_SETTLED)
        cpu, asked = time.process_time(), await asyncio.to_thread(requests)
        await asyncio.sleep(WINDOW)
        measured = time.process_time() - cpu, await asyncio.to_thread(requests) - asked
    ended = [trigger for trigger in triggers if trigger.done()]
    if ended:
        raise AssertionError(f"{len(ended)} triggers have ended: {ended[0].exception()!r}")
    if search is not None and len(search.asked) < _SEARCHES:
        raise AssertionError(f"nobody has looked for forgotten jobs: {search.asked}")
    sys.stdout.write(json.dumps([each * 60 / WINDOW for each in measured]) + "\n")
    sys.stdout.flush()
    os._exit(0)  # nobody waits for two thousand triggers to be cancelled


def requests() -> int:
    """How many requests the API server has had."""
    folder = Path(os.environ["KINETIC_KUBECONFIG"]).parent
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    url = f"{(folder / 'ready').read_text()}/asked"
    with urllib.request.urlopen(url, context=context) as answer:
        return int(answer.read())


def measured(how: str, folder: Path) -> tuple[float, float]:
    """CPU seconds and requests a minute of one event loop."""
    environment = {
        **os.environ,
        "KINETIC_KUBECONFIG": str(folder / "kubeconfig"),
        "KINETIC_BUCKET": "bench",
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
        "AIRFLOW_HOME": str(folder / "airflow"),
    }
    done = subprocess.run(
        [sys.executable, __file__, how], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    cpu, asked = json.loads(done.stdout.splitlines()[-1])
    return cpu, asked


def measure() -> list[Verdict]:
    with TemporaryDirectory(prefix="kinetic-bench-") as name:
        folder = Path(name)
        server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("fake_api.py"), folder, str(TRIGGERS + _OTHERS)]
        )
        try:
            while not (folder / "ready").exists():
                time.sleep(0.1)
            ours, asked = measured("watch", folder)
            sleeping, _ = measured("sleep", folder)
            polling, polled = measured("poll", folder)
        finally:
            server.kill()
            server.wait()
    note = f"{ours:.2f} against {sleeping:.2f} asleep, {polling:.1f} polling"
    return [
        Verdict(
            f"{TRIGGERS} waiting triggers, CPU a minute over sleeping ones", ours - sleeping, 0.5, "s", note
        ),
        Verdict("the same, API requests a minute", asked, 10, "", f"{polled:.0f} polling"),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(hold({"watch": watch, "sleep": sleep, "poll": poll}[sys.argv[1]]))
    load = os.getloadavg()[0]
    status = report(measure())
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
