"""A bucket's IAM policy, enforced: by Cloud Storage's documented meaning of roles and conditions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen

from kinetic_core.testing.fault_proxy import FaultProxy, Relay

_VERBS = {
    "roles/storage.objectViewer": {"get", "list"},
    "roles/storage.objectCreator": {"create"},
    "roles/storage.objectUser": {"get", "list", "create", "delete", "update"},
}
"""The permissions `storage.objects.*` of the roles that we give."""
_WORDS = (
    ("api.getAttribute('storage.googleapis.com/objectListPrefix', '')", "listing"),
    ("resource.name", "name"),
    ("startsWith", "startswith"),
    ("endsWith", "endswith"),
    ("||", " or "),
    ("&&", " and "),
    ("!", " not "),
)
"""The little of CEL that our conditions have, as Python."""


class BucketPolicy:
    """What the bindings of a bucket's policy allow."""

    def __init__(self, bucket: str, bindings: Sequence[Mapping[str, Any]]) -> None:
        self.bucket = bucket
        self._bindings = bindings

    def allows(self, member: str, verb: str, name: str, listing: str = "") -> bool:
        """Whether a member has `storage.objects.{verb}` for an object of that name."""
        bucket = f"projects/_/buckets/{self.bucket}"
        resource = f"{bucket}/objects/{name}" if name else bucket
        return any(
            member in binding["members"]
            and verb in _VERBS.get(binding["role"], ())
            and _holds((binding.get("condition") or {}).get("expression"), resource, listing)
            for binding in self._bindings
        )


def _holds(expression: str | None, name: str, listing: str) -> bool:
    if expression is None:
        return True
    for word, python in _WORDS:
        expression = expression.replace(word, python)
    return bool(eval(expression, {"__builtins__": {}}, {"name": name, "listing": listing}))


class _Guarded(Relay):
    def serve(self, body: bytes, passed: int) -> None:
        owner = cast("PolicyProxy", self.owner)
        if why := owner.refusal(self.client_address[0], self.command, self.path, body):
            owner.refused.append(why)
            text = json.dumps({"error": {"code": 403, "message": why}}).encode()
            self.reply(403, [("Content-Type", "application/json")], len(text))
            self.write(text)
            return
        super().serve(body, passed)


class PolicyProxy(FaultProxy):
    """A proxy of a Cloud Storage emulator that enforces a policy for a member; `refused` is what it refused.

    For whoever connects from `trusted`, such as the submitter of the jobs, it enforces nothing.
    """

    handler = _Guarded

    def __init__(
        self, upstream: str, policy: BucketPolicy, member: str, *, host: str, trusted: Sequence[str] = ()
    ) -> None:
        super().__init__(upstream, host=host)
        self._emulator, self._policy, self._member = upstream, policy, member
        self._trusted = trusted
        self.refused: list[str] = []

    def refusal(self, client: str, method: str, path: str, body: bytes) -> str:
        """What the member may not do of a request; "" if it may be done."""
        if client in self._trusted:
            return ""
        parts = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        steps = parts.path.split("/")
        if "upload_id" in query:
            return ""  # allowed when it began
        if steps[-1] == "o" and method == "GET":
            return self._without("list", "", query.get("prefix", ""))
        if steps[-1] == "o" and method == "POST":
            name = query.get("name") or _name_in(body)
            return self._without("create", name) or (
                self._without("delete", name) if self._is_there(name) else ""
            )
        verb = {"GET": "get", "DELETE": "delete", "PATCH": "update"}.get(method, "none of ours")
        return self._without(verb, unquote(steps[-1]))

    def _without(self, verb: str, name: str, listing: str = "") -> str:
        if self._policy.allows(self._member, verb, name, listing):
            return ""
        return f"{self._member} does not have storage.objects.{verb} access to {name or listing}"

    def _is_there(self, name: str) -> bool:
        bucket = self._policy.bucket
        with urlopen(f"{self._emulator}/storage/v1/b/{bucket}/o?prefix={name}&fields=items(name)") as answer:
            return any(each["name"] == name for each in json.loads(answer.read()).get("items", ()))


def _name_in(body: bytes) -> str:
    """The name in the first part of a multipart upload, or in the JSON that begins a resumable one."""
    start = body.index(b"{")
    return str(json.JSONDecoder().raw_decode(body[start : start + 4096].decode(errors="replace"))[0]["name"])
