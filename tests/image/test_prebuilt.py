"""Base images: there for this kind of accelerator and this Python, or refused before anything is stored."""

from __future__ import annotations

import sys

import pytest

import kinetic_core
from kinetic_core.errors import ConfigurationError, InvalidRequest
from kinetic_core.image.google_api import GoogleApi
from kinetic_core.image.prebuilt import base_image, base_tag
from kinetic_core.testing.google_services import FakeGoogle

REPOSITORY = "us-docker.pkg.dev/p/r"


def registry(**tags: str) -> GoogleApi:
    google = FakeGoogle()
    google.tags = dict(tags)
    return GoogleApi("artifactregistry", google.ask, lambda _: None)


def test_pinned_by_its_digest() -> None:
    uri, notices = base_image(REPOSITORY, "tpu", registry(**{base_tag(): "sha256:ab"}))
    assert (uri, notices) == (f"{REPOSITORY}/base-tpu@sha256:ab", ())


def test_another_python_is_named() -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    with pytest.raises(
        ConfigurationError, match=rf"for Python {here}: it has 0\.1\.0-py3\.9\. Publish it with"
    ):
        base_image(REPOSITORY, "tpu", registry(**{"0.1.0-py3.9": "sha256:ab"}))
    with pytest.raises(ConfigurationError, match="it has none of that kind"):
        base_image(REPOSITORY, "tpu", registry())


def test_another_registry_is_not_asked() -> None:
    uri, notices = base_image("mycompany/kinetic", "gpu", registry())
    assert uri == f"mycompany/kinetic/base-gpu:{base_tag()}"
    assert "not checked here" in notices[0]


def test_what_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="set KINETIC_PROJECT"):
        kinetic_core.build_image(REPOSITORY)
    monkeypatch.setenv("KINETIC_PROJECT", "p")
    with pytest.raises(InvalidRequest, match="repo='docker/hub' is not LOCATION-docker"):
        kinetic_core.build_image("docker/hub")
    with pytest.raises(InvalidRequest, match="some of cpu, gpu, tpu"):
        kinetic_core.build_image(REPOSITORY, ["cuda"])
