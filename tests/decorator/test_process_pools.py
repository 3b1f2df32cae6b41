"""Process pools in a job work as they do locally: every start method, wherever the function was written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.attack, pytest.mark.usefixtures("local_jobs")]

_WORK = """\
import multiprocessing, os, pickle
from concurrent.futures import ProcessPoolExecutor

FACTOR = 2
SEED = None
ONLY_HERE = 7

class Point:
    def __init__(self, x): self.x = x

class Unmentioned:
    x = 5

def seed(value):
    global SEED
    SEED = value

def seeded(x):
    return x + SEED

def scaled(x):
    return FACTOR * x

def moved(point):
    return Point(scaled(point.x))

def also(x):
    return x + ONLY_HERE

def work(methods, given, thing):
    found = []
    for method in methods:
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context, initializer=seed, initargs=(100,)) as pool:
            found.append((
                list(pool.map(scaled, [1, 2])),
                [type(each) is Point and each.x for each in pool.map(moved, [Point(3)])],
                list(pool.map(seeded, [1])),
                list(pool.map(given, [1])),
                pool.submit(getattr, thing, "x").result(),
            ))
        with context.Pool(1) as pool:
            found[-1] += (pool.map(scaled, [4]),)
    same = pickle.loads(pickle.dumps(scaled)) is scaled
    return found, same
"""
_CALL = """\
job = kinetic_core.run(accelerator="cpu", timeout=60)({where}work)
print(job({methods}, {where}also, {where}Unmentioned()))
"""
_EXPECTED = ([3, 6], [9], [101], [8], 5, [12])
METHODS = ["fork", "spawn", "forkserver"]


def run(folder: Path, program: str, *, as_file: bool = True) -> str:
    """What a program prints that submits jobs; as a script, or as a notebook would."""
    script = folder / "script.py"
    if as_file:
        script.write_text(program)
    done = subprocess.run(
        [sys.executable, "script.py" if as_file else "-"],
        input=None if as_file else program,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "KINETIC_PACKAGE_ROOT": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("as_file", [True, False], ids=["script", "notebook"])
def test_pools_over_functions_of_main(tmp_path: Path, as_file: bool) -> None:
    """Without a guard: the script is not run again, since submitting is what it does."""
    program = _WORK + "import kinetic_core\nFACTOR = 3\n" + _CALL.format(where="", methods=METHODS)
    found = run(tmp_path, program, as_file=as_file)
    assert found == repr(([_EXPECTED] * len(METHODS), True))


@pytest.mark.parametrize(
    "condition", ["", "assert 'KINETIC_JOB_ID' not in os.environ\n"], ids=["importable", "unimportable"]
)
def test_pools_over_functions_of_the_own_module(tmp_path: Path, condition: str) -> None:
    """In most images a module with jobs cannot be imported: they lack this package, which it imports."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("import os\nfrom pkg import own\n" + condition)
    (tmp_path / "pkg/own.py").write_text(_WORK + condition)
    program = "from pkg import own\nimport kinetic_core\nown.FACTOR = 3\n"
    found = run(tmp_path, program + _CALL.format(where="own.", methods=METHODS))
    assert found == repr(([_EXPECTED] * len(METHODS), True))


_GIVEN = """\
import multiprocessing
from pathlib import Path
import kinetic_core
from kinetic_core._runner import wire
from kinetic_core.jobs.collect import collect, result_reference

on_cpu = kinetic_core.run(accelerator="cpu", timeout=60)
DATA = kinetic_core.Data("data")

def first():
    return "of a job"

def facts(value):
    return value, Path(DATA, "file").read_text(), Path(__file__).read_text()[:6]

def work(value, methods, given):
    pools = [multiprocessing.get_context(method).Pool(1) for method in methods]
    return [pool.map(given, [value]) for pool in pools]

handle = on_cpu(first).run_async()
handle.result(cleanup=False)
reference = result_reference(handle, collect(handle.place, handle))
print(on_cpu(work)(reference, {methods}, facts))
"""


def test_processes_of_pools_find_data_files_and_results(tmp_path: Path) -> None:
    """What a payload names besides its pickles is there for processes that start from it, too."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("of the data")
    found = run(tmp_path, _GIVEN.replace("{methods}", repr(METHODS)))
    assert found == repr([[("of a job", "of the data", "import")]] * len(METHODS))


def test_own_modules_state_is_one_in_the_job(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import other\ncount = 0\nsize = 1\n"
        "def bump():\n    global count\n    count += 1\n    return count\n"
        "def work():\n    bump()\n    return other.again(), bump(), other.seen()\n"
    )
    (tmp_path / "other.py").write_text(
        "def again():\n    import own\n    return own.bump(), own.size\n"
        "def seen():\n    import own\n    return own.count\n"
    )
    program = "import own, kinetic_core\nown.count = 10\nown.size = 2\n"
    program += "print(kinetic_core.run(accelerator='cpu')(own.work)())\n"
    # `size` is used by no function that travels; it was set here, and the module sets it to a literal once.
    assert run(tmp_path, program) == repr(((12, 2), 13, 13))
