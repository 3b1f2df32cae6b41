"""What ships with a task: AIRFLOW_HOME is laid out as real images do."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_provider.project import Surroundings, asked_project, bundle_project
from kinetic_core.errors import InvalidProject
from kinetic_core.project.root import Project
from kinetic_core.project.tree import project_listing, store_project
from kinetic_core.store.directory import DirectoryObjectStore

pytestmark = pytest.mark.attack

DAG = """
from pathlib import Path
from airflow.sdk import dag, task
import numpy, json, logging
import team_a.steps
from common import clean

@task.kinetic(accelerator="v5litepod-1")
def train():
    from team_a.lazy import late
    import plugin_helpers
    return (Path(__file__).parent / "data.txt").read_text()
"""
AIRFLOWS = (
    "airflow.cfg",
    "airflow.db",
    "airflow.db-wal",
    "simple_auth_manager_passwords.json.generated",
    "webserver_config.py",
    "logs/dag_id=a/run_id=1/task_id=t/attempt=1.log",
)
"""What lies in AIRFLOW_HOME, and no job may have."""
TEAMS = {
    "team_a/dag.py": DAG,
    "team_a/data.txt": "a",
    "team_a/sql/query.sql": "select 1",
    "team_a/steps.py": "from team_a import shapes\nfrom .relative import near",
    "team_a/shapes.py": "",
    "team_a/relative.py": "",
    "team_a/lazy.py": "import config_of_a",
    "team_a/unused.py": "",
    "team_b/dag.py": "secret_of_b = 1",
    "team_b/data.txt": "b",
    "common/__init__.py": "",
    "common/clean.py": "import importlib\nimportlib.import_module('common.named')",
    "common/named.py": "",
    "common/other.py": "",
    ".airflowignore": "team_a/steps.py\ncommon/\n",
    "notes_of_b.md": "b",
}
SHIPS = {
    "team_a/dag.py",
    "team_a/data.txt",
    "team_a/sql/query.sql",
    "team_a/steps.py",
    "team_a/shapes.py",
    "team_a/relative.py",
    "team_a/lazy.py",
    "common/__init__.py",
    "common/clean.py",
    "common/named.py",
}


@dataclass
class Layout:
    """A place for an Airflow, as an image lays it out."""

    around: Surroundings
    sys_path: list[str]
    at: str = "dags"

    def project(self, file: str = "team_a/dag.py") -> Project:
        dag_file = self.around.bundle / file
        return bundle_project(
            dag_file,
            replace(self.around, dag_file=dag_file),
            sys_path=self.sys_path,
            cwd=self.around.airflow_home,
        )

    def ships(self, file: str = "team_a/dag.py") -> set[str]:
        """What ships of the bundle, and the full paths of the rest."""
        return paths(self.project(file))


def paths(project: Project) -> set[str]:
    listing, _ = project_listing(project)
    return {facts.path for facts in listing.files} | {path for path, _ in listing.links}


def write(root: Path, files: dict[str, str] | tuple[str, ...]) -> None:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(files[name] if isinstance(files, dict) else "secret")


def lay_out(kind: str, tmp_path: Path) -> Layout:
    """Real files where the images have them; below `tmp_path` instead of `/`."""
    home = {
        "official": tmp_path / "opt/airflow",
        "astronomer": tmp_path / "usr/local/airflow",
        "composer": tmp_path / "etc/airflow",
        "git": tmp_path / "opt/airflow",
    }[kind]
    beside = tmp_path / "home/airflow/gcs" if kind == "composer" else home
    dags = beside / "dags"
    bundle = tmp_path / "tmp/dag_bundles/repo/versions/0a1b2c" if kind == "git" else dags
    plugins = beside / "plugins"
    write(home, AIRFLOWS)
    write(home, {"requirements.txt": "numpy", "config/config_of_a.py": "", "config/secrets.json": "secret"})
    write(plugins, {"plugin_helpers.py": "", "plugin_of_b.py": ""})
    write(bundle, TEAMS)
    if kind == "astronomer":
        write(home, {"Dockerfile": "", "packages.txt": "", ".astro/config.yaml": "", "include/tool.py": ""})
        write(home, {"include/sql/one.sql": "1", "include/other.py": "", "include/big.csv": "big"})
    if kind == "composer":
        write(beside, {"data/huge.csv": "huge", "logs/x.log": ""})
    dag_file = bundle / "team_a/dag.py"
    around = Surroundings(dag_file, bundle, home, dags, plugins)
    on_path = [str(home)] if kind == "astronomer" else []
    sys_path = ["", "/usr/bin", *on_path, str(home / "config"), str(plugins), str(bundle)]
    return Layout(around, sys_path, "" if kind == "git" else "dags")


@pytest.fixture(params=["official", "astronomer", "composer", "git"])
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> Layout:
    return lay_out(request.param, tmp_path)


def expected(layout: Layout) -> set[str]:
    return {str(Path(layout.at, name)) for name in SHIPS} | {
        "plugins/plugin_helpers.py",
        "config/config_of_a.py",
    }


def test_what_the_dag_needs_ships_and_nothing_else(layout: Layout) -> None:
    assert layout.ships() == expected(layout)


def test_a_repository_that_holds_airflow_home_is_no_project(tmp_path: Path) -> None:
    """Its code beside AIRFLOW_HOME would be one by its pyproject.toml, with all of Airflow in it."""
    layout = lay_out("official", tmp_path)
    write(tmp_path / "opt", {"pyproject.toml": "", "library/steps.py": "", "notes_of_others.md": "secret"})
    project = bundle_project(
        tmp_path / "opt/library/steps.py", layout.around, sys_path=layout.sys_path, cwd=tmp_path
    )
    assert project.only is not None
    assert not {path for path in paths(project) if "notes" in path or "team_b" in path}


def test_import_directories_are_those_of_the_worker(layout: Layout) -> None:
    found = layout.project().sys_path
    assert [entry for entry in found if entry != ""] == ["config", "plugins", *filter(None, [layout.at])]


def test_nothing_of_airflow_is_stored(layout: Layout, tmp_path: Path) -> None:
    store = DirectoryObjectStore(tmp_path / "store")
    store_project(layout.project(), store, cache=tmp_path / "cache")
    assert b"secret" not in b"".join(
        file.read_bytes() for file in (tmp_path / "store").rglob("*") if file.is_file()
    )


def test_another_teams_edit_changes_no_digest(layout: Layout, tmp_path: Path) -> None:
    store = DirectoryObjectStore(tmp_path / "store")

    def tree() -> str:
        return store_project(layout.project(), store, cache=tmp_path / "cache").sha256

    before = tree()
    write(
        layout.around.bundle,
        {"team_b/dag.py": "edited", "team_b/new.py": "", "new_team.yaml": "", "d.py": ""},
    )
    write(
        layout.around.airflow_home, {"logs/more.log": "more", "airflow.db": "changed", "requirements.txt": ""}
    )
    write(layout.around.plugins_folder, {"plugin_of_b.py": "edited"})
    assert tree() == before
    write(layout.around.bundle, {"team_a/data.txt": "edited"})
    assert tree() != before


def test_a_new_version_of_a_bundle_has_the_same_tree(tmp_path: Path) -> None:
    layout = lay_out("git", tmp_path)
    bundle = layout.around.bundle
    later = bundle.with_name("ffffff")
    shutil.copytree(bundle, later)
    around = replace(layout.around, bundle=later, dag_file=later / "team_a/dag.py")
    moved = Layout(around, [*layout.sys_path[:-1], str(later)], "")
    store = DirectoryObjectStore(tmp_path / "store")
    first, second = (
        store_project(each.project(), store, cache=tmp_path / "cache") for each in (layout, moved)
    )
    assert first.sha256 == second.sha256


def test_astronomers_include_ships_by_what_the_code_names(tmp_path: Path) -> None:
    layout = lay_out("astronomer", tmp_path)
    write(
        layout.around.bundle,
        {
            "team_a/dag.py": "from include.tool import x\nfrom pathlib import Path\n"
            "q = Path(__file__).parents[2] / 'include' / 'sql' / 'one.sql'"
        },
    )
    assert {path for path in layout.ships() if path.startswith("include")} == {
        "include/tool.py",
        "include/sql/one.sql",
    }


@pytest.mark.parametrize(
    ("code", "ships"),
    [
        ("open(Path(__file__).parent / 'mine.txt')", {"mine.txt"}),
        ("open(f'{Path(__file__).parent}/part-{n}.csv')", {"part-1.csv", "part-2.csv"}),
        ("Path(__file__).parent.glob('*.csv')", {"part-1.csv", "part-2.csv"}),
        ("open('sql/q.sql')", {"sql/q.sql"}),
        ("open('dags/sql/q.sql')", {"sql/q.sql"}),
        ("Path(__file__).with_suffix('.yaml')", {"flat.yaml"}),
        ("dag(tags=['team_b'])", set()),
    ],
)
def test_in_the_shared_folder_only_named_data_ships(tmp_path: Path, code: str, ships: set[str]) -> None:
    layout = lay_out("official", tmp_path)
    write(
        layout.around.bundle,
        {
            "flat.py": code,
            "mine.txt": "",
            "part-1.csv": "",
            "part-2.csv": "",
            "theirs.txt": "",
            "sql/q.sql": "",
        },
    )
    if "yaml" in code:
        write(layout.around.bundle, {"flat.yaml": "", "other.yaml": ""})
    assert layout.ships("flat.py") == {"dags/flat.py", *(f"dags/{name}" for name in ships)}


@pytest.mark.parametrize(
    "code",
    [
        "import_module(f'models.{name}')",
        "import_module('models.' + name)",
        "import models.finder",
        "from models import finder",
    ],
)
def test_modules_of_a_computed_name_ship_with_their_package(tmp_path: Path, code: str) -> None:
    layout = lay_out("official", tmp_path)
    finder = "for m in iter_modules(__path__): import_module(f'{__name__}.{m}')"
    write(
        layout.around.bundle,
        {
            "flat.py": code,
            "models/__init__.py": "",
            "models/finder.py": finder,
            "models/one.py": "",
            "models/w.bin": "",
        },
    )
    names = ("flat.py", "models/__init__.py", "models/finder.py", "models/one.py", "models/w.bin")
    assert layout.ships("flat.py") == {f"dags/{name}" for name in names}


def test_an_import_that_cannot_be_known_is_named(tmp_path: Path) -> None:
    layout = lay_out("official", tmp_path)
    write(layout.around.bundle, {"flat.py": "x = 1\nimportlib.import_module(name)"})
    (notice,) = layout.project("flat.py").notices
    assert "flat.py:2 imports a module whose name only running it tells" in notice


def test_a_project_in_the_bundle_ships_whole(tmp_path: Path) -> None:
    layout = lay_out("official", tmp_path)
    write(layout.around.bundle, {"team_a/pyproject.toml": ""})
    assert {path for path in layout.ships() if "team_a" in path} == {
        f"dags/{name}" for name in TEAMS if name.startswith("team_a")
    } | {"dags/team_a/pyproject.toml"}
    assert "dags/team_b/dag.py" not in layout.ships()


def test_requirements_in_the_dags_folder_mark_no_project(tmp_path: Path) -> None:
    layout = lay_out("official", tmp_path)
    write(layout.around.bundle, {"requirements.txt": ""})
    around = replace(layout.around, bundle=layout.around.airflow_home)
    found = paths(bundle_project(around.dag_file, around, sys_path=layout.sys_path, cwd=tmp_path))
    assert not [path for path in found if "team_b" in path or "airflow." in path]


def test_links_and_code_that_python_refuses_are_no_way_out(tmp_path: Path) -> None:
    layout = lay_out("official", tmp_path)
    write(
        layout.around.bundle,
        {"team_a/dag.py": "import team_a.bad", "team_a/bad.py": "def (", "team_a/b.py": "\0"},
    )
    (layout.around.bundle / "team_a/settings").symlink_to(layout.around.airflow_home / "airflow.cfg")
    (layout.around.bundle / "team_a/all").symlink_to(layout.around.airflow_home)
    found = layout.ships()
    assert not [path for path in found if "airflow.cfg" in path or "settings" in path or "/all/" in path]
    assert "dags/team_a/bad.py" in found


def test_an_installed_function_ships_the_dags_part_only(tmp_path: Path) -> None:
    layout = lay_out("official", tmp_path)
    project = bundle_project(
        Path(shutil.__file__), layout.around, sys_path=layout.sys_path, cwd=layout.around.airflow_home
    )
    assert paths(project) == expected(layout)


def test_a_package_root_may_be_a_part_of_airflow_home_only(tmp_path: Path) -> None:
    layout = lay_out("official", tmp_path)
    around, dag_file = layout.around, layout.around.dag_file
    for root in (around.airflow_home, tmp_path):
        with pytest.raises(InvalidProject, match="AIRFLOW_HOME"):
            asked_project(str(root), dag_file, around)
    assert asked_project(str(around.bundle), dag_file, around).root == around.bundle
