"""The live view in a terminal of tmux's, whose screen is read."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core.backends.local.slots import core_count
from tests.cli.conftest import waits
from tests.conftest import needs_program, wait_for

KINETIC = str(Path(sys.executable).with_name("kinetic"))


@kinetic_core.run(accelerator=f"cpu:{core_count()}")
def takes_all() -> None:
    """Needs every core of this machine."""


@pytest.fixture
def other(local_jobs: Path) -> Iterator[kinetic_core.JobHandle]:
    handle = waits.run_async(120)
    yield handle
    handle.cancel()


@pytest.fixture
def terminal() -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """A terminal of tmux's: `terminal("send-keys", "q")`. Skips where there is no tmux."""
    needs_program(shutil.which("tmux"), "no tmux: the live view is not tested")
    socket = f"kinetic-test-{secrets.token_hex(4)}"

    def tmux(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["tmux", "-L", socket, *words], capture_output=True, text=True, check=True)

    yield tmux
    tmux("kill-server")


@pytest.mark.promise("command: User text never interpreted as markup")
@pytest.mark.promise("command: `jobs watch`: table, reason, log, keys; screens in tmux")
@pytest.mark.promise("command: Terminal 40 columns wide")
@pytest.mark.parametrize("width", [100, 40])
def test_the_live_view(
    width: int,
    running: kinetic_core.JobHandle,
    other: kinetic_core.JobHandle,
    terminal: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    command = f"{KINETIC} jobs watch {running.job_id} {other.job_id}; echo ended with $?; sleep 60"
    terminal("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", "20", "sh", "-c", command)

    def screen() -> str:
        return terminal("capture-pane", "-p").stdout

    wait_for(lambda: "line 49" in screen())
    seen = screen()
    assert max(map(len, seen.splitlines())) <= width
    assert ("FUNCTION" in seen) is (width == 100)
    assert "RUNNING" in seen
    assert "line 49 [bold]x[/bold] \\x1b[2J ü" in seen
    assert seen.splitlines()[-1].startswith("up/down choose  c cancel")
    terminal("send-keys", "Down")
    wait_for(lambda: f"─ {other.job_id} ─" in screen())
    terminal("send-keys", "e")
    wait_for(lambda: "packing: " in screen())
    terminal("send-keys", "e", "c")
    wait_for(lambda: "y or n" in screen())
    terminal("send-keys", "y")
    wait_for(lambda: other.status().is_terminal)
    wait_for(lambda: "CANCELLED" in screen())
    terminal("send-keys", "q")
    wait_for(lambda: "ended with 1" in screen())
    assert running.status() is kinetic_core.JobStatus.RUNNING


@pytest.mark.promise("command: `jobs watch`: table, reason, log, keys; screens in tmux")
@pytest.mark.promise("command: … at prompts, in the live view, between steps of `up`")
def test_ctrl_c_leaves_the_terminal_as_it_was(
    running: kinetic_core.JobHandle, terminal: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    command = f"trap : INT; echo before; {KINETIC} jobs watch {running.job_id}; echo ended with $?; sleep 60"
    terminal("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "20", "sh", "-c", command)

    def screen() -> str:
        return terminal("capture-pane", "-p").stdout

    wait_for(lambda: "line 49" in screen())
    assert "before" not in screen()
    terminal("send-keys", "C-c")
    wait_for(lambda: "ended with" in screen())
    assert screen().split() == ["before", "interrupted", "ended", "with", "130"]
    assert terminal("display-message", "-p", "#{cursor_flag} #{alternate_on}").stdout == "1 0\n"
    assert running.status() is kinetic_core.JobStatus.RUNNING


def test_an_explanation_stays_when_all_jobs_have_ended(
    running: kinetic_core.JobHandle, terminal: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    command = f"{KINETIC} jobs watch {running.job_id}; echo ended with $?; sleep 60"
    terminal("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "20", "sh", "-c", command)

    def screen() -> str:
        return terminal("capture-pane", "-p").stdout

    wait_for(lambda: "line 49" in screen())
    terminal("send-keys", "e")
    wait_for(lambda: "packing: " in screen())
    running.cancel()
    wait_for(lambda: "all have ended" in screen())
    wait_for(lambda: f"{running.job_id} is CANCELLED" in screen())
    assert f"{running.job_id} is RUNNING" not in screen()
    assert "your own code" in screen()
    terminal("send-keys", "e")
    wait_for(lambda: "ended with 1" in screen())


@pytest.fixture
def waiting(running: kinetic_core.JobHandle) -> Iterator[kinetic_core.JobHandle]:
    """A job that gets no core while another one has one."""
    handle = takes_all.run_async()
    yield handle
    handle.cancel()


@pytest.mark.promise("command: `jobs watch`: table, reason, log, keys; screens in tmux")
@pytest.mark.promise("command: Non-UTF-8 locale")
@pytest.mark.parametrize(
    ("width", "locale"), [(100, ""), (40, ""), (40, "LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0 ")]
)
def test_the_live_view_says_why_a_job_waits(
    width: int,
    locale: str,
    waiting: kinetic_core.JobHandle,
    terminal: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    command = f"{locale}{KINETIC} jobs watch {waiting.job_id}; sleep 60"
    terminal("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", "12", "sh", "-c", command)

    def row() -> str:
        lines = terminal("capture-pane", "-p").stdout.splitlines()
        return lines[1] if len(lines) > 1 and "REASON" in lines[0] else ""

    wait_for(lambda: "WaitingForSlot" in row())
    job_id, status, *said = row().split()
    assert job_id.rstrip("…") == waiting.job_id[: len(job_id.rstrip("…"))]
    assert (status, said[0] == ("takes_all" if width == 100 else "WaitingForSlot:")) == ("PENDING", True)
    if width == 100:
        assert "s  WaitingForSlot: no CPU slot is free" in row()
        below = " ".join(terminal("capture-pane", "-p").stdout.split("\n")[3:])
        assert "no CPU slot is free; this machine has" in below
    assert row().isascii() is bool(locale)
