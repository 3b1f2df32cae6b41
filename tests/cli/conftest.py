"""The command, called in this process: quick, and with the settings of the test."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.cli.main import build

PROJECT = Path(__file__).parent / "project"


@dataclass(frozen=True)
class Done:
    """How a call of the command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Kinetic = Callable[..., Done]


@pytest.fixture
def kinetic(capfd: pytest.CaptureFixture[str]) -> Kinetic:
    """`kinetic("jobs", "list")`; what the command does to this process is undone."""

    def call(*words: str) -> Done:
        environment, path, modules = dict(os.environ), list(sys.path), set(sys.modules)
        capfd.readouterr()
        try:
            with pytest.raises(SystemExit) as ended:
                build()(list(words), prog_name="kinetic")
        finally:
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if name.startswith("cli_sample"):
                    del sys.modules[name]
        printed = capfd.readouterr()
        code = ended.value.code
        return Done(int(code) if code is not None else 0, printed.out, printed.err)

    return call


@pytest.fixture
def sample(local_jobs: Path) -> str:
    """A file with decorated functions, in the project of the test jobs."""
    return str(PROJECT / "cli_sample.py")
