"""Where the key that signs a job's outcome is while user code runs.

The attacker of these tests is root, who may read any memory. That others of the same user may not is tested
in pods: tests/cluster/test_writers.py.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from tests.conftest import wait_for
from tests.runner.attempts import JOB, Attempts
from tests.runner.test_batch import GROUP, Batch

pytestmark = [pytest.mark.attack, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


def memory(pid: int) -> bytes:
    """All that a process may write to, its initial environment included."""
    found = []
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb") as stream:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if match is None or "[v" in line:
                continue
            start, end = (int(part, 16) for part in match.groups())
            stream.seek(start)
            found.append(stream.read(end - start))
    return b"\n".join(found)


def waiting(begun: Path, over: Path) -> int:
    import time

    begun.write_text(f"{os.getpid()} {os.getppid()}")
    while not over.exists():
        time.sleep(0.01)
    return os.getpid()


def test_user_code_has_no_trace_of_the_key(tmp_path: Path) -> None:
    key = secrets.token_bytes(32)
    attempts = Attempts(tmp_path).submit(waiting, tmp_path / "begun", tmp_path / "over")
    process = attempts.start(KINETIC_OUTCOME_KEY=key.hex())
    wait_for(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text())
    child, runner = map(int, (tmp_path / "begun").read_text().split())
    try:
        whole = memory(child)
        assert b"KINETIC_PAYLOAD_SHA256" in whole, "the test reads what it should"
        assert key not in whole
        assert key.hex().encode() not in whole
        assert key in memory(runner)
        for pid in (runner, child):
            assert key.hex().encode() not in Path(f"/proc/{pid}/environ").read_bytes()
            assert b"KINETIC_JOB_ID" in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        (tmp_path / "over").touch()
        process.wait(timeout=90)
    assert process.returncode == wire.EXIT_SUCCEEDED
    wire.decode_frame(attempts.store.read(object_names.result(JOB)), key)


def test_an_input_has_no_key_of_another_input(tmp_path: Path) -> None:
    key = secrets.token_bytes(32)

    def wait(_number: int) -> int:
        return waiting(tmp_path / "begun", tmp_path / "over")

    batch = Batch(tmp_path).pack(wait)
    process = batch.start(KINETIC_OUTCOME_KEY=key.hex())
    wait_for(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text())
    try:
        for pid in map(int, (tmp_path / "begun").read_text().split()):
            assert key not in memory(pid)
            assert key.hex().encode() not in memory(pid)
    finally:
        (tmp_path / "over").touch()
        process.wait(timeout=90)
    assert process.returncode == wire.EXIT_SUCCEEDED
    wire.decode_frame(batch.store.read(object_names.result(f"{GROUP}-7")), wire.input_key(key, 7))


@pytest.mark.parametrize("index", [None, 7])
def test_taking_the_key_leaves_no_copy_of_it(index: int | None) -> None:
    """Looked for at once: what is freed stays in memory until something else needs the place."""
    key = secrets.token_bytes(32)
    program = (
        "import os, sys\nfrom kinetic_core._runner.signing_key import take_key\n"
        f"key = take_key(os.environ, {index})\nos.write(1, b'taken')\nos.read(0, 1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "KINETIC_OUTCOME_KEY": key.hex()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"taken"
        whole = memory(process.pid)
        process.communicate(b"x")
    assert key.hex().encode()[16:-16] not in whole
    assert (key[8:-8] in whole) == (index is None)
    own = key if index is None else wire.input_key(key, index)
    assert whole.count(own[8:-8]) == 1
