"""Values between Airflow and jobs: a task's arguments, and the result that becomes its XCom.

Plain values travel as they are, all others as references. Airflow's processes never unpickle anything of a
job. A reference is a small dict in XCom; given to another kinetic task, at any depth of its arguments, it
becomes the value itself inside that job.

An XCom may contain the answer of a web server, and `dag_run.conf` what a user typed. So a dict that looks
like a reference must be signed by a worker of this Airflow, with a secret in an Airflow Variable: workers can
read the secret, on every version and executor; pods, buckets and readers of XComs cannot (ADR 0044).
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import json
import logging
import math
import re
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

from airflow_provider.deployment import of_team
from airflow_provider.project import project_of_task
from airflow_provider.records import named
from kinetic_core._runner.wire import is_encodable
from kinetic_core.errors import (
    InvalidRequest,
    UnverifiedResult,
)
from kinetic_core.job import JobReference
from kinetic_core.jobs.collect import Outcome, result_reference
from kinetic_core.jobs.references import ResultReference, is_reference, names_outcome
from kinetic_core.jobs.submit import Call
from kinetic_core.project.callables import callable_name

PLAIN_CONTEXT = (
    "ds",
    "ds_nodash",
    "ts",
    "ts_nodash",
    "ts_nodash_with_tz",
    "run_id",
    "logical_date",
    "data_interval_start",
    "data_interval_end",
    "params",
)
"""Context that a function may ask for by the name of a parameter: what makes sense away from Airflow."""


def call_of(
    function: Callable[..., Any],
    op_args: Collection[Any],
    op_kwargs: Mapping[str, Any],
    context: Mapping[str, Any],
    reserved: Collection[str] = (),
    verify: Verify | None = None,
    package_root: str | None = None,
) -> Call:
    """Build the call of a job, with the files that ship from the task's DAG bundle.

    `reserved`: all names of Airflow's context. A parameter with such a name is filled in if it is one of
    PLAIN_CONTEXT. Raises InvalidRequest for any other without a default, because `ti` cannot leave Airflow,
    and for a reference that `verify`, by default with this Airflow's signatures, refuses. `package_root`: the
    client's setting.
    """
    verify = verify or Signatures().verified
    args = tuple(with_references(list(op_args), "op_args", verify))
    kwargs = dict(with_references(dict(op_kwargs), "op_kwargs", verify))
    parameters = inspect.signature(function).parameters
    given = set(list(parameters)[: len(args)]) | set(kwargs)
    for name, parameter in parameters.items():
        if name in given or name not in reserved:
            continue
        if name in PLAIN_CONTEXT and name in context:
            kwargs[name] = _plain(context[name])
        elif parameter.default is inspect.Parameter.empty:
            raise InvalidRequest(
                f"the parameter {name!r} of {callable_name(function)} is Airflow's context, which "
                f"{_why(name)}. Pass what the function needs as an argument, for instance '{{{{ run_id }}}}'"
            )
    return Call(function, args, kwargs, project_of_task(function, context, package_root))


def _plain(value: Any) -> Any:
    """Convert Airflow's own types (pendulum, ParamsDict), which the job may lack, to standard ones."""
    if isinstance(value, datetime):
        return datetime.fromisoformat(value.isoformat())
    return dict(value) if isinstance(value, Mapping) else value


def _why(name: str) -> str:
    return "this run does not have" if name in PLAIN_CONTEXT else "cannot travel into a job"


def value_for_xcom(
    reference: JobReference,
    outcome: Outcome,
    *,
    multiple_outputs: bool,
    mapped_over: bool,
    name: str = "",
    team: str = "",
) -> Any:
    """Return the value of a finished job's task: a plain value as it is, any other as a reference.

    Nothing is unpickled. `mapped_over` says that a downstream task expands over the value: then, and with
    `multiple_outputs`, a reference is refused with AirflowFailException. `name`: that of the instance of a
    mapped task. `team`: that of the DAG, "" for none. The job has succeeded.
    """
    from airflow_provider.airflow_sdk import AirflowFailException

    found, value = plain_value(outcome)
    if found:
        return value
    kind = outcome.result_type or "value"
    if multiple_outputs or mapped_over:
        asks = "multiple_outputs" if multiple_outputs else "expand() over its result"
        text = (
            f"{reference.job_id} returned a {kind} that XCom cannot carry as it is, but {asks} needs the "
            "values here. Return plain values (numbers, strings, lists, dicts), or pass it on as a whole"
        )
        raise AirflowFailException(named(name, text))
    logging.getLogger(__name__).info("XCom cannot carry a %s: pushing a reference to it", kind)
    try:
        found_at = result_reference(reference, outcome)
    except UnverifiedResult as error:
        raise AirflowFailException(named(name, error)) from error
    return Signatures(team=team).signed(found_at)


