"""The end of a debugging session."""

from __future__ import annotations

from typing import Protocol


class Ends(Protocol):
    """What `JobHandle.debug_attach` returns, as far as it matters here."""

    def terminate(self) -> None: ...


def cleanup_port_forward(session: Ends) -> None:
    """Close the local port that `debug_attach` opened. May be called again; the job goes on."""
    session.terminate()
