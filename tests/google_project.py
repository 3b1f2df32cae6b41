"""Google Cloud's control plane in memory, as far as a cluster and what belongs to it are made and removed.

    project = FakeProject()
    cloud = Cloud("projects/p/locations/us-central1-a", ..., ask=project.ask)

It answers as the services do, with their errors; `faults` scripts what goes wrong (a lost reply is acted on).
GKE's and other long operations are done some requests later. What is false is left out, as in the JSON of
protocol buffers. Tests hold it to what the stand-in for the real services answers.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kinetic_core.errors import ConfigurationError, StoreError, StoreRefused
from kinetic_core.testing.faulty_server import Act, Faults

Json = dict[str, Any]
Answer = tuple[int, Json]
_LATER = 3
"""How many requests a long operation takes."""


class FakeProject:
    """A project, with no API enabled but that of projects. `machines` None: every zone has every machine."""

    def __init__(self, name: str = "my-project", machines: set[str] | None = None) -> None:
        self.name, self.machines = name, machines
        self.enabled: set[str] = set()
        self.refused: set[str] = set()
        """Permissions that the caller lacks."""
        self.quotas: dict[str, float] = {}
        """Limits of Compute Engine's quotas in every region, by metric."""
        self.used: dict[str, float] = {}
        """How much of each is in use, by metric."""
        self.resources: dict[str, Json] = {}
        """By path: clusters, pools, accounts, repositories, and buckets as `b/NAME`."""
        self.policies: dict[str, Json] = {}
        self.objects: dict[str, list[str]] = {}
        """Names of objects, by bucket."""
        self.fails: dict[str, str] = {}
        """By name of a cluster, pool or repository, why making it fails, some time after it was begun."""
        self.endless: set[str] = set()
        """Names of clusters and pools at which the service works for ever."""
        self.faults = Faults()
        self._numbers = itertools.count(1)
        self._operations: dict[str, tuple[int, Json]] = {}
        self._failed: dict[str, Json] = {}
        self._now = 0
        self._lock = threading.Lock()

    def ask(self, method: str, url: str, body: Any = None) -> Answer:
        """Status and JSON of an answer. Raises OSError where there is none."""
        split = urlsplit(url)
        content = json.dumps(body).encode() if body is not None else b""
        address = f"{split.path}?{split.query}" if split.query else split.path
        fault = self.faults.take(method, address, content)
        if fault is not None and fault.act is Act.ANSWER:
            return _error(fault.status, "scripted fault")
        if fault is not None and fault.act is Act.DROP:
            raise ConnectionResetError("scripted: dropped")
        with self._lock:
            answer = self._answer(
                method, split.netloc, unquote(split.path), parse_qs(split.query), body or {}
            )
        if fault is not None and fault.act is Act.LOSE_REPLY:
            raise ConnectionResetError("scripted: the reply is lost")
        if fault is not None and fault.act is Act.SILENCE:
            raise TimeoutError("scripted: the read timed out")
        return answer

    def empty(self, bucket: str) -> None:
        """Delete what a bucket contains, as a client does that has run out of patience with each fault."""
        if f"b/{bucket}" not in self.resources:
            raise ConfigurationError(f"the bucket {bucket!r} does not exist")
        if not self.objects.get(bucket):
            return
        fault = self.faults.take("DELETE", f"/storage/v1/b/{bucket}/o", b"")
        if fault is None or fault.act not in (Act.ANSWER, Act.DROP):
            self.objects.pop(bucket, None)
        if fault is not None:
            failure = StoreRefused if fault.act is Act.ANSWER and fault.status == 403 else StoreError
            raise failure(f"scripted fault: {fault.act}")

    def _answer(self, method: str, host: str, path: str, query: dict[str, list[str]], body: Json) -> Answer:
        self._now += 1
        service = host.partition(".")[0]
        path = re.sub(r"^/(?:(?:storage|compute)/)?v1/", "", path)
        always = ("serviceusage", "cloudresourcemanager")
        if service not in always and f"{service}.googleapis.com" not in self.enabled:
            return _error(403, f"{service} is disabled", "SERVICE_DISABLED")
        handler: Callable[..., Answer] = getattr(self, f"_{service}")
        return handler(method, path, query, body)

    def _serviceusage(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> Answer:
        if path.startswith("operations/"):
            return 200, {"name": path, "done": True}
        if method == "POST":
            self.enabled.update(body["serviceIds"])
            return 200, {"name": f"operations/{next(self._numbers)}"}
        start = int(query.get("pageToken", ["0"])[0])
        end = start + int(query.get("pageSize", ["50"])[0])
        found = {
            "services": [{"name": f"projects/1/services/{api}"} for api in sorted(self.enabled)[start:end]]
        }
        return 200, {**found, "nextPageToken": str(end)} if end < len(self.enabled) else found

    def _cloudresourcemanager(
        self, method: str, path: str, query: dict[str, list[str]], body: Json
    ) -> Answer:
        del method, query
        if path.endswith(":testIamPermissions"):
            return 200, {"permissions": [each for each in body["permissions"] if each not in self.refused]}
        if ":" in path:
            return self._policy(path, body.get("policy"))
        if path != f"projects/{self.name}":
            return _error(403, f"{path} may not exist", "IAM_PERMISSION_DENIED")
        return 200, {"projectId": self.name, "projectNumber": "123456789012"}

    def _compute(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> Answer:
        del method, query, body
        if "/regions/" in path:
            quotas = [
                {"metric": name, "limit": limit, "usage": self.used.get(name, 0.0)}
                for name, limit in self.quotas.items()
            ]
            return 200, {"quotas": quotas, "zones": [f"https://x/zones/{path.rpartition('/')[2]}-a"]}
        machine = path.rpartition("/")[2]
        known = self.machines is None or machine in self.machines
        return (200, {"name": machine}) if known else _error(404, path)

    def _iam(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> Answer:
        del query
        if method == "POST":
            email = f"{body['accountId']}@{self.name}.iam.gserviceaccount.com"
            return self._add(f"{path}/{email}", {**body["serviceAccount"], "email": email})
        return self._one(method, path)

    def _artifactregistry(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> Answer:
        if "/operations/" in path:
            return 200, {"name": path, "done": True, **self._failed.get(path, {})}
        if "IamPolicy" in path:
            return self._policy(path, body.get("policy"))
        operation = f"{path.partition('/repositories')[0]}/operations/{next(self._numbers)}"
        if method == "POST":
            repository = query["repositoryId"][0]
            status, made = self._add(f"{path}/{repository}", body)
            if status == 200 and repository in self.fails:
                del self.resources[f"{path}/{repository}"]
                self._failed[operation] = {"error": {"code": 8, "message": self.fails[repository]}}
        else:
            status, made = self._one(method, path)
        if status != 200 or method == "GET":
            return status, made
        return 200, {"name": operation}

    def _storage(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> Answer:
        if path.endswith("/o"):
            return 200, _listing(self.objects.get(path[2:-2], []), query)
        if path.endswith("/iam"):
            owner = path.removesuffix("/iam")
            return (
                self._policy(f"{owner}:iam", body or None) if owner in self.resources else _error(404, owner)
            )
        if path == "b":
            return self._add(f"b/{body['name']}", body)
        if method == "DELETE" and self.objects.get(path.removeprefix("b/")):
            return _error(409, "The bucket you tried to delete is not empty.")
        if method == "PATCH" and path in self.resources:
            self.resources[path].update(body)
        return self._one("GET" if method == "PATCH" else method, path)

    def _container(self, method: str, path: str, query: dict[str, list[str]], body: Json) -> Answer:
        del query
        self._progress()
        if "/operations/" in path:
            name = path.rpartition("/")[2]
            status = "RUNNING" if name in self._operations else "DONE"
            return 200, {"name": name, "operationType": "X", "status": status, **self._failed.get(name, {})}
        if method == "GET":
            return self._clusters(path)
        if method == "POST" and path.endswith("/clusters"):
            return self._make_cluster(path, body["cluster"])
        cluster = re.match(r".*/clusters/[^/:]+", path)
        if any(
            f"{work['path']}/".startswith(f"{cluster and cluster[0]}/")
            for _, work in self._operations.values()
        ):
            return _error(400, "Cluster is running incompatible operation 1.", "FAILED_PRECONDITION")
        if method == "POST" and path.endswith("/nodePools"):
            return self._make_pool(path, body["nodePool"])
        path, _, _ = path.partition(":")
        if path not in self.resources:
            return _error(404, path)
        if method == "DELETE":
            return self._operate(path, "STOPPING")
        update = body.get("update", {})
        fields = {key[7].lower() + key[8:]: value for key, value in update.items()}
        self.resources[path].update(fields or {"autoscaling": body.get("autoscaling")})
        return self._operate(path, "RECONCILING")

    def _clusters(self, path: str) -> Answer:
        """The list in every location, or one resource."""
        if not path.endswith("/locations/-/clusters"):
            return self._one("GET", path)
        found = [name for name in self.resources if re.fullmatch(r".*/clusters/[^/]+", name)]
        pools = {
            name: [pool for path, pool in self.resources.items() if path.startswith(f"{name}/nodePools/")]
            for name in found
        }
        return 200, {"clusters": [{**self.resources[name], "nodePools": pools[name]} for name in found]}

    def _make_cluster(self, parent: str, asked: Json) -> Answer:
        path = f"{parent}/{asked['name']}"
        pools = asked.get("nodePools", [])
        # Whatever it was asked by, GKE tells the last part of a network's name.
        networks = {key: asked.get(key, "default").rpartition("/")[2] for key in ("network", "subnetwork")}
        status, made = self._add(path, {**asked, **networks, "location": parent.split("/")[3]})
        if status != 200:
            return status, made
        for pool in pools:
            self._add(f"{path}/nodePools/{pool['name']}", {**pool, "status": "RUNNING"})
        return self._operate(path, "PROVISIONING")

    def _make_pool(self, parent: str, asked: Json) -> Answer:
        status, made = self._add(f"{parent}/{asked['name']}", dict(asked))
        return self._operate(f"{parent}/{asked['name']}", "PROVISIONING") if status == 200 else (status, made)

    def _operate(self, path: str, during: str) -> Answer:
        name = f"operation-{next(self._numbers)}"
        resource = self.resources[path]
        resource["status"] = during
        self._operations[name] = (self._now + _LATER, {"path": path, "resource": resource})
        return 200, {"name": name, "operationType": "X", "status": "RUNNING"}

    def _progress(self) -> None:
        for name, (due, work) in list(self._operations.items()):
            if self._now < due or work["resource"].get("name") in self.endless:
                continue
            del self._operations[name]
            if work["resource"]["status"] == "STOPPING":
                for path in [each for each in self.resources if f"{each}/".startswith(f"{work['path']}/")]:
                    del self.resources[path]
            elif why := self.fails.get(work["resource"].get("name", "")):
                work["resource"].update(status="ERROR", statusMessage=why)
                self._failed[name] = {"error": {"code": 8, "message": why}}
            else:
                work["resource"]["status"] = "RUNNING"

    def _policy(self, path: str, new: Json | None) -> Answer:
        owner = path.partition(":")[0]
        policy = self.policies.setdefault(owner, {"version": 1, "etag": "0", "bindings": []})
        if new is not None:
            if new.get("etag") != policy["etag"]:
                status = 412 if owner.startswith("b/") else 409
                return _error(status, "There were concurrent policy changes.", "ABORTED")
            policy = self.policies[owner] = {**new, "etag": str(next(self._numbers))}
        return 200, policy

    def _add(self, path: str, resource: Json) -> Answer:
        if path in self.resources:
            return _error(409, f"Already exists: {path}.")
        self.resources[path] = resource
        return 200, resource

    def _one(self, method: str, path: str) -> Answer:
        if path not in self.resources:
            return _error(404, f"Not found: {path}.")
        if method == "DELETE":
            self.policies.pop(path, None)
            return 200, self.resources.pop(path)
        return 200, self.resources[path]


def _listing(names: list[str], query: dict[str, list[str]]) -> Json:
    """Objects of a bucket, or what begins their names where the query has a delimiter."""
    found = [name for name in names if name.startswith(query.get("prefix", [""])[0])]
    if "delimiter" in query:
        return {"prefixes": sorted({f"{name.partition('/')[0]}/" for name in found if "/" in name})}
    return {"items": [{"name": name} for name in found[: int(query.get("maxResults", ["1000"])[0])]]}


def _error(status: int, message: str, reason: str = "") -> Answer:
    details = [{"reason": reason}] if reason in ("SERVICE_DISABLED", "IAM_PERMISSION_DENIED") else []
    return status, {"error": {"code": status, "message": message, "status": reason, "details": details}}


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
