"""Access tokens for Google's services: from the metadata server (workload identity) or, where
`GOOGLE_APPLICATION_CREDENTIALS` names other credentials, from google-auth.

Every failure here is StoreUnavailable: without a token there is no store now, through no fault of user code.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .store import StoreUnavailable


class NoCredentials(StoreUnavailable):
    """Missing credentials: there are none to get a token with, and asking again does not help."""


_METADATA_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105  a path
_STORAGE = "https://www.googleapis.com/auth/devstorage.read_write"
_SECONDS = 10.0
_MOST_SHOWN = 200
_SPARE_SECONDS = 300.0


class Identity:
    """Headers that say who asks, with a token that is kept until shortly before it expires.

    `get` returns a token and its expiry, as `access_token`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        get: Callable[[float], tuple[str, float]] | None = None,
    ) -> None:
        self._clock, self._get = clock, get or access_token
        self._token, self._expires = "", 0.0

    def headers(self) -> dict[str, str]:
        if not self._token or self._clock() >= self._expires - _SPARE_SECONDS:
            self._token, self._expires = self._get(self._clock())
        return {"Authorization": f"Bearer {self._token}"}

    def renew(self) -> bool:
        had, self._token = bool(self._token), ""
        return had


def access_token(now: float, scope: str = _STORAGE) -> tuple[str, float]:
    """Get an access token and its expiry (Unix seconds); the metadata server's is good for all scopes.

    Raises StoreUnavailable.
    """
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return token_of_credentials(now, scope)
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    connection = http.client.HTTPConnection(host, timeout=_SECONDS)
    try:
        connection.request("GET", _METADATA_TOKEN, headers={"Metadata-Flavor": "Google"})
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as exc:
        why = str(exc) or type(exc).__name__
        raise StoreUnavailable(errno.EIO, f"the metadata server {host} cannot be reached: {why}") from exc
    finally:
        connection.close()
    if response.status != 200:
        raise StoreUnavailable(errno.EACCES, f"the metadata server gives no token: HTTP {response.status}")
    try:
        values = json.loads(body)
        return _checked(values["access_token"]), now + float(values["expires_in"])
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        shown = body[:_MOST_SHOWN].decode(errors="replace")
        raise StoreUnavailable(
            errno.EIO, f"the metadata server {host} answers with no token: {shown!r}"
        ) from exc


def token_of_credentials(now: float, scope: str = _STORAGE) -> tuple[str, float]:
    """Get a token from `GOOGLE_APPLICATION_CREDENTIALS`, or from other credentials that google-auth finds.

    Raises StoreUnavailable.
    """
    try:
        import google.auth  # type: ignore[import-untyped, unused-ignore]
        import google.auth.transport.requests  # type: ignore[import-untyped, unused-ignore]
    except ImportError as exc:
        raise NoCredentials(
            errno.EACCES, f"credentials of Google need google-auth and requests in the image: {exc}"
        ) from exc
    try:
        credentials, _ = google.auth.default(scopes=[scope])
    except Exception as exc:  # its errors are not of the standard library, and many
        raise NoCredentials(errno.EACCES, f"no credentials of Google: {type(exc).__name__}: {exc}") from exc
    try:
        credentials.refresh(partial(google.auth.transport.requests.Request(), timeout=_SECONDS))
        return _checked(credentials.token), now + 1800
    except Exception as exc:
        raise StoreUnavailable(errno.EIO, f"no token of Google: {type(exc).__name__}: {exc}") from exc


def _checked(token: Any) -> str:
    """Return a token that is valid in a header. Raises ValueError."""
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ValueError("no token")
    return token
