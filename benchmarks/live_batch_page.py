"""The page of a batch of 10,000 inputs that goes on, in a real Airflow and a real browser.

    .venv-airflow/bin/python benchmarks/live_batch_page.py

Needs the environment of ../shared/cluster/testcluster, of which only the emulator of Cloud Storage is used.
The cluster is a FakeCluster in a process of its own, which submits the batch and stores outcomes of half of
its inputs, signed as runners would, and of a hundred more before each update. All times are the browser's own
and include what the API server takes for its answers: from the start of navigation to the first paint and to
the frame after the squares were drawn, and of an update from the first of its two requests to that frame.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from batch_page import first
from batches import tell
from measuring import Verdict, report

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/airflow"), str(ROOT / "example_dags")]

_EMULATOR = os.environ.get("STORAGE_EMULATOR_HOST", "")
_RUNS = 5
_UPDATES = 10
_AT_ONCE, _A_STEP = 64, 100
_WATCH = """
window.drawn = [];
new MutationObserver((changes) => {
  if (!changes.some((each) => each.attributeName === "d")) return;
  const requests = performance.getEntriesByType("resource");
  const asked = requests.filter(({ name }) => /jobs[?].*offset=/.test(name)).at(-1);
  const answered = requests.filter(({ name }) => /batches/.test(name)).at(-1);
  requestAnimationFrame(() => setTimeout(() => {
    window.drawn.push([performance.now(), asked.startTime, answered.responseEnd]);
  }));
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["d"] });
"""
"""Notes when squares were painted, when their first request began, and when their answer had come."""


def cluster(home: Path) -> None:
    """Serve a cluster: print its address, read the id of a run and print the record of its batch, of which
    half has ended; with each further line a few more inputs end.
    """
    from page_names import INPUTS

    from kinetic_core.backends.base import open_backend
    from kinetic_core.backends.kubernetes.client import ClusterApi
    from kinetic_core.backends.kubernetes.connection import Target
    from kinetic_core.connections import default_connections
    from kinetic_core.testing import FakeCluster
    from kinetic_core.testing.kubelet import runs_until_stopped

    with FakeCluster(lambda _pod: runs_until_stopped()) as made:
        print(made.url, flush=True)
        run_id = input()
        kubeconfig = made.write_kubeconfig(home / "kubeconfig")
        os.environ |= settings(kubeconfig)
        record = submit(run_id, INPUTS)
        group_id = record["reference"]["job_id"]
        api = ClusterApi(Target(str(kubeconfig)))
        while not is_running(api):
            time.sleep(0.5)
        made.freeze()
        backend = open_backend("gke", default_connections())
        assert backend.parts is not None
        (job,) = backend.parts.parts("default", group_id)
        ended = INPUTS // 2

        def say(first: int) -> None:
            """Let the inputs from `first` on end, up to `ended`; the first ones run on."""
            tell(backend, job, group_id, range(first, ended))
            done = {"active": _AT_ONCE, "completedIndexes": f"{_AT_ONCE}-{ended - 1}"}
            made.objects.change(
                "Job", "default", job["metadata"]["name"], lambda each: each["status"].update(done)
            )

        say(_AT_ONCE)
        print(json.dumps(record), flush=True)
        while input():
            ended += _A_STEP
            say(ended - _A_STEP)
            print("ended", flush=True)


def is_running(api: Any) -> bool:
    """Return whether as many pods run as the batch may have at once."""
    phases = [pod["status"].get("phase") for pod in api.list("Pod", "default")["items"]]
    return phases.count("Running") >= _AT_ONCE


def settings(kubeconfig: Path) -> dict[str, str]:
    """Environment of a client of that cluster, whose bucket is that of the page's connection."""
    from page_names import SILENT_BUCKET

    return {
        "KINETIC_BACKEND": "gke",
        "KINETIC_KUBECONFIG": str(kubeconfig),
        "KINETIC_BUCKET": SILENT_BUCKET,
        "KINETIC_CONTAINER_IMAGE": "python:3.11",
        "KINETIC_PACKAGE_ROOT": str(ROOT / "benchmarks"),
    }


def embed(number: int) -> int:
    return number + 1


def submit(run_id: str, size: int) -> dict[str, Any]:
    """Submit the batch as a worker does; return its record."""
    from page_names import CORPUS

    from airflow_provider.batch_of_task import start_or_adopt_batch
    from airflow_provider.batch_record import BatchRecord
    from airflow_provider.job_of_task import Origin, TaskIdentity
    from kinetic_core.batches.definition import Plan
    from kinetic_core.connections import default_connections
    from kinetic_core.jobs.submit import Call
    from kinetic_core.options import RunOptions

    identity = TaskIdentity(CORPUS, run_id, "began", "embed", -1, 1)
    plan = Plan("", False, "kwargs", _AT_ONCE, False, False, "embed", {})
    items = [{"number": number} for number in range(size)]
    started = start_or_adopt_batch(
        Call(embed, (), {}),
        items,
        RunOptions.checked(accelerator="cpu"),
        default_connections(),
        identity,
        plan,
        origin=Origin.of(identity, "bench"),
    )
    return BatchRecord(started.reference, size, identity.run_began, 1, 1, conn_id="page_silent").to_dict()


def make_bucket() -> None:
    from page_names import SILENT_BUCKET

    body = json.dumps({"name": SILENT_BUCKET}).encode()
    address = f"{_EMULATOR}/storage/v1/b?project=test-project"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
    except urllib.error.HTTPError as error:
        if error.code != 409:  # it is there
            raise


def measure(url: str, ask: Callable[[str], str], home: Path) -> list[Verdict]:
    from page_names import CORPUS
    from page_server import browsing, serving

    with serving(home, (CORPUS,), url, _EMULATOR) as server:
        server.seed("batch", server.runs[CORPUS], ask(server.runs[CORPUS]))
        address = server.page(CORPUS, "&task=embed&map=-1")
        with browsing(server, home / "chromium") as tab:
            tab.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
            opened = [first(tab, address) for _ in range(_RUNS)]
            for number in range(_UPDATES):
                ask("more")
                tab.until(f"window.drawn.length > {number + 1}", 120)
            drawn = tab.ask("window.drawn")[1 : _UPDATES + 1]
    paints, boards = zip(*opened, strict=True)
    asked = [(painted - began) / 1000 for painted, began, _ in drawn]
    answered = statistics.median((painted - came) / 1000 for painted, _, came in drawn)
    return [
        _median("10,000 live inputs: first paint of the page", paints, 1.0),
        _median("the same: all squares", boards, 1.0),
        _median("an update of all squares: request -> painted", asked, 0.2, f", from answer {answered:.3f}"),
    ]


def _median(what: str, times: Sequence[float], target: float, more: str = "") -> Verdict:
    told = ", ".join(f"{each:.2f}" for each in times)
    return Verdict(what, statistics.median(times), target, "s", told + more)


def main() -> int:
    make_bucket()
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        TemporaryDirectory(prefix="kinetic-page-") as home,
        subprocess.Popen(
            [sys.executable, __file__, "cluster", home],
            env=here,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as served,
    ):
        stdin, stdout = served.stdin, served.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(line: str) -> str:
            print(line, file=stdin, flush=True)
            return stdout.readline()

        try:
            return report(measure(stdout.readline().strip(), ask, Path(home).resolve()))
        finally:
            served.terminate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["cluster"]:
        cluster(Path(sys.argv[2]))
    elif not _EMULATOR:
        sys.exit("this needs ../shared/cluster/testcluster up, and its env evaluated")
    else:
        load = os.getloadavg()[0]
        status = main()
        print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
        sys.exit(status)
