"""What registries tell in the protocol of Docker Hub: asked without credentials, Google's with a token.

https://distribution.github.io/distribution/spec/api/ and …/spec/auth/token/
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

_SECONDS = 10.0
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_CHALLENGE = re.compile(r'(realm|service|scope)="([^"]*)"')


class PublicRegistry:
    """One repository (`mycompany/kinetic/base-cpu`, `ghcr.io/me/base-cpu`) as anybody sees it, or as who has
    `token`.

    Every operation raises OSError if the registry gives no answer, or not to anybody.
    """

    def __init__(self, repository: str, token: str = "") -> None:
        first, _, rest = repository.partition("/")
        named = rest and ("." in first or ":" in first or first == "localhost")
        host, path = (first, rest) if named else ("registry-1.docker.io", repository)
        self._path = path if "/" in path or named else f"library/{path}"
        local = host.partition(":")[0] in ("localhost", "127.0.0.1")  # as docker does
        self._base = f"{'http' if local else 'https'}://{host}/v2"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def digest(self, tag: str) -> str | None:
        """`sha256:…` of a tag, None if there is none."""
        found = self._ask("HEAD", f"manifests/{tag}", {"Accept": _MANIFESTS})
        return None if found is None else found[0].get("Docker-Content-Digest")

    def environment(self, reference: str) -> dict[str, str]:
        """The variables that an image sets; none without an image."""
        told = self._configuration(reference).get("Env") or ()
        return dict(str(each).split("=", 1) for each in told if "=" in str(each))

    def labels(self, reference: str) -> dict[str, str]:
        """The labels of an image, named by a tag or a digest; none without an image."""
        return dict(self._configuration(reference).get("Labels") or {})

    def tags(self) -> list[str]:
        """Its tags, none if there is no such repository."""
        found = self._ask("GET", "tags/list", {})
        return [] if found is None else list(json.loads(found[1]).get("tags") or ())

    def _configuration(self, reference: str) -> dict[str, Any]:
        """How an image runs, of one for several platforms the first."""
        manifest = self._json(f"manifests/{reference}")
        if platforms := manifest.get("manifests"):
            manifest = self._json(f"manifests/{platforms[0]['digest']}")
        digest = (manifest.get("config") or {}).get("digest")
        return dict(self._json(f"blobs/{digest}").get("config") or {}) if digest else {}

    def _json(self, what: str) -> dict[str, Any]:
        found = self._ask("GET", what, {"Accept": _MANIFESTS})
        return {} if found is None else dict(json.loads(found[1]))

    def _ask(
        self, method: str, what: str, headers: Mapping[str, str]
    ) -> tuple[Mapping[str, str], bytes] | None:
        url = f"{self._base}/{self._path}/{what}"
        for tried in range(2):
            request = Request(url, headers=dict(headers), method=method)  # noqa: S310  made above
            for name, value in self._headers.items():
                request.add_unredirected_header(name, value)  # blobs are elsewhere, where it is not wanted
            try:
                with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310  made above: http(s) only
                    return answer.headers, answer.read()
            except HTTPError as exc:
                with exc:
                    if exc.code == 404:
                        return None
                    if exc.code != 401 or tried:
                        raise
                    self._headers = _anonymous(exc.headers.get("WWW-Authenticate") or "")
        return None

    def __str__(self) -> str:
        return f"{self._base}/{self._path}"


def _anonymous(challenge: str) -> dict[str, str]:
    """The header with a token that the registry gives to anybody. Raises OSError."""
    found = dict(_CHALLENGE.findall(challenge))
    realm = found.pop("realm", "")
    if not realm.startswith(("https://", "http://localhost", "http://127.0.0.1")):
        raise PermissionError("the registry wants credentials")
    with urlopen(f"{realm}?{urlencode(found)}", timeout=_SECONDS) as answer:  # noqa: S310  checked above
        body = json.load(answer)
    return {"Authorization": f"Bearer {body.get('token') or body.get('access_token')}"}
