"""What `.ci/release` makes and refuses, in a repository whose `make` is quick."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "release"
NAME = "airflow_provider_kinetic-1.2.0"
CHANGELOG = """# Changelog

## 1.2.0 (2026-12-01)

- Told in the notes.

## 1.1.0 (2026-11-01)

- Told before.
"""
MAKEFILE = f"""build docs:
\tmkdir -p dist site
\techo wheel > dist/{NAME}-py3-none-any.whl
\techo sdist > dist/{NAME}.tar.gz
\techo page > site/index.html
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "pyproject.toml").write_text('version = "1.2.0"\n')
    (tmp_path / ".gitignore").write_text("dist\nsite\n")
    for words in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def release(project: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [project / ".ci" / "release", *words],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_release_is_what_the_tag_names(project: Path) -> None:
    done = release(project, GITHUB_REF_NAME="v1.2.0")
    assert done.returncode == 0, done.stderr
    files = {file.name for file in (project / "dist").iterdir()}
    wheel, sdist, docs = f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz", f"{NAME}-docs.tar.gz"
    assert files == {wheel, sdist, docs, "NOTES.md", "SHA256SUMS"}
    assert (project / "dist" / "NOTES.md").read_text().strip() == "- Told in the notes."
    sums = (project / "dist" / "SHA256SUMS").read_text()
    assert all(name in sums for name in files - {"SHA256SUMS"})


def test_what_no_tag_would_name_is_refused(project: Path) -> None:
    done = release(project, GITHUB_REF_NAME="v1.3.0")
    assert (done.returncode, "the tag is v1.3.0, and pyproject.toml says 1.2.0" in done.stderr) == (1, True)
    (project / "pyproject.toml").write_text('version = "1.3.0"\n')
    assert 'no section "## 1.3.0 (DATE)"' in release(project).stderr
    (project / "CHANGELOG.md").write_text("## 1.3.0 (unreleased)\n")
    assert "give the section its date" in release(project).stderr
    (project / "CHANGELOG.md").write_text("## 1.3.0 (2026-12-02)\n")
    assert "changes that no commit has" in release(project).stderr
    assert not (project / "dist").exists()


def test_only_what_was_made_is_published(project: Path) -> None:
    release(project)
    told = release(project, "publish")
    assert (told.returncode, "UV_PUBLISH_TOKEN is not set" in told.stderr) == (1, True)
    (project / "dist" / f"{NAME}.tar.gz").write_text("another")
    told = release(project, "publish", UV_PUBLISH_TOKEN="t")
    assert (told.returncode, "not what .ci/release has made of 1.2.0" in told.stderr) == (1, True)
