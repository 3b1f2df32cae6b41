"""For the site: docstrings that list arguments as `name: what it means` lines become Markdown lists."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^(?=[a-z])((?:[a-z_]+)(?:, [a-z_]+| \(of [A-Z]\w+\))*): ", re.MULTILINE)


class ListedArguments(griffe.Extension):
    """Marks such lines as list items; what continues them is indented already."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called by griffe for every function it has read."""
        if func.docstring is not None:
            names = {parameter.name for parameter in func.parameters}
            func.docstring.value = _ENTRY.sub(lambda found: _item(found, names), func.docstring.value)


def _item(found: re.Match[str], names: set[str]) -> str:
    listed = re.findall(r"[a-z_]+", found[1])
    return f"- **{found[1]}**: " if listed[0] in names else found[0]
