"""Base images: there for this kind of accelerator and this Python, or refused before anything is stored."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import kinetic_core
from kinetic_core._runner.wire import PROTOCOL
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import ConfigurationError, InvalidRequest
from kinetic_core.images.base_images import base_image, base_tag, told_labels
from kinetic_core.images.dockerfile import Recipe
from kinetic_core.images.frameworks import choose
from kinetic_core.images.registry import GoogleApi, PublicRegistry
from kinetic_core.images.requirements import parse_requirements
from kinetic_core.settings import Settings
from tests.google_project import FakeGoogle
from tests.serving import Answering, serving

CLIENT = Connections(Settings())
REPOSITORY = "us-docker.pkg.dev/p/r"
HERE = ".".join(map(str, sys.version_info[:2]))


def registry(**tags: str) -> GoogleApi:
    google = FakeGoogle()
    google.tags = dict(tags)
    return GoogleApi("artifactregistry", default_connections(), google.ask, lambda _: None)


@pytest.mark.promise("data: By accelerator category and Python minor")
def test_pinned_by_its_digest() -> None:
    uri, notices = base_image(REPOSITORY, "tpu", CLIENT, registry(**{base_tag(): "sha256:ab"}), lambda *_: {})
    assert (uri, notices) == (f"{REPOSITORY}/base-tpu@sha256:ab", ())


@pytest.mark.promise(
    "data: Runner protocol checked before submission",
    "only where the registry tells labels",
)
@pytest.mark.parametrize(
    ("label", "value", "told"),
    [
        (
            "dev.kinetic.protocol",
            str(PROTOCOL + 1),
            f"wire protocol {PROTOCOL + 1}, and this is .*{PROTOCOL}",
        ),
        ("dev.kinetic.python", "3.9", f"Python 3.9, and this is Python {HERE}"),
    ],
)
def test_an_image_that_says_it_is_for_another_client(label: str, value: str, told: str) -> None:
    """Its tag may be right: `build_image(tag=)`, or a client between two versions."""
    asked: list[tuple[str, str]] = []

    def labels(name: str, digest: str) -> dict[str, str]:
        asked.append((name, digest))
        return {"dev.kinetic.protocol": str(PROTOCOL), "dev.kinetic.python": HERE, label: value}

    with pytest.raises(
        ConfigurationError, match=rf"{base_tag()} says that it is for {told}\. Publish it with"
    ):
        base_image(REPOSITORY, "cpu", CLIENT, registry(**{base_tag(): "sha256:ab"}), labels)
    assert asked == [(f"{REPOSITORY}/base-cpu", "sha256:ab")]


def test_a_bundled_image_has_the_protocol_in_its_name() -> None:
    """What is found by its tag was made for this protocol: nobody has to look at its label."""
    recipe = Recipe("cpu", choose(parse_requirements(["six"], "requirements", Path()), "cpu"))
    assert f"dev.kinetic.protocol={PROTOCOL}\n" in recipe.dockerfile_of_base()
    assert f"dev.kinetic.python={HERE} " in recipe.dockerfile_of_base()
    assert replace(recipe, protocol=PROTOCOL + 1).tag != recipe.tag


@pytest.mark.promise("data: Existence and Python minor checked before submission")
def test_another_python_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=rf"for Python {HERE}: it has 0\.1\.0-py3\.9\. Publish it with"
    ):
        base_image(REPOSITORY, "tpu", CLIENT, registry(**{"0.1.0-py3.9": "sha256:ab"}))
    with pytest.raises(ConfigurationError, match="it has none of that kind"):
        base_image(REPOSITORY, "tpu", CLIENT, registry())


class _Registry(Answering):
    """One that wants a token, and gives it to anybody. Its images are for two platforms."""

    tags: ClassVar[list[str]] = []
    labels: ClassVar[dict[str, str] | None] = None
    tokens: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/token":
            self.tokens.append(query)
            return self.answer(200, {"token": query})
        if "Bearer service=here" not in self.headers.get("Authorization", ""):
            realm = f"http://127.0.0.1:{self.server.server_address[1]}/token"
            challenge = f'Bearer realm="{realm}",service="here",scope="repository:me/base-cpu:pull"'
            return self.answer(401, {}, {"WWW-Authenticate": challenge})
        if path.startswith("/v2/private"):
            return self.answer(403, {})
        if path.endswith("/tags/list"):
            return self.answer(200, {"tags": self.tags})
        name = path.rpartition("/")[2]
        if (told := self._told().get(name)) is not None:
            return self.answer(200, told)
        there = name in self.tags
        return self.answer(200 if there else 404, {}, {"Docker-Content-Digest": "sha256:cd"})

    def _told(self) -> dict[str, Any]:
        """What is named by its digest."""
        return {
            "sha256:cd": {"manifests": [{"digest": "sha256:one"}, {"digest": "sha256:other"}]},
            "sha256:one": {"config": {"digest": "sha256:facts"}},
            "sha256:facts": {"config": {"Labels": self.labels}},
        }

    do_HEAD = do_GET


@pytest.fixture
def public() -> Iterator[str]:
    with serving(_Registry) as place:
        yield place


def test_a_public_registry_is_asked_without_credentials(public: str) -> None:
    _Registry.tags = [base_tag()]
    assert base_image(f"{public}/me", "cpu", CLIENT) == (
        f"{public}/me/base-cpu@sha256:cd",
        (),
    )
    _Registry.tags = ["0.0.9-py3.9"]
    with pytest.raises(ConfigurationError, match=r"it has 0\.0\.9-py3\.9"):
        base_image(f"{public}/me", "cpu", CLIENT)


def test_what_a_public_registry_says_of_an_image(public: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Registry, "tags", [base_tag()])
    monkeypatch.setattr(_Registry, "labels", {"dev.kinetic.protocol": "0"})
    client = Connections(Settings())
    labels = told_labels(client)
    with pytest.raises(ConfigurationError, match="wire protocol 0, and this is wire protocol 1"):
        base_image(f"{public}/me", "cpu", CLIENT)
    assert labels("127.0.0.1:9/me/base-cpu", "sha256:cd") == {}


def test_a_registry_is_asked_with_the_token_that_is_had(public: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Registry, "labels", {"a": "b"})
    monkeypatch.setattr(_Registry, "tokens", [])
    assert PublicRegistry(f"{public}/me/base-cpu", "service=here").labels("sha256:cd") == {"a": "b"}
    assert _Registry.tokens == []
    assert PublicRegistry(f"{public}/me/base-cpu", "expired").labels("sha256:cd") == {"a": "b"}
    assert len(_Registry.tokens) == 1


def test_what_a_registry_does_not_tell_is_left_to_the_node(public: str) -> None:
    uri, notices = base_image(f"{public}/private", "cpu", CLIENT)
    assert uri == f"{public}/private/base-cpu:{base_tag()}"
    assert "is not known here: HTTP Error 403" in notices[0]
    _, notices = base_image("127.0.0.1:9/me", "cpu", CLIENT)
    assert "refused" in notices[0]


def test_where_a_repository_is() -> None:
    assert str(PublicRegistry("mycompany/kinetic")) == "https://registry-1.docker.io/v2/mycompany/kinetic"
    assert str(PublicRegistry("base")) == "https://registry-1.docker.io/v2/library/base"
    assert str(PublicRegistry("ghcr.io/me/base")) == "https://ghcr.io/v2/me/base"


def test_what_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="set KINETIC_PROJECT"):
        kinetic_core.build_image(REPOSITORY)
    monkeypatch.setenv("KINETIC_PROJECT", "p")
    for repo in ("https://hub", "mycompany/kinetic"):  # base-cpu below the latter has no place on Docker Hub
        with pytest.raises(InvalidRequest, match=rf"repo='{repo}' is neither LOCATION-docker\.pkg\.dev"):
            kinetic_core.build_image(repo)
    with pytest.raises(InvalidRequest, match="some of cpu, gpu, tpu"):
        kinetic_core.build_image(REPOSITORY, ["cuda"])
    with pytest.raises(InvalidRequest, match="tag='a b' is no tag"):
        kinetic_core.build_image(REPOSITORY, ["cpu"], tag="a b")
    with pytest.raises(InvalidRequest, match="dockerfile='nothing' cannot be read"):
        kinetic_core.build_image(REPOSITORY, ["cpu"], dockerfile="nothing")
