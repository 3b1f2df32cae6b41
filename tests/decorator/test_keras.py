"""Keras uses jax unless somebody says otherwise."""

from __future__ import annotations

import pytest

import kinetic_core

pytestmark = pytest.mark.usefixtures("local_jobs")


def backend() -> str:
    import os

    return os.environ["KERAS_BACKEND"]


@pytest.mark.promise("data: jax by default, overridable")
def test_jax_by_default() -> None:
    assert kinetic_core.run(accelerator="cpu")(backend)() == "jax"


@pytest.mark.promise("data: jax by default, overridable")
def test_a_captured_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert kinetic_core.run(accelerator="cpu", capture_env_vars=["KERAS_BACKEND"])(backend)() == "torch"
    assert kinetic_core.run(accelerator="cpu", capture_env_vars=["KERAS_*"])(backend)() == "jax"
