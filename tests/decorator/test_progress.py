"""What the calls of a script show at a terminal, and that its output stays its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.screen import Screen, read_all

SCRIPT = """
import kinetic_core

@kinetic_core.run(accelerator="cpu", retries=1)
def train():
    import os, time
    if os.environ.get("KINETIC_FAILED_COUNT", "0") == "0":
        raise ValueError("shard 3 is corrupt")
    print("epoch 1")
    time.sleep(0.5)

@kinetic_core.run(accelerator="cpu")
def square(x):
    return 10 / x

train()
square.run_async_map([1, 0, 2]).results(return_exceptions=True)
"""
MAP = """
import kinetic_core

@kinetic_core.run(accelerator="cpu")
def square(x):
    return x * x

print(square.run_async_map([1, 2, 3]).results())
"""

LATER = """
import threading
import kinetic_core

@kinetic_core.run(accelerator="cpu")
def square(x):
    return x * x

handle = square.run_async(3)
print(handle.result(cleanup=False))
thread = threading.Thread(target=lambda: print(square.run_async(4).result()))
thread.start()
thread.join()
print(square.run_async(5).result(on_status_change=lambda status: None))
print(handle.result())
"""


@pytest.fixture
def script(local_jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT")
    place = tmp_path / "work"
    place.mkdir()
    (place / "script.py").write_text(SCRIPT)
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\n[on_demand]\ncpu = 0.5\n')
    monkeypatch.setenv("KINETIC_PRICES", str(prices))
    return [sys.executable, str(place / "script.py")]


def test_a_terminal_shows_the_retry_and_what_it_took(script: list[str]) -> None:
    reading, writing = os.openpty()
    with subprocess.Popen(
        script, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writing, text=True
    ) as process:
        os.close(writing)
        screen = Screen()
        screen.feed(read_all(reading))
        os.close(reading)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, screen.lines
    assert out == "epoch 1\n"
    told = [line.removeprefix("kinetic: ") for line in screen.lines]
    assert re.fullmatch(r"submitted job-[0-9a-f]+: train on cpu, at 0\.5 EUR an hour", told[0])
    assert told[1] == "attempt 1 of 2 failed: ValueError: shard 3 is corrupt; starting again"
    assert told[2].startswith("succeeded in ")
    assert "running" in told[2]
    assert re.fullmatch(r"submitted grp-[0-9a-f]+: square, 3 inputs, each at 0\.5 EUR an hour", told[3])
    assert told[4].startswith("3/3 done, 1 failed")
    assert told[5:] == [""]
    assert any("s running: attempt 2" in line for line in screen.drawn)
    assert any("/3 done" in line for line in screen.drawn)
    assert any("submitting: 2 of 3 inputs" in line for line in screen.drawn)


def test_a_pipe_gets_plain_lines_on_stderr_only(script: list[str]) -> None:
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "epoch 1\n"), done.stderr
    assert "kinetic: attempt 1 of 2 failed: ValueError: shard 3 is corrupt; starting again\n" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_map_says_what_all_of_its_inputs_wait_for(
    script: list[str], no_slot_is_free: Callable[[], None]
) -> None:
    Path(script[1]).write_text(MAP)
    reading, writing = os.openpty()
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=writing, text=True) as process:
        os.close(writing)
        drawn = b""
        while b"0/3 done, waiting: no CPU slot is free" not in drawn:
            drawn += os.read(reading, 1 << 16)
        no_slot_is_free()
        read_all(reading)
        os.close(reading)
        out, _ = process.communicate(timeout=60)
    assert out == "[1, 4, 9]\n"


def test_a_result_that_is_awaited_shows_what_it_waits_for(
    script: list[str], no_slot_is_free: Callable[[], None]
) -> None:
    Path(script[1]).write_text(LATER)
    reading, writing = os.openpty()
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=writing, text=True) as process:
        os.close(writing)
        drawn = b""
        while b"waiting (WaitingForSlot): no CPU slot is free" not in drawn:
            drawn += os.read(reading, 1 << 16)
        no_slot_is_free()
        screen = Screen()
        screen.feed(drawn.decode() + read_all(reading))
        os.close(reading)
        out, _ = process.communicate(timeout=60)
    assert out.split() == ["9", "16", "25", "9"]
    told = [line.removeprefix("kinetic: ").split()[0] for line in screen.lines if line]
    assert told == ["submitted", "succeeded", "submitted", "submitted"], screen.lines
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["9", "16", "25", "9"]
    assert [line.split()[1] for line in done.stderr.splitlines()] == ["submitted"] * 3, done.stderr
