"""Requests to Google's build service and registry, in plain REST (ADR 0017).

Addresses can be replaced by gcloud's own variables: `gcloud topic configurations`, api_endpoint_overrides.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from kinetic_core.cluster.credentials import ask_google, message_of
from kinetic_core.configuration import read_settings
from kinetic_core.errors import ConfigurationError, ImageError

PATIENCE = 60.0
"""Seconds for which one request is tried again after 408, 429, 5xx and dropped connections."""
_AGAIN = (408, 429, 500, 502, 503, 504)

Json = dict[str, Any]
Ask = Callable[..., tuple[int, Any]]


class Unanswered(ImageError):
    """No usable answer: it may have been done all the same."""


class GoogleApi:
    """One service of Google's: `cloudbuild` or `artifactregistry`, and how patient to be with it."""

    def __init__(
        self,
        service: str,
        ask: Ask | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = read_settings()
        overrides = settings.api_endpoint_overrides
        self._ask = ask or functools.partial(ask_google, account=settings.google_account)
        self._base = f"{overrides.get(service, f'https://{service}.googleapis.com').rstrip('/')}/v1"
        self._service, self.sleep, self.clock = service, sleep, clock

    def get(self, path: str, **query: str) -> Json | None:
        """The resource, None if there is none. Raises ConfigurationError or ImageError."""
        address = f"{path}?{urlencode(query)}" if query else path
        return self.patiently(lambda: self.once("GET", address))

    def once(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """The answer to one request, None for 404. Raises `Unanswered` where another one may help."""
        try:
            status, answer = self._ask(method, f"{self._base}/{path}", body)
        except OSError as exc:
            raise Unanswered(f"{self._service}.googleapis.com gave no answer: {exc}") from exc
        if status == 404:
            return None
        if status < 300:
            return dict(answer)
        told = f"{self._service}.googleapis.com: HTTP {status}: {message_of(answer)}"
        if status in _AGAIN:
            raise Unanswered(told)
        if status in (401, 403):
            raise ConfigurationError(f"{told}. What images need is in docs/guides/images.md")
        raise ImageError(told)

    def patiently(self, action: Callable[[], Json | None]) -> Json | None:
        """The action's result, tried again as long as that may help."""
        give_up, pause = self.clock() + PATIENCE, 0.5
        while True:
            try:
                return action()
            except Unanswered:
                if self.clock() >= give_up:
                    raise
            self.sleep(pause * (0.5 + random.random()))  # noqa: S311  no secret
            pause = min(pause * 2, 8.0)
