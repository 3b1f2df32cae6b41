"""Base images: there for this kind of accelerator and this Python, or refused before anything is stored."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

import kinetic_core
from kinetic_core.errors import ConfigurationError, InvalidRequest
from kinetic_core.image.google_api import GoogleApi
from kinetic_core.image.prebuilt import base_image, base_tag
from kinetic_core.image.registry_protocol import PublicRegistry
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


class _Registry(BaseHTTPRequestHandler):
    """One that wants a token, and gives it to anybody."""

    tags: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/token":
            return self._answer(200, {"token": query})
        if "Bearer service=here" not in self.headers.get("Authorization", ""):
            realm = f"http://127.0.0.1:{self.server.server_address[1]}/token"
            challenge = f'Bearer realm="{realm}",service="here",scope="repository:me/base-cpu:pull"'
            return self._answer(401, {}, {"WWW-Authenticate": challenge})
        if path.startswith("/v2/private"):
            return self._answer(403, {})
        if path.endswith("/tags/list"):
            return self._answer(200, {"tags": self.tags})
        there = path.rpartition("/")[2] in self.tags
        return self._answer(200 if there else 404, {}, {"Docker-Content-Digest": "sha256:cd"})

    do_HEAD = do_GET

    def _answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def public() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_public_registry_is_asked_without_credentials(public: str) -> None:
    _Registry.tags = [base_tag()]
    assert base_image(f"{public}/me", "cpu") == (f"{public}/me/base-cpu@sha256:cd", ())
    _Registry.tags = ["0.0.9-py3.9"]
    with pytest.raises(ConfigurationError, match=r"it has 0\.0\.9-py3\.9"):
        base_image(f"{public}/me", "cpu")


def test_what_a_registry_does_not_tell_is_left_to_the_node(public: str) -> None:
    uri, notices = base_image(f"{public}/private", "cpu")
    assert uri == f"{public}/private/base-cpu:{base_tag()}"
    assert "is not known here: HTTP Error 403" in notices[0]
    _, notices = base_image("127.0.0.1:9/me", "cpu")
    assert "refused" in notices[0]


def test_where_a_repository_is() -> None:
    assert str(PublicRegistry("mycompany/kinetic")) == "https://registry-1.docker.io/v2/mycompany/kinetic"
    assert str(PublicRegistry("base")) == "https://registry-1.docker.io/v2/library/base"
    assert str(PublicRegistry("ghcr.io/me/base")) == "https://ghcr.io/v2/me/base"


def test_what_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="set KINETIC_PROJECT"):
        kinetic_core.build_image(REPOSITORY)
    monkeypatch.setenv("KINETIC_PROJECT", "p")
    with pytest.raises(InvalidRequest, match=r"repo='https://hub' is neither LOCATION-docker\.pkg\.dev"):
        kinetic_core.build_image("https://hub")
    with pytest.raises(InvalidRequest, match="some of cpu, gpu, tpu"):
        kinetic_core.build_image(REPOSITORY, ["cuda"])
    with pytest.raises(InvalidRequest, match="tag='a b' is no tag"):
        kinetic_core.build_image(REPOSITORY, ["cpu"], tag="a b")
    with pytest.raises(InvalidRequest, match="dockerfile='nothing' cannot be read"):
        kinetic_core.build_image(REPOSITORY, ["cpu"], dockerfile="nothing")
