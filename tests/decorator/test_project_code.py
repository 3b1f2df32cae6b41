"""The user's own modules in a job: one of each class, one of each state, files where the code is."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core.connections import default_connections
from kinetic_core.jobs import collect
from kinetic_core.jobs.prepare import Call, prepare
from kinetic_core.options import RunOptions
from tests.decorator import shapes
from tests.decorator.shapes import Circle, NotRound

on_cpu = kinetic_core.run(accelerator="cpu")


@on_cpu
def use(circle: Circle, written_in: str) -> tuple[object, ...]:
    try:
        shapes.check(7)
    except NotRound:
        caught = True
    shapes.count()
    return (
        shapes.area(circle),
        shapes.area(Circle(1)),
        caught,
        shapes.count(),
        shapes._count,
        type(pickle.loads(pickle.dumps(circle))) is Circle,
        shapes.here(),
        Path(__file__).name,
        Path(__file__).exists(),
        __file__ != written_in,
    )


FOLDER = Path(__file__).parent
NAMES: str = str(FOLDER / "shapes.py")
WRITTEN_AS = str(Path.cwd())
FILES = {"shapes": [FOLDER / "shapes.py"]}


@on_cpu
def places(fails: bool, default: Path = FOLDER / "shapes.py") -> tuple[str, ...]:
    if fails:
        raise ValueError("a line of source")
    paths = (FOLDER, NAMES, FILES["shapes"][0], default)
    return (
        *(Path(name).relative_to(Path.cwd()).as_posix() for name in paths),
        WRITTEN_AS,
        inspect.getsource(places),
    )


def profiled() -> list[str]:
    """The files that a profiler names for a function of this module and one inside of it."""
    import cProfile
    import pstats

    def inside() -> None:
        beside()

    profile = cProfile.Profile()
    profile.runcall(inside)
    named: Any = vars(pstats.Stats(profile))["stats"]
    return [file for file, _, name in named if name in ("inside", "beside")]


def beside() -> None:
    """Called by `profiled`."""


def test_profilers_name_the_workspace(local_jobs: Path) -> None:
    files = on_cpu(profiled)()
    assert len(files) == 2
    assert all(name.endswith("workspace/tests/decorator/test_project_code.py") for name in files), files


def test_paths_made_from_the_modules_file_are_the_workspaces() -> None:
    folder, *names, written, source = places(False)
    assert (folder, *names) == ("tests/decorator", *["tests/decorator/shapes.py"] * 3)
    assert written == str(Path.cwd())  # the same text, but not made from `__file__`
    assert source.startswith("@on_cpu\ndef places(fails: bool, default: Path")


def test_a_traceback_has_the_jobs_files_and_their_lines() -> None:
    with pytest.raises(ValueError, match="a line of source") as caught:
        places(True)
    (note,) = caught.value.__notes__
    assert "workspace/tests/decorator/test_project_code.py" in note
    assert 'raise ValueError("a line of source")' in note
    assert note.count("  File ") == 1  # none of the runner's


@pytest.fixture(autouse=True)
def _root(local_jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[2]))


def test_classes_and_state_are_one_and_files_are_shipped() -> None:
    first_line = '"""A module of a user\'s project: in a job, everything in it must be itself."""'
    own = Path(__file__).name
    assert use(Circle(2), __file__) == (12.0, 3.0, True, 2, 2, True, first_line, own, True, True)


