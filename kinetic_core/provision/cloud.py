"""Sending requests of the planner's kind: to Google's services, to the cluster, to a bucket's contents."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.connections import Connections
from kinetic_core.errors import (
    CloudError,
    CloudUnreachable,
    ClusterError,
    ConfigurationError,
    StoreError,
    StoreRefused,
)
from kinetic_core.google_cloud import Ask, GoogleService
from kinetic_core.provision.resources import Json, Request
from kinetic_core.retry import pauses

_LONGEST_OPERATION = 3600.0
_OPERATION = re.compile(r"(.+/)?operations/.")
"""Names of operations: `operations/ID`, or `projects/P/locations/L/operations/ID`."""
_CODES = {5: 404, 6: 409, 7: 403, 8: 429}
"""Of google.rpc.Code, those that say more than "failed"."""


@dataclass
class Cloud:
    """The way to a cluster and its project. `kubernetes` gives the cluster's API, without patience of its
    own, and `empty` clears a bucket.
    """

    location: str
    """`projects/P/locations/L` of the cluster, where its operations are."""
    kubernetes: Callable[[], ClusterApi]
    empty: Callable[[str], object]
    connections: Connections
    ask: Ask | None = None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _services: dict[str, GoogleService] = field(default_factory=dict)

    def read(self, request: Request) -> Json | None:
        """What there is, with all pages of a list; None for nothing, also where the API is not enabled yet.

        Raises CloudError.
        """
        if request.service == "kubernetes":
            return self.service("container").patiently(lambda: self._kubernetes(request))
        service = self.service(request.service)

        def page(token: str) -> Json:
            join = "&" if "?" in request.path else "?"
            path = f"{request.path}{join}pageToken={quote(token, safe='')}" if token else request.path
            return service.patiently(lambda: service.send(request.method, path, request.body))

        try:
            found = page("")
        except CloudError as exc:
            if exc.status == 404 or exc.reason == "SERVICE_DISABLED":
                return None
            raise
        while token := found.pop("nextPageToken", ""):
            more = page(token)
            lists = {
                key: [*found.get(key, ()), *each] for key, each in more.items() if isinstance(each, list)
            }
            found |= {**lists, "nextPageToken": more.get("nextPageToken", "")}
        return found

    def do(self, request: Request) -> None:
        """Send a request that changes something, once, and wait until it is done. Raises CloudError."""
        if request.service == "kubernetes":
            self._kubernetes(request)
        elif request.service == "objects":
            self._empty(request.path)
        else:
            answer = self.service(request.service).send(request.method, request.path, request.body)
            self._wait(request.service, answer)

    def service(self, name: str) -> GoogleService:
        """Google's service of that name."""
        return self._services.setdefault(
            name, GoogleService(name, self.connections, self.ask, self.sleep, self.clock)
        )

    @cached_property
    def cluster(self) -> ClusterApi:
        return self.kubernetes()

    def items(self, kind: str, namespace: str, selector: str) -> list[Json]:
        """The objects of the cluster with these labels.

        Raises CloudError, ConfigurationError where there is no cluster.
        """

        def listed() -> list[Json]:
            with _told():
                return list(self.cluster.list(kind, namespace, {"labelSelector": selector})["items"])

        return self.service("container").patiently(listed)

    def _empty(self, bucket: str) -> None:
        """Clear a bucket, with the store's errors as the cloud's; one that has gone is empty."""
        try:
            self.empty(bucket)
        except StoreRefused as exc:
            raise CloudError(str(exc), 403) from exc
        except StoreError as exc:
            raise CloudUnreachable(str(exc)) from exc
        except ConfigurationError:
            if self.read(Request("storage", "GET", f"b/{bucket}")) is not None:
                raise

    def _kubernetes(self, request: Request) -> Json | None:
        kind, namespace, name = request.path.split("/")
        with _told():
            if request.method == "POST":
                return self.cluster.create(kind, namespace, request.body or {})
            if request.method in ("APPLY", "REAPPLY"):
                force = request.method == "REAPPLY"
                return self.cluster.apply(kind, namespace, name, request.body or {}, force=force)
            if request.method == "PATCH":
                return self.cluster.patch(kind, namespace, name, request.body or {})
            if request.method == "DELETE":
                self.cluster.delete(kind, namespace, name)
                return None
            return self.cluster.get(kind, namespace, name)

    def _wait(self, service: str, answer: Json) -> None:
        """Wait until a long operation is done; an answer that is none is complete already."""
        gke = "operationType" in answer
        # One that goes on may have no `done`: the JSON of protocol buffers leaves out what is false.
        if not gke and not _OPERATION.match(str(answer.get("name", ""))):
            return
        path = f"{self.location}/operations/{answer['name']}" if gke else str(answer["name"])
        give_up, waits = self.clock() + _LONGEST_OPERATION, pauses(0.1, 5.0)
        while not (answer.get("done") or answer.get("status") == "DONE"):
            if self.clock() > give_up:
                raise CloudError(
                    f"{path} goes on for an hour; look at it in the console, then run this again"
                )
            self.sleep(next(waits))
            answer = self.service(service).get(path) or {"done": True}
        if failure := answer.get("error"):
            raise _failed(failure)


@contextmanager
def _told() -> Iterator[None]:
    """The cluster's errors as the cloud's."""
    try:
        yield
    except ClusterError as exc:
        failure = CloudUnreachable if exc.is_passing else CloudError
        raise failure(str(exc), exc.status or 0) from exc


def _failed(failure: dict[str, Any]) -> CloudError:
    return CloudError(str(failure.get("message")), _CODES.get(failure.get("code", 0), 0), "OPERATION_FAILED")
