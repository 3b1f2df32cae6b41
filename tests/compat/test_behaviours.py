"""The table of what keras-kinetic documents: each section is there, and each test and row that it names."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from tests.documents.pages import ROOT
from tests.documents.test_migration import rows

TABLE: dict[str, dict[str, str | list[str]]] = tomllib.loads(
    Path(__file__).with_name("behaviours.toml").read_text()
)
SECTIONS = {"01": 13, "02": 8, "03": 8, "04": 10, "05": 8, "06": 8, "07": 8, "08": 4}
"""How many sections each part of the description has."""
DIFFERS = "differs: "


OF_THE_COMMAND = ("03 §7", "06 §1", "06 §8", "07 ")
"""Sections about what `kinetic` does and makes: tests of the command are tests of these behaviours."""
HERE_ONLY = {
    "test_handles.py": {"test_outputs_outlive_the_job"},  # on the cluster in test_compat_faults.py
    "test_settings.py": {
        "test_argument_before_variable_before_profile_before_default",  # there in test_compat_google.py
        "test_a_list_is_of_one_namespace",  # on a cluster each test has a namespace of its own
        "test_google_cloud_project_comes_last",
        "test_a_variable_chooses_a_profile_and_a_directory_of_outputs",
        "test_a_broken_file_of_profiles_is_named",
        "test_documented_numbers_are_defaults",
    },
}
"""Tests of files whose other tests run on the cluster, too. Those of test_names.py need no job."""


def evidence(shown: str | list[str]) -> list[str]:
    return [shown] if isinstance(shown, str) else shown


def named() -> list[str]:
    return [one for behaviours in TABLE.values() for shown in behaviours.values() for one in evidence(shown)]


def is_through_compat(test: str) -> bool:
    return test.startswith(("compat/", "cluster/test_compat", "cluster/test_from_keras_kinetic", "examples/"))


def test_every_section_is_in_the_table() -> None:
    there = {tuple(title.split()[:2]) for title in TABLE}
    assert there == {(part, f"§{n}") for part, count in SECTIONS.items() for n in range(1, count + 1)}
    assert all(TABLE.values())


def test_every_test_of_the_table_exists() -> None:
    tests = [one.split("::") for one in named() if not one.startswith(DIFFERS)]
    functions = {
        file: {node.name for node in ast.walk(ast.parse((ROOT / "tests" / file).read_text()))
               if isinstance(node, ast.FunctionDef)}
        for file in {file for file, _ in tests}
    }  # fmt: skip
    assert [(file, test) for file, test in tests if test not in functions[file]] == []


def test_every_behaviour_is_shown_through_the_package() -> None:
    """Unless it is the command's, or only a row of the guide: native tests do not show the names."""
    lacking = [
        (section, behaviour)
        for section, behaviours in TABLE.items()
        if not section.startswith(OF_THE_COMMAND)
        for behaviour, shown in behaviours.items()
        if (tests := [one for one in evidence(shown) if not one.startswith(DIFFERS)])
        and not any(map(is_through_compat, tests))
    ]
    assert lacking == []


def test_what_is_shown_here_runs_on_the_cluster_too() -> None:
    folder = ROOT / "tests" / "cluster"
    imported: dict[str, set[str]] = {}
    for file in folder.glob("test_compat*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.compat."):
                names = {alias.name for alias in node.names}
                imported.setdefault(f"{(node.module or '').rpartition('.')[2]}.py", set()).update(names)
    shown = [one.removeprefix("compat/").split("::") for one in named() if one.startswith("compat/")]
    assert {
        (file, test)
        for file, test in shown
        if file != "test_names.py" and test not in imported.get(file, set()) | HERE_ONLY.get(file, set())
    } == set()


def test_every_row_of_the_guide_is_in_the_table() -> None:
    """So that a difference that is found later has its behaviour here, and a row that goes leaves none."""
    differ = {one.removeprefix(DIFFERS) for one in named() if one.startswith(DIFFERS)}
    of_compat = {cells[0] for cells in rows()}
    assert differ - of_compat == set()
    assert of_compat - differ == NATIVE


NATIVE = {
    "a cancelled job is `NOT_FOUND`",
    "a collected job is `NOT_FOUND`, and its value is gone",
    "`result()` of a failed job removes its Kubernetes object",
    "`cleanup()` of a running job deletes it",
    "`list_jobs()` has what Kubernetes still has",
}
"""Rows of programs that import `kinetic_core` itself: in `kinetic_core.compat` these are as there."""
