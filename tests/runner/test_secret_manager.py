"""Secrets are read in the pod, by reference, with the pod's identity; nothing repeats a value."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kinetic_core._runner.secret_manager import read_secrets
from kinetic_core._runner.store import StoreUnavailable

PLACE = "projects/p/secrets/hf/versions/latest"


class _Service(BaseHTTPRequestHandler):
    """The metadata server and Secret Manager on one port."""

    statuses: list[int]

    def do_GET(self) -> None:
        if self.path.startswith("/computeMetadata"):
            return self._answer(200, {"access_token": "t0", "expires_in": 3600})
        assert self.headers["Authorization"] == "Bearer t0"
        status = self.statuses.pop(0) if self.statuses else 200
        data = base64.b64encode(f"value of {self.path}".encode()).decode()
        return self._answer(status, {"payload": {"data": data}} if status == 200 else {"error": {}})

    def _answer(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    statuses: list[int] = []
    handler = type("Service", (_Service,), {"statuses": statuses})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_address[1]}"
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        monkeypatch.setenv("GCE_METADATA_HOST", place)
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER", f"http://{place}/")
        yield statuses
        server.shutdown()


def test_read_with_the_pods_identity(service: list[int]) -> None:
    assert read_secrets({"HF_TOKEN": PLACE}) == {"HF_TOKEN": f"value of /v1/{PLACE}:access"}


def test_refused_is_told_with_the_role_it_needs(service: list[int]) -> None:
    service.append(403)
    with pytest.raises(ValueError, match=r"projects/p/secrets/hf.*HTTP 403.*secretmanager\.secretAccessor"):
        read_secrets({"HF_TOKEN": PLACE})


def test_an_ill_service_is_asked_again(service: list[int]) -> None:
    waited: list[float] = []
    service += [503, 429]
    assert read_secrets({"HF_TOKEN": PLACE}, waited.append)["HF_TOKEN"].startswith("value")
    assert len(waited) == 2
    service += [503] * 9
    with pytest.raises(StoreUnavailable, match="HTTP 503"):
        read_secrets({"HF_TOKEN": PLACE}, waited.append)
