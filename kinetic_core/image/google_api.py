"""Requests to Google's build service and registry, whose refusals are errors of images."""

from __future__ import annotations

from urllib.parse import urlencode

from kinetic_core.cluster.google_api import PATIENCE, Ask, GoogleService, Json
from kinetic_core.errors import CloudError, CloudUnreachable, ConfigurationError, ImageError

__all__ = ["PATIENCE", "Ask", "GoogleApi", "Json", "Unanswered"]


class Unanswered(ImageError, CloudUnreachable):
    """No usable answer: it may have been done all the same."""


class GoogleApi(GoogleService):
    """One of the two services: `cloudbuild` or `artifactregistry`."""

    def get(self, path: str, **query: str) -> Json | None:
        """The resource, None if there is none. Raises ConfigurationError or ImageError."""
        address = f"{path}?{urlencode(query)}" if query else path
        return self.patiently(lambda: self.once("GET", address))

    def once(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """The answer to one request, None for 404. Raises `Unanswered` where another one may help."""
        try:
            return self.send(method, path, body)
        except CloudUnreachable as exc:
            raise Unanswered(str(exc)) from exc
        except CloudError as exc:
            if exc.status == 404:
                return None
            if exc.status in (401, 403):
                raise ConfigurationError(f"{exc}. What images need is in docs/guides/images.md") from exc
            raise ImageError(str(exc)) from exc
