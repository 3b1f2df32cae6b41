"""Paths that a module makes from its `__file__` are those of the shipped files, and no others are."""

from __future__ import annotations

import importlib
import io
import itertools
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
Work = Callable[[str], int]
"""Do the same, and return how many calls of functions the pickling took."""


def listed(number: int) -> str:
    """A list of joined paths."""
    return f"X = [os.path.join(TEXT, str(i)) for i in range({number})]"


def chained(number: int) -> str:
    """Names of which each is made from the one before it."""
    links = [f"V{i} = os.path.join(V{i - 1}, 'x')" for i in range(1, number)]
    return "\n".join(["V0 = TEXT", *links, f"X = V{number - 1}"])


def called(number: int) -> str:
    """Functions of which each calls the one before it."""
    functions = [f"def g{i}(): return g{i - 1}()" for i in range(1, number)]
    return "\n".join(["def g0(): return TEXT", *functions, f"X = g{number - 1}()"])


def branched(number: int) -> str:
    """Names that are bound in both branches of a condition, each to the one before it."""
    branches = [f"if os.sep:\n    V{i} = V{i - 1}\nelse:\n    V{i} = V{i - 1}" for i in range(1, number)]
    return "\n".join(["V0 = [TEXT]", *branches, f"X = V{number - 1}"])


def chosen(number: int) -> str:
    """One condition with many branches, the last of which is taken."""
    branches = [f"elif len(os.sep) == {i + 2}:\n    X = None" for i in range(number)]
    return "\n".join(["if not os.sep:\n    X = None", *branches, "else:\n    X = HERE"])


def shared(number: int, places: int) -> str:
    """A list of paths that another list has at many places."""
    return f"PARTS = ([HERE / str(i) for i in range({number})],)\nX = [PARTS[0] for _ in range({places})]"


def displayed(number: int) -> str:
    """A dict that names every one of many paths."""
    paths = [f"V{i} = HERE / '{i}'" for i in range(number)]
    items = ", ".join(f"'{i}': V{i}" for i in range(number))
    return "\n".join([*paths, f"X = {{{items}}}"])


def used(number: int) -> str:
    """Many functions beside many paths, each of which uses one, and a function that uses them all."""
    functions = [f"V{i} = HERE / '{i}'\ndef g{i}(): return V{i}" for i in range(number)]
    names = ", ".join(f"g{i}" for i in range(number))
    return "\n".join([*functions, f"def X(): return {names}"])


class Reader(pickle.Unpickler):
    """Reads a pickle as the runner does whose workspace is /shipped."""

    def persistent_load(self, pid: Any) -> Any:
        return os.path.normpath(f"/shipped/{pid[1]}")


def calls(action: Callable[[], object]) -> int:
    """Count the calls of functions, those that are written in C too, while an action runs."""
    count = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture
def pickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Callable[[], bytes]]]:
    """Write a module, and return what pickles its function `f`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    (tmp_path / "data.txt").write_text("")
    (tmp_path / "typed.txt").write_text(str(tmp_path / "data.txt"))
    (tmp_path / "places.py").write_text(f"{HEAD}FILES = [HERE / 'data.txt', TEXT]\n")
    names = (f"job_of_paths_{number}" for number in itertools.count())

    def write(source: str) -> Callable[[], bytes]:
        name = next(names)
        (tmp_path / f"{name}.py").write_text(HEAD + source)
        importlib.invalidate_caches()
        f = importlib.import_module(name).f
        return lambda: dumps(f, ProjectModules(str(tmp_path), name), lambda _obj: None).body

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def job(pickled: Callable[[str], Callable[[], bytes]]) -> Job:
    return lambda source: Reader(io.BytesIO(pickled(source)())).load()


@pytest.fixture
def work(pickled: Callable[[str], Callable[[], bytes]]) -> Work:
    return lambda source: calls(pickled(source))


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


def test_names_of_each_other_of_which_one_is_made(job: Job) -> None:
    source = """
