"""Kubernetes objects in memory, as the API server keeps them: versions, uids, conflicts, history."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

Object = dict[str, Any]
_Json = TypeVar("_Json", Object, list[Object])
Change = tuple[int, str, Object]
"""A resource version, ADDED, MODIFIED or DELETED, and the object as it then was."""

_GROUPS = {"Job": "jobs.batch", "Role": "roles.rbac.authorization.k8s.io"}
_FIRST_STATUS: Object = {
    "Job": {},
    "Pod": {"phase": "Pending"},
    "Namespace": {"phase": "Active"},
    "Deployment": {"observedGeneration": 1, "availableReplicas": 1},  # its pods are imagined
}
_KEPT = 10_000


class Refused(Exception):
    """The API server's answer to a request it does not fulfil; `status` is its JSON."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class KubeObjects:
    """Objects by kind, namespace ("" for those of the whole cluster) and name. What comes out are copies.

    `changed` is notified after every change; hold it to read several things as they are at one moment.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._history: deque[Change] = deque(maxlen=_KEPT)
        self._version = 1000
        self._forgotten = 1000

    def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> Object:
        """Add an object; sets what the server sets. Raises Refused: 404, 409, 422."""
        with self.changed:
            item = copied(dict(body))
            facts = item.setdefault("metadata", {})
            name = facts.get("name")
            if not name:
                raise Refused(422, "Invalid", f"{kind} is invalid: metadata.name: Required value")
            if namespace and ("Namespace", "", namespace) not in self._objects:
                raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
            if (kind, namespace, name) in self._objects:
                raise Refused(409, "AlreadyExists", f"{_named(kind, name)} already exists")
            item["kind"] = kind
            if kind in _FIRST_STATUS:
                item["status"] = dict(_FIRST_STATUS[kind])
            facts |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp(), "generation": 1}
            if namespace:
                facts["namespace"] = namespace
            self._objects[kind, namespace, name] = item
            return self._note("ADDED", item)

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """One object. Raises Refused: 404."""
        with self.changed:
            return copied(self._find(kind, namespace, name))

    def list(self, kind: str, namespace: str) -> tuple[int, list[Object]]:
        """The version now, and all objects of a kind, of every namespace if that is ""."""
        with self.changed:
            found = [
                item
                for (its_kind, place, _), item in sorted(self._objects.items(), key=lambda pair: pair[0])
                if its_kind == kind and namespace in ("", place)
            ]
            return self._version, copied(found)

    def change(self, kind: str, namespace: str, name: str, edit: Callable[[Object], None]) -> Object:
        """Edit an object in place; a new version, unless nothing is different. Raises Refused: 404."""
        with self.changed:
            item = self._find(kind, namespace, name)
            edited = copied(item)
            edit(edited)
            if edited == item:
                return edited
            self._objects[kind, namespace, name] = edited
            return self._note("MODIFIED", edited)

    def remove(self, kind: str, namespace: str, name: str, uid: str | None = None) -> Object:
        """Take an object away, now. Raises Refused: 404, and 409 if it is not the one with this uid."""
        with self.changed:
            item = self._find(kind, namespace, name)
            if uid not in (None, item["metadata"]["uid"]):
                text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
                raise Refused(
                    409, "Conflict", f"Operation cannot be fulfilled on {_named(kind, name)}: {text}"
                )
            del self._objects[kind, namespace, name]
            return self._note("DELETED", item)

    def changes(
        self, kind: str, namespace: str, version: int, seconds: float
    ) -> tuple[int, Sequence[Change]]:
        """What changed after a version, awaited for at most so long, and the version up to which that is all.

        Raises Refused with 410 if that is not known any more.
        """
        with self.changed:
            if version < self._forgotten:
                text = f"too old resource version: {version} ({self._forgotten})"
                raise Refused(410, "Expired", text)
            self.changed.wait_for(lambda: self._version > version, seconds)
            found = [
                change
                for change in self._history
                if change[0] > version
                and change[2]["kind"] == kind
                and namespace in ("", change[2]["metadata"].get("namespace", ""))
            ]
            return self._version, found

    def forget(self) -> None:
        """Forget the history, as a server does after a while: watches from before now get 410."""
        with self.changed:
            self._version += 1
            self._history.clear()
            self._forgotten = self._version
            self.changed.notify_all()

    def _find(self, kind: str, namespace: str, name: str) -> Object:
        try:
            return self._objects[kind, namespace, name]
        except KeyError:
            raise Refused(404, "NotFound", f"{_named(kind, name)} not found") from None

    def _note(self, event: str, item: Object) -> Object:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        if len(self._history) == self._history.maxlen:
            self._forgotten = self._history[0][0]
        self._history.append((self._version, event, copied(item)))
        self.changed.notify_all()
        return copied(item)


def copied(value: _Json) -> _Json:
    """Return a copy of what JSON can say, as objects of a cluster are. `copy.deepcopy` takes far longer."""
    copy: _Json = json.loads(json.dumps(value))
    return copy


def timestamp() -> str:
    """Now, in whole seconds, as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _named(kind: str, name: str) -> str:
    return f'{_GROUPS.get(kind, kind.lower() + "s")} "{name}"'