def test_what_the_main_script_defines_can_be_pickled_in_the_job(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import pickle, kinetic_core\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "class Model: pass\n"
        "def square(x): return x * x\n"
        "@kinetic_core.run(accelerator='cpu', backend='local')\n"
        "def job():\n"
        "    with ProcessPoolExecutor(1) as pool:\n"
        "        return [*pool.map(square, [1, 2])], type(pickle.loads(pickle.dumps(Model()))).__name__\n"
        "if __name__ == '__main__':\n"
        "    print(job())\n"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("([1, 4], 'Model')\n"), done.stderr


def test_a_class_of_a_dags_file_reaches_jobs_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow imports a DAG's file under a name that no other process can import."""
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(tmp_path))
    file, name = tmp_path / "boxes.py", "unusual_prefix_0123_boxes"
    text = "class Box:\n  def __init__(self, n): self.n = n\n  def twice(self): return double(self.n)\n"
    file.write_text(
        f"{text}def double(n): return 2 * n\ndef pack(): return Box(4)\ndef use(box): return box.twice()\n"
    )
    spec = spec_from_loader(name, SourceFileLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    first = on_cpu(module.pack).run_async()
    first.result(cleanup=False)
    reference = collect.result_reference(first, collect.collect(first.place, first, allow_pickle=False))
    assert on_cpu(module.use)(reference) == 8


@on_cpu
def settings(*folders: str) -> tuple[object, ...]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return shapes.UNIT, shapes.LIMITS is shapes.BOUNDS, shapes.BOUNDS, pool.submit(shapes.unit).result()


def test_variables_set_in_another_module_are_as_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings() == ("cm", True, {"most": 10}, "cm")
    monkeypatch.setattr(shapes, "UNIT", "mm")
    monkeypatch.setitem(shapes.LIMITS, "most", 20)
    assert settings() == ("mm", True, {"most": 20}, "mm")
    assert "UNIT is 'mm', in the file 'cm'" in caplog.text


@on_cpu
def style() -> tuple[object, ...]:
    return shapes.DRAWINGS, shapes.STYLE.name, shapes.STYLE is shapes.Style.OUTLINED, shapes.BOUNDS


def test_paths_and_members_of_enumerations_are_as_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shapes, "DRAWINGS", Path("others"))
    monkeypatch.setattr(shapes, "STYLE", shapes.Style.OUTLINED)
    monkeypatch.setattr(shapes, "BOUNDS", shapes.LIMITS)  # bound to a name: nothing is known of it
    monkeypatch.setattr(shapes, "UNIT", object())
    assert style() == (Path("others"), "OUTLINED", True, {"most": 10})
    assert "the job does not get their values, only those in the file: UNIT is an object of class object" in (
        caplog.text
    )


def test_two_calls_with_other_variables_are_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    options = RunOptions.checked(accelerator="cpu")
    digests = set()
    for unit in ("cm", "mm"):
        monkeypatch.setattr(shapes, "UNIT", unit)
        call = Call(settings.__wrapped__)
        digests.add(prepare(call, options, default_connections(), job_id="job-0000000000000001").spec_digest)
    assert len(digests) == 2


def test_an_ignored_module_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    (tmp_path / "made_pb2.py").write_text("X = 1\n")
    (tmp_path / ".gitignore").write_text("*_pb2.py\n/data/\n")
    (tmp_path / "script.py").write_text(
        "import kinetic_core, made_pb2\n"
        "@kinetic_core.run(accelerator='cpu', backend='local')\n"
        "def job(): return made_pb2.X\n"
        "if __name__ == '__main__':\n"
        "    print(job())\n"
    )

    def run() -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "HOME": str(tmp_path.parent / "home"),
        }
        return subprocess.run(
            [sys.executable, "script.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = run()
    assert "InvalidProject: the job would import made_pb2, and made_pb2.py does not ship" in refused.stderr
    assert not list((tmp_path.parent / "home").rglob("packs"))
    (tmp_path / ".kineticignore").write_text("!made_pb2.py\n")
    (tmp_path / "data").mkdir()
    shipped = run()
    assert shipped.stdout == "1\n", shipped.stderr
    assert (
        "left out 1 file(s) and directories that .gitignore names: data/. `kinetic package" in shipped.stderr
    )


@on_cpu
def calls_another() -> tuple[object, ...]:
    import os

    return shapes.job_id() == os.environ["KINETIC_JOB_ID"], shapes.Drawing().job_id()


def test_a_decorated_function_runs_in_place_in_a_job() -> None:
    assert calls_another() == (True, "drawn")
