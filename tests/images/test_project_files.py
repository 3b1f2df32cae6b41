"""`pyproject.toml`, script metadata and lock files."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kinetic_core.errors import InvalidDependencies
from kinetic_core.images.lock_files import environment, read_pylock, read_uv_lock
from kinetic_core.images.pyproject import read_pyproject, read_script
from kinetic_core.images.requirements import Dependencies, lines

PYPROJECT = """\
[project]
name = "x"
dependencies = [
  "numpy>=2",
]
[project.optional-dependencies]
Train = ["six"]
local = ["y @ file:///y"]
[dependency-groups]
dev = ["pytest"]
all = [{include-group = "dev"}, "attrs"]
"""


def pyproject(folder: Path, text: str = PYPROJECT, **asked: tuple[str, ...]) -> Dependencies:
    (folder / "pyproject.toml").write_text(text)
    return read_pyproject(folder / "pyproject.toml", "pyproject.toml", **asked)


@pytest.mark.promise("data: `pyproject.toml`: dependencies, extras, groups")
def test_dependencies_extras_and_groups(tmp_path: Path) -> None:
    assert lines(pyproject(tmp_path).wanted) == ("numpy>=2",)
    pytest.importorskip("packaging.dependency_groups")
    found = pyproject(tmp_path, extras=("train",), groups=("all",))
    assert lines(found.wanted) == ("attrs", "numpy>=2", "pytest", "six")
    assert found.wanted[0].where == "pyproject.toml:4"


@pytest.mark.skipif(
    find_spec("packaging.pylock") is not None, reason="shown by `make test-oldest`: packaging is new enough"
)
def test_what_an_older_packaging_cannot_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "pylock.toml").write_text(PYLOCK)
    with pytest.raises(InvalidDependencies, match=r"pylock\.toml cannot be read .* packaging>=26\.1"):
        read_pylock(tmp_path / "pylock.toml", "pylock.toml", environment())
    with pytest.raises(InvalidDependencies, match=r"group 'all' cannot be read .* packaging>=26\.1"):
        pyproject(tmp_path, groups=("all",))


def test_what_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidDependencies, match=r"no extra 'tpu'; it has local, train"):
        pyproject(tmp_path, extras=("tpu",))
    with pytest.raises(InvalidDependencies, match=r"no dependency group 'x'; it has all, dev"):
        pyproject(tmp_path, groups=("x",))


def test_local_packages_are_refused_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidDependencies, match=r"pyproject\.toml:8: .*is a path"):
        pyproject(tmp_path, extras=("local",))
    text = '[project]\nname="x"\ndependencies = ["lib"]\n[tool.uv.sources]\nlib = {path = "../lib"}\n'
    with pytest.raises(
        InvalidDependencies, match=r"pyproject\.toml:3: 'lib' comes from \[tool\.uv\.sources\]"
    ):
        pyproject(tmp_path, text)


INDEXES = """\
[tool.uv]
constraint-dependencies = ["numpy<2"]
extra-index-url = ["https://more/simple"]
find-links = ["https://wheels"]
[[tool.uv.index]]
name = "ours"
url = "https://ours/simple"
default = true
[[tool.uv.index]]
url = "https://team/simple"
[[tool.uv.index]]
url = "https://files"
format = "flat"
[[tool.uv.index]]
name = "torch"
url = "https://torch/simple"
explicit = true
"""
OPTIONS = (
    "--index-url https://ours/simple",
    "--extra-index-url https://team/simple",
    "--find-links https://files",
    "--extra-index-url https://more/simple",
    "--find-links https://wheels",
)


def test_packages_come_from_the_indexes_of_uv(tmp_path: Path) -> None:
    """From PyPI, a package of the same name would be a stranger's."""
    found = pyproject(tmp_path, f'[project]\nname="x"\ndependencies=["a"]\n{INDEXES}')
    assert (found.options, lines(found.constraints)) == (OPTIONS, ("numpy<2",))
    script = tmp_path / "train.py"
    said = "".join(f"# {line}\n" for line in ['dependencies=["a"]', *INDEXES.splitlines()])
    script.write_text(f"# /// script\n{said}# ///\n")
    of_script = read_script(script, "train.py")
    assert of_script is not None
    assert (of_script.options, lines(of_script.constraints)) == (OPTIONS, ("numpy<2",))


@pytest.mark.parametrize(
    ("url", "said"), [("https://me:secret@ours/simple", "carries credentials"), ("./wheels", "is a path")]
)
def test_indexes_that_no_pod_can_use_are_refused(tmp_path: Path, url: str, said: str) -> None:
    text = f'[project]\nname="x"\ndependencies=["a"]\n[[tool.uv.index]]\nurl = "{url}"\n'
    with pytest.raises(InvalidDependencies, match=rf"pyproject\.toml:5: .*{said}"):
        pyproject(tmp_path, text)


