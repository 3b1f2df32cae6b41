"""What a job finds where it runs: one job, and a test for each thing that keras-kinetic documents of it.

tests/cluster/test_compat.py runs these on a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from tests.compat.project import project

pytestmark = pytest.mark.slow

CAPTURED = ["OWN_*", "NOT_SET", "OWN_KEY*", "PATH_TO_OWN", "HOME*", "VIRTUAL_ENV*", "LOGN*", "LOGNAME"]
TOLD = ["OWN_NAME", "OWN_KEY_ID", "NOT_SET", "PATH_TO_OWN", "HOME", "VIRTUAL_ENV", "JOB_ID", "GCS_BUCKET"]
TOLD += ["LOGNAME", "KERAS_BACKEND", "JAX_PLATFORMS", "KINETIC_OUTPUT_DIR"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of a user: here, jobs on this machine."""
    own = tmp_path_factory.mktemp("compat")
    return {
        "KINETIC_BACKEND": "local",
        "KINETIC_LOCAL_STORE": str(own / "local"),
        "XDG_CACHE_HOME": str(own / "cache"),
        "KINETIC_PROFILES_FILE": str(own / "profiles.json"),
    }


@pytest.fixture(scope="module")
def found(settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the job has told, with its id and its log."""
    root = tmp_path_factory.mktemp("user").resolve() / "project"
    root.mkdir()
    data = root.parent / "dataset"
    data.mkdir()
    for name in ("a.txt", "b.txt"):
        (data / name).write_text(name)
    place = f"{data}-mounted"
    variables = {"OWN_NAME": "mine", "OWN_KEY_ID": "k", "PATH_TO_OWN": "p", "VIRTUAL_ENV": "/home/me/venv"}
    variables["LOGNAME"] = "by-its-name"
    with project(root) as train, pytest.MonkeyPatch.context() as patch:
        for name, value in {**settings, **variables}.items():
            patch.setenv(name, value)
        import compat_helper  # type: ignore[import-not-found]

        patch.setattr(compat_helper, "FACTOR", 21)
        folder, one = kinetic.Data(str(data)), kinetic.Data(str(data / "a.txt"))
        own = kinetic.Data("own_data")
        run = kinetic.run(accelerator="cpu", capture_env_vars=CAPTURED, volumes={place: folder})
        arguments = (folder, one, train.nested(one), own)
        handle = run(train.look).run_async(*arguments, place=place, variables=TOLD)
        value = handle.result(timeout=300, cleanup=False)
        try:
            yield {
                **value,
                "job_id": handle.job_id,
                "log": handle.logs(),
                "handle": handle,
            }
        finally:
            handle.cleanup()


def test_relative_paths_are_those_of_the_root(found: dict[str, Any]) -> None:
    assert found["relative"] == "one two"


def test_the_root_is_found_above_the_package(found: dict[str, Any]) -> None:
    assert found["module"] == "compat_package.train"
    assert {"pyproject.toml", "src/compat_package/train.py"} <= set(found["files"])


def test_entries_of_the_path_are_there(found: dict[str, Any]) -> None:
    assert "src" in found["path"]


def test_helpers_and_what_was_set_in_them_are_there(found: dict[str, Any]) -> None:
    assert (found["helper"], found["scaled"]) == ("compat_helper", 42)


def test_modules_are_imported_in_the_job_too(found: dict[str, Any]) -> None:
    assert found["lazy"] == "imported in the job"


def test_default_excludes_stay(found: dict[str, Any]) -> None:
    tops = {Path(name).parts[0] for name in found["files"]}
    assert not tops & {".venv", "node_modules", ".git"}
    assert not any("old.pyc" in name for name in found["files"])


def test_what_kineticignore_names_stays(found: dict[str, Any]) -> None:
    assert not {"left_out.txt", "big/part"} & set(found["files"])


def test_empty_directories_are_there(found: dict[str, Any]) -> None:
    assert found["empty"]


def test_the_executable_bit_is_kept(found: dict[str, Any]) -> None:
    assert found["mode"] & 0o100


def test_a_broken_link_is_no_obstacle(found: dict[str, Any]) -> None:
    assert "broken" not in found["files"]


def test_a_linked_directory_is_there_and_a_circle_ends(found: dict[str, Any]) -> None:
    assert found["linked"] == ["words.txt", "."]


def test_data_of_the_project_does_not_ship_with_it(found: dict[str, Any]) -> None:
    assert found["own"] == ["part-0"]
    assert not any("part-0" in name for name in found["files"])


def test_captured_variables_are_set(found: dict[str, Any]) -> None:
    environment = found["environment"]
    assert (environment["OWN_NAME"], environment["OWN_KEY_ID"], environment["NOT_SET"]) == ("mine", "k", None)
    assert environment["PATH_TO_OWN"] == "p"


def test_a_pattern_never_captures_what_is_the_machines(found: dict[str, Any]) -> None:
    assert found["environment"]["VIRTUAL_ENV"] != "/home/me/venv"


def test_an_exact_name_is_always_captured(found: dict[str, Any]) -> None:
    """A pattern alone would never take this one."""
    assert found["environment"]["LOGNAME"] == "by-its-name"


def test_the_job_knows_its_id(found: dict[str, Any]) -> None:
    assert found["environment"]["JOB_ID"] == found["job_id"]


def test_keras_is_told_its_backend(found: dict[str, Any]) -> None:
    assert found["environment"]["KERAS_BACKEND"] == "jax"


def test_outputs_have_a_directory_of_the_jobs(found: dict[str, Any]) -> None:
    assert found["environment"]["KINETIC_OUTPUT_DIR"].rstrip("/").endswith(f"outputs/{found['job_id']}")


def test_a_directory_of_data_is_a_path(found: dict[str, Any]) -> None:
    assert tuple(found["folder"]) == ("str", ["a.txt", "b.txt"])


def test_a_file_of_data_is_its_path(found: dict[str, Any]) -> None:
    assert tuple(found["one"]) == ("a.txt", "a.txt")


def test_a_volume_is_at_its_path(found: dict[str, Any]) -> None:
    assert set(found["volume"]) >= {"a.txt", "b.txt"}


def test_containers_of_data_keep_their_types(found: dict[str, Any]) -> None:
    assert found["types"] == {
        "row": "Row",
        "paths": "Paths",
        "ordered": "OrderedDict",
        "grouped": "defaultdict",
        "counted": "Counter",
        "none": "dict",
        "list": "list",
        "tuple": "tuple",
    }
    assert found["factory"] == []


def test_containers_may_contain_themselves(found: dict[str, Any]) -> None:
    assert (found["round"], found["in_round"]) == (True, True)


def test_the_same_data_is_the_same_path(found: dict[str, Any]) -> None:
    assert found["same"]


def test_containers_without_data_are_as_they_were(found: dict[str, Any]) -> None:
    assert found["untouched"] == {"steps": [1, (2, 3)]}


def test_what_it_prints_is_in_its_log(found: dict[str, Any]) -> None:
    assert "a line of the job" in found["log"]


def test_a_thread_that_lingers_holds_no_job(found: dict[str, Any]) -> None:
    assert found["handle"].status() is kinetic.jobs.JobStatus.SUCCEEDED


def test_a_job_writes_to_its_directories(found: dict[str, Any]) -> None:
    assert set(found["writable"].values()) == {True}