first = a = b = None
a = b or Path(__file__).parent
b = a / "x"
last = b / "last"
first = a / "first"
def f(): return first, last
"""
    assert job(source)() == (HERE / "first", HERE / "x" / "last")


def test_a_list_in_the_next_value_of_its_name(job: Job) -> None:
    source = "A = [Path(__file__).parent]\nA = [HERE / 'data.txt', A]\ndef f(): return A\n"
    assert job(source)() == [DATA, [HERE]]


def test_a_list_that_holds_itself_ends(job: Job) -> None:
    made = job("A = [HERE, 0]\nA[1] = A\ndef f(): return A\n")()
    assert made[0] == HERE
    assert made[1] is made


def test_a_link_on_the_way_of_joined_paths(job: Job, tmp_path: Path) -> None:
    """A link within the project leads to what ships; one that leads out of it does not."""
    (tmp_path / "real" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "out").symlink_to("/")
    source = (
        "A = HERE / 'link'\nB = A / 'in'\nC = B / 'x'\nD = C / '..' / 'y'\nE = HERE / 'out'\nF = E / 'x'\n"
    )
    within = [
        Path("/shipped/real"),
        Path("/shipped/real/in"),
        Path("/shipped/real/in/x"),
        Path("/shipped/real/in/y"),
    ]
    outside = [tmp_path / "out", tmp_path / "out/x"]
    assert job(f"{source}def f(): return [A, B, C, D, E, F]\n")() == within + outside


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (listed(20_000), [f"/shipped/{i}" for i in range(20_000)]),
        (chained(1200), "/shipped" + 1199 * "/x"),
        (called(300), "/shipped"),
        (branched(1000), ["/shipped"]),
        (chosen(1200), HERE),
        (shared(100, 100), 100 * [[HERE / str(i) for i in range(100)]]),
        (displayed(1000), {str(i): HERE / str(i) for i in range(1000)}),
    ],
    ids=["listed", "chained", "called", "branched", "chosen", "shared", "displayed"],
)
def test_long_sources(job: Job, source: str, expected: object) -> None:
    assert job(f"{source}\ndef f(): return X\n")() == expected


@pytest.mark.parametrize("source", [listed, chained, called, branched, chosen, displayed, used])
def test_twice_the_source_is_twice_the_work(work: Work, source: Callable[[int], str]) -> None:
    _, once, twice = (work(f"{source(number)}\ndef f(): return X\n") for number in (2, 100, 200))
    assert once < twice
    assert twice <= 2 * once


def test_a_list_at_many_places_is_looked_at_once(work: Work) -> None:
    """Only the places are more, by some calls each; the paths of the list are as many as before."""
    _, once, twice = (work(f"{shared(100, places)}\ndef f(): return X\n") for places in (2, 100, 200))
    assert twice - once <= 20 * 100


def test_a_source_is_read_for_the_first_job_alone(pickled: Callable[[str], Callable[[], bytes]]) -> None:
    counts = []
    for number in (0, 500):
        other = "\n".join(
            ["class Other:\n    kind = 0", *(f"    def g{i}(self): return {i}" for i in range(number))]
        )
        dump = pickled(f"X = HERE / 'data.txt'\n{other}\ndef f(): return X\n")
        counts.append((calls(dump), calls(dump)))
    (_, next_of_short), (first_of_long, next_of_long) = counts
    assert first_of_long > 5 * 500
    assert next_of_long < next_of_short + 10


def test_a_source_that_changes_is_read_again(
    pickled: Callable[[str], Callable[[], bytes]], tmp_path: Path
) -> None:
    dump = pickled("X = HERE / 'data.txt'\ndef f(): return X\n")
    assert Reader(io.BytesIO(dump())).load()() == DATA
    (module,) = tmp_path.glob("job_of_paths_*.py")
    module.write_text(f"{HEAD}X = typed()\ndef f(): return X\n")
    assert Reader(io.BytesIO(dump())).load()() == tmp_path / "data.txt"


def test_a_source_that_could_not_be_read_is_tried_again(
    pickled: Callable[[str], Callable[[], bytes]], tmp_path: Path
) -> None:
    dump = pickled("X = HERE / 'data.txt'\ndef f(): return X\n")
    (module,) = tmp_path.glob("job_of_paths_*.py")
    source, facts = module.read_text(), module.stat()
    made = []
    for text in ("(" * facts.st_size, source):
        module.write_text(text)
        os.utime(module, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        made.append(Reader(io.BytesIO(dump())).load()())
    assert made == [tmp_path / "data.txt", DATA]
