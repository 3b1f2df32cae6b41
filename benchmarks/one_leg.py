"""What a mapped instance of a trivial function costs Airflow, beside an operator that its trigger ends.

    .venv-airflow/bin/python benchmarks/one_leg.py [requests] [time [INSTANCES]]

`requests`: those to Airflow's API server for each instance, heartbeats aside, counted by a proxy in between.
`time`: a run of 1,000 instances, or of INSTANCES, against a run of an operator that defers once and is ended
by its trigger, by turns, each twice; the quicker one counts. The processor time of the jobs' own processes is
taken out. What Airflow's components took in each run is printed.
"""

from __future__ import annotations

import http.client
import os
import re
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from an_airflow import Run, airflow_with, one_run
from job_time import JobTime
from mapped_pods import processor_time
from measuring import Verdict, report

_SECONDS = 3600.0
_RUNS = 2
_COUNTED, _TIMED = 40, 1000
"""Instances whose requests are counted, and whose time is measured."""


class Counting(ThreadingHTTPServer):
    """Proxy to an API server, which counts what passes by method and path, ids left out."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        self.target = urlsplit(target)
        self.counts: Counter[str] = Counter()
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.target.path}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Counting

    def _pass_on(self) -> None:
        self.server.counts[_kind(self.command, urlsplit(self.path).path)] += 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        there = http.client.HTTPConnection(self.server.target.netloc, timeout=120)
        there.request(self.command, self.path, body, dict(self.headers))
        answer = there.getresponse()
        content = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        there.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # whatever the method
            return self._pass_on
        raise AttributeError(name)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name is the library's
        """Say nothing."""


def _kind(method: str, path: str) -> str:
    path = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", path)
    return f"{method} {re.sub(r'/manual__[^/]+', '/RUN', path)}"


def requests() -> list[Verdict]:
    """Count the requests of a run."""
    made: list[Counting] = []

    def between(environment: dict[str, str]) -> None:
        made.append(Counting(environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]))
        environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] = made[0].url
        environment["BENCHMARK_INSTANCES"] = str(_COUNTED)

    with airflow_with("mapped_dags.py", between) as airflow, JobTime() as jobs:
        one_run(airflow, "ended", jobs, _SECONDS)
        plain = made[0].counts.copy()
        made[0].counts.clear()
        one_run(airflow, "kinetic", jobs, _SECONDS)
    for kind, number in sorted(made[0].counts.items()):
        print(f"{number / _COUNTED:6.2f} {kind}")
    ours, theirs = (
        sum(number for kind, number in counts.items() if "heartbeat" not in kind) / _COUNTED
        for counts in (made[0].counts, plain)
    )
    note = f"an operator that its trigger ends: {theirs:.2f}"
    return [Verdict("requests to Airflow's API server for an instance", ours, 6, "", note)]


def time(count: int) -> list[Verdict]:
    """Compare the time of runs of so many instances."""

    def change(environment: dict[str, str]) -> None:
        environment["BENCHMARK_INSTANCES"] = str(count)

    with airflow_with("mapped_dags.py", change) as airflow, JobTime() as jobs:
        pairs = [
            [one_turn(airflow, name, jobs, count) for name in ("ended", "kinetic")] for _ in range(_RUNS)
        ]
    plain = min(ended.wall for ended, _ in pairs)
    ours = min((kinetic for _, kinetic in pairs), key=lambda run: run.without_jobs)
    note = f"{plain:.0f} s; {ours.wall:.0f} s with the jobs' {ours.jobs:.0f} processor seconds"
    what = f"{count} mapped @task.kinetic / {count} ended by a trigger"
    return [Verdict(what, ours.without_jobs / plain, 1.05, "x", note)]


def one_turn(airflow: Any, dag_id: str, jobs: JobTime, count: int) -> Run:
    """A run of so many instances; prints the processor time of Airflow's components for each of them.

    Workers and tasks are processes below the scheduler.
    """
    before = {name: processor_time(each.pid) for name, each in airflow.processes.items()}
    run = one_run(airflow, dag_id, jobs, _SECONDS)
    spent = {name: processor_time(airflow.processes[name].pid) - each for name, each in before.items()}
    print("  ms for an instance:", *(f"{name} {each / count * 1000:.0f}" for name, each in spent.items()))
    return run


if __name__ == "__main__":
    load = os.getloadavg()[0]
    asked = sys.argv[1:] or ["requests", "time"]
    count = [*map(int, filter(str.isdecimal, asked)), _TIMED][0]
    verdicts = requests() if "requests" in asked else []
    status = report([*verdicts, *(time(count) if "time" in asked else ())])
    print(f"load of the machine: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(status)
