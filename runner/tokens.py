"""Access tokens for Google's services: from the metadata server (workload identity) or, where
`GOOGLE_APPLICATION_CREDENTIALS` names other credentials, from google-auth.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
from typing import cast

_METADATA_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105  a path
_STORAGE = "https://www.googleapis.com/auth/devstorage.read_write"


def access_token(now: float, scope: str = _STORAGE) -> tuple[str, float]:
    """An access token and when it ends (Unix seconds); the metadata server's is good for all scopes."""
    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return token_of_credentials(now, scope)
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", _METADATA_TOKEN, headers={"Metadata-Flavor": "Google"})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise OSError(errno.EACCES, f"the metadata server gives no token: HTTP {response.status}")
    values = json.loads(body)
    return values["access_token"], now + values["expires_in"]


def token_of_credentials(now: float, scope: str = _STORAGE) -> tuple[str, float]:
    import google.auth  # type: ignore[import-untyped, unused-ignore]
    import google.auth.transport.requests  # type: ignore[import-untyped, unused-ignore]

    credentials, _ = google.auth.default(scopes=[scope])
    credentials.refresh(google.auth.transport.requests.Request())
    return cast("str", credentials.token), now + 1800
