"""Secrets by reference: read from Secret Manager in the pod, with the pod's own identity.

https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions/access
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from .identity_tokens import access_token
from .store import StoreUnavailable

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_TRIES = 5
_AGAIN = (408, 429, 500, 502, 503, 504)


def read_secrets(places: dict[str, str], sleep: Callable[[float], None] = time.sleep) -> dict[str, str]:
    """Read secrets (`projects/P/secrets/S/versions/V`), given by the variables they are for.

    Raises ValueError for one that cannot be read, StoreUnavailable if the service does not answer. Neither
    error contains a secret's value.
    """
    token = _token(sleep)
    return {name: _read(place, token, sleep) for name, place in places.items()}


def _token(sleep: Callable[[float], None]) -> str:
    tried = 0
    while True:
        try:
            return access_token(time.time(), _SCOPE)[0]
        except StoreUnavailable:
            tried += 1
            if tried == _TRIES:
                raise
            sleep(2**tried / 4)


def _read(place: str, token: str, sleep: Callable[[float], None]) -> str:
    override = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER")
    address = urlsplit(override or "https://secretmanager.googleapis.com")
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    why = ""
    for tried in range(_TRIES):
        if tried:
            sleep(2**tried / 4)
        connection = kind(address.netloc, timeout=20)
        try:
            connection.request("GET", f"/v1/{place}:access", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as exc:
            why = str(exc) or type(exc).__name__
            continue
        finally:
            connection.close()
        if answer.status == 200:
            try:
                value = base64.b64decode(json.loads(body)["payload"]["data"])
            except (ValueError, LookupError, TypeError):
                why = "it answers with no secret"  # which is not shown: it may hold one
                continue
            return value.decode()
        why = f"HTTP {answer.status}"
        if answer.status not in _AGAIN:
            raise ValueError(
                f"the secret {place} cannot be read: {why}. The pod's identity needs "
                "roles/secretmanager.secretAccessor on it"
            )
    raise StoreUnavailable(f"Secret Manager cannot be reached for {place}: {why}")
