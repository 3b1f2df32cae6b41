"""The command as people use it: as a program of its own, at a terminal, with an answer in JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cli.published import PUBLISHED, misfits
from tests.conftest import Done

KINETIC = str(Path(sys.executable).with_name("kinetic"))


def well(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.out + done.err
    told = done.json
    assert misfits(told, PUBLISHED[told["schema"]]) == []
    return told


def typed(answers: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command at a terminal, at which somebody answers what it asks."""
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, answers.encode())
        return subprocess.run([KINETIC, *words], stdin=terminal, capture_output=True, text=True, check=False)
    finally:
        os.close(keyboard)
        os.close(terminal)
