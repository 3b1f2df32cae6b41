"""A Kubernetes cluster in this process: an HTTP server that real clients talk to, and pods that pretend.

    with FakeCluster(lambda pod: exits(1) if Pod(pod).attempt == 0 else succeeds()) as cluster:
        api = ClusterApi(Target(str(cluster.write_kubeconfig(tmp_path / "kubeconfig"))))

Jobs, Pods, Events and whatever else `ClusterApi` knows are listed, watched, created, patched and deleted as
on a real cluster; Indexed Jobs get their pods from `JobController`; what a pod does is a `PodBehaviour`.
`faults` scripts what goes wrong with requests. The same contract tests run against a real cluster.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit

from kinetic_core.testing.fault_proxy import write_kubeconfig
from kinetic_core.testing.faulty_server import FaultyHandler, FaultyServer
from kinetic_core.testing.job_controller import JobController, delete_pod, owned_pods
from kinetic_core.testing.kube_objects import KubeObjects, Object, Refused, applied, merge, selected
from kinetic_core.testing.kubelet import Behave, Kubelet, disrupted, succeeds

_PLACE = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
_KINDS = {
    "apiservices": "APIService",
    "clusterroles": "ClusterRole",
    "clusterrolebindings": "ClusterRoleBinding",
    "configmaps": "ConfigMap",
    "customresourcedefinitions": "CustomResourceDefinition",
    "deployments": "Deployment",
    "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
    "services": "Service",
    "validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
    "namespaces": "Namespace",
    "nodes": "Node",
    "jobs": "Job",
    "pods": "Pod",
    "events": "Event",
    "leaderworkersets": "LeaderWorkerSet",
    "resourcequotas": "ResourceQuota",
    "roles": "Role",
    "rolebindings": "RoleBinding",
    "secrets": "Secret",
    "serviceaccounts": "ServiceAccount",
}
_IDLE_SECONDS = 0.1
"""How long the end of the cluster may go unnoticed."""


@dataclass(frozen=True)
class _Asked:
    """A request, taken apart."""

    kind: str
    namespace: str
    name: str
    part: str
    query: Mapping[str, str]
    body: Object


class _Api(FaultyHandler):
    """The REST paths of Kubernetes."""

    def serve(self, body: bytes, passed: int) -> None:
        cluster = cast("FakeCluster", self.owner)
        try:
            asked = _asked(self.path, body[:passed])
            if self.command == "GET" and not asked.name and asked.query.get("watch") == "true":
                self._watch(cluster.objects, asked)
                return
            if asked.part == "log":
                self._send(200, cluster.log(asked.namespace, asked.name), "text/plain")
                return
            status, found = cluster.answer(self.command, asked)
        except Refused as exc:
            status, found = exc.status["code"], exc.status
        self._send(status, json.dumps(found).encode())

    def _send(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.reply(status, [("Content-Type", kind)], len(content))
        self.write(content)

    def _watch(self, objects: KubeObjects, asked: _Asked) -> None:
        end = time.monotonic() + float(asked.query.get("timeoutSeconds") or 3600)
        version = int(asked.query.get("resourceVersion") or 0)
        self.reply(200, [("Content-Type", "application/json")], None)
        if version == 0:
            version, there = objects.list(asked.kind, asked.namespace)
            self._events([("ADDED", item) for item in there], asked)
        while (left := end - time.monotonic()) > 0 and not self.owner.closing.is_set():
            try:
                version, found = objects.changes(
                    asked.kind, asked.namespace, version, min(left, _IDLE_SECONDS)
                )
            except Refused as exc:
                self._event("ERROR", exc.status)
                break
            self._events([change[1:] for change in found], asked)
        else:
            if asked.query.get("allowWatchBookmarks") == "true":
                facts = {"resourceVersion": str(version), "creationTimestamp": None}
                self._event("BOOKMARK", {"kind": asked.kind, "metadata": facts})
        self.write(b"")

    def _events(self, found: list[tuple[str, Object]], asked: _Asked) -> None:
        for event, item in found:
            if selected(item, asked.query):
                self._event(event, item)

    def _event(self, kind: str, item: Object) -> None:
        self.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")


class FakeCluster(FaultyServer):
    """Listens on `host`. `behave` says of each new pod what it does; the default is to succeed at once.

    `objects` are all that exist: put in, or change, what a test needs. `namespaces` exist from the start.
    """

    handler = _Api

    def __init__(
        self,
        behave: Behave = lambda _pod: succeeds(),
        *,
        namespaces: tuple[str, ...] = ("default",),
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.objects = KubeObjects()
        for name in namespaces:
            self.objects.create("Namespace", "", {"metadata": {"name": name}})
        self._kubelet = Kubelet(self.objects, behave)
        self._controller = JobController(self.objects)
        self._frozen = Event()
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self.refused: list[str] = []
        """Writes that came while the cluster was frozen: method, kind and name."""
        super().__init__(host=host, port=port)
        self._loop = Thread(target=self._run, name="kinetic-fake-cluster", daemon=True)
        self._loop.start()

    def freeze(self) -> None:
        """Let nothing change any more: pods and Jobs stay as they are, and every write is refused with 405.

        `objects` can still be edited.
        """
        with self.objects.changed:
            self._frozen.set()

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig for this cluster."""
        return write_kubeconfig(path, self.url)

    def close(self) -> None:
        """Stop everything."""
        self.closing.set()
        with self.objects.changed:
            self.objects.changed.notify_all()
        super().close()
        self._loop.join()

    def log(self, namespace: str, name: str) -> bytes:
        """What a pod's container has printed. Raises Refused if it has not started, or there is none."""
        return self._kubelet.log(self.objects.get("Pod", namespace, name))

    def answer(self, method: str, asked: _Asked) -> tuple[int, Object]:
        """The status and the object that answer a request which is not a stream. Raises Refused."""
        kind, namespace, name = asked.kind, asked.namespace, asked.name
        if method != "GET" and self._frozen.is_set():
            self.refused.append(f"{method} {kind} {name}".rstrip())
            raise Refused(405, "MethodNotAllowed", f"{method} of a {kind}: the cluster is frozen")
        if method == "POST" and asked.part == "eviction":
            return 201, self._evict(namespace, name)
        if method == "POST":
            return 201, self.objects.create(kind, namespace, asked.body)
        if method == "PATCH" and "fieldManager" in asked.query:
            return applied(self.objects, kind, namespace, name, asked.body, asked.query)
        if method == "PATCH":
            return 200, self.objects.change(kind, namespace, name, lambda item: merge(item, asked.body))
        if method == "DELETE" and name:
            return 200, self.delete(kind, namespace, name, asked.body)
        if name:
            return 200, self.objects.get(kind, namespace, name)
        if token := asked.query.get("continue"):
            version, chosen = self._continued(token)
        else:
            version, found = self.objects.list(kind, namespace)
            chosen = [item for item in found if selected(item, asked.query)]
        limit = int(asked.query.get("limit") or len(chosen))
        facts = {"resourceVersion": str(version)}
        if chosen[limit:]:
            facts["continue"] = str(uuid.uuid4())
            self._pages[facts["continue"]] = version, chosen[limit:]
        if method == "DELETE":
            for item in chosen[:limit]:
                self.delete(kind, namespace, item["metadata"]["name"], asked.body)
        return 200, {"kind": f"{kind}List", "metadata": facts, "items": chosen[:limit]}

    def _continued(self, token: str) -> tuple[int, list[Object]]:
        """The version and the items of a list after those that were read. Raises Refused: 410."""
        try:
            return self._pages[token]
        except KeyError:
            raise Refused(410, "Expired", "The provided continue parameter is too old") from None

    def delete(self, kind: str, namespace: str, name: str, options: Object) -> Object:
        """Delete an object as a request with these options does."""
        uid = (options.get("preconditions") or {}).get("uid")
        with self.objects.changed:
            item = self.objects.get(kind, namespace, name)
            if kind == "Pod" and uid in (None, item["metadata"]["uid"]):
                delete_pod(self.objects, item)
                return item
            if kind == "Job" and options.get("propagationPolicy") != "Orphan":
                self.objects.remove(kind, namespace, name, uid)
                for pod in owned_pods(self.objects, item):
                    delete_pod(self.objects, pod)
                return item
            return self.objects.remove(kind, namespace, name, uid)

    def _evict(self, namespace: str, name: str) -> Object:
        def edit(item: Object) -> None:
            item.setdefault("status", {}).setdefault("conditions", []).append(
                disrupted("EvictionByEvictionAPI")
            )

        delete_pod(self.objects, self.objects.change("Pod", namespace, name, edit))
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _run(self) -> None:
        """The scheduler, the kubelet and the Job controller."""
        while not self.closing.is_set():
            with self.objects.changed:
                if self._frozen.is_set():
                    return
                before = self.objects.list("Job", "")[0]
                waits = [self._kubelet.advance(pod) for pod in self.objects.list("Pod", "")[1]]
                waits += [self._controller.reconcile(job) for job in self.objects.list("Job", "")[1]]
                if self.objects.list("Job", "")[0] == before:
                    self.objects.changed.wait(min([_IDLE_SECONDS, *waits]))


def _asked(path: str, body: bytes) -> _Asked:
    url = urlsplit(path)
    found = _PLACE.fullmatch(url.path)
    if found is None or found["kind"] not in _KINDS:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    query = {name: values[-1] for name, values in parse_qs(url.query).items()}
    try:
        content: Any = json.loads(body or b"{}")
    except ValueError as exc:
        raise Refused(400, "BadRequest", f"the body of the request is not JSON: {exc}") from None
    return _Asked(
        _KINDS[found["kind"]],
        unquote(found["namespace"] or ""),
        unquote(found["name"] or ""),
        found["part"] or "",
        query,
        content,
    )
