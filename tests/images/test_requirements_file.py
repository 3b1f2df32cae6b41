"""Requirements files: what is understood, and what is refused by file and line before anything is built."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetic_core.errors import InvalidDependencies
from kinetic_core.images.requirements import Dependencies, lines, parse_requirements, read_requirements


def read(text: str, folder: Path = Path("/nowhere")) -> Dependencies:
    return parse_requirements(text.split("\n"), "requirements.txt", folder)


def test_one_package_has_one_spelling() -> None:
    one, other = read("SciPy\na_b[Some_Extra]>=1\n"), read("scipy\na-b[some-extra]>=1\n")
    assert lines(one.wanted) == lines(other.wanted) == ("a-b[some-extra]>=1", "scipy")


@pytest.mark.parametrize(
    ("line", "read_as"),
    [
        ("-e git+https://github.com/a/c.git", "c @ git+https://github.com/a/c.git"),
        ("-e git+https://github.com/a/C_D.git@v1.2", "c-d @ git+https://github.com/a/C_D.git@v1.2"),
        ("git+ssh://git@github.com/a/c@main", "c @ git+ssh://git@github.com/a/c@main"),
        ("--editable=git+https://github.com/a/c#egg=e", "e @ git+https://github.com/a/c"),
    ],
)
def test_a_repository_is_called_by_its_name(line: str, read_as: str) -> None:
    assert lines(read(line + "\n").wanted) == (read_as,)


@pytest.mark.promise("data: `requirements.txt`: continuations, hashes, includes, comments, markers")
def test_comments_continuations_hashes_and_markers() -> None:
    found = read(
        "# a comment\n\n"
        "numpy >= 2 , < 3  # why\n"
        "six==1.17.0 \\\n    --hash=sha256:aa \\\n    --hash sha256:bb\n"
        'tomli ; python_version < "3.11"\n'
        "Flask[async]\n"
    )
    assert lines(found.wanted) == (
        "flask[async]",
        "numpy<3,>=2",
        "six==1.17.0 --hash=sha256:aa --hash=sha256:bb",
        'tomli; python_version < "3.11"',
    )
    assert [one.where for one in found.wanted][1] == "requirements.txt:4"


def test_a_url_gets_its_name() -> None:
    found = read(
        "git+https://github.com/a/b@v1#egg=b\n"
        "-e git+https://github.com/a/c#egg=c&subdirectory=src\n"
        "https://host/x/some_pkg-1.0-py3-none-any.whl\n"
    )
    assert [one.line for one in found.wanted] == [
        "b @ git+https://github.com/a/b@v1",
        "c @ git+https://github.com/a/c#subdirectory=src",
        "some-pkg @ https://host/x/some_pkg-1.0-py3-none-any.whl",
    ]


def test_options_about_indexes_are_kept_in_order() -> None:
    found = read("-i https://one/simple\n--extra-index-url=https://two/simple\n--require-hashes\nsix\n")
    assert found.options == ("--index-url https://one/simple", "--extra-index-url https://two/simple")


@pytest.mark.promise("data: `requirements.txt`: continuations, hashes, includes, comments, markers")
def test_included_files_and_constraints(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text("-r more/base.txt\n-c limits.txt\nsix\n")
    (tmp_path / "more/base.txt").write_text("-r deeper.txt\nnumpy\n")
    (tmp_path / "more/deeper.txt").write_text("attrs\n./here\n")
    (tmp_path / "limits.txt").write_text("numpy<3\n")
    with pytest.raises(InvalidDependencies, match=r"more/deeper\.txt:2: '\./here' is a path"):
        read_requirements(tmp_path / "requirements.txt", "requirements.txt")
    (tmp_path / "more/deeper.txt").write_text("attrs\n")
    found = read_requirements(tmp_path / "requirements.txt", "requirements.txt")
    assert lines(found.wanted) == ("attrs", "numpy", "six")
    assert lines(found.constraints) == ("numpy<3",)


def test_a_file_that_includes_itself(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r requirements.txt\n")
    with pytest.raises(InvalidDependencies, match="includes itself"):
        read_requirements(tmp_path / "requirements.txt", "requirements.txt")


REFUSED = r"""
-e .
--editable=./lib
-e ../other
.
..
./lib
../lib
/abs/lib
~/lib
.[dev]
file:///abs/lib
lib @ file:///abs/lib
-e file:///abs
C:\lib
.\lib
-f ./wheels
--find-links=/abs
-r https://host/requirements.txt
--no-index
--pre
six --global-option=x
not a requirement
https://host/archive
six=1
lib @ /abs
"""


@pytest.mark.promise("data: `-e` and local paths refused with the line, before building")
@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_what_no_pod_can_install_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(InvalidDependencies, match=r"requirements\.txt:3: "):
        read(f"six\n# comment\n{line}\nnumpy")


@pytest.mark.parametrize(
    "line",
    ["--index-url https://me:hunter2@host/simple", "x @ git+https://me:hunter2@host/x", "-f https://${T}/x"],
)
def test_credentials_are_refused_and_not_repeated(line: str) -> None:
    with pytest.raises(InvalidDependencies, match="readable in the image") as caught:
        read(line)
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidDependencies):
        read(text)
