"""`make demo` as its user meets it: the table, the exit code, and nothing left when it is interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow
DEMO = Path(__file__).parents[2] / "example_dags" / "run_demo.py"


def processes_of(home: Path) -> set[int]:
    from demo_processes import processes_of as found

    return found(home)


def begin(**environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, DEMO],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def lines(demo: subprocess.Popen[str]) -> Iterator[str]:
    assert demo.stdout is not None
    return iter(demo.stdout.readline, "")


def homes() -> set[Path]:
    parent = DEMO.parent.parent / ".demo"
    return set(parent.iterdir()) if parent.exists() else set()


def test_an_agent_of_any_store_in_a_home_is_found(tmp_path: Path) -> None:
    """It starts a runner again that was killed, so whoever stops the home must stop it, too."""
    store = tmp_path / "home" / "cells" / "one" / "kinetic"
    with subprocess.Popen(["/bin/sh", "-c", "read line", "agent", store], stdin=subprocess.PIPE) as agent:
        assert processes_of(tmp_path / "home") == {agent.pid}
        assert processes_of(tmp_path / "other") == set()


def test_ctrl_c_leaves_no_process() -> None:
    before = homes()
    shown = []
    with begin() as demo:
        for line in lines(demo):
            shown.append(line)
            if "count_primes" in line and "running" in line:
                break
        (home,) = homes() - before
        assert processes_of(home)
        demo.send_signal(signal.SIGINT)
        shown += lines(demo)
    assert demo.returncode == 130, "".join(shown)
    assert not processes_of(home)


@pytest.mark.slow
def test_it_stays_up_until_its_terminal_is_closed() -> None:
    before = homes()
    master, terminal = os.openpty()
    with subprocess.Popen([sys.executable, DEMO], stdin=terminal, stdout=terminal, stderr=terminal) as demo:
        os.close(terminal)
        shown = b""
        while b"until you press Ctrl-C" not in shown:
            shown += os.read(master, 1 << 16)
        (home,) = homes() - before
        assert processes_of(home)
        os.close(master)
        demo.send_signal(signal.SIGHUP)  # as the kernel tells those whose terminal it was
    assert demo.returncode == 0
    assert not processes_of(home)
    table = shown.partition(b"TASK")[2]
    assert all(name in table for name in (b"count_primes[0]", b"stumble", b"read_shard", b"deferred"))
    assert b"Now edit " in table


def test_two_at_once_and_one_that_stays_up() -> None:
    with begin(KEEP="1") as kept, begin() as other:
        texts = {demo: "".join(lines(demo)) for demo in (kept, other)}
    for demo, text in texts.items():
        assert demo.returncode == 0, text
        assert len(re.findall(r"count_primes\[\d\] +success +[\d.]+ +\d+ +http://127", text)) == 8
        assert re.search(r"add_up +success +[\d.]+ +63951 ", text)
        assert re.search(r"stumble +success +[\d.]+ +the second attempt was better ", text)
        assert re.search(r"read_shard +failed ", text)
        assert "the traceback: http://127" in text
    found = re.search(r"stop it with: (\S+) (\S+) stop (\S+)", texts[kept])
    assert found is not None
    home = Path(found[3])
    assert processes_of(home)
    subprocess.run([found[1], found[2], "stop", home], check=True)
    assert not processes_of(home)
