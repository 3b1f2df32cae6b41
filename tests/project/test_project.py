"""Which directory is the project, and where in it things are."""

import sysconfig
from pathlib import Path

import pytest

from kinetic_core.errors import InvalidProject
from kinetic_core.project.root import locate_project


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_text("")


def locate(source, tmp_path, **options):
    options = {"cwd": tmp_path, "sys_path": [], "home": tmp_path / "nobody"} | options
    return locate_project(source, **options)


@pytest.mark.parametrize("marker", ["pyproject.toml", "requirements.txt", "setup.py", "setup.cfg", ".git"])
def test_a_marker_above_the_file_is_the_root(tmp_path, marker):
    make(tmp_path, f"proj/{marker}", "proj/a/b/train.py")
    project = locate(tmp_path / "proj/a/b/train.py", tmp_path)
    assert (project.root, project.entry, project.cwd, project.only) == (tmp_path / "proj", "a/b", None, None)


def test_the_nearest_marker_above_the_package_wins(tmp_path):
    make(tmp_path, "pyproject.toml", "proj/pyproject.toml", "proj/pkg/__init__.py", "proj/pkg/setup.cfg")
    make(tmp_path, "proj/pkg/sub/__init__.py", "proj/pkg/sub/model.py")
    assert locate(tmp_path / "proj/pkg/sub/model.py", tmp_path).root == tmp_path / "proj"


def test_without_a_marker_the_directory_of_the_file_is_the_root(tmp_path):
    make(tmp_path, "scratch/train.py")
    project = locate(tmp_path / "scratch/train.py", tmp_path)
    assert (project.root, project.entry) == (tmp_path / "scratch", "")


def test_a_package_without_a_marker_ships_from_above_it(tmp_path):
    make(tmp_path, "scratch/pkg/__init__.py", "scratch/pkg/model.py")
    project = locate(tmp_path / "scratch/pkg/model.py", tmp_path)
    assert (project.root, project.entry) == (tmp_path / "scratch", "pkg")


def test_a_notebook_belongs_to_the_current_directory(tmp_path):
    make(tmp_path, "proj/setup.py", "proj/notebooks/")
    project = locate(None, tmp_path, cwd=tmp_path / "proj/notebooks")
    assert (project.root, project.entry, project.cwd) == (tmp_path / "proj", "notebooks", "notebooks")


def test_sys_path_has_the_projects_directories_in_order(tmp_path):
    proj = tmp_path / "proj"
    make(tmp_path, "proj/pyproject.toml", "proj/train.py", "proj/z/", "proj/src/", "elsewhere/")
    make(tmp_path, "proj/lib/site-packages/", "proj/env/pyvenv.cfg", "proj/env/lib/")
    entries = [
        str(proj / name) for name in ("z", "src", "gone", "lib/site-packages", "env/lib", "z", "train.py")
    ]
    project = locate(
        proj / "train.py", tmp_path, sys_path=["", *entries, str(proj), str(tmp_path / "elsewhere")]
    )
    assert project.sys_path == ("", "z", "src")


def test_a_project_that_is_a_virtualenv_keeps_its_imports(tmp_path):
    make(tmp_path, "proj/pyproject.toml", "proj/pyvenv.cfg", "proj/src/train.py")
    project = locate(tmp_path / "proj/src/train.py", tmp_path, sys_path=[str(tmp_path / "proj/src")])
    assert (project.root, project.sys_path) == (tmp_path / "proj", ("", "src"))


def test_an_installed_function_is_of_the_callers_project(tmp_path):
    make(tmp_path, "proj/pyproject.toml", "proj/venv/lib/site-packages/tool/__init__.py")
    installed = tmp_path / "proj/venv/lib/site-packages/tool/__init__.py"
    for source in (installed, Path(sysconfig.get_path("stdlib")) / "functools.py"):
        assert locate(source, tmp_path, cwd=tmp_path / "proj").root == tmp_path / "proj"


def test_a_home_directory_is_no_project(tmp_path):
    make(tmp_path, "home/.git", "home/scratch/train.py")
    project = locate(tmp_path / "home/scratch/train.py", tmp_path, home=tmp_path / "home")
    assert (project.root, project.only) == (tmp_path / "home/scratch", None)


def test_a_scratch_file_in_the_home_ships_alone(tmp_path):
    make(tmp_path, "home/.git", "home/train.py", "home/private.txt")
    home = tmp_path / "home"
    project = locate(home / "train.py", tmp_path, home=home, sys_path=[str(home)])
    assert (project.root, project.only, project.sys_path) == (home, ("train.py",), ("",))
    assert locate(None, tmp_path, cwd=home, home=home).only == ()


@pytest.mark.parametrize("beside", ["", "home/other.py", "__file__"])
def test_a_script_alone_is_told_that_its_neighbours_stay(tmp_path: Path, beside: str) -> None:
    make(tmp_path, "home/train.py", *([beside] if beside.endswith(".py") else []))
    home = tmp_path / "home"
    if beside == "__file__":
        (home / "train.py").write_text("data = Path(__file__).parent / 'data.txt'\n")
    notices = locate(home / "train.py", tmp_path, home=home).notices
    assert [each.partition(":")[0] for each in notices] == (["only train.py is shipped"] if beside else [])


def test_the_root_of_the_file_system_is_never_shipped():
    assert locate_project(None, cwd=Path("/"), sys_path=[]).only == ()


def test_the_override_replaces_detection(tmp_path):
    make(tmp_path, "mono/service/pyproject.toml", "mono/service/train.py")
    project = locate(tmp_path / "mono/service/train.py", tmp_path, package_root=str(tmp_path / "mono"))
    assert (project.root, project.entry) == (tmp_path / "mono", "service")


def test_a_wrong_override_is_refused_by_name(tmp_path):
    make(tmp_path, "proj/train.py", "other/")
    with pytest.raises(InvalidProject, match=r"KINETIC_PACKAGE_ROOT=.*not a directory"):
        locate(tmp_path / "proj/train.py", tmp_path, package_root=str(tmp_path / "gone"))
    with pytest.raises(InvalidProject, match=r"KINETIC_PACKAGE_ROOT=.*does not hold"):
        locate(tmp_path / "proj/train.py", tmp_path, package_root=str(tmp_path / "other"))


def test_links_do_not_hide_that_a_directory_is_below_the_root(tmp_path):
    make(tmp_path, "real/proj/pyproject.toml", "real/proj/train.py")
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    project = locate(tmp_path / "alias/proj/train.py", tmp_path, cwd=tmp_path / "real/proj")
    assert (project.root, project.cwd) == (tmp_path / "alias/proj", "")


def test_a_current_directory_that_was_removed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidProject, match="current directory has been removed"):
        locate_project(None)


@pytest.mark.attack
def test_a_function_in_an_airflow_task_never_ships_airflow_home(tmp_path, monkeypatch):
    make(
        tmp_path, "airflow/requirements.txt", "airflow/airflow.cfg", "airflow/dags/a.py", "airflow/dags/b.py"
    )
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "a")
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    assert locate(tmp_path / "airflow/dags/a.py", tmp_path).root == tmp_path / "airflow/dags"
    assert locate(None, tmp_path, cwd=tmp_path / "airflow").only == ()
