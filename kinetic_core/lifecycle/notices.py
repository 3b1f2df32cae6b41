"""What the user should know about a call that is sound all the same."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

_LOG = logging.getLogger(__name__)
_given: set[tuple[Path, str]] = set()


def give(project: Path, notices: Iterable[str]) -> None:
    """Log each notice, once for a project in this process."""
    for notice in notices:
        if (project, notice) not in _given:
            _given.add((project, notice))
            _LOG.warning("kinetic: %s", notice)
