"""What of a project is left out."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from kinetic_core.errors import InvalidProject
from kinetic_core.project.files import scan
from kinetic_core.project.ignore import Rules, name_notices, project_rules


def make(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def shipped(root: Path, default_excludes: bool = True) -> tuple[set[str], list[str]]:
    rules = project_rules(str(root), default_excludes)
    listing = scan(str(root), rules)
    names = {facts.path for facts in listing.files}
    return {name for name in names if not name.endswith("ignore")}, sorted(rules.secrets)


def all_of(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "")


def test_nested_files_and_negation(tmp_path):
    make(tmp_path, all_of("a.log", "keep.log", "sub/a.log", "sub/deep/b.log", "sub/deep/c.txt", "x.py"))
    make(tmp_path, {".gitignore": "*.log\n!keep.log\n", "sub/deep/.gitignore": "!b.log\nc.txt\n"})
    assert shipped(tmp_path)[0] == {"keep.log", "sub/deep/b.log", "x.py"}


def test_patterns_are_anchored_where_their_file_is(tmp_path):
    make(tmp_path, all_of("out/a", "sub/out/a", "sub/gen/a", "gen/a", "sub/x/gen/a"))
    make(tmp_path, {".gitignore": "/out\n", "sub/.gitignore": "/gen/\n"})
    assert shipped(tmp_path)[0] == {"sub/out/a", "gen/a", "sub/x/gen/a"}


def test_a_star_does_not_cross_directories(tmp_path):
    make(tmp_path, all_of("data/a.csv", "data/deep/a.csv"))
    make(tmp_path, {".gitignore": "data/*.csv\n"})
    assert shipped(tmp_path)[0] == {"data/deep/a.csv"}


def test_nothing_below_an_excluded_directory_comes_back(tmp_path):
    make(tmp_path, all_of("build/keep.txt", "dist/keep.txt"))
    make(tmp_path, {".gitignore": "build/\n!build/keep.txt\ndist/*\n!dist/keep.txt\n"})
    assert shipped(tmp_path)[0] == {"dist/keep.txt"}


def test_kineticignore_counts_after_the_gitignore_beside_it(tmp_path):
    make(tmp_path, all_of("weights.bin", "notes.md", "code.py"))
    make(tmp_path, {".gitignore": "*.bin\n", ".kineticignore": "!weights.bin\n*.md\n"})
    assert shipped(tmp_path)[0] == {"weights.bin", "code.py"}


def test_a_kineticignore_counts_in_its_own_directory(tmp_path):
    make(tmp_path, all_of("a.bin", "sub/a.bin", "sub/keep.bin", "sub/deep/a.bin"))
    make(tmp_path, {"sub/.kineticignore": "*.bin\n!keep.bin\n"})
    assert shipped(tmp_path)[0] == {"a.bin", "sub/keep.bin"}


def test_a_deeper_gitignore_counts_after_a_kineticignore_above(tmp_path):
    make(tmp_path, all_of("sub/a.bin"))
    make(tmp_path, {".kineticignore": "!*.bin\n", "sub/.gitignore": "*.bin\n"})
    assert shipped(tmp_path)[0] == set()


def test_the_repository_around_the_project_counts(tmp_path):
    make(
        tmp_path,
        all_of("mono/.git/HEAD", "mono/team/app/x.py", "mono/team/app/x.ckpt", "mono/team/app/out/a"),
    )
    make(tmp_path, {".gitignore": "*.py\n", "mono/.gitignore": "*.ckpt\n/team/app/out\n"})
    assert shipped(tmp_path / "mono/team/app")[0] == {"x.py"}


def test_defaults_and_how_to_do_without(tmp_path):
    kept = {"a.py", "env.py", "lib/mine.py"}
    out = {".venv/a", "venv/a", "node_modules/a", ".tox/a", ".mypy_cache/a", ".DS_Store", "my env/pyvenv.cfg"}
    make(tmp_path, all_of(*kept, *out, "my env/lib/a", "lib/site-packages/a"))
    make(tmp_path, all_of(".git/config", "sub/.git/config", "__pycache__/a.pyc", "sub/__pycache__/a.pyc"))
    assert shipped(tmp_path)[0] == kept
    everything = kept | out | {"my env/lib/a", "lib/site-packages/a"}
    assert shipped(tmp_path, default_excludes=False)[0] == everything


def test_the_file_git_of_a_worktree_is_shipped(tmp_path):
    make(tmp_path, {".git": "gitdir: /elsewhere", "a.py": ""})
    assert shipped(tmp_path)[0] == {".git", "a.py"}


def test_defaults_can_be_taken_back_in_kineticignore_only(tmp_path):
    taken = {"a.py", "venv/pyvenv.cfg", "venv/lib/site-packages/a.py"}
    make(tmp_path, all_of(*taken, "node_modules/a.js", "venv/__pycache__/a.pyc", "venv/.env"))
    make(tmp_path, {".kineticignore": "!venv/\n", ".gitignore": "!node_modules/\n"})
    assert shipped(tmp_path) == (taken, ["venv/.env"])


@pytest.mark.parametrize(
    "pattern",
    [
        "*.a",
        "b.a",
        "/x/b.a",
        "x/*.a",
        "**/b.a",
        "x/**",
        "/x/",
        "x/",
        "x",
        "?.a",
        "[ab].a",
        "**/x/b.a",
        "x/**/b.a",
    ],
)
def test_patterns_of_every_form_match(tmp_path, pattern):
    make(tmp_path, all_of("x/b.a", "y/c.py"))
    make(tmp_path, {".kineticignore": f"# comment\n\n{pattern}\n"})
    assert shipped(tmp_path)[0] == {"y/c.py"}


@pytest.mark.parametrize(
    "name",
    [".env", ".env.local", "tls.pem", "id_rsa", "id_ed25519_work", "server.key", "credentials.json",
     "service-account-prod.json", ".netrc", ".npmrc", ".pypirc", "deep/.env"],
)  # fmt: skip
def test_secret_shaped_files_stay_at_home(tmp_path, name):
    make(tmp_path, all_of(name, "a.py"))
    assert shipped(tmp_path) == ({"a.py"}, [name])


@pytest.mark.parametrize("name", [".env.example", ".env.sample", ".env.template", "monkey.py", "pem", "keys"])
def test_names_that_only_resemble_secrets_are_shipped(tmp_path, name):
    make(tmp_path, all_of(name))
    assert shipped(tmp_path) == ({name}, [])


def test_a_secret_is_shipped_on_request_of_kineticignore_only(tmp_path):
    make(tmp_path, all_of(".env", "sub/.env", "tls.pem"))
    make(tmp_path, {".gitignore": ".env\n!tls.pem\n", ".kineticignore": "!/.env\n"})
    assert shipped(tmp_path) == ({".env"}, ["tls.pem"])


def test_an_ignored_secret_is_no_news(tmp_path):
    make(tmp_path, {".env": "", ".gitignore": ".env\n"})
    assert shipped(tmp_path)[1] == []


def test_one_notice_for_all_secrets():
    (notice,) = name_notices(Rules(secrets=[f"{n}/.env" for n in range(7)]))
    assert "7 file(s)" in notice
    assert "0/.env" in notice
    assert "…" in notice
    assert "'!.env' to .kineticignore" in notice


def test_an_ignore_file_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / ".kineticignore").symlink_to("/proc/self/mem")
    with pytest.raises(InvalidProject, match=r"\.kineticignore cannot be used"):
        shipped(tmp_path)


def test_data_has_no_rules(tmp_path):
    make(tmp_path, all_of(".git/config", "__pycache__/a.pyc", ".env", "venv/pyvenv.cfg", "a.py"))
    make(tmp_path, {".gitignore": "*"})
    listing = scan(str(tmp_path), Rules(everything=True))
    assert len(listing.files) == 6


@pytest.mark.attack
@pytest.mark.parametrize(
    "name",
    [
        "airflow.cfg",
        "airflow.cfg.bak",
        "airflow.db",
        "airflow.db-journal",
        "simple_auth_manager_passwords.json.generated",
        "webserver_config.py",
        "standalone_admin_password.txt",
        "logs/dag_id=a/attempt=1.log",
    ],
)
@pytest.mark.parametrize("folder", ["", "deep/down/"])
def test_airflows_own_files_stay_whatever_the_root(tmp_path, name, folder):
    make(tmp_path, {folder + name: "", f"{folder}airflow_dag.py": "", "requirements.txt": ""})
    rules = project_rules(str(tmp_path), True)
    found = {facts.path for facts in scan(str(tmp_path), rules).files}
    assert found == {f"{folder}airflow_dag.py", "requirements.txt"}
    (notice,) = name_notices(rules)
    assert folder + name.partition("/")[0] in notice


@pytest.mark.attack
def test_nothing_brings_airflows_keys_back(tmp_path):
    make(tmp_path, {"airflow.cfg": "", ".kineticignore": "!airflow.cfg\n!*\n", "x.py": ""})
    (tmp_path / "settings").symlink_to("airflow.cfg")
    for default_excludes in (True, False):
        listing = scan(str(tmp_path), project_rules(str(tmp_path), default_excludes))
        assert {facts.path for facts in listing.files} == {"x.py", ".kineticignore"}
        assert not listing.links


def test_a_package_called_logs_or_asked_for_ships(tmp_path):
    make(tmp_path, {"logs/__init__.py": "", "a/logs/x.txt": "", "a/.kineticignore": "!logs/\n"})
    found, _ = shipped(tmp_path)
    assert {"logs/__init__.py", "a/logs/x.txt"} <= found


@dataclass(frozen=True)
class Removing(Rules):
    """Rules of somebody beside whom a directory is removed after it was listed."""

    def below(self, folder: str, relative: str, names: set[str]) -> Rules:
        if relative == "empty":
            Path(folder).rmdir()
        return self


def test_a_directory_removed_meanwhile_is_left_out(tmp_path: Path) -> None:
    for name in ("empty", "other"):
        (tmp_path / name).mkdir()
    listing = scan(str(tmp_path), Removing())
    assert [path for path, _ in listing.empty] == ["other"]
