"""Requests to Google Cloud's APIs, in plain REST (ADR 0017).

Addresses can be replaced by gcloud's own variables: `gcloud topic configurations`, api_endpoint_overrides;
that of Cloud Storage by `STORAGE_EMULATOR_HOST`.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from kinetic_core.cluster.credentials import ask_google, message_of
from kinetic_core.configuration import Settings, read_settings
from kinetic_core.errors import CloudError, CloudUnreachable

PATIENCE = 60.0
"""Seconds for which one request is tried again after 408, 429, 5xx and dropped connections."""
_AGAIN = (408, 429, 500, 502, 503, 504)
_VERSIONS = {"compute": "compute/v1", "storage": "storage/v1"}
"""Where the first version's paths begin, if that is not `v1`."""

Json = dict[str, Any]
Ask = Callable[..., tuple[int, Any]]
Result = TypeVar("Result")


class GoogleService:
    """One service of Google's, such as `container`, and how patient to be with it."""

    def __init__(
        self,
        service: str,
        ask: Ask | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = read_settings()
        self._base = _base(service, settings)
        self._ask = ask or functools.partial(ask_google, account=settings.google_account)
        self._service, self.sleep, self.clock = service, sleep, clock

    def send(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer to one request.

        Raises CloudError for a refusal, CloudUnreachable where another request may help.
        """
        name = f"{self._service}.googleapis.com"
        try:
            status, answer = self._ask(method, f"{self._base}/{path}", body)
        except OSError as exc:
            raise CloudUnreachable(f"{name} gave no answer: {exc}") from exc
        if status < 300:
            return dict(answer)
        kind = CloudUnreachable if status in _AGAIN else CloudError
        raise kind(f"{name}: HTTP {status}: {message_of(answer)}", status, _reason(answer))

    def get(self, path: str, **query: str) -> Json | None:
        """The resource, None if there is none. Raises CloudError."""
        address = f"{path}?{urlencode(query)}" if query else path
        try:
            return self.patiently(lambda: self.send("GET", address))
        except CloudError as exc:
            if exc.status == 404:
                return None
            raise

    def patiently(self, action: Callable[[], Result]) -> Result:
        """The action's result, tried again as long as that may help."""
        give_up, pause = self.clock() + PATIENCE, 0.5
        while True:
            try:
                return action()
            except CloudUnreachable:
                if self.clock() >= give_up:
                    raise
            self.sleep(pause * (0.5 + random.random()))  # noqa: S311  no secret
            pause = min(pause * 2, 8.0)


def _base(service: str, settings: Settings) -> str:
    if service == "storage" and settings.storage_emulator_host:
        return f"{settings.storage_emulator_host.rstrip('/')}/storage/v1"
    replaced = settings.api_endpoint_overrides.get(service)
    if replaced and service in _VERSIONS:  # gcloud's values for these include the version
        return replaced.rstrip("/")
    root = replaced or f"https://{service}.googleapis.com"
    return f"{root.rstrip('/')}/{_VERSIONS.get(service, 'v1')}"


def _reason(answer: Any) -> str:
    """google.rpc.ErrorInfo's reason, else the status in words."""
    try:
        error = answer["error"]
        details = [each["reason"] for each in error.get("details", ()) if "reason" in each]
        return str(details[0] if details else error.get("status", ""))
    except (KeyError, TypeError, AttributeError):
        return ""
