"""The patterns of an ignore file, as `pathspec` understands them, one directory entry at a time.

A match of `pathspec` also covers everything below what a pattern names: asked about whole paths,
`!/src` would take back what `build/` excludes in `src/build`. Git decides about a directory before it
looks inside, so here a pattern decides about the entry it names only, and whoever walks the tree decides
about parents first (gitignore(5): "It is not possible to re-include a file if a parent directory of that
file is excluded").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_BELOW = "ps_d"
"""The group of a regular expression of `pathspec` that matches when the path lies below what it names."""


@dataclass(frozen=True)
class _Pattern:
    regex: re.Pattern[str]
    excludes: bool
    folders_only: bool

    def names(self, path: str, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        match = self.regex.match(path)
        return match is not None and match.groupdict().get(_BELOW) is None


@dataclass(frozen=True)
class GitPatterns:
    """The patterns of one file, the last first."""

    last_first: tuple[_Pattern, ...]
    mentions: Callable[[str], object]
    """Quick and generous: None if no pattern can concern the path. One look instead of one per pattern."""

    def decision(self, path: str, is_folder: bool) -> bool | None:
        """What the last matching pattern says of an entry: True to exclude, False to take back, else None.

        `path` is relative to where the patterns are anchored.
        """
        if self.mentions(path) is None:
            return None
        return next((each.excludes for each in self.last_first if each.names(path, is_folder)), None)


def parse(text: str) -> GitPatterns:
    """The patterns in the text of an ignore file. Raises ValueError for one that cannot be understood."""
    lines = reversed(text.removeprefix("\ufeff").splitlines())
    patterns = tuple(found for line in lines if (found := _parse_line(line)) is not None)
    texts = (re.sub(r"[(][?]P<[^>]+>", "(?:", each.regex.pattern) for each in patterns)
    unnamed = "|".join(f"(?:{text})" for text in texts)
    return GitPatterns(patterns, re.compile(unnamed or r"(?!)").match)


def _parse_line(line: str) -> _Pattern | None:
    """The slash that asks for a directory is looked at here: `pathspec` takes `a/**/` for `a/`."""
    import pathspec

    line = re.sub(r"(?<!\\)\s+\Z", "", line)
    folders_only = line.endswith("/")
    named = line.removesuffix("/")
    if named in ("", "!"):
        return None
    try:
        (pattern,) = pathspec.GitIgnoreSpec.from_lines([named]).patterns
    except re.error as exc:
        raise ValueError(f"{line!r}: {exc}") from exc
    if pattern.regex is None or pattern.include is None:
        return None
    return _Pattern(pattern.regex, pattern.include, folders_only)
