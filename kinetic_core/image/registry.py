"""Artifact Registry: which digest a tag has. https://cloud.google.com/artifact-registry/docs/reference/rest"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from kinetic_core.errors import ConfigurationError
from kinetic_core.image.google_api import GoogleApi

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


def region_of(location: str) -> str:
    """`us-central1-a` is in `us-central1`, which is its own; what is neither is taken for `us-central1`."""
    found = re.fullmatch(r"([a-z]+-[a-z]+\d+)(-[a-z])?", location)
    return found[1] if found else "us-central1"