def test_a_file_without_dependencies_says_where_they_may_be(tmp_path: Path) -> None:
    found = pyproject(
        tmp_path, '[project]\nname="x"\ndynamic=["dependencies"]\n[tool.poetry.dependencies]\na="1"\n'
    )
    assert found.wanted == ()
    assert "[tool.poetry.dependencies], dynamic dependencies are not installed" in found.notices[0]


def test_broken_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidDependencies, match=r"pyproject\.toml cannot be read"):
        pyproject(tmp_path, "[project")
    with pytest.raises(InvalidDependencies, match="is not a requirement"):
        pyproject(tmp_path, '[project]\ndependencies = ["a b c"]\n')


@pytest.mark.promise("data: `uv.lock`, `pylock.toml`, PEP 723")
def test_script_metadata(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["six", "attrs"]\n# ///\nx = 1\n'
    )
    found = read_script(script, "train.py")
    assert found is not None
    assert lines(found.wanted) == ("attrs", "six")
    script.write_text("x = 1\n")
    assert read_script(script, "train.py") is None
    script.write_text("# /// script\n# dependencies = [\n# ///\n")
    with pytest.raises(InvalidDependencies, match="is not TOML"):
        read_script(script, "train.py")


UV_LOCK = """\
version = 1
[[package]]
name = "project"
version = "0"
source = { editable = "." }
dependencies = [
  { name = "a", extra = ["fast"] },
  { name = "w", marker = "sys_platform == 'win32'" },
  { name = "two", version = "2", marker = "python_full_version >= '3.11'" },
]
[package.optional-dependencies]
tpu = [{ name = "g" }]
[package.dev-dependencies]
dev = [{ name = "local" }]
[[package]]
name = "a"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "b" }]
sdist = { url = "https://x/a.tar.gz", hash = "sha256:s" }
wheels = [{ url = "https://x/a.whl", hash = "sha256:w" }]
[package.optional-dependencies]
fast = [{ name = "c" }]
[[package]]
name = "b"
version = "2"
source = { registry = "https://other/simple" }
dependencies = [{ name = "a" }]
[[package]]
name = "c"
version = "3"
source = { url = "https://x/c-3-py3-none-any.whl" }
[[package]]
name = "two"
version = "1"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "two"
version = "2"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "w"
version = "1"
source = { registry = "https://pypi.org/simple" }
[[package]]
name = "g"
version = "1"
source = { git = "https://github.com/g/g?tag=v1#abc123" }
[[package]]
name = "local"
version = "1"
source = { directory = "../local" }
"""


def uv_lock(folder: Path, **asked: tuple[str, ...]) -> Dependencies:
    (folder / "uv.lock").write_text(UV_LOCK)
    return read_uv_lock(folder / "uv.lock", "uv.lock", environment(), **asked)


def test_uv_lock_is_what_its_project_needs_on_linux(tmp_path: Path) -> None:
    found = uv_lock(tmp_path, extras=("tpu",))
    assert lines(found.wanted) == (
        "a==1.0 --hash=sha256:s --hash=sha256:w",
        "b==2",
        "c @ https://x/c-3-py3-none-any.whl",
        "g @ git+https://github.com/g/g@abc123",
        "two==2",
    )
    assert found.options == ("--extra-index-url https://other/simple",)


