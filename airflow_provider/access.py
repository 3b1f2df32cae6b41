"""`Access`: the names by which tasks, triggers and hooks find settings and credentials. No secret."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypedDict

from kinetic_core.errors import InvalidRequest

ImpersonationChain: TypeAlias = str | Sequence[str] | None
"""Service account to impersonate; or several, of which each may impersonate the next."""


ACCESS = ("conn_id", "gcp_conn_id", "impersonation_chain")
"""Arguments of a task, which may be templates."""


class GoogleKeywords(TypedDict, total=False):
    """Arguments that say with whose credentials Google's services are used."""

    gcp_conn_id: str | None
    impersonation_chain: ImpersonationChain


@dataclass(frozen=True)
class Access:
    """Names of what says where jobs run and with whose credentials; a name that was not given is empty.

    `conn_id`: a connection of type `kinetic`, or the environment. `gcp_conn_id`: a Google Cloud connection,
    which replaces that of the former. `impersonation_chain`: service accounts, as whose last one Google's
    services are used.
    """

    conn_id: str = ""
    gcp_conn_id: str = ""
    impersonation_chain: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        conn_id: str | None = None,
        gcp_conn_id: str | None = None,
        impersonation_chain: ImpersonationChain = None,
    ) -> Self:
        """Make it from a task's arguments. A text with commas is a chain. Raises InvalidRequest."""
        chain: Any = impersonation_chain or ()
        names = chain.split(",") if isinstance(chain, str) else chain
        is_chain = isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
        if not is_chain or any(not each.strip() for each in names):
            raise InvalidRequest(
                f"impersonation_chain={impersonation_chain!r} must be the email of a service account, or a "
                "list of them"
            )
        return cls(conn_id or "", gcp_conn_id or "", tuple(each.strip() for each in names))

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of `of`, as plain JSON; an earlier version knows those of most tasks."""
        more = {"gcp_conn_id": self.gcp_conn_id, "impersonation_chain": list(self.impersonation_chain)}
        return {"conn_id": self.conn_id or None} | {name: value for name, value in more.items() if value}


ENVIRONMENT = Access()
"""Without any name: the environment says where jobs run, and the machine's own credentials are used."""
