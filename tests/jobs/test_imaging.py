"""Which image a call gets, and what is refused before anything is stored or built."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.backends.base import Backend
from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError, InvalidDependencies, InvalidRequest
from kinetic_core.jobs.image import Image, find_image
from kinetic_core.options import RunOptions
from kinetic_core.project.root import Project
from kinetic_core.settings import Settings

PROJECT = Settings(project="p", cluster="c")


@pytest.fixture
def image(tmp_path: Path) -> Callable[..., Image]:
    (tmp_path / ".git").mkdir()

    def find(
        accelerator: str = "cpu", settings: Settings = PROJECT, local: bool = False, **options: Any
    ) -> Image:
        client = Connections(settings)
        backend: Backend = LocalBackend(tmp_path) if local else GkeBackend(Target("x"), "bucket", client)
        asked = RunOptions.checked(accelerator, **options)
        return find_image(asked, client, backend, Project(tmp_path), None, lambda _: None, dry=True)

    return find


def test_a_named_image_is_used_as_it_is(image: Callable[..., Image]) -> None:
    name = "us-docker.pkg.dev/p/r/i:1@sha256:" + "0" * 64
    assert image(container_image=name) == Image(name, name)
    assert image(settings=Settings(container_image="localhost:5000/i")).uri == "localhost:5000/i"


@pytest.mark.parametrize("name", ["Bundled image", "https://host/i", "a/B", "i:", "-x", "i@sha256:0"])
def test_what_names_no_image(image: Callable[..., Image], name: str) -> None:
    with pytest.raises(InvalidRequest, match="neither 'bundled' nor 'prebuilt'"):
        image(container_image=name)


def test_bundled_is_named_by_what_is_in_it(image: Callable[..., Image]) -> None:
    one, same = (
        image(requirements=["six", "attrs"]),
        image(requirements=["attrs", "six"], container_image="bundled"),
    )
    assert one == same
    assert one.name.startswith("us-docker.pkg.dev/p/kn-c/base:cpu-")
    assert image(requirements=["six"]) != one
    assert image("tpu-v5e-4", requirements=["six"]).name.startswith("us-docker.pkg.dev/p/kn-c/base:tpu-")


def test_what_cannot_be(image: Callable[..., Image]) -> None:
    with pytest.raises(InvalidRequest, match="requirements= cannot be combined with container_image='i'"):
        image(container_image="i", requirements=["six"])
    with pytest.raises(InvalidDependencies, match="requirements:1"):
        image(requirements=["./lib"])
    with pytest.raises(ConfigurationError, match="set KINETIC_PROJECT"):
        image(settings=Settings())
    with pytest.raises(InvalidRequest, match="needs an image for arm64"):
        image("gb200")


def test_the_local_backend_installs_nothing(
    image: Callable[..., Image], caplog: pytest.LogCaptureFixture
) -> None:
    assert image(local=True).uri == sys.executable
    assert caplog.text == ""
    image(local=True, requirements=["six"])
    assert "requirements= is not installed by backend 'local'" in caplog.text


def test_what_is_left_out_is_told(image: Callable[..., Image], caplog: pytest.LogCaptureFixture) -> None:
    image("tpu-v5e-4", requirements=["jax", "libtpu"])
    assert "left out" in caplog.text
