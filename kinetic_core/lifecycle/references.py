"""A reference to another job's value: small enough for any message, resolved where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

MARKER = "__kinetic_result__"
_VERSION = 1


@dataclass(frozen=True)
class ResultReference:
    """Where a job's value lies, its digest and its type.

    As an argument of another job, at any depth, it becomes the value itself inside that job. `load()`
    gets the value here. `to_dict()` is plain JSON, for XCom and other messages.
    """

    store_uri: str
    object_name: str
    sha256: str
    job_id: str
    type_name: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON that `is_reference` recognises."""
        return {MARKER: _VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from `to_dict()`. Raises TypeError for a missing field."""
        return cls(**{f.name: str(values[f.name]) for f in fields(cls) if f.name in values})

    def load(self, *, trust_store: bool = False) -> Any:
        """The value, read from the store; its digest must be the one this reference was made with.

        A pickled value is loaded only with `trust_store=True`, because loading it runs code: whoever can
        write both the store and this reference could choose which. Raises UnverifiedResult.
        """
        from kinetic_core.lifecycle.outcome import load_reference

        return load_reference(self, trust_store)


def is_reference(value: Any) -> bool:
    """Whether it is the `to_dict()` of a reference this version understands."""
    return type(value) is dict and value.get(MARKER) == _VERSION
