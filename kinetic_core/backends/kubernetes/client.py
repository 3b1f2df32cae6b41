"""Client of a Kubernetes API server, for the few requests that jobs need, with plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from kinetic_core.backends.kubernetes.connection import Target, connection, renew
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError
from kinetic_core.retry import patiently
from kinetic_core.settings import Settings

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_PATHS = {
    "APIGroup": "/apis{}",
    "APIService": "/apis/apiregistration.k8s.io/v1/apiservices{}",
    "ClusterRole": f"{_RBAC}/clusterroles{{}}",
    "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings{{}}",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions{}",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Namespace": "/api/v1/namespaces{}",
    "Node": "/api/v1/nodes{}",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Event": "/api/v1/namespaces/{}/events",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets",
    "MutatingWebhookConfiguration": f"{_WEBHOOKS}/mutatingwebhookconfigurations{{}}",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "Role": f"{_RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{_RBAC}/namespaces/{{}}/rolebindings",
    "SelfSubjectAccessReview": "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews{}",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ValidatingWebhookConfiguration": f"{_WEBHOOKS}/validatingwebhookconfigurations{{}}",
    "LocalQueue/v1beta1": "/apis/kueue.x-k8s.io/v1beta1/namespaces/{}/localqueues",
    "LocalQueue/v1beta2": "/apis/kueue.x-k8s.io/v1beta2/namespaces/{}/localqueues",
}


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Return the path of an object, or of all objects of a kind.

    `namespace` is "" for cluster-wide objects, and for the objects of every namespace.
    """
    form = _PATHS[kind] if namespace else _PATHS[kind].replace("/namespaces/{}", "")
    path = form.format(quote(namespace, safe=""))
    return f"{path}/{quote(name, safe='')}" if name else path


Object = dict[str, Any]
MakeObject = Callable[[list[tuple[str, Any]]], Object]
"""Makes an object of JSON from its pairs, the objects in it before the object itself."""

CONNECT_SECONDS = 5.0
READ_SECONDS = 20.0
PATIENCE = 30.0
"""Seconds for which a repeatable request is repeated."""
_MANAGER = "kinetic"
"""Manager of the fields that have been applied."""


class Expired(ClusterError):
    """The resource version is too old (410): list again."""


class SilentLog(Exception):
    """No byte of a log has come for a time: its container prints nothing, or the connection is dead."""


