"""What every resource of the cloud has in common, as the planner sees it: plain data and pure functions.

A resource says how it is read, what differs between what is wanted and what was found, and which requests
make, change or remove it. Sending them is `applying`'s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

Json = dict[str, Any]
Found = Mapping[str, Any]

MINE = {"kinetic": "true", "goog-packaged-solution": "kinetic"}
"""Labels of everything that is made here; what does not carry the first is never changed or removed."""


@dataclass(frozen=True)
class Request:
    """One request: `service` is Google's name of one, `kubernetes` (whose paths are `Kind/namespace/name`;
    it knows APPLY, and REAPPLY for what is ours whatever others set in it) or `objects` (of which
    DELETE empties the bucket `path`).
    """

    service: str
    method: str
    path: str
    body: Json | None = None


@dataclass(frozen=True)
class Resource(ABC):
    """One resource that is wanted. `None` for what was found means that there is none."""

    kind: ClassVar[str] = ""
    """The word for people."""
    reads_first: ClassVar[bool] = False
    """Whether a change is made to what was found a moment before, as with a policy and its etag."""
    only_waits: ClassVar[bool] = False
    """Whether it comes about by itself, once what is before it is there."""
    longest: ClassVar[float] = 3600.0
    """Seconds for which it is waited for while it is busy."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name for people; unique among those of its kind."""

    @property
    @abstractmethod
    def reading(self) -> Request:
        """How it is read; changes nothing, whatever its method."""

    def busy(self, found: Found) -> bool:
        """Whether it is being made, changed or removed right now."""
        del found
        return False

    def stuck(self, found: Found) -> str:
        """What is said of it when it has been busy for `longest`."""
        del found
        return f"{self} has been busy for an hour; look at it in the console"

    def mine(self, found: Found) -> bool:
        """Whether this command made it."""
        del found
        return True

    def usable(self, found: Found) -> bool:
        """Whether it may be what is wanted: what somebody else made mostly may not."""
        return self.mine(found)

    def fixed(self, found: Found) -> tuple[str, ...]:
        """What differs and cannot be changed in what is there."""
        del found
        return ()

    def differences(self, found: Found) -> tuple[str, ...]:
        """What differs and will be changed."""
        del found
        return ()

    def broken(self, found: Found) -> bool:
        """Whether it is beyond use, so that it is removed and made again."""
        del found
        return False

    @abstractmethod
    def creation(self) -> tuple[Request, ...]:
        """The request that makes it."""

    def changes(self, found: Found) -> tuple[Request, ...]:
        """The requests that make `differences` go away."""
        del found
        return ()

    def removal(self, found: Found) -> tuple[Request, ...]:
        """The requests that remove it; none if it goes with another or is left."""
        del found
        return ()

    @property
    def permissions(self) -> tuple[str, ...]:
        """What making or changing it takes in the project, by the REST reference of the methods."""
        return ()

    @property
    def cost(self) -> str:
        """What it costs while it is there, as far as it is known; "" for next to nothing."""
        return ""

    def hourly(self, *, full: bool) -> Mapping[str, float] | None:
        """Return what an hour of it costs, by currency; None if that is not known.

        `full` is with all the machines it may have, else with those that are always there.
        """
        del full
        return {}

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def lacking(wanted: Mapping[str, Any], found: Mapping[str, Any] | None, path: str = "") -> tuple[str, ...]:
    """The fields in which `found` does not have what is wanted. Google writes some numbers as texts, and
    leaves out what is false, 0 or empty.
    """
    missing: list[str] = []
    for key, value in wanted.items():
        there = (found or {}).get(key)
        place = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            missing += lacking(value, there if isinstance(there, Mapping) else None, place)
        elif there != value and (there or value) and str(there) != str(value):
            missing.append(place)
    return tuple(missing)
