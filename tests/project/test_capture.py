"""Which variables a job gets: the named ones, never this machine's own by accident, never shown."""

from __future__ import annotations

import pytest

from kinetic_core.errors import InvalidRequest
from kinetic_core.project.environment import capture, check_patterns

ENVIRON = {
    "PATH": "/bin",
    "WANDB_MODE": "offline",
    "WANDB_API_KEY": "hunter2",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "jax",
    "KINETIC_BACKEND": "local",
}


@pytest.mark.promise("data: `capture_env_vars` as specified, outside the pickle")
@pytest.mark.promise("data: Names that look secret warn and suggest `secrets=`")
def test_names_and_prefixes() -> None:
    captured, notices = capture(["WANDB_*", "MISSING"], ENVIRON)
    assert captured == {"WANDB_API_KEY": "hunter2", "WANDB_MODE": "offline"}
    assert any(
        "WANDB_API_KEY" in notice and "plain text" in notice and "secrets=" in notice for notice in notices
    )
    assert not any("hunter2" in notice for notice in notices)


def test_everything_is_not_this_machine() -> None:
    captured, notices = capture(["*"], ENVIRON)
    assert captured.keys() == {"WANDB_API_KEY", "WANDB_MODE"}
    assert any("JAX_PLATFORMS, KERAS_BACKEND, KINETIC_BACKEND, PATH" in notice for notice in notices)


def test_an_exact_name_is_always_meant() -> None:
    captured, _ = capture(["*", "KERAS_BACKEND"], ENVIRON)
    assert captured["KERAS_BACKEND"] == "jax"


@pytest.mark.parametrize("patterns", ["WANDB_*", 3, [3]])
def test_wrong_types(patterns: object) -> None:
    with pytest.raises(TypeError, match="capture_env_vars"):
        check_patterns(patterns)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["", "A=1", "A\0"])
def test_what_is_no_name(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match="capture_env_vars"):
        check_patterns([pattern])
