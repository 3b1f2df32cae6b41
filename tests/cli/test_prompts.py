"""What the command does with Ctrl-C and Ctrl-D where it asks something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kinetic_core.cli.plans import agree
from kinetic_core.cli.verb import verb
from tests.conftest import wait_for

KINETIC = str(Path(sys.executable).with_name("kinetic"))


@contextmanager
def asked(question: bytes, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command at a terminal of its own, as soon as it has asked; and where one types."""
    keyboard, terminal = os.openpty()
    process = subprocess.Popen(
        words, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, start_new_session=True
    )
    os.close(terminal)
    try:
        shown = b""
        while question not in shown:
            shown += os.read(keyboard, 1000)
        wait_for(lambda: state_of(process.pid) == "S")  # a signal before it reads would end no reading
        yield process, keyboard
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        os.close(keyboard)


def state_of(pid: int) -> str:
    """As the kernel has it: S sleeps."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ctrl_c(process: subprocess.Popen[bytes], keyboard: int) -> None:
    process.send_signal(signal.SIGINT)


def ctrl_d(process: subprocess.Popen[bytes], keyboard: int) -> None:
    os.write(keyboard, b"\x04")


def ending(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Its exit code and stderr, to which Python writes a blank for every question."""
    assert process.stderr is not None
    return process.wait(90), process.stderr.read().lstrip(b" ")


ENDS = pytest.mark.parametrize("end", [ctrl_c, ctrl_d])


@pytest.mark.promise("command: … at prompts, in the live view, between steps of `up`")
@ENDS
def test_a_question_for_a_field_is_left(
    end: Callable[[subprocess.Popen[bytes], int], None], tmp_path: Path
) -> None:
    with asked(b"Project", KINETIC, "profile", "create", "team") as (process, keyboard):
        end(process, keyboard)
        assert ending(process) == (130, b"\ninterrupted\n")
    assert not (tmp_path / "profiles.json").exists()


AGREEING = f"""\
import sys
from kinetic_core.cli.main import main
from kinetic_core.cli import root
from {agree.__module__} import agree
from {verb.__module__} import verb

@verb(root.app, "ask")
def ask(session):
    session.output.line(str(agree(session, "go on?")))

main()
"""
"""The command with a verb that asks as `up`, `down`, `pool` and `namespace` do."""


@pytest.mark.promise("command: … at prompts, in the live view, between steps of `up`")
@ENDS
def test_a_question_before_steps_is_left(end: Callable[[subprocess.Popen[bytes], int], None]) -> None:
    with asked(b"go on?", sys.executable, "-c", AGREEING, "ask") as (process, keyboard):
        end(process, keyboard)
        assert ending(process) == (130, b"\ninterrupted\n")


def test_an_answer_is_taken(tmp_path: Path) -> None:
    with asked(b"Project", KINETIC, "profile", "create", "team") as (process, keyboard):
        os.write(keyboard, b"my-project\nus-central1-a\nc\n")
        assert process.wait(90) == 0
    stored = json.loads((tmp_path / "profiles.json").read_text())["profiles"]["team"]
    assert (stored["project"], stored["cluster"]) == ("my-project", "c")
