"""Cells of a notebook that run as jobs, in a stand-in for IPython's shell; tests/examples has IPython."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core.cells import Compiler
from kinetic_core.errors import InvalidRequest


class Notebook:
    """What the extension uses of IPython: variables, a cache of sources, and magic commands."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {"__name__": "__main__"}
        self.compile: Compiler = self
        self.execution_count = 0
        self.magic: Callable[[str, str | None], Any] | None = None

    def register_magic_function(
        self, func: Callable[..., Any], magic_kind: str = "line", magic_name: str | None = None
    ) -> None:
        assert (magic_kind, magic_name) == ("line_cell", "kinetic")
        self.magic = func

    def cache(self, transformed_code: str, number: int = 0) -> str:
        name = f"<ipython-input-{number}>"
        lines = transformed_code.splitlines(keepends=True)
        linecache.cache[name] = (len(transformed_code), None, lines, name)
        return name

    def ev(self, expr: str) -> Any:
        return eval(expr, self.user_ns)

    def transform_cell(self, raw_cell: str) -> str:
        return raw_cell.replace("%cd", "get_ipython().run_line_magic('cd')")

    def cell(self, text: str) -> None:
        """Run a cell of its own."""
        exec(text, self.user_ns)

    def kinetic(self, line: str, cell: str | None = None) -> Any:
        self.execution_count += 1
        assert self.magic is not None
        return self.magic(line, cell)


@pytest.fixture
def notebook(local_jobs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    monkeypatch.chdir(tmp_path)
    made = Notebook()
    kinetic_core.load_ipython_extension(made)
    made.kinetic('accelerator="cpu", backend="local"')
    return made


def test_a_cell_reads_variables_and_has_a_value(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook.cell("import math\ndef double(x):\n    return 2 * x * rate\nrate, size = 10, [1, 2]")
    value = notebook.kinetic("", "print('here')\ntotal = sum(map(double, size))\nmath.floor(total + 0.5)\n")
    assert value == 60
    assert "total" not in notebook.user_ns
    assert "here" in capsys.readouterr().out


def test_named_variables_come_back(notebook: Notebook) -> None:
    value = notebook.kinetic("-o x,y retries=1", "x = [1]\ny = {'b': 2}\nz = 3")
    assert value is None
    assert (notebook.user_ns["x"], notebook.user_ns["y"]) == ([1], {"b": 2})
    assert "z" not in notebook.user_ns


def test_a_variable_may_be_read_and_then_set(notebook: Notebook) -> None:
    """What the cell sets first does not travel: the lock could not."""
    notebook.cell("import threading\nsteps, n, lock = [1], 1, threading.Lock()")
    line = "-o steps,n,lock"
    notebook.kinetic(line, "lock = None\nsteps = [*steps, 2]\nn += 1\nfor lock in steps:\n    pass\n")
    assert [notebook.user_ns[name] for name in ("steps", "n", "lock")] == [[1, 2], 2, 2]


def test_a_cell_may_await_and_define(notebook: Notebook) -> None:
    text = """
import asyncio
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
class Point:
    side = fib(7)
await asyncio.sleep(0)
[Point.side * each for each in range(3)]
"""
    assert notebook.kinetic("", text) == [0, 13, 26]


def test_an_exception_has_the_lines_of_the_cell(notebook: Notebook) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        notebook.kinetic("", "def divide(x):\n    return 1 / x\n(divide(1),\n divide(0))")
    (note,) = caught.value.__notes__
    frames = [line.strip() for line in note.splitlines()[2:-1]]
    assert frames == [
        'File "<ipython-input-2>", line 4, in cell',
        "divide(0))",
        'File "<ipython-input-2>", line 2, in divide',
        "return 1 / x",
    ]


@pytest.mark.attack
def test_a_job_names_no_file_of_this_machine_to_be_shown(notebook: Notebook, tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("key = 'a secret'\n")
    linecache.getline(str(secret), 1)
    secret.unlink()  # else the job could read it itself
    with pytest.raises(ZeroDivisionError) as caught:
        notebook.kinetic("", f"exec(compile('1 / 0', {str(secret)!r}, 'exec'))")
    (note,) = caught.value.__notes__
    assert f'File "{secret}", line 1' in note
    assert "a secret" not in note


def test_options_are_those_of_run(notebook: Notebook) -> None:
    assert notebook.kinetic("") == {"accelerator": "cpu", "backend": "local"}
    notebook.cell("minutes = 2")
    notebook.kinetic('accelerator="cpu", backend="local", timeout=60 * minutes')
    assert notebook.kinetic("")["timeout"] == 120
    with pytest.raises(TypeError, match="acelerator"):
        notebook.kinetic('acelerator="cpu"')
    assert notebook.kinetic("")["timeout"] == 120


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("--accelerator cpu", "1", "has no options of @run"),
        ("cpu", "1", "something without a name"),
        ("**known", "1", "something without a name"),
        ("-o x", "y = 1", "assigns no x, which -o names"),
        ("-o x", None, "-o is for one cell"),
        ("", "%cd x\n1", "plain Python"),
    ],
)
def test_what_is_not_understood(notebook: Notebook, line: str, cell: str | None, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        notebook.kinetic(line, cell)


@pytest.mark.parametrize("cell", ["return 1", "yield 1", "x ="])
def test_a_cell_that_is_no_cell(notebook: Notebook, cell: str) -> None:
    with pytest.raises(SyntaxError):
        notebook.kinetic("", cell)
