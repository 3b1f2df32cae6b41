"""A real Airflow in a directory of its own, on free ports of localhost: started, and stopped without a trace.

`make demo` and the tests use it, any number at once on one machine. Not for production: SQLite, no passwords.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from demo_api import AirflowApi
from demo_processes import free_ports, start, stop_home

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
Answer = TypeVar("Answer")
_CONNECTION = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_LOCKED = "?timeout=30"
"""Seconds that a component waits for an SQLite that another one has locked."""
_LOCKED_FOR_API_SERVER = "?timeout=5"
"""The same of Airflow's API server, which can wait for itself: its event loop writes one request to the audit
log while another request has the lock, and needs the event loop to commit. Nobody is answered meanwhile."""


class AirflowTrouble(RuntimeError):
    """Airflow did not start, died, or took too long; the message names the log to read."""


class ComponentEnded(AirflowTrouble):
    """A component that was started is no longer there."""


@dataclass
class DemoAirflow:
    """One Airflow in `home`, which must be an absolute path nobody else uses.

    `extra` is added to the environment of every component.
    """

    home: Path
    dags_folder: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    api: AirflowApi = field(init=False)
    environment: dict[str, str] = field(init=False)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ports = free_ports(3)
        self.api = AirflowApi(f"http://127.0.0.1:{ports[0]}")
        self.environment = {**_environment(self.home, self.dags_folder, ports), **self.extra}

    @property
    def logs(self) -> Path:
        """Where the output of the components is, a file each."""
        return self.home / "components"

    def start(self, say: Callable[[str], object] = lambda _: None, timeout: float = 180.0) -> None:
        """Create the database, start every component, return when all of them are healthy."""
        say("creating a database")
        migration = self.start_component("db", "migrate")
        if migration.wait(timeout) != 0:
            raise AirflowTrouble(f"`airflow db migrate` failed; see {self.logs / 'db.log'}")
        del self.processes["db"]
        say(f"starting {', '.join(COMPONENTS)}")
        for name in COMPONENTS:
            self.start_component(name)
        self.until(lambda: not self.api.unhealthy(), timeout, "Airflow to be healthy")

    def start_component(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one component of Airflow.

        `-P` keeps the working directory off `sys.path`: in a checkout, the metadata of this provider lie
        there a second time, and Airflow would show its plugin as one that cannot be loaded twice.
        """
        command = [sys.executable, "-P", "-m", "airflow", name, *arguments]
        environment = self.environment
        if name == "api-server":
            connection = environment[_CONNECTION].replace(_LOCKED, _LOCKED_FOR_API_SERVER)
            environment = {**environment, _CONNECTION: connection}
        self.processes[name] = start(self.home, name, command, environment)
        return self.processes[name]

    def run(self, dag_id: str, conf: Mapping[str, object] | None = None, timeout: float = 60.0) -> str:
        """Start a run of a DAG as soon as Airflow knows the DAG; the run's id."""

        def parsed() -> bool:
            for error in self.api.call("GET", "/importErrors")["import_errors"]:
                raise AirflowTrouble(f"{error['filename']} cannot be imported:\n{error['stack_trace']}")
            return self.api.find(f"/dags/{dag_id}") is not None

        self.until(parsed, timeout, f"the DAG {dag_id} to be parsed")
        return self.api.run(dag_id, conf)

    def until(self, ask: Callable[[], Answer], timeout: float, what: str) -> Answer:
        """The first true answer. Raises AirflowTrouble after `timeout` seconds or if a component died."""
        deadline = time.monotonic() + timeout
        while not (answer := ask()):
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise ComponentEnded(f"airflow {name} ended; see {self.logs / name}.log")
            if time.monotonic() > deadline:
                raise AirflowTrouble(f"waited {timeout:g} s for {what}; logs: {self.logs}")
            time.sleep(0.25)
        return answer

    def stop(self, patience: float = 5.0) -> None:
        """Stop everything that runs here, jobs included. May be called again.

        What has not ended `patience` seconds after it was asked to is killed.
        """
        stop_home(self.home, patience)
        for process in self.processes.values():
            process.wait(10)
        self.processes.clear()


def _environment(home: Path, dags_folder: Path, ports: list[int]) -> dict[str, str]:
    """What the components see: the caller's environment without its own Airflow and Kinetic settings."""
    settings = {
        "CORE__DAGS_FOLDER": str(dags_folder),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "4",  # with SQLite, more writers end in "database is locked"
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{ports[0]}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db{_LOCKED}",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(ports[0]),
        "API__BASE_URL": f"http://127.0.0.1:{ports[0]}",
        "API__WORKERS": "1",
        "API__SECRET_KEY": secrets.token_hex(16),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
        "LOGGING__WORKER_LOG_SERVER_PORT": str(ports[1]),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports[2]),
        "DAG_PROCESSOR__REFRESH_INTERVAL": "2",
        "DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.3",
        # One whose heartbeat was late by more takes itself for dead, and its tasks' tries for lost.
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "90",
        "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        # A worker that waits longer for the API server fails its task, and this machine may be busy.
        "WORKERS__EXECUTION_API_TIMEOUT": "60",
        "CORE__DAGBAG_IMPORT_TIMEOUT": "120",
        "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "KINETIC_"))}
    return {
        **inherited,
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
        "AIRFLOW_HOME": str(home),
        "KINETIC_LOCAL_STORE": str(home / "kinetic"),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",  # else process titles overwrite the environment that stop_home() looks at
    }
