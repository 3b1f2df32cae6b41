"""Credentials that were handed to this process, instead of those it finds in its surroundings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn


@dataclass(frozen=True)
class Account:
    """Google's credentials (a `google.auth.credentials.Credentials`), or the configuration of a Kubernetes
    client (a `kubernetes.client.Configuration`).

    `name` is for people. Two of the same name and version are equal, and share connections; credentials that
    were replaced have another version. What is held is never shown, and never leaves the process.
    """

    name: str
    version: str
    held: Any = field(compare=False, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the credentials of {self.name} stay in this process: they cannot be pickled")
