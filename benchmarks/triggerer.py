"""What ten thousand waiting tasks cost a triggerer, over TLS, in one run.

    .venv-airflow/bin/python benchmarks/triggerer.py [TRIGGERS]

Three event loops one after the other, each in a process of its own: with our triggers, with as many that only
sleep, and with triggers that poll as `AsyncKubernetesHook.wait_until_job_complete` does (every ten seconds a
new client and a GET). At most five hundred poll: several thousand ask for more processors than there are, and
queue up without end. Beside ours the search for forgotten jobs goes on, as in a triggerer; ten jobs are
watched by nobody, and Airflow says each time that their tasks run. CPU and memory are those of the loop's
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
from typing import Never

from fake_api import DEPLOYMENT, job_id
from measuring import Verdict, report

TRIGGERS = 10_000
_POLLING = 500
"""Triggers that poll, at most."""
_OTHERS = 10
"""Jobs that this triggerer does not watch."""
WINDOW = 60.0
_SETTLED = 30.0
"""Seconds from the start of the triggers to the start of the measurement, at the least."""
_QUIET, _QUIET_CPU = 5.0, 0.25
"""Seconds, and those of CPU in them below which no trigger is starting any more."""
_POLL_SECONDS = 10.0
_SEARCHES = 2
"""How often forgotten jobs are looked for in that time, at the least."""
Wait = Callable[[int], Awaitable[None]]
Measured = dict[str, float]


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

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self.asked: list[int] = []
        """For how many tasks, at each look."""

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        from airflow_provider.orphans import reconciled, reconciled_elsewhere
        from kinetic_core.backends.base import backend_of
        from kinetic_core.connections import default_connections
        from kinetic_core.job import JobReference

        reference = JobReference.from_dict(reference_of(0))
        backend = await asyncio.to_thread(backend_of, reference, default_connections())
        with (
            reconciled(backend, reference, self._states, self._name),
            reconciled_elsewhere(self._places, self._states, self._name),
        ):
            yield

    async def _states(self, _: str, __: str, task_ids: list[str]) -> Mapping[str, object]:
        self.asked.append(len(task_ids))
        return {f"mapped_{number}": "running" for number in range(self._tasks)}

    async def _name(self) -> str:
        return DEPLOYMENT

    async def _places(self) -> list[Never]:
        return []


async def sleep(number: int) -> None:
    del number
    await asyncio.sleep(10 * WINDOW)


async def poll(number: int) -> None:
    """A new client, hence a new TLS connection, for every look."""
    from kubernetes.aio import client, config

    await asyncio.sleep(_POLL_SECONDS * number / _POLLING)
    while True:
        began = time.monotonic()
        configuration = client.Configuration()
        await config.load_kube_config(os.environ["KINETIC_KUBECONFIG"], client_configuration=configuration)
        async with client.ApiClient(configuration) as api:
            await client.BatchV1Api(api).read_namespaced_job_status(f"kinetic-{job_id(number)}", "default")
        await asyncio.sleep(_POLL_SECONDS - (time.monotonic() - began))


async def hold(wait: Wait, count: int) -> None:
    """Run that many triggers; print the CPU seconds and requests of the window, and the memory in MB."""
    search = Search(count + _OTHERS) if wait is watch else None
    async with search.beside() if search else nullcontext():
        triggers = [asyncio.ensure_future(wait(number)) for number in range(count)]
        await asyncio.sleep(_SETTLED)
        while wait is not poll and await cpu_of(_QUIET) > _QUIET_CPU:
            pass
        asked = await asyncio.to_thread(requests)
        cpu = await cpu_of(WINDOW)
        asked = await asyncio.to_thread(requests) - asked
    ended = [trigger for trigger in triggers if trigger.done()]
    if ended:
        raise AssertionError(f"{len(ended)} triggers have ended: {ended[0].exception()!r}")
    if search is not None and len(search.asked) < _SEARCHES:
        raise AssertionError(f"nobody has looked for forgotten jobs: {search.asked}")
    a_minute = {"cpu": cpu * 60 / WINDOW, "requests": asked * 60 / WINDOW}
    sys.stdout.write(json.dumps({**a_minute, "memory": memory("VmRSS"), "peak": memory("VmHWM")}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # nobody waits for ten thousand triggers to be cancelled


async def cpu_of(seconds: float) -> float:
    """CPU seconds of this process in that time from now on."""
    before = time.process_time()
    await asyncio.sleep(seconds)
    return time.process_time() - before


def memory(name: str) -> float:
    """MB of this process, as Linux counts it: `VmRSS` now, `VmHWM` at the most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kibibytes,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kibibytes) * 1024 / 1e6


def requests() -> int:
    """How many requests the API server has had."""
    folder = Path(os.environ["KINETIC_KUBECONFIG"]).parent
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    url = f"{(folder / 'ready').read_text()}/asked"
    with urllib.request.urlopen(url, context=context) as answer:
        return int(answer.read())


def measured(how: str, count: int, folder: Path) -> Measured:
    """CPU seconds and requests a minute, and the memory, of one event loop."""
    environment = {
        **os.environ,
        "KINETIC_KUBECONFIG": str(folder / "kubeconfig"),
        "KINETIC_BUCKET": "bench",
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
        "AIRFLOW_HOME": str(folder / "airflow"),
    }
    done = subprocess.run(
        [sys.executable, __file__, how, str(count)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told: Measured = json.loads(done.stdout.splitlines()[-1])
    return told


def measure(count: int) -> list[Verdict]:
    polling = min(count, _POLLING)
    with TemporaryDirectory(prefix="kinetic-bench-") as name:
        folder = Path(name)
        server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("fake_api.py"), folder, str(count + _OTHERS)]
        )
        try:
            while not (folder / "ready").exists():
                time.sleep(0.1)
            ours = measured("watch", count, folder)
            asleep = measured("sleep", count, folder)
            polled = measured("poll", polling, folder)
        finally:
            server.kill()
            server.wait()
    those = f"{polling} that poll"
    cpu = f"{ours['cpu']:.2f} against {asleep['cpu']:.2f} asleep; {those}: {polled['cpu']:.1f}"
    size = f"{ours['memory']:.0f} in the end, {asleep['peak']:.0f} asleep; {those}: {polled['peak']:.0f}"
    what = f"{count} waiting triggers, CPU a minute over sleeping ones"
    return [
        Verdict(what, ours["cpu"] - asleep["cpu"], 0.5, "s", cpu),
        Verdict(
            "the same, API requests a minute", ours["requests"], 10, "", f"{those}: {polled['requests']:.0f}"
        ),
        Verdict("the same, memory of the process at its peak", ours["peak"], 400, "MB", size),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        asyncio.run(hold({"watch": watch, "sleep": sleep, "poll": poll}[sys.argv[1]], int(sys.argv[2])))
    load = os.getloadavg()[0]
    status = report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else TRIGGERS))
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
