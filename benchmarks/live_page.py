"""The page of a run whose thousand jobs all run now, in a real Airflow and a real browser.

    .venv-airflow/bin/python benchmarks/live_page.py

The cluster is a FakeCluster in a process of its own, with a Job and a pod for each task instance, as large as
real ones. The first answer of a new server imports the providers of the connection, lists both kinds and
begins to watch them. It is compared with the same lists, read and decoded by themselves, and with the same
page of a thousand jobs of which nearly all have ended.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measuring import Verdict, report, seconds

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/airflow"), str(ROOT / "example_dags")]

_JOBS = 1000
_RUNS = 5
_STALE_SECONDS = 3.5
"""After these the server asks its database and its clusters again."""
_WATCH = """
new MutationObserver((changes, observer) => {
  if (document.querySelectorAll("#jobs tr").length < 100) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => { window.drawn = performance.now(); }));
}).observe(document, { childList: true, subtree: true });
"""
"""Notes when the first hundred rows were painted, in milliseconds of the page."""


def cluster() -> None:
    """Serve a cluster: print its address, read the id of a run, and print a line once its jobs run."""
    from page_seed import in_cluster

    from kinetic_core.accelerators.grammar import parse_accelerator
    from kinetic_core.backends.kubernetes.manifest import job_manifest
    from kinetic_core.job import JobSpec
    from kinetic_core.testing import FakeCluster
    from tests.kubernetes.manifests import DELIVERY

    spec = JobSpec("train", parse_accelerator("tpu-v6e-8"), "gke")
    with FakeCluster() as made:
        made.freeze()
        print(made.url, flush=True)
        run_id = input()
        for index in range(_JOBS):
            job = job_manifest(spec, in_cluster(run_id, index).reference, DELIVERY)
            job = made.objects.create("Job", "default", job)
            template = job["spec"]["template"]
            owner = {name: job["metadata"][name] for name in ("name", "uid")}
            facts = {**template["metadata"], "name": f"{owner['name']}-0", "ownerReferences": [owner]}
            made.objects.create("Pod", "default", {**template, "metadata": facts})
            made.objects.change("Pod", "default", facts["name"], lambda pod: pod.update(status=running()))
        print("ready", flush=True)
        input()


def running() -> dict[str, Any]:
    """Status of a pod whose container runs."""
    began = {"startedAt": "2026-01-01T00:00:20Z"}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}
    container = {"name": "kinetic-worker", "ready": True, "state": {"running": began}}
    return {"phase": "Running", "conditions": [scheduled], "containerStatuses": [container]}


def bare(url: str) -> float:
    """Seconds that it takes to read and decode the lists of Jobs and pods."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def read() -> None:
        for kind in ("apis/batch/v1/namespaces/default/jobs", "api/v1/namespaces/default/pods"):
            with opener.open(f"{url}/{kind}") as answer:
                json.loads(answer.read())

    return statistics.median(seconds(read) for _ in range(3))


def stale(ask: Callable[[], object]) -> list[float]:
    """Seconds of answers for which the server asks again."""
    found = []
    for _ in range(_RUNS):
        time.sleep(_STALE_SECONDS)
        found.append(seconds(ask))
    return found


def until_known(ask: Callable[[], Any]) -> None:
    """Ask until all jobs are known to run; what takes longer than eight seconds is told without them."""
    give_up = time.monotonic() + 60
    while (told := ask())["statuses"] != {"RUNNING": _JOBS}:
        assert time.monotonic() < give_up, (told["statuses"], told["troubles"])
        time.sleep(0.5)


def painted(tab: Any, address: str) -> float:
    """Seconds from the start of navigation to the frame with the first hundred rows."""
    tab.open("about:blank")
    tab.until("location.href === 'about:blank'")
    time.sleep(_STALE_SECONDS)
    tab.open(address)
    return float(tab.until("window.drawn")) / 1000


def measure(url: str, begin: Callable[[str], None], home: Path) -> list[Verdict]:
    from page_names import LIVE
    from page_server import browsing, serving

    def ask(dag_id: str) -> Any:
        status, answer = server.jobs(dag_id, "admin")
        assert status == 200, answer
        return answer

    with serving(home, (LIVE, "sweep"), url) as server:
        begin(server.runs[LIVE])
        lists = bare(url)
        first = seconds(lambda: until_known(lambda: ask(LIVE)))
        ask("sweep")
        live, ended = stale(lambda: ask(LIVE)), stale(lambda: ask("sweep"))
        with browsing(server, home / "chromium") as tab:
            tab.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
            rows = [painted(tab, server.page(LIVE)) for _ in range(_RUNS)]
    later, drawn = statistics.median(live), statistics.median(rows)
    return [
        Verdict("1,000 live jobs: first answer / bare lists", first / lists, 8.0, "x", f"{first:.2f} s"),
        Verdict("a later answer / bare lists", later / lists, 0.5, "x", _told(live)),
        Verdict("the same / of as many jobs that have ended", later / statistics.median(ended), 1.5, "x"),
        Verdict("first hundred rows painted / bare lists", drawn / lists, 1.0, "x", _told(rows)),
    ]


def _told(times: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in times)


def main() -> int:
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__, "cluster"]
    with (
        TemporaryDirectory(prefix="kinetic-page-") as home,
        subprocess.Popen(
            command, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as served,
    ):
        assert served.stdin is not None
        assert served.stdout is not None

        def begin(run_id: str) -> None:
            print(run_id, file=served.stdin, flush=True)
            assert served.stdout is not None
            served.stdout.readline()

        try:
            return report(measure(served.stdout.readline().strip(), begin, Path(home).resolve()))
        finally:
            served.terminate()


if __name__ == "__main__":
    if sys.argv[1:] == ["cluster"]:
        cluster()
    else:
        sys.exit(main())
