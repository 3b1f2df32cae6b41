"""Signatures of references that tasks push to XCom: an unsigned one is refused.

An XCom may contain the answer of a web server, and `dag_run.conf` what a user typed. So a dict that looks
like a reference must be signed by a worker of this Airflow, with a secret in an Airflow Variable: workers can
read the secret, on every version and executor; pods, buckets and readers of XComs cannot (ADR 0044).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from kinetic_core._runner import wire
from kinetic_core.errors import InvalidRequest
from kinetic_core.jobs.references import ResultReference

SECRET = "kinetic_reference_secret"  # noqa: S105  the name of a Variable
"""The Variable that names the secret in use; its own Variable has that name behind this one.

Two workers that make the first secret at once make two, and both stay: a signature names its own. Airflow
masks the values of Variables with such names."""
_MEANING = "Signs references between Kinetic tasks; made by the first that needed it"
_NAME = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST = 300
_NAMED_BY, _SIGNATURE = "signed_with", "signature"


class Variables(Protocol):
    """Variables of Airflow, where secrets are kept."""

    def get(self, name: str) -> str | None:
        """Return the value; None if there is no such Variable."""

    def set(self, name: str, value: str) -> None:
        """Create or replace a Variable."""


class AirflowVariables:
    """Variables of the Airflow that runs this task."""

    def get(self, name: str) -> str | None:
        from airflow.sdk import Variable

        found = Variable.get(name, default=None)
        return None if found is None else str(found)

    def set(self, name: str, value: str) -> None:
        from airflow.sdk import Variable

        Variable.set(name, value, _MEANING)


class Signatures:
    """Signer and verifier of references. Each secret is read once."""

    def __init__(self, variables: Variables | None = None) -> None:
        self._variables = AirflowVariables() if variables is None else variables
        self._secrets: dict[str, str] = {}

    def signed(self, reference: ResultReference) -> dict[str, Any]:
        """Return the reference as a signed dict for XCom."""
        name = self._name_in_use()
        return {**reference.to_dict(), _NAMED_BY: name, _SIGNATURE: _signature(reference, self._secret(name))}

    def verified(self, values: Mapping[str, Any], where: str) -> ResultReference:
        """Return the reference in a signed dict, found at `where` in a task's arguments.

        Raises InvalidRequest, naming the place, for a dict that this Airflow has not signed as it is.
        """
        refuse = partial(_refused, where, values.get("job_id"))
        try:
            reference = ResultReference.from_dict(values)
        except TypeError:
            raise refuse("it is not complete") from None
        name, signature = values.get(_NAMED_BY), values.get(_SIGNATURE)
        if not isinstance(name, str) or not isinstance(signature, str):
            raise refuse("it has no signature")
        secret = self._secret(name) if _NAME.fullmatch(name) else ""
        if not secret:
            raise refuse("it is signed with a secret that this Airflow does not have")
        expected = _signature(reference, secret).encode()
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            raise refuse("its signature is not that of a task of this Airflow")
        own = wire.result_object(reference.job_id)
        if reference.object_name != own or not _DIGEST.fullmatch(reference.sha256):
            raise refuse("it names no result of a job")
        return reference

    def _name_in_use(self) -> str:
        found = self._variables.get(SECRET)
        if found is not None and _NAME.fullmatch(found) and self._secret(found):
            return found
        name, secret = secrets.token_hex(8), secrets.token_hex(32)
        self._variables.set(f"{SECRET}_{name}", secret)  # before anybody is told of it
        self._variables.set(SECRET, name)
        self._secrets[name] = secret
        return name

    def _secret(self, name: str) -> str:
        """Return the secret of this name, "" if there is none."""
        if name not in self._secrets:
            self._secrets[name] = self._variables.get(f"{SECRET}_{name}") or ""
        return self._secrets[name]


def verified_reference(pushed: Mapping[str, Any]) -> ResultReference:
    """Return the reference that a kinetic task pushed to XCom, for other tasks to `load()`.

    Raises InvalidRequest for a dict that no worker of this Airflow has signed.
    """
    return Signatures().verified(pushed, "the value")


def _signature(reference: ResultReference, secret: str) -> str:
    text = json.dumps(["kinetic result reference", reference.to_dict()], sort_keys=True)
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def _refused(where: str, job_id: object, why: str) -> InvalidRequest:
    named = f" to a value of {job_id}" if isinstance(job_id, str) and len(job_id) < 100 else ""
    return InvalidRequest(
        f"{where[:_LONGEST]} looks like a reference{named}, and {why}: nothing is loaded by it. Pass the "
        "output of the kinetic task itself; if that ran with an earlier version, clear it"
    )