def plain_value(outcome: Outcome) -> tuple[bool, Any]:
    """Return True and the value of a job that has succeeded, if XCom can carry it; else False and None.

    A value that needs a library which is not installed here, numpy for instance, stays where it is.
    """
    try:
        return read_plain_value(outcome)
    except ImportError:
        return False, None


def read_plain_value(outcome: Outcome) -> tuple[bool, Any]:
    """Return as `plain_value` does. Raises ImportError if the value needs a library that is not here."""
    if outcome.codec != "typed" or not all(
        name == "body" or name.startswith("text-") for name in outcome.parts
    ):
        return False, None  # bytes or arrays: their content is not read
    value = outcome.value_or_raise()
    return is_plain(value), value


MAX_DEPTH = 50
"""Depth up to which containers are searched: deeper ones are never plain."""

_LEAVES = frozenset({str, int, float, bool, type(None)})
_RESERVED = frozenset({"__classname__", "__version__", "__data__", "__type", "__var"})
_NUMPY_NUMBERS = frozenset(
    ["bool", "bool_", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def is_plain(value: Any) -> bool:
    """Return whether XCom gives back an equal value of the same type.

    Types must match exactly: a subclass would come back as its base, so it is not plain.
    """
    return all(_is_plain_leaf(leaf) for leaf in _leaves(value, MAX_DEPTH))


class LazyValues(Sequence[Any]):
    """Values of jobs in the store, read one by one."""

    @abstractmethod
    def references(self) -> list[ResultReference]:
        """Return references to the values, for jobs. Raises InvalidRequest if nobody has signed for them."""


Verify = Callable[[Mapping[str, Any], str], ResultReference]
"""Verifier of a dict that looks like a reference; it raises InvalidRequest, naming the place."""


def with_references(value: Any, where: str, verify: Verify) -> Any:
    """Return an argument as the job gets it: references verified, lazy sequences of XComs read.

    `where`: the argument's name in errors. Raises InvalidRequest for a value that only looks like a
    reference, and for a reference that is an object already, which nobody has verified.
    """
    return _with_references(value, MAX_DEPTH, where, verify)


class _NotPlain:
    """Marker in place of a container that cannot be plain."""


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    kind = type(value)
    if kind not in (dict, list, tuple, set, frozenset):
        yield value
    elif depth == 0 or (kind is dict and not _has_plain_keys(value)):
        yield _NotPlain()
    else:
        for item in value.values() if kind is dict else value:
            yield from _leaves(item, depth - 1)


def _has_plain_keys(value: Mapping[Any, Any]) -> bool:
    return all(type(key) is str and key not in _RESERVED and is_encodable(key) for key in value)


def _is_plain_leaf(value: Any) -> bool:
    kind = type(value)
    if value is None or kind in (bool, date, timedelta, UUID):
        return True
    if kind is str:
        return is_encodable(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**63)
    if kind is float:
        return math.isfinite(value)
    if kind is Decimal:
        return bool(value.is_finite() and Decimal(str(float(value))) == value)
    if kind is datetime:
        return value.tzinfo is None or value.tzinfo is UTC or type(value.tzinfo) is ZoneInfo
    if kind.__module__ == "numpy" and kind.__name__ in _NUMPY_NUMBERS:
        return bool(math.isfinite(value))
    return False


def _with_references(value: Any, depth: int, where: str, verify: Verify) -> Any:
    kind = type(value)
    if is_reference(value):
        return verify(value, where)
    if isinstance(value, ResultReference):
        raise InvalidRequest(
            f"{where} is a ResultReference, and nothing says who made it. Pass the output of the kinetic "
            "task itself, or ResultReference.load() its value"
        )
    if isinstance(value, LazyValues):
        return value.references()
    if depth == 0:
        return value

    def inside(key: object, item: Any) -> Any:
        if type(item) in _LEAVES:  # no text for each of a million numbers
            return item
        return _with_references(item, depth - 1, f"{where}[{key!r}]", verify)

    if kind is dict:
        return {key: inside(key, item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return kind(inside(index, item) for index, item in enumerate(value))
    if kind.__module__.startswith("airflow.") and isinstance(value, Sequence):
        return [inside(index, item) for index, item in enumerate(value)]
    return value


SECRET = "kinetic_reference_secret"  # noqa: S105  the name of a Variable
"""The Variable that names the secret in use, for each team one of its own (see `of_team`). The secret's own
Variable has that name behind this one.

Two workers that make the first secret at once make two, and both stay: a signature names its own. Airflow
masks the values of Variables with such names."""
_MEANING = "Signs references between Kinetic tasks; made by the first that needed it"
_NAME = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST = 300
_NAMED_BY, _SIGNATURE = "signed_with", "signature"
_OF_RESULTS = "kinetic result reference"


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


NAME_SECONDS = 60.0
"""Seconds for which a process takes the name of the secret in use for the name: it may be rotated."""


class Signatures:
    """Signer and verifier of references. Each secret is read once; which one is in use, once a minute.

    `team`: that of the DAG, "" for none.
    """

    def __init__(
        self,
        variables: Variables | None = None,
        team: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._variables = AirflowVariables() if variables is None else variables
        self._in_use = of_team(SECRET, team)
        self._clock = clock
        self._secrets: dict[str, str] = {}
        self._name = "", float("-inf")

    def signed(self, reference: ResultReference, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the reference as a signed dict for XCom; make the first secret if there is none.

        `like`: a verified dict whose secret signs; by default the secret in use does.
        """
        return self.sealed(_OF_RESULTS, reference.to_dict(), like)

    def signed_if_possible(self, reference: ResultReference) -> dict[str, Any] | None:
        """Return the reference as a signed dict for XCom; None if there is no secret: none is made here."""
        return self.signed(reference) if self._known_name() else None

    def sealed(
        self, purpose: str, content: Mapping[str, Any], like: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return plain JSON with a signature, which counts for this purpose only. `like`: see `signed`."""
        name = (self._known_name() or self._new_name()) if like is None else str(like[_NAMED_BY])
        signature = _signature(purpose, content, self._secret(name))
        return {**content, _NAMED_BY: name, _SIGNATURE: signature}

    def fault(self, purpose: str, content: Mapping[str, Any], values: Mapping[str, Any]) -> str:
        """Return why the signature in `values` is none of this content for this purpose; "" if it is."""
        name, signature = values.get(_NAMED_BY), values.get(_SIGNATURE)
        if not isinstance(name, str) or not isinstance(signature, str):
            return "it has no signature"
        secret = self._secret(name) if _NAME.fullmatch(name) else ""
        if not secret:
            return "it is signed with a secret that this Airflow does not have"
        expected = _signature(purpose, content, secret).encode()
        if not hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            return "its signature is not that of a task of this Airflow"
        return ""

    def verified(self, values: Mapping[str, Any], where: str) -> ResultReference:
        """Return the reference in a signed dict, found at `where` in a task's arguments.

        Raises InvalidRequest, naming the place, for a dict that this Airflow has not signed as it is.
        """
        refuse = partial(_refused, where, values.get("job_id"))
        try:
            reference = ResultReference.from_dict(values)
        except TypeError:
            raise refuse("it is not complete") from None
        if why := self.fault(_OF_RESULTS, reference.to_dict(), values):
            raise refuse(why)
        is_own = names_outcome(reference.object_name, reference.job_id)
        if not is_own or not _DIGEST.fullmatch(reference.sha256):
            raise refuse("it names no result of a job")
        return reference

    def _known_name(self) -> str:
        """Return the name of the secret in use, "" if there is none."""
        name, until = self._name
        if self._clock() < until:
            return name
        found = self._variables.get(self._in_use)
        if found is None or not _NAME.fullmatch(found) or not self._secret(found):
            return ""
        self._name = found, self._clock() + NAME_SECONDS
        return found

    def _new_name(self) -> str:
        name, secret = secrets.token_hex(8), secrets.token_hex(32)
        self._variables.set(f"{SECRET}_{name}", secret)  # before anybody is told of it
        self._variables.set(self._in_use, name)
        self._secrets[name] = secret
        self._name = name, self._clock() + NAME_SECONDS
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


def _signature(purpose: str, content: Mapping[str, Any], secret: str) -> str:
    text = json.dumps([purpose, content], sort_keys=True)
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def _refused(where: str, job_id: object, why: str) -> InvalidRequest:
    named = f" to a value of {job_id}" if isinstance(job_id, str) and len(job_id) < 100 else ""
    return InvalidRequest(
        f"{where[:_LONGEST]} looks like a reference{named}, and {why}: nothing is loaded by it. Pass the "
        "output of the kinetic task itself; if that ran with an earlier version, clear it"
    )
