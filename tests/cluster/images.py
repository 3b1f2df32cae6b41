"""A repository, a bucket for builds and the stand-in for Google's APIs, of one test run's own."""

from __future__ import annotations

import json
import os
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

GOOGLE = {
    name: value
    for name, value in os.environ.items()
    if name.startswith("CLOUDSDK_API_ENDPOINT_OVERRIDES_") or name == "GOOGLE_CLOUD_PROJECT"
}
"""The variables of the stand-in for Google's APIs, which every test starts without."""
ZONE, REGION, LOCATION = "europe-west4-a", "europe-west4", "europe"


@dataclass(frozen=True)
class Images:
    """Names of what a test run has for itself, and the emulator's controls."""

    base: str
    cluster: str
    settings: dict[str, str]

    def control(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base}/emulator/{path}", data, method=method)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    @property
    def requests(self) -> int:
        """Requests to the registry's and the build service's APIs so far, whoever made them."""
        counts = self.control("GET", "stats")["requests"]
        return sum(count for name, count in counts.items() if "/repositories" in name or "/builds" in name)

    @property
    def builds(self) -> dict[str, int]:
        """How often each image in this repository was built."""
        by_image = self.control("GET", "stats")["builds"]["by_image"]
        return {name: count for name, count in by_image.items() if f"/kn-{self.cluster}/" in name}

    def use(self, patch: pytest.MonkeyPatch) -> Images:
        """Settings of somebody whose images are built here."""
        patch.delenv("KINETIC_CONTAINER_IMAGE")
        for name, value in self.settings.items():
            patch.setenv(name, value)
        return self

    @contextmanager
    def fault(self, **rule: Any) -> Iterator[None]:
        """A scripted fault that must be met; `match` should name this run's region or repository."""
        self.control("POST", "faults", {"times": 1, **rule})
        try:
            yield
            left = [one for one in self.control("GET", "faults")["faults"] if one["match"] == rule["match"]]
            assert not any(one["times"] for one in left), "the fault was not met"
        finally:
            self.control("DELETE", "faults")


@contextmanager
def own_images() -> Iterator[Images]:
    """Make a repository and a bucket for builds, and remove them in the end. Skips without the stand-in."""
    if "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBUILD" not in GOOGLE:
        pytest.skip("no stand-in for Google's APIs: eval the testcluster's env")
    from google.cloud import storage

    from kinetic_core.connections import default_connections
    from kinetic_core.google_cloud import ask_google

    base = GOOGLE["CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBUILD"].rstrip("/")
    cluster = f"t{secrets.token_hex(4)}"
    parent = f"{base}/v1/projects/test-project/locations/{LOCATION}/repositories"
    ask_google(default_connections(), "POST", f"{parent}?repositoryId=kn-{cluster}", {"format": "DOCKER"})
    bucket = storage.Client(project="test-project").create_bucket(f"test-project-kn-{cluster}-builds")
    settings = {**GOOGLE, "KINETIC_PROJECT": "test-project", "KINETIC_CLUSTER": cluster, "KINETIC_ZONE": ZONE}
    yield Images(base, cluster, settings)
    ask_google(default_connections(), "DELETE", f"{parent}/kn-{cluster}")
    bucket.delete_blobs(list(bucket.list_blobs()))
    bucket.delete()
