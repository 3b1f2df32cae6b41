"""What is wrong with a token is the store's trouble: neither the end of the runner nor the user's failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from kinetic_core._runner import wire
from kinetic_core._runner.bucket_data import Bucket
from kinetic_core._runner.gcs import GcsStore
from kinetic_core._runner.identity_tokens import NoCredentials, access_token
from kinetic_core._runner.secret_manager import read_secrets
from kinetic_core._runner.store import StoreUnavailable
from kinetic_core.backends.kubernetes.bootstrap import BOOTSTRAP
from tests.runner.attempts import Attempts
from tests.serving import Answering, serving

pytestmark = pytest.mark.attack
PAGE = b"<html>Please log in</html>"


class _Page(Answering):
    """Whatever is asked, a page."""

    def do_GET(self) -> None:
        self.answer(200, PAGE)

    do_POST = do_GET


class _NoToken(_Page):
    def do_GET(self) -> None:
        self.answer(200, {"access_token": None, "expires_in": 5})


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=[_Page, _NoToken])
def metadata(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with serving(request.param) as place:
        monkeypatch.setenv("GCE_METADATA_HOST", place)
        yield


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A service account whose tokens come from a server that answers with pages."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with serving(_Page) as place:
        account = {
            "type": "service_account",
            "project_id": "p",
            "private_key": key.decode(),
            "client_email": "a@p.iam.gserviceaccount.com",
            "token_uri": f"http://{place}/token",
        }
        file = tmp_path / "account.json"
        file.write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        yield file


@pytest.mark.usefixtures("metadata")
def test_a_metadata_server_that_gives_no_token() -> None:
    with pytest.raises(StoreUnavailable, match="answers with no token"):
        access_token(0.0)


@pytest.mark.usefixtures("credentials")
def test_an_endpoint_that_gives_no_token() -> None:
    with pytest.raises(StoreUnavailable, match="no token of Google: TypeError"):
        access_token(0.0)


def test_an_endpoint_that_does_not_answer(credentials: Path) -> None:
    account = json.loads(credentials.read_text())
    credentials.write_text(json.dumps(account | {"token_uri": "http://127.0.0.1:1/token"}))
    with pytest.raises(StoreUnavailable, match="no token of Google: TransportError"):
        access_token(0.0)


@pytest.mark.usefixtures("metadata")
def test_a_store_without_a_token_is_asked_again() -> None:
    waited: list[float] = []
    store = GcsStore("gs://bucket", sleep=waited.append, clock=lambda: 10.0 * len(waited))
    with pytest.raises(StoreUnavailable, match=r"gs://bucket/x cannot be reached: .*answers with no token"):
        store.read("x")
    assert len(waited) > 5


@pytest.mark.usefixtures("metadata")
def test_secrets_without_a_token_are_asked_again() -> None:
    waited: list[float] = []
    with pytest.raises(StoreUnavailable, match="answers with no token"):
        read_secrets({"A": "projects/p/secrets/s/versions/1"}, waited.append)
    assert len(waited) == 4


def test_no_credentials_are_not_the_users_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = str(tmp_path / "absent.json")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", absent)
    with pytest.raises(NoCredentials, match=r"absent\.json"):
        access_token(0.0)
    attempts = Attempts(tmp_path).submit(lambda: 1)
    code = attempts.run(KINETIC_STORE="gs://bucket", GOOGLE_APPLICATION_CREDENTIALS=absent)
    assert code == wire.EXIT_UNPUBLISHED, attempts.log


@pytest.mark.slow
@pytest.mark.usefixtures("metadata")
def test_a_runner_that_cannot_be_fetched_is_no_ones(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "GCE_METADATA_HOST": os.environ["GCE_METADATA_HOST"],
        "KINETIC_STORE": "gs://bucket",
        "KINETIC_PROTOCOL": "0",
        "KINETIC_RUNNER_SHA256": "0" * 64,
        "KINETIC_RUNNER_BYTES": "1000",
        "KINETIC_WORK_DIR": str(tmp_path),
        "KINETIC_INFRASTRUCTURE_RETRIES": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", BOOTSTRAP], env=environment, check=False, capture_output=True
    )
    assert done.returncode == wire.EXIT_UNPUBLISHED, done.stderr


def test_a_page_for_a_listing_of_data_is_the_stores_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(_Page) as place:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{place}")
        for ask in (lambda: Bucket("theirs").items("set/"), lambda: Bucket("theirs").item("set/a")):
            with pytest.raises(StoreUnavailable, match="the answer is none of Cloud Storage"):
                ask()
