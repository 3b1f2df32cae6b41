"""Paths that a module makes from its `__file__` are those of the shipped files, and no others are."""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.project.serialization import ProjectModules, dumps

HEAD = """
import os, sys
from pathlib import Path
HERE = Path(__file__).parent
TEXT = os.path.dirname(__file__)
"""
HERE, DATA = Path("/shipped"), Path("/shipped/data.txt")

Job = Callable[[str], Any]
"""Write a module whose function `f` is pickled, and return the function as the job has it."""


class Reader(pickle.Unpickler):
    """Reads a pickle as the runner does whose workspace is /shipped."""

    def persistent_load(self, pid: Any) -> Any:
        return os.path.normpath(f"/shipped/{pid[1]}")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    (tmp_path / "data.txt").write_text("")
    (tmp_path / "typed.txt").write_text(str(tmp_path / "data.txt"))
    (tmp_path / "places.py").write_text(f"{HEAD}FILES = [HERE / 'data.txt', TEXT]\n")

    def load(source: str) -> Any:
        (tmp_path / "job_of_paths.py").write_text(HEAD + source)
        importlib.invalidate_caches()
        f = importlib.import_module("job_of_paths").f
        pickled = dumps(f, ProjectModules(str(tmp_path), "job_of_paths"), lambda _obj: None)
        return Reader(io.BytesIO(pickled.body)).load()

    yield load
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("X = {'root': HERE, 'more': {'files': [TEXT]}}", {"root": HERE, "more": {"files": ["/shipped"]}}),
        ("X = dict(root=HERE, width=64)", {"root": HERE, "width": 64}),
        ("X = [str(HERE / name) for name in ('data.txt',)]", ["/shipped/data.txt"]),
        ("X = sorted(HERE.glob('data.*'))", [DATA]),
        ("X = {p.name: p for p in HERE.glob('data.*')}", {"data.txt": DATA}),
        ("def find(name='data.txt'): return HERE / name\nX = find()", DATA),
        ("def find(name): return HERE / name\nX = find('data.txt')", DATA),
        ("X, (_, Y) = HERE, (1, TEXT)", HERE),
        ("if os.sep:\n    X = HERE", HERE),
        ("try:\n    X = Path(__file__).parent\nexcept NameError:\n    X = None", HERE),
        ("FILES = [HERE]\nX = FILES", [HERE]),
        ("from places import FILES as X", [DATA, "/shipped"]),
        ("from places import *\nX = FILES", [DATA, "/shipped"]),
        ("import places\nX = places.HERE / 'data.txt'", DATA),
    ],
)
def test_globals_made_from_the_modules_file(job: Job, source: str, expected: object) -> None:
    assert job(f"{source}\ndef f(): return X\n")() == expected


@pytest.mark.parametrize(
    "source",
    [
        "def f(place=HERE / 'data.txt'): return place",
        "def f(HERE=HERE): return HERE / 'data.txt'",
        "def f(a=1, *, place=HERE / 'data.txt', b=2): return place",
        "def make():\n    place = HERE / 'data.txt'\n    return lambda: place\nf = make()",
        "def make(place=HERE / 'data.txt'):\n    def inner(): return place\n    return inner\nf = make()",
    ],
)
def test_defaults_and_variables_around_a_function(job: Job, source: str) -> None:
    assert job(source)() == DATA


def test_attributes_of_a_class_that_goes_by_value(job: Job) -> None:
    source = """
from dataclasses import dataclass
def make():
    @dataclass
    class Settings:
        folder: Path = HERE
        data = HERE / "data.txt"
    return Settings
Settings = make()
def f(): return Settings().folder, Settings.data
"""
    assert job(source)() == (HERE, DATA)


def test_one_object_stays_one(job: Job) -> None:
    one, other, alike = job("ONE = {'x': HERE}\nTWO = [ONE]\ndef f(): return ONE, TWO, ONE is TWO[0]")()
    assert (one, other, alike) == ({"x": HERE}, [{"x": HERE}], True)


@pytest.mark.parametrize(
    "source",
    [
        "X = (HERE / 'typed.txt').read_text().split()",
        "X = {'root': HERE, 'out': Path(sys.path[0], 'data.txt')}",
        "X = Path(sys.path[0], 'data.txt')",
        "def chosen(path): return path or HERE\nX = chosen(sys.path[0])",
    ],
)
def test_paths_that_the_source_does_not_make_stay(job: Job, tmp_path: Path, source: str) -> None:
    """Text that was read, computed elsewhere or typed means the place that it names."""
    made = job(f"{source}\ndef f(): return X\n")()
    assert str(tmp_path) in str(made)


def test_names_that_refer_to_each_other_end(job: Job) -> None:
    source = "A = [1]\nB = A\nA = B\ndef one(): return two()\ndef two(): return 1 or one()\nC = one()\n"
    assert job(f"{source}def f(): return A, B, C\n")() == ([1], [1], 1)
