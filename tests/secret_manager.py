"""A stand-in for Secret Manager, and for the metadata server that tells a pod who it is."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

_TOKEN = "t0"


class SecretManager:
    """Serves `values`, by `projects/P/secrets/S/versions/V`; `statuses` are answered, in turn, instead."""

    def __init__(self, values: Mapping[str, str], *, host: str = "127.0.0.1") -> None:
        self.values, self.statuses, self.asked = dict(values), list[int](), list[str]()
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = ThreadingHTTPServer((host, 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """What leads a process to it."""
        place = "{}:{}".format(*self._server.server_address[:2])
        return {
            "GCE_METADATA_HOST": place,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"http://{place}/",
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    service: SecretManager

    def do_GET(self) -> None:
        if self.path.startswith("/computeMetadata"):
            return self._answer(200, {"access_token": _TOKEN, "expires_in": 3600})
        if self.headers["Authorization"] != f"Bearer {_TOKEN}":
            return self._answer(401, {})
        self.service.asked.append(self.path)
        place = self.path.removeprefix("/v1/").removesuffix(":access")
        missing = 200 if place in self.service.values else 403
        status = self.service.statuses.pop(0) if self.service.statuses else missing
        if status != 200:
            return self._answer(status, {"error": {}})
        data = base64.b64encode(self.service.values[place].encode()).decode()
        return self._answer(200, {"payload": {"data": data}})

    def _answer(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Quiet."""
