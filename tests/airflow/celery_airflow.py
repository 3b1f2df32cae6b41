"""An Airflow with CeleryExecutor: two workers, a broker (Redis) and a database (PostgreSQL) of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from demo_airflow import AirflowTrouble, DemoAirflow
from demo_processes import free_ports, start

WORKERS = {"celery-1": "default,first", "celery-2": "default,second"}
"""The workers by their host names, and the queues that each one serves."""
SLOTS = 6
"""Tasks that one worker runs at once."""
_SECONDS = 600.0


class Servers:
    """PostgreSQL and Redis on free ports of this machine, in a folder that is gone when they are stopped."""

    def __init__(self) -> None:
        self._folder = Path(mkdtemp(prefix="kinetic-celery-"))
        self._ports = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def database(self) -> str:
        return f"postgresql+psycopg2://airflow@127.0.0.1:{self._ports[0]}/postgres"

    @property
    def broker(self) -> str:
        return f"redis://127.0.0.1:{self._ports[1]}/0"

    def start(self) -> None:
        """Start both and return when PostgreSQL takes connections. It refuses to run as root."""
        programs = Path(_program("postgres")).resolve().parent
        user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        if user:
            shutil.chown(self._folder, **user)
        data, port = self._folder / "data", str(self._ports[0])
        make = [programs / "initdb", "--auth=trust", "--username=airflow", "--no-sync", "--pgdata", data]
        subprocess.run(make, check=True, capture_output=True, cwd=self._folder, **user)
        serve = [programs / "postgres", "-D", data, "-p", port, "-k", self._folder, "-F", "-N", "200"]
        ask = [programs / "pg_isready", "-h", "127.0.0.1", "-p", port]
        with (self._folder / "log").open("wb") as log:
            output: dict[str, Any] = {"stdout": log, "stderr": log, "cwd": self._folder}
            self._processes.append(subprocess.Popen(serve, **output, **user))
            redis = [_program("redis-server"), "--port", str(self._ports[1]), "--bind", "127.0.0.1"]
            self._processes.append(subprocess.Popen([*redis, "--save", ""], **output))
        deadline = time.monotonic() + _SECONDS
        while subprocess.run(ask, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise AirflowTrouble(f"PostgreSQL did not start: {(self._folder / 'log').read_text()}")
            time.sleep(0.25)

    def stop(self) -> None:
        """Stop both. May be called again."""
        for process in self._processes:
            process.send_signal(signal.SIGINT)  # PostgreSQL waits for its clients after a SIGTERM
        for process in self._processes:
            process.wait(60)
        shutil.rmtree(self._folder, ignore_errors=True)


class CeleryAirflow(DemoAirflow):
    """Its tasks are run by the workers of `WORKERS`, which are components like the others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.servers = Servers()
        self._log_ports = dict(zip(WORKERS, free_ports(len(WORKERS)), strict=True))
        settings = {
            "CORE__EXECUTOR": "CeleryExecutor",
            "CORE__PARALLELISM": "32",
            "DATABASE__SQL_ALCHEMY_CONN": self.servers.database,
            "CELERY__BROKER_URL": self.servers.broker,
            "CELERY__RESULT_BACKEND": f"db+{self.servers.database}",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "45",
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        }
        self.environment |= {f"AIRFLOW__{name}": value for name, value in settings.items()}
        self.environment["C_FORCE_ROOT"] = "1"

    def start(self, say: Callable[[str], object] = lambda _: None, timeout: float = _SECONDS) -> None:
        self.servers.start()
        super().start(say, timeout)
        self.start_workers()

    def start_workers(self) -> None:
        """Start those workers that do not run, and return when all take tasks."""
        missing = [name for name in WORKERS if name not in self.processes]
        before = {name: self._readiness(name) for name in missing}
        for name in missing:
            self.start_component(name)
        for name in missing:
            self.until(lambda n=name: self._readiness(n) > before[n], _SECONDS, f"{name} to be ready")

    def _readiness(self, name: str) -> int:
        """How often a worker of this name has been ready for tasks."""
        log = self.logs / f"{name}.log"
        return log.read_text(errors="replace").count(f"{name} ready.") if log.exists() else 0

    def start_component(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        if name not in WORKERS:
            return super().start_component(name, *arguments)
        options = ["--celery-hostname", name, "--queues", WORKERS[name], "--concurrency", str(SLOTS)]
        options += ["--pid", str(self.home / f"{name}.pid")]
        port = {"AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self._log_ports[name])}
        command = [sys.executable, "-P", "-m", "airflow", "celery", "worker", *options]
        self.processes[name] = start(self.home, name, command, {**self.environment, **port})
        return self.processes[name]

    def end_worker(self, name: str, number: signal.Signals) -> None:
        """End a worker: by SIGTERM when its tasks have ended, by SIGKILL at once with its supervisors.

        The processes of tasks are in groups of their own: they outlive their killed supervisors for a while.
        """
        process = self.processes.pop(name)
        if number == signal.SIGKILL:
            os.killpg(process.pid, number)
        elif process.poll() is None:
            process.send_signal(number)
        process.wait(_SECONDS)

    def stop(self) -> None:
        super().stop()
        self.servers.stop()


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise AirflowTrouble(f"{name} is not installed: CeleryExecutor needs redis-server and postgresql")
    return found
