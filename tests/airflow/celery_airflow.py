"""An Airflow with CeleryExecutor: two workers, a broker (Redis) and a database (PostgreSQL) of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

import postgresql
from demo_airflow import AirflowTrouble, DemoAirflow
from demo_processes import free_ports, start

WORKERS = {"celery-1": "default,first", "celery-2": "default,second"}
"""The workers by their host names, and the queues that each one serves."""
SLOTS = 6
"""Tasks that one worker runs at once."""
_SECONDS = 600.0


class Servers:
    """PostgreSQL, and Redis on a free port of this machine."""

    def __init__(self) -> None:
        found = postgresql.programs()
        if found is None:
            raise _absent("postgresql")
        self._database = postgresql.Database(found)
        (self._port,) = free_ports(1)
        self._redis: subprocess.Popen[bytes] | None = None

    @property
    def database(self) -> str:
        return self._database.url

    @property
    def broker(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> None:
        """Start both and return when PostgreSQL takes connections."""
        redis = shutil.which("redis-server")
        if redis is None:
            raise _absent("redis-server")
        self._database.start()
        command = [redis, "--port", str(self._port), "--bind", "127.0.0.1", "--save", ""]
        self._redis = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        """Stop both. May be called again."""
        if self._redis is not None:
            self._redis.terminate()
            self._redis.wait(60)
        self._database.stop()


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

    def stop(self, patience: float = 5.0) -> None:
        super().stop(patience)
        self.servers.stop()


def _absent(package: str) -> AirflowTrouble:
    return AirflowTrouble(f"{package} is not installed: CeleryExecutor needs redis-server and postgresql")
