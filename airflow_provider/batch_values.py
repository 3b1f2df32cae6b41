"""`BatchValues`: the value of a task that ran a batch, a sequence of which nothing is read before it is used.

XCom holds the batch's reference, the number of its inputs and which of them have no value, signed by the
worker that pushed it (ADR 0044). A downstream task gets the sequence itself, and reads what it indexes from
the store. Airflow asks only for its length when a task expands over it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

from airflow_provider.access import Access
from airflow_provider.xcom import LazyValues, Signatures, plain_value
from kinetic_core._runner.indexes import format_indexes, parse_indexes
from kinetic_core.errors import InvalidRequest, ProtocolMismatch
from kinetic_core.job import JobReference

if TYPE_CHECKING:
    from kinetic_core.batches.outcomes import StoredBatch
    from kinetic_core.connections import Connections
    from kinetic_core.jobs.references import ResultReference

_PURPOSE = "kinetic batch values"
_TYPES = {"reference": dict, "inputs": int, "missing": str, "conn_id": str}
_GOOGLE = ("gcp_conn_id", "impersonation_chain")
"""Fields, signed too, of a task with these arguments."""
_AHEAD = 16
"""Values that are read at once while somebody iterates."""


class BatchValues(LazyValues):
    """Values of the inputs that have one, in the order of the inputs.

    `values[i]` reads one value, a slice a few; iterating reads a few ahead. A value that XCom could not carry
    is a signed reference, as that of `@task.kinetic`: another kinetic task gets the value itself. `indexes`
    says of which inputs the values are, `failed` which inputs have none.

    Reading raises InvalidRequest if no worker of this Airflow has signed for the sequence, UnverifiedResult
    if an outcome is not the batch's own, JobNotFound if it is not stored any more.
    """

    __version__ = 1

    def __init__(
        self,
        data: Mapping[str, Any],
        signatures: Signatures | None = None,
        connections: Connections | None = None,
    ) -> None:
        """Wrap what XCom holds. `connections`: by default those of the task's connections."""
        self._data = dict(data)
        self._signatures = signatures or Signatures()
        self._given = connections

    @classmethod
    def of(
        cls,
        reference: JobReference,
        inputs: int,
        failed: Collection[int],
        access: Access,
        signatures: Signatures | None = None,
    ) -> BatchValues:
        """Sign for the values of a batch that has ended. `failed`: indexes of inputs without a value."""
        signatures = signatures or Signatures()
        content = {
            "reference": reference.to_dict(),
            "inputs": inputs,
            "missing": format_indexes(failed),
            **access.to_dict(),
            "conn_id": access.conn_id,
        }
        return cls(signatures.sealed(_PURPOSE, content), signatures)

    def serialize(self) -> dict[str, Any]:
        """Return plain JSON for XCom."""
        return self._data

    @staticmethod
    def deserialize(data: dict[str, Any], version: int) -> BatchValues:
        """Rebuild from `serialize()`. Raises TypeError for data of a later version of this provider."""
        if version > BatchValues.__version__:
            raise TypeError(
                f"values of a batch in version {version}: this provider knows {BatchValues.__version__}"
            )
        return BatchValues(data)

    @cached_property
    def indexes(self) -> list[int]:
        """Return the indexes of the inputs that have a value, in their order."""
        content = self._content
        missing = set(parse_indexes(content["missing"]))
        return [index for index in range(content["inputs"]) if index not in missing]

    @property
    def failed(self) -> list[int]:
        """Return the indexes of the inputs without a value."""
        return parse_indexes(self._content["missing"])

    def items(self) -> Iterator[tuple[int, Any]]:
        """Yield the index of each input that has a value, and the value."""
        return zip(self.indexes, self, strict=True)

    def references(self) -> list[ResultReference]:
        """Return references to all values. Reads the beginning of each outcome."""
        return self._batch.result_references(self.indexes)

    def __len__(self) -> int:
        return len(self.indexes)

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return list(self._read(self.indexes[place]))
        return self._value(self.indexes[place])

    def __iter__(self) -> Iterator[Any]:
        return self._read(self.indexes)

    def __repr__(self) -> str:
        return f"<values of {self._data.get('inputs')!r} inputs>"

    def _read(self, indexes: list[int]) -> Iterator[Any]:
        from concurrent.futures import ThreadPoolExecutor

        left = iter(indexes)
        with ThreadPoolExecutor(_AHEAD, "kinetic-values") as pool:
            reading = [pool.submit(self._value, index) for index in islice(left, _AHEAD)]
            while reading:
                value = reading.pop(0).result()
                reading += [pool.submit(self._value, index) for index in islice(left, 1)]
                yield value

    def _value(self, index: int) -> Any:
        outcome = self._batch.outcome(index)
        is_plain, value = plain_value(outcome)
        if is_plain:
            return value
        return self._signatures.signed(self._batch.result_reference(index), like=self._data)

    @cached_property
    def _content(self) -> dict[str, Any]:
        """Return what was signed. Raises InvalidRequest if this Airflow has not signed it as it is."""
        content = {name: self._data.get(name) for name in _TYPES}
        if any(type(content[name]) is not kind for name, kind in _TYPES.items()):
            raise InvalidRequest(
                "the values of a batch, from XCom, are not complete: nothing is read by them"
            )
        content |= {name: self._data[name] for name in _GOOGLE if name in self._data}
        if why := self._signatures.fault(_PURPOSE, content, self._data):
            raise InvalidRequest(
                f"the values of a batch, from XCom, are not believed: {why}. Pass the output of the kinetic "
                "task itself; if that ran with an earlier version, clear it"
            )
        return content

    @cached_property
    def _batch(self) -> StoredBatch:
        from kinetic_core.backends.base import backend_of
        from kinetic_core.batches.outcomes import StoredBatch

        content = self._content
        try:
            reference = JobReference.from_dict(content["reference"])
        except (TypeError, ProtocolMismatch) as error:
            raise InvalidRequest(f"the values of a batch, from XCom, cannot be read: {error}") from error
        access = Access.of(content["conn_id"], *(content.get(name) for name in _GOOGLE))
        return StoredBatch(backend_of(reference, self._client(access)), reference)

    def _client(self, access: Access) -> Connections:
        if self._given is not None:
            return self._given
        from airflow_provider.hooks.kinetic import clients

        return clients.get(access)


def allow_in_xcom() -> None:
    """Let this process deserialize `BatchValues`, as `[core] allowed_deserialization_classes` could.

    Nothing is read or run by deserializing it. Airflow 3.1 and 3.2 have no public function for that.
    """
    try:
        from airflow.sdk import serde
    except ImportError:
        from airflow.serialization import serde  # type: ignore[no-redef,attr-defined]  # Airflow 3.1
    if hasattr(serde, "allow_class"):
        serde.allow_class(BatchValues)
    else:
        name = f"{BatchValues.__module__}.{BatchValues.__qualname__}"
        serde._extra_allowed.add(name)