class ClusterApi:
    """Client of one API server. Objects go in and come out as the plain data of Kubernetes' JSON.

    Raises ClusterError for a request that the server refuses or cannot serve now, ClusterUnreachable if it
    does not answer; both name the request.
    """

    def __init__(
        self, target: Target, connections: Connections | None = None, patience: float = PATIENCE
    ) -> None:
        """Connect lazily. Without `connections`, the client has its own."""
        self._target = target
        self._connections = connections or Connections(Settings())
        self._patience = patience

    @property
    def server(self) -> str:
        """Return the address of the API server."""
        return connection(self._target, self._connections).host

    def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> Object:
        """POST a namespaced object."""
        return self.call("POST", path_of(kind, namespace), body)

    def create_or_read(self, kind: str, namespace: str, body: Mapping[str, Any]) -> tuple[Object, bool]:
        """Create an object, or read the one that has its name; return it, and whether this call created it.

        An object whose creation got no answer counts as one that was there: another may have created it.
        """
        try:
            return self.create(kind, namespace, body), True
        except ClusterError as exc:
            may_exist = exc.status == 409 or exc.is_passing
            found = self.get(kind, namespace, body["metadata"]["name"]) if may_exist else None
            if found is None:
                raise
            return found, False

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """GET one object; None if there is none."""
        try:
            return self.call("GET", path_of(kind, namespace, name))
        except ClusterError as exc:
            if exc.status == 404:
                return None
            raise

    def list(
        self,
        kind: str,
        namespace: str,
        query: Mapping[str, str] | None = None,
        make_object: MakeObject | None = None,
        page_size: int | None = None,
    ) -> Object:
        """Return a whole list: `items`, and `metadata.resourceVersion` to watch from; `query` selects.

        With a `page_size` the list is read by requests for at most so many items, all as of one version.
        Raises Expired if the server has forgotten that version meanwhile.
        """
        selected = dict(query or {}) | ({} if page_size is None else {"limit": str(page_size)})
        items: list[Object] = []
        token = ""
        while True:
            asked = {**selected, "continue": token}
            page = self.call("GET", path_of(kind, namespace), query=asked, make_object=make_object)
            items += page["items"]
            token = page["metadata"].get("continue") or ""
            if page_size is None or not token:
                return {**page, "items": items}

    def patch(
        self, kind: str, namespace: str, name: str, body: Mapping[str, Any], part: str = ""
    ) -> Object | None:
        """Apply a merge patch to an object or its subresource `part`; return None if it does not exist."""
        path = path_of(kind, namespace, name) + (f"/{part}" if part else "")
        try:
            return self.call("PATCH", path, body)
        except ClusterError as exc:
            if exc.status == 404:
                return None
            raise

    def apply(
        self,
        kind: str,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Apply an object server-side: create it, or set its fields to those of `body`, and remove the fields
        that an earlier call set and `body` leaves out.

        Raises ClusterError (409) if somebody else has set a field to another value, unless `force`. With
        `dry_run` the server only returns what the object would become.
        """
        query = {"fieldManager": _MANAGER, "force": "true" if force else ""}
        return self.call(
            "PATCH", path_of(kind, namespace, name), body, {**query, "dryRun": "All" if dry_run else ""}
        )

    def delete(
        self, kind: str, namespace: str, name: str, uid: str | None = None, grace: int | None = None
    ) -> bool:
        """DELETE an object with its dependents; return False if the object does not exist (any more).

        `grace`: seconds, in place of the object's own.
        """
        body: Object = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            self.call("DELETE", path_of(kind, namespace, name), body)
        except ClusterError as exc:
            if exc.status in (404, 409):
                return False
            raise
        return True

    def delete_all(self, kind: str, namespace: str, selector: str) -> None:
        """DELETE all objects with these labels, and their dependents."""
        body = {"propagationPolicy": "Background"}
        self.call("DELETE", path_of(kind, namespace), body, {"labelSelector": selector})

    def versions(self, group: str) -> frozenset[str]:
        """Return the server's versions of an API group, such as `v1` of `batch`; none if unknown."""
        found = self.get("APIGroup", "", group) or {}
        return frozenset(each["version"] for each in found.get("versions") or ())

    def may(self, verb: str, group: str, resource: str, namespace: str, name: str = "") -> bool:
        """Return whether this account may do that, to the object of that name if one is given.

        `resource` may be a subresource, such as `pods/log`.
        """
        whole, _, part = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": whole, "subresource": part, "namespace": namespace}
        asked |= {"name": name} if name else {}
        review = {"spec": {"resourceAttributes": asked}}
        return bool(self.create("SelfSubjectAccessReview", "", review)["status"]["allowed"])

    def service_account(self, namespace: str) -> str:
        """Return the service account of jobs: `kinetic`, or `default` where that is absent or hidden."""
        try:
            found = self.get("ServiceAccount", namespace, "kinetic")
        except ClusterError as exc:
            if exc.status != 403:
                raise
            found = None
        return "default" if found is None else "kinetic"

    def version(self) -> str:
        """Return the server's Kubernetes version, such as `1.34`."""
        told = self.call("GET", "/version")
        return f"{told['major']}.{str(told['minor']).rstrip('+')}"

    def watch(
        self,
        kind: str,
        namespace: str,
        selectors: Mapping[str, str],
        version: str,
        seconds: float,
        make_object: MakeObject | None = None,
    ) -> Iterator[tuple[str, Object]]:
        """Yield events after a resource version: (ADDED, MODIFIED, DELETED or BOOKMARK; object), for a time.

        Ends by itself after `seconds`. Raises Expired, and as every request does.
        """
        query = {
            **selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(round(seconds)),
        }
        with self._told("GET", path_of(kind, namespace)):
            response = self._request("GET", path_of(kind, namespace), None, query, seconds + READ_SECONDS)
            try:
                for line in _lines(response):
                    event = json.loads(line, object_pairs_hook=make_object)
                    if event["type"] == "ERROR":
                        if event["object"].get("code") == 410:
                            raise Expired(event["object"].get("message") or "too old")
                        raise ClusterError(str(event["object"].get("message")), event["object"].get("code"))
                    yield event["type"], event["object"]
            finally:
                response.release_conn()
                response.close()

    def pod_log(self, namespace: str, pod: str, container: str) -> bytes | None:
        """Return the log that the node has of a container; None if the node has none (yet, or any more)."""
        path = path_of("Pod", namespace, pod) + "/log"
        try:
            with self._told("GET", path):
                response = self._request("GET", path, None, {"container": container}, READ_SECONDS)
                return bytes(response.data)
        except ClusterError as exc:
            if exc.status in (400, 404):
                return None
            raise

    def follow_pod_log(
        self, namespace: str, pod: str, container: str, silent_seconds: float
    ) -> Iterator[bytes]:
        """Yield the container's log as it grows, from its start, until container or connection ends.

        Raises SilentLog if no byte comes for `silent_seconds`: an end of the connection that nobody told this
        machine of looks like a container that prints nothing.
        """
        import urllib3.exceptions

        path, query = path_of("Pod", namespace, pod) + "/log", {"container": container, "follow": "true"}
        with self._told("GET", path):
            try:
                response = self._request("GET", path, None, query, silent_seconds)
                try:
                    yield from response.stream(1 << 16)
                finally:
                    response.release_conn()
                    response.close()
            except urllib3.exceptions.ReadTimeoutError as exc:
                raise SilentLog(f"GET {path}: nothing came for {silent_seconds:g} s") from exc

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        make_object: MakeObject | None = None,
    ) -> Object:
        """Send a request and return the answer's object; all but POST is repeated while it fails."""

        def send() -> Object:
            with self._told(method, path):
                response = self._request(method, path, body, query or {}, READ_SECONDS)
                found: Object = json.loads(response.data, object_pairs_hook=make_object)
                return found

        return send() if method == "POST" else patiently(send, self._patience)

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        read_seconds: float | None,
    ) -> Any:
        """Send a request and return the answer, its body not read yet; an expired token is renewed once."""
        import urllib3

        server = connection(self._target, self._connections)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        if "fieldManager" in query:
            kind = "application/apply-patch+yaml"  # of which JSON is a part
        url = server.host + path
        if asked := {key: value for key, value in query.items() if value}:
            url += "?" + urlencode(asked)
        content = None if body is None else json.dumps(dict(body))
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds)
        for may_renew in (True, False):
            headers = {"Accept": "application/json", "Content-Type": kind, **server.headers()}
            response = server.pool.request(
                method, url, body=content, headers=headers, timeout=timeout, preload_content=False
            )
            if response.status != 401:
                break
            _ = response.data  # read before a renewal that may fail, so that the connection is free
            if not may_renew or not renew(self._target, self._connections):
                break
        if not 200 <= response.status < 300:
            raise refusal(response.status, response.data, f"{method} {path}")
        return response

    @contextmanager
    def _told(self, method: str, path: str) -> Iterator[None]:
        """Translate the client's errors into Kinetic's."""
        import urllib3.exceptions

        try:
            yield
        except urllib3.exceptions.SSLError as exc:
            raise ConfigurationError(f"{method} {path}: {self.server}: {exc}") from exc
        except urllib3.exceptions.HTTPError as exc:
            raise ClusterUnreachable(
                f"{method} {path}: the API server at {self.server} does not answer: {_root(exc)}"
            ) from exc


def refusal(status: int, body: bytes, what: str) -> ClusterError:
    """Build the error for an answer of the API server that is not a success; `what` names the request."""
    text = body.decode(errors="replace")
    try:
        text = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        text = text.strip()[:500]
    if status == 410:
        return Expired(text, status)
    return ClusterError(f"{what}: {text} (HTTP {status})", status)


def _root(exc: BaseException) -> str:
    reason = getattr(exc, "reason", None)
    return str(reason if isinstance(reason, BaseException) else exc)


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    for piece in response.stream(1 << 16, decode_content=False):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line for line in lines if line)
