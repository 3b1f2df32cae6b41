"""What a process of user code leaves for shells, and the program that uses it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinetic_core._runner import shell
from tests.conftest import is_alive, wait_for

LEAVES = (
    "import os, sys, time;"
    "from kinetic_core._runner.shell import leave_workspace;"
    "os.environ['TOKEN'] = 'a secret';"
    "leave_workspace(sys.argv[1], os.getcwd());"
    "print('left', flush=True);"
    "time.sleep(600)"
)


@contextmanager
def function_of(job_id: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has left its workspace, as that of a job's function does."""
    command = [sys.executable, "-c", LEAVES, job_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=folder) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"left\n"
            yield process
        finally:
            process.kill()


def program(job_id: str, *command: str, size: tuple[int, int] | None = None) -> subprocess.Popen[bytes]:
    request = json.dumps({"job_id": job_id, "command": command, "size": size, "environment": {}})
    pipe, below_nohup = subprocess.PIPE, ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh"]
    return subprocess.Popen([*below_nohup, sys.executable, shell.__file__, request], stdin=pipe, stdout=pipe)


def new_id() -> str:
    return f"job-{secrets.token_hex(8)}"


ODD_PATHS = "sys.path[:0] = [pathlib.Path('made'), b'/bytes', None]"
NO_DIRECTORY = "os.chdir(made := tempfile.mkdtemp()); os.rmdir(made)"


@pytest.mark.parametrize("odd", [ODD_PATHS, NO_DIRECTORY])
def test_what_user_code_did_to_its_process_fails_no_job(odd: str, tmp_path: Path) -> None:
    program = f"import os, pathlib, sys, tempfile; work = os.getcwd(); {odd}; leave(sys.argv[1], work)"
    leaves = "from kinetic_core._runner.shell import leave_workspace as leave; "
    done = subprocess.run(
        [sys.executable, "-c", leaves + program, new_id()], capture_output=True, text=True, cwd=tmp_path
    )
    told = "" if odd is ODD_PATHS else "kinetic: no shell can be opened here: FileNotFoundError: "
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(told)
    assert len(done.stderr.splitlines()) == (1 if told else 0)


def test_a_program_runs_where_the_function_does(tmp_path: Path) -> None:
    job_id = new_id()
    with function_of(job_id, tmp_path), program(job_id, "sh", "-c", "pwd; echo $TOKEN") as one:
        assert one.stdout is not None
        told = one.stdout.read()  # its stdin is open meanwhile
    assert told == shell.BEGUN + f"{tmp_path}\na secret\n".encode()


@pytest.mark.attack
def test_what_a_process_leaves_ends_with_it(tmp_path: Path) -> None:
    job_id = new_id()
    with function_of(job_id, tmp_path):
        found = shell.find_workspace(job_id)
        assert found is not None
        os.close(found[0])
        assert list(tmp_path.iterdir()) == []
    assert shell.find_workspace(job_id) is None
    with program(job_id, "true") as late:
        assert late.communicate(timeout=60)[0] == shell.ABSENT


def test_a_process_of_another_job_is_not_taken(tmp_path: Path) -> None:
    with function_of(new_id(), tmp_path):
        assert shell.find_workspace(new_id()) is None


@pytest.mark.parametrize("size", [None, (30, 100)], ids=["pipes", "terminal"])
def test_a_command_is_hung_up_when_its_client_is_gone(tmp_path: Path, size: tuple[int, int] | None) -> None:
    job_id = new_id()
    with function_of(job_id, tmp_path), program(job_id, "sh", "-c", "echo $$; sleep 600", size=size) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        assert one.stdout.readline() == shell.BEGUN
        command = int(one.stdout.readline())
        one.stdin.close()
        assert one.wait(60) == 128 + signal.SIGHUP
        wait_for(lambda: not is_alive(command))


def test_a_command_that_ignores_the_hang_up_is_killed(tmp_path: Path) -> None:
    job_id = new_id()
    stubborn = "trap '' HUP; echo ready; while true; do sleep 1; done"
    with function_of(job_id, tmp_path), program(job_id, "sh", "-c", stubborn) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        assert [one.stdout.readline(), one.stdout.readline()] == [shell.BEGUN, b"ready\n"]
        begun = time.monotonic()
        one.stdin.close()
        assert one.wait(60) == 128 + signal.SIGKILL
        assert time.monotonic() - begun < 30


def test_the_jobs_python_comes_first(tmp_path: Path) -> None:
    told = {
        "environment": {"PATH": "/usr/bin", "PYTHONPATH": "/mine"},
        "paths": ["/job"],
        "python": "/venv/bin/python3",
    }
    environment = shell.environment_of(told)
    assert environment["PATH"] == "/venv/bin:/usr/bin"
    assert environment["PYTHONPATH"] == "/job:/mine"
