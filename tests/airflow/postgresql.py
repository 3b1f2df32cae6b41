"""A PostgreSQL of a test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest
from demo_processes import free_ports

_USER = "postgres"
_CONNECTIONS = 200
"""Those of all components of an Airflow, and of its Celery workers."""


def programs() -> Path | None:
    """The folder of the newest PostgreSQL of Debian's package; None without one."""
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


class Database:
    """An empty database, on a free port and in a folder that is gone when it is stopped."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._home = Path(mkdtemp(prefix="kinetic-postgres-"))
        (self._port,) = free_ports(1)

    @property
    def url(self) -> str:
        """As SQLAlchemy has it."""
        return f"postgresql+psycopg2://airflow@127.0.0.1:{self._port}/airflow"

    def start(self) -> None:
        """Return when it takes connections."""
        if os.geteuid() == 0:
            shutil.chown(self._home, _USER)
        self._run("initdb", "-D", self._data, "-U", "airflow", "--auth", "trust", "--no-sync")
        options = f"-p {self._port} -k {self._home} -F -N {_CONNECTIONS}"
        self._run("pg_ctl", "-D", self._data, "-l", str(self._home / "log"), "-w", "-o", options, "start")
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self._port), "-U", "airflow", "airflow")

    def stop(self) -> None:
        """Stop it, without waiting for its clients. May be called again, and of one that was not started."""
        if Path(self._data, "postmaster.pid").exists():
            self._run("pg_ctl", "-D", self._data, "-m", "immediate", "stop")
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self._home / "data")

    def _run(self, program: str, *arguments: str) -> None:
        """As a user of its own: PostgreSQL refuses to be root's."""
        command = [str(self._programs / program), *arguments]
        other = {"user": _USER, "group": _USER} if os.geteuid() == 0 else {}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._home, **other)


@contextmanager
def own_database() -> Iterator[str]:
    """An empty database, as SQLAlchemy's URL; gone afterwards. Skips without Debian's package."""
    found = programs()
    if found is None:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    database = Database(found)
    try:
        database.start()
        yield database.url
    finally:
        database.stop()
