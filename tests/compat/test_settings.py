"""Where settings come from through `kinetic_core.compat`, and its numbers; GKE's in test_compat_google.py."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.errors import ConfigurationError

Submit = Callable[..., kinetic.JobHandle]


def nothing() -> None:
    """What matters here is known before it runs."""


@pytest.fixture
def submit(request: pytest.FixtureRequest) -> Submit:
    """Submit a job with the options; it is removed in the end."""

    def call(**options: Any) -> kinetic.JobHandle:
        handle = kinetic.run(accelerator="cpu", **options)(nothing).run_async()
        request.addfinalizer(handle.cleanup)
        return handle

    return call


@pytest.fixture
def profile() -> Callable[..., None]:
    """Write the file of profiles as keras-kinetic does, with one that is current."""

    def write(**fields: str) -> None:
        team = {"project": "of-profile", "zone": "us-central1-a", "cluster": "kinetic-cluster"}
        content = {"current": "team", "profiles": {"team": {**team, **fields}}}
        Path(os.environ["KINETIC_PROFILES_FILE"]).write_text(json.dumps(content))

    return write


@pytest.mark.slow
@pytest.mark.usefixtures("local_jobs")
def test_argument_before_variable_before_profile_before_default(
    submit: Submit, profile: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submit().namespace == "default"
    profile(namespace="of-profile")
    assert submit().namespace == "of-profile"
    monkeypatch.setenv("KINETIC_NAMESPACE", "of-variable")
    assert submit().namespace == "of-variable"
    assert submit(namespace="of-argument").namespace == "of-argument"


@pytest.mark.slow
@pytest.mark.usefixtures("local_jobs")
def test_a_list_is_of_one_namespace(submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "own"))  # no other test's jobs are there
    here, there = submit(), submit(namespace="elsewhere")
    assert [job.job_id for job in kinetic.list_jobs()] == [here.job_id]
    assert [job.job_id for job in kinetic.list_jobs(namespace="elsewhere")] == [there.job_id]
    monkeypatch.setenv("KINETIC_NAMESPACE", "elsewhere")
    assert [job.job_id for job in kinetic.list_jobs()] == [there.job_id]


@pytest.mark.slow
@pytest.mark.usefixtures("local_jobs")
def test_google_cloud_project_comes_last(
    submit: Submit, profile: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "last")
    assert submit().project == "last"
    profile()
    assert submit().project == "of-profile"
    monkeypatch.setenv("KINETIC_PROJECT", "of-variable")
    assert submit().project == "of-variable"
    assert submit(project="of-argument").project == "of-argument"


@pytest.mark.slow
@pytest.mark.usefixtures("local_jobs")
def test_a_variable_chooses_a_profile_and_a_directory_of_outputs(
    submit: Submit, profile: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile(namespace="of-profile")
    file = tmp_path / "others.json"
    other = {"project": "of-other", "zone": "us-central1-a", "cluster": "kinetic-cluster"}
    file.write_text(json.dumps({"current": None, "profiles": {"other": other}}))
    monkeypatch.setenv("KINETIC_PROFILES_FILE", str(file))
    monkeypatch.setenv("KINETIC_PROFILE", "other")
    monkeypatch.setenv("KINETIC_OUTPUT_DIR", str(tmp_path / "kept"))
    handle = submit()
    assert (handle.project, handle.namespace) == ("of-other", "default")
    assert handle.output_dir == str(tmp_path / "kept")
    assert submit(output_dir=str(tmp_path / "own")).output_dir == str(tmp_path / "own")


def test_a_broken_file_of_profiles_is_named() -> None:
    file = Path(os.environ["KINETIC_PROFILES_FILE"])
    file.write_text('{"current": "team", "profiles": {"team": {"project": "p"}}}')
    with pytest.raises(ConfigurationError, match=rf"{file}.*zone"):
        kinetic.list_jobs()
    file.write_text('{"current": ')
    with pytest.raises(ConfigurationError, match=str(file)):
        kinetic.run(accelerator="cpu")(nothing).run_async()


@pytest.mark.parametrize(
    ("function", "defaults"),
    [
        (kinetic.JobHandle.result, {"timeout": None, "cleanup_timeout": 180, "cleanup_poll_interval": 2}),
        (kinetic.JobHandle.cancel, {"cleanup_timeout": 180, "cleanup_poll_interval": 2}),
        (kinetic.JobHandle.cleanup, {"k8s": True, "gcs": True, "cleanup_timeout": 180}),
        (kinetic.JobHandle.tail, {"n": 100}),
        (kinetic.JobHandle.debug_attach, {"local_port": 5678, "working_dir": None}),
        (kinetic.collections.map, {"max_concurrent": 64, "retries": 0, "fail_fast": False, "name": None}),
        (kinetic.BatchHandle.as_completed, {"poll_interval": 5.0, "timeout": None}),
        (kinetic.BatchHandle.results, {"ordered": True, "cleanup": True, "return_exceptions": False}),
        (kinetic.attach_batch, {"poll_interval": 10.0}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_documented_numbers_are_defaults(function: Callable[..., Any], defaults: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in defaults} == defaults
