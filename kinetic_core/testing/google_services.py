"""Cloud Build and Artifact Registry in memory, as far as images are concerned.

Pass `FakeGoogle().ask` where a `GoogleApi` takes its `ask`. Builds end as `ends` says, one after another;
`faults` are answered, in turn, instead of doing anything.
"""

from __future__ import annotations

import itertools
import re
from typing import Any


class FakeGoogle:
    """One project's builds and tags. A build goes on for `looks` looks at it, and pushes if it succeeds."""

    def __init__(self, *, looks: int = 1) -> None:
        self.builds: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, str] = {}
        self.requests: list[str] = []
        self.faults: list[int | OSError] = []
        self.ends: list[str] = []
        self._looks, self._seen = looks, dict[str, int]()
        self._numbers = itertools.count(1)

    def ask(self, method: str, url: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer. Raises the fault that is an OSError."""
        self.requests.append(f"{method} {url}")
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, OSError):
                raise fault
            return fault, {"error": {"message": f"scripted {fault}"}}
        path = url.partition("?")[0]
        if "/tags/" in path:
            tag = path.rpartition("/")[2]
            return (200, {"version": f"v/{self.tags[tag]}"}) if tag in self.tags else (404, {})
        if path.endswith("/tags"):
            return 200, {"tags": [{"name": f"{path}/{tag}"} for tag in self.tags]}
        if path.endswith("/builds") and method == "POST":
            return 200, {"metadata": {"build": self._start(body)}}
        if path.endswith("/builds"):
            return 200, {"builds": [build for build in self.builds.values() if _tagged(build, url)]}
        if "/builds/" in path:
            return self._look(path.rpartition("/")[2])
        return 200, {"name": path}

    def _start(self, body: dict[str, Any]) -> dict[str, Any]:
        number = f"build-{next(self._numbers)}"
        self.builds[number] = {**body, "id": number, "status": "WORKING"}
        return self.builds[number]

    def _look(self, name: str) -> tuple[int, Any]:
        build_id, _, verb = name.partition(":")
        build = self.builds[build_id]
        if verb == "cancel":
            build["status"] = "CANCELLED"
        self._seen[build_id] = self._seen.get(build_id, 0) + 1
        if build["status"] == "WORKING" and self._seen[build_id] > self._looks:
            build["status"] = self.ends.pop(0) if self.ends else "SUCCESS"
            if build["status"] == "SUCCESS":
                self._push(build)
        return 200, build

    def _push(self, build: dict[str, Any]) -> None:
        digest = f"sha256:{len(self.tags):064x}"
        self.tags[build["images"][-1].rpartition(":")[2]] = digest
        build["results"] = {"images": [{"digest": digest}]}


def _tagged(build: dict[str, Any], url: str) -> bool:
    found = re.search(r"tags%3D%22([^%]+)%22", url)
    return found is not None and found[1] in build["tags"]
