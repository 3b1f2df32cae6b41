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


@contextmanager
def own_database() -> Iterator[str]:
    """An empty database, as SQLAlchemy's URL; gone afterwards. Skips without Debian's package."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    home = Path(mkdtemp(prefix="kinetic-postgres-"))
    (port,) = free_ports(1)

    def run(program: str, *arguments: str) -> None:
        """As a user of its own: PostgreSQL refuses to be root's."""
        command = [str(programs[-1] / program), *arguments]
        other = {"user": _USER} if os.geteuid() == 0 else {}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=home, **other)

    if os.geteuid() == 0:
        shutil.chown(home, _USER)
    data = str(home / "data")
    run("initdb", "-D", data, "-U", "airflow", "--auth", "trust", "--no-sync")
    run("pg_ctl", "-D", data, "-l", str(home / "log"), "-w", "-o", f"-p {port} -k {home} -F", "start")
    try:
        run("createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "airflow", "airflow")
        yield f"postgresql+psycopg2://airflow@127.0.0.1:{port}/airflow"
    finally:
        run("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(home)
