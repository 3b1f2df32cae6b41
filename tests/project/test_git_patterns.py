"""Patterns mean what they mean to Git."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kinetic_core.project.files import scan
from kinetic_core.project.ignore import parse, project_rules


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("a", ["a", "x/a"], ["ab", "a/x"]),
        ("/a", ["a"], ["x/a"]),
        ("x/a", ["x/a"], ["y/x/a"]),
        ("**/a", ["a", "x/a", "x/y/a"], ["ab"]),
        ("a/**", ["a/x", "a/x/y"], ["a"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("*.py", ["a.py", "x/a.py", ".py"], ["a.pyc"]),
        ("x/*.py", ["x/a.py"], ["x/y/a.py"]),
        ("a**b", ["ab", "axb"], ["a/b"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("[ab]c", ["ac", "bc"], ["cc"]),
        ("[!ab]c", ["cc"], ["ac", "x/ac"]),
        ("[^ab]c", ["cc"], ["ac"]),
        ("[a-c]", ["b"], ["d", "-"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[a", [], ["a", "[a"]),
        ("x[a]b[!]", [], ["xab[!]", "xab"]),
        (r"\[a", ["[a"], ["a"]),
        (r"\#a", ["#a"], []),
        (r"\!a", ["!a"], ["a"]),
        (r"\*", ["*"], ["a"]),
        ("a  ", ["a"], ["a  "]),
        (r"a\ ", ["a "], ["a"]),
        ("#a", [], ["#a", "a"]),
        ("a.b", ["a.b"], ["axb"]),
        ("(a|b)+{c}$", ["(a|b)+{c}$"], ["a"]),
        ("/", [], ["a"]),
        ("", [], ["a"]),
    ],
)
def test_one_pattern(pattern, matched, others):
    patterns = parse(pattern)
    for path in matched:
        assert patterns.decision(path, False) is True, path
    for path in others:
        assert patterns.decision(path, False) is None, path


def test_a_trailing_slash_means_directories():
    patterns = parse("build/")
    assert patterns.decision("x/build", True) is True
    assert patterns.decision("x/build", False) is None


def test_the_last_pattern_wins_and_lines_may_end_in_any_way():
    patterns = parse("\ufeff*.log\r\n!keep.log\r\n\r\n")
    assert patterns.decision("a.log", False) is True
    assert patterns.decision("keep.log", False) is False


def test_a_pattern_decides_about_what_it_names_and_nothing_below():
    patterns = parse("build/\n!/src\n")
    assert patterns.decision("src", True) is False
    assert patterns.decision("src/build", True) is True
    assert patterns.decision("src/a.py", False) is None


@pytest.mark.parametrize("pattern", ["[c-a]", "a\\"])
def test_a_pattern_that_cannot_be_understood(pattern):
    with pytest.raises(ValueError, match=r"."):
        parse(pattern)


@pytest.mark.skipif(shutil.which("git") is None, reason="no git to compare with")
@pytest.mark.parametrize(
    "text",
    [
        "build/\n__pycache__/\n/*\n!/src\n",
        "/*\n!/src\nbuild/\n",
        "data/**\n!data/**/\n!data/keep.txt\n",
        "data/*\n!data/raw\n",
        "*\n!*/\n!*.py\n",
        "data/**\n!data/**/\n!data/**/*.bin\n",
        "**/\n",
        "src/**/\n",
        "**/raw/\nsrc/**/a.py\n",
        "/data/raw/..\n./src\nsrc/build/*.py\n",
    ],
)
def test_git_agrees(tmp_path: Path, text: str):
    for name in (
        "src/a.py",
        "src/build/a.py",
        "src/build/b.txt",
        "data/raw/x.bin",
        "data/keep.txt",
        "top.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    command = ["git", "-C", tmp_path, "ls-files", "-o", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert {facts.path for facts in scan(str(tmp_path), project_rules(str(tmp_path), True)).files} == set(
        listed
    )
