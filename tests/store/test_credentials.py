"""Who the store asks as: a token that is refused is renewed, one that is late is waited for."""

from __future__ import annotations

from typing import Any

import pytest
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError, TransportError

from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError, StoreError
from kinetic_core.settings import Account, Settings
from kinetic_core.store.gcs import GcsObjectStore
from tests.serving import Answering, serving


class Tokens(Credentials):
    """Tokens `token-1`, `token-2`, …, each good for good; `failures` come first."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures, self.given = list(failures), 0

    def refresh(self, request: Any) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.given += 1
        self.token = f"token-{self.given}"


class OnlyTheSecond(Answering):
    """Knows one object, for the second token."""

    def do_GET(self) -> None:
        self.answer(200 if self.headers["Authorization"] == "Bearer token-2" else 401, b"content")


def read(tokens: Tokens, place: str, patience: float = 20.0) -> bytes:
    settings = Settings(
        google_account=Account("theirs", "1", tokens), api_endpoint_overrides={"storage": f"http://{place}"}
    )
    return GcsObjectStore("bucket", patience=patience, connections=Connections(settings)).read("name")


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)


def test_a_token_that_is_refused_is_renewed() -> None:
    with serving(OnlyTheSecond) as place:
        assert read(Tokens(), place) == b"content"


def test_a_service_of_tokens_that_is_busy_is_asked_again() -> None:
    tokens = Tokens(TransportError("busy"))
    with serving(OnlyTheSecond) as place:
        assert read(tokens, place) == b"content"
        with pytest.raises(StoreError, match=r"cannot be reached: .*Google gives no token: busy"):
            read(Tokens(*[TransportError("busy")] * 9), place, patience=0.0)


def test_credentials_that_are_refused_say_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match=r"Google gives no token: expired\. Look at theirs"):
        read(Tokens(RefreshError("expired")), "127.0.0.1:1")
