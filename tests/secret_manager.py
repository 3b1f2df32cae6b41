"""A stand-in for Secret Manager, and for the metadata server that tells a pod who it is."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

from tests.serving import Answering, serving

_TOKEN = "t0"


class SecretManager:
    """Serves `values`, by `projects/P/secrets/S/versions/V`; `statuses` are answered, in turn, instead."""

    def __init__(self, values: Mapping[str, str], *, host: str = "127.0.0.1") -> None:
        self.values, self.statuses, self.asked = dict(values), list[int](), list[str]()
        self._host, self._address, self._served = host, "", ExitStack()

    @property
    def environment(self) -> dict[str, str]:
        """What leads a process to it."""
        return {
            "GCE_METADATA_HOST": self._address,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": f"http://{self._address}/",
        }

    def __enter__(self) -> Self:
        self._address = self._served.enter_context(
            serving(type("Handler", (_Handler,), {"service": self}), self._host)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._served.close()


class _Handler(Answering):
    service: SecretManager

    def do_GET(self) -> None:
        if self.path.startswith("/computeMetadata"):
            return self.answer(200, {"access_token": _TOKEN, "expires_in": 3600})
        if self.headers["Authorization"] != f"Bearer {_TOKEN}":
            return self.answer(401, {})
        self.service.asked.append(self.path)
        place = self.path.removeprefix("/v1/").removesuffix(":access")
        missing = 200 if place in self.service.values else 403
        status = self.service.statuses.pop(0) if self.service.statuses else missing
        if status != 200:
            return self.answer(status, {"error": {}})
        data = base64.b64encode(self.service.values[place].encode()).decode()
        return self.answer(200, {"payload": {"data": data}})