ObjectView = Mapping[str, Any]

_TERM = re.compile(
    r"\s*(?P<absent>!)?(?P<name>[^\s,=!()]+)\s*"
    r"(?:(?P<relation>==?|!=|in|notin)\s*(?:\((?P<several>[^)]*)\)|(?P<value>[^,]*)))?\s*(?:,|$)"
)


def selected(item: ObjectView, query: Mapping[str, str]) -> bool:
    """Whether an object has the labels and fields that a query's selectors ask for."""
    labels = item["metadata"].get("labels") or {}
    return _fits(query.get("labelSelector", ""), labels.get) and _fits(
        query.get("fieldSelector", ""), lambda path: _field(item, path)
    )


def _fits(selector: str, find: Callable[[str], Any]) -> bool:
    return all(_holds(term, find(term["name"])) for term in _TERM.finditer(selector))


def _holds(term: re.Match[str], found: Any) -> bool:
    relation = term["relation"]
    if relation is None:
        return (found is None) == bool(term["absent"])
    wanted = [term["value"]] if term["several"] is None else term["several"].split(",")
    return (found in [value.strip() for value in wanted]) == (relation in ("=", "==", "in"))


def _field(item: ObjectView, path: str) -> Any:
    found: Any = item
    for name in path.split("."):
        found = (found or {}).get(name)
    return found


def merge(item: Object, patch: Mapping[str, Any]) -> None:
    """A JSON merge patch (RFC 7396)."""
    for key, value in patch.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict):
            if not isinstance(item.get(key), dict):
                item[key] = {}
            merge(item[key], value)
        else:
            item[key] = value


def applied(
    objects: KubeObjects, kind: str, namespace: str, name: str, body: Object, query: Mapping[str, str]
) -> tuple[int, Object]:
    """Server-side apply: status and object. Lists are whole values here, and fields that were left out stay.
    Of a dry run, the answer is what is there now, or what was asked for.

    Raises Refused with 409 for fields that are somebody else's.
    """
    manager = query["fieldManager"]
    with objects.changed:
        try:
            there = objects.get(kind, namespace, name)
        except Refused:
            if query.get("dryRun"):
                return 201, body
            mine = {"manager": manager, "operation": "Apply"}
            facts = {**body.get("metadata", {}), "managedFields": [mine]}
            return 201, objects.create(kind, namespace, {**body, "metadata": facts})
        managers = {each["manager"] for each in there["metadata"].get("managedFields", ())}
        taken = [] if manager in managers or query.get("force") == "true" else [*_conflicts(body, there)]
        if taken:
            text = f"Apply failed with {len(taken)} conflict(s): {', '.join(taken)}"
            raise Refused(409, "Conflict", text)
        if query.get("dryRun"):
            return 200, there
        entry = {"manager": manager, "operation": "Apply"}

        def edit(item: Object) -> None:
            merge(item, body)
            entries = item["metadata"].setdefault("managedFields", [])
            if entry not in entries:
                entries.append(entry)

        return 200, objects.change(kind, namespace, name, edit)


def _conflicts(body: Mapping[str, Any], there: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The fields that are there with another value."""
    for key, value in body.items():
        if key not in there:
            continue
        if isinstance(value, dict) and isinstance(there[key], dict):
            yield from _conflicts(value, there[key], f"{path}.{key}")
        elif there[key] != value:
            yield f"{path}.{key}"
