"""Artifact Registry: which digest a tag has. https://cloud.google.com/artifact-registry/docs/reference/rest"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from kinetic_core.errors import CloudError, CloudUnreachable, ConfigurationError, ImageError
from kinetic_core.google_cloud import PATIENCE, Ask, GoogleService, Json

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


_CONTINENTS = ("us", "europe", "asia")


@dataclass(frozen=True)
class Repository:
    """A repository of images: `kn-{cluster}`, where the cluster is, unless it is named."""

    project: str
    location: str
    name: str

    @classmethod
    def of_cluster(cls, project: str, zone: str, cluster: str) -> Repository:
        """The one that belongs to a cluster: on its continent if that is one of the multi-regions."""
        region = region_of(zone)
        continent = region.partition("-")[0]
        return cls(project, continent if continent in _CONTINENTS else region, f"kn-{cluster}")

    @classmethod
    def parse(cls, address: str) -> Repository | None:
        """`LOCATION-docker.pkg.dev/PROJECT/NAME`; None for a repository of another registry."""
        host, _, path = address.strip("/").partition("/")
        if not host.endswith("-docker.pkg.dev") or path.count("/") != 1:
            return None
        project, _, name = path.partition("/")
        return cls(project, host.removesuffix("-docker.pkg.dev"), name)

    @property
    def address(self) -> str:
        """What the images' names start with."""
        return f"{self.location}-docker.pkg.dev/{self.project}/{self.name}"

    @property
    def path(self) -> str:
        """Its name in the API."""
        return f"projects/{self.project}/locations/{self.location}/repositories/{self.name}"

    def digest(self, api: GoogleApi, package: str, tag: str) -> str | None:
        """`sha256:…` of a tag, None if there is none. Raises ConfigurationError or ImageError."""
        found = api.get(f"{self.path}/packages/{quote(package, safe='')}/tags/{tag}")
        return None if found is None else str(found["version"]).rpartition("/")[2]

    def tags(self, api: GoogleApi, package: str) -> list[str]:
        """The tags of a package, none if there is no such package."""
        found = api.get(f"{self.path}/packages/{quote(package, safe='')}/tags", pageSize="1000") or {}
        return [str(tag["name"]).rpartition("/")[2] for tag in found.get("tags", ())]

    def check(self, api: GoogleApi) -> None:
        """Raise ConfigurationError if it does not exist."""
        if api.get(self.path) is None:
            raise ConfigurationError(
                f"there is no repository {self.address}. Make it once: gcloud artifacts repositories create "
                f"{self.name} --repository-format=docker --location={self.location} --project={self.project}"
            )


LOCATION = re.compile(r"([a-z]+-[a-z]+\d+)(?:-((?:ai\d+)?[a-z]))?")
"""A region, and what names a zone in it: `a`, or `ai1b` of an AI zone, which is for accelerators."""


def region_of(location: str) -> str:
    """`us-central1-a` is in `us-central1`, which is its own; what is neither is taken for `us-central1`."""
    found = LOCATION.fullmatch(location)
    return found[1] if found else "us-central1"


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