def test_uv_lock_names_subdirectories_of_repositories(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(
        'version = 1\n[[package]]\nname = "p"\nsource = { virtual = "." }\n'
        'dependencies = [{ name = "a" }, { name = "b" }]\n'
        '[[package]]\nname = "a"\nversion = "1"\n'
        'source = { git = "https://github.com/g/g?subdirectory=libs%2Fa&rev=main#abc123" }\n'
        '[[package]]\nname = "b"\nversion = "1"\n'
        'source = { url = "https://x/b-1.tar.gz", subdirectory = "libs/b" }\n'
    )
    found = read_uv_lock(tmp_path / "uv.lock", "uv.lock", environment())
    assert lines(found.wanted) == (
        "a @ git+https://github.com/g/g@abc123#subdirectory=libs/a",
        "b @ https://x/b-1.tar.gz#subdirectory=libs/b",
    )


def test_uv_lock_with_extras_that_exclude_each_other(tmp_path: Path) -> None:
    """Markers as uv 0.13 writes them: the package's name, its length before it."""
    (tmp_path / "uv.lock").write_text(
        'version = 1\n[[package]]\nname = "p"\nsource = { virtual = "." }\n'
        '[package.optional-dependencies]\ncpu = [{ name = "a" }]\ngpu = [{ name = "a" }]\n'
        '[[package]]\nname = "a"\nversion = "1"\nsource = { registry = "https://pypi.org/simple" }\n'
        "dependencies = [\n"
        """  { name = "b", version = "1", marker = "extra == 'extra-1-p-cpu'" },\n"""
        """  { name = "b", version = "2", marker = "extra == 'extra-1-p-gpu'" },\n]\n"""
        '[[package]]\nname = "b"\nversion = "1"\nsource = { registry = "https://pypi.org/simple" }\n'
        '[[package]]\nname = "b"\nversion = "2"\nsource = { registry = "https://pypi.org/simple" }\n'
    )
    for extra, version in (("cpu", "1"), ("gpu", "2")):
        found = read_uv_lock(tmp_path / "uv.lock", "uv.lock", environment(), extras=(extra,))
        assert lines(found.wanted) == ("a==1", f"b=={version}")


def test_uv_lock_refuses_paths_with_their_line(tmp_path: Path) -> None:
    number = UV_LOCK.splitlines().index('name = "local"') + 1
    with pytest.raises(InvalidDependencies, match=rf"uv\.lock:{number}: 'local' is a path"):
        uv_lock(tmp_path, groups=("dev",))
    with pytest.raises(InvalidDependencies, match="has no extra 'gpu'; it has tpu"):
        uv_lock(tmp_path, extras=("gpu",))


PYLOCK = """\
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "six"
version = "1.17.0"
wheels = [{ name = "six-1.17.0-py3-none-any.whl", url = "https://x/s.whl", hashes = { sha256 = "aa" } }]
[[packages]]
name = "colorama"
version = "1"
marker = "sys_platform == 'win32'"
sdist = { name = "colorama-1.tar.gz", url = "https://x/colorama-1.tar.gz", hashes = { sha256 = "bb" } }
[[packages]]
name = "g"
vcs = { type = "git", url = "https://github.com/g/g", commit-id = "abc" }
"""


@pytest.mark.promise("data: `uv.lock`, `pylock.toml`, PEP 723")
def test_pylock(tmp_path: Path) -> None:
    pytest.importorskip("packaging.pylock")
    (tmp_path / "pylock.toml").write_text(PYLOCK)
    found = read_pylock(tmp_path / "pylock.toml", "pylock.toml", environment())
    assert lines(found.wanted) == ("g @ git+https://github.com/g/g@abc", "six==1.17.0 --hash=sha256:aa")
    (tmp_path / "pylock.toml").write_text(
        PYLOCK + '[[packages]]\nname = "l"\ndirectory = { path = "../l" }\n'
    )
    with pytest.raises(
        InvalidDependencies, match=rf"pylock\.toml:{PYLOCK.count(chr(10)) + 2}: 'l' is a path"
    ):
        read_pylock(tmp_path / "pylock.toml", "pylock.toml", environment())
    (tmp_path / "pylock.toml").write_text('lock-version = "1.0"\n')
    with pytest.raises(InvalidDependencies, match="created-by"):
        read_pylock(tmp_path / "pylock.toml", "pylock.toml", environment())


def test_pylock_names_subdirectories_of_repositories(tmp_path: Path) -> None:
    pytest.importorskip("packaging.pylock")
    (tmp_path / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "uv"\n[[packages]]\nname = "a"\n'
        'vcs = { type = "git", url = "https://x/g", commit-id = "abc", subdirectory = "libs/a" }\n'
        '[[packages]]\nname = "b"\n[packages.archive]\nurl = "https://x/b-1.tar.gz"\n'
        'subdirectory = "libs/b"\nhashes = { sha256 = "aa" }\n'
    )
    found = read_pylock(tmp_path / "pylock.toml", "pylock.toml", environment())
    assert lines(found.wanted) == (
        "a @ git+https://x/g@abc#subdirectory=libs/a",
        "b @ https://x/b-1.tar.gz#subdirectory=libs/b --hash=sha256:aa",
    )


@pytest.mark.promise("data: `uv.lock`, `pylock.toml`, PEP 723")
def test_a_lock_that_uv_wrote(tmp_path: Path) -> None:
    """Of a project without dependencies: resolving others would need an index."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname="x"\nversion="0"\nrequires-python=">=3.11"\n')
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "lock", "--offline", "--quiet"], cwd=tmp_path, check=True)
    assert read_uv_lock(tmp_path / "uv.lock", "uv.lock", environment()).wanted == ()
