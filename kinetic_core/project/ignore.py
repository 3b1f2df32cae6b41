"""What of a project stays at home: by the user's ignore files, by default, and because it looks secret.

Ignore files have Git's meaning (nested, later and deeper rules win, `!` re-includes, nothing below an
excluded directory is looked at). A `.kineticignore` counts after the `.gitignore` beside it, and what it
re-includes is shipped whatever the defaults say; of a directory, that is all but what looks secret. Files
that Airflow keeps its keys, passwords and database in are never shipped, whatever anybody says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kinetic_core.errors import InvalidProject

_BELOW = "ps_d"
"""The group of a regular expression of `pathspec` that matches when the path lies below what it names."""

_CLOSED = re.compile(r"(?:[^\\[]|\\.|\[[!^]?+\]?+[^\]]*+\])*\\?")
"""A pattern whose brackets are all closed: others match nothing, as `pathspec` before 1.0 does not know."""


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
    if named in ("", "!") or _CLOSED.fullmatch(named) is None:
        return None
    try:
        (pattern,) = pathspec.GitIgnoreSpec.from_lines([named]).patterns
    except re.error as exc:
        raise ValueError(f"{line!r}: {exc}") from exc
    if pattern.regex is None or pattern.include is None:
        return None
    return _Pattern(pattern.regex, pattern.include, folders_only)


_NEVER_SHIPPED = frozenset({".git", "__pycache__"})
_AIRFLOW = re.compile(
    r"airflow\.cfg.*|airflow\.db.*|.*passwords\.json.*|webserver_config\.py|standalone_admin_password.*"
)
"""Files of an Airflow: its configuration with the Fernet and JWT keys, its SQLite database, its passwords."""
_AIRFLOW_LOGS = "logs"
_DEFAULTS = frozenset({
    ".venv", "venv", "node_modules", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    ".ipynb_checkpoints", "site-packages",
})  # fmt: skip
_DEFAULT_FILE = ".DS_Store"
_GIT, KINETIC_IGNORE = ".gitignore", ".kineticignore"
_SECRET = re.compile(
    r"\.env(?!\.(?:example|sample|template)\Z)(?:\..*)?|\.envrc|.*\.pem|.*\.key|id_(?:rsa|dsa|ecdsa|ed25519).*"
    r"|credentials\.json|service[-_]account.*\.json|\.netrc|\.npmrc|\.pypirc|\.git-credentials"
)


@dataclass(frozen=True)
class _IgnoreFile:
    """One ignore file, and how paths of the project become paths beside it."""

    patterns: GitPatterns
    strip: int
    above: str
    ours: bool

    def decision(self, path: str, is_folder: bool) -> bool | None:
        return self.patterns.decision(self.above + path[self.strip :], is_folder)


@dataclass(frozen=True)
class Rules:
    """The rules that hold in one directory; `below` gives those of a directory in it.

    `secrets` collects what was left out for its name, in every directory, `airflow` what is Airflow's own,
    `ignored` what ignore files name, each with the name of the file.
    With `everything`, nothing is left out.
    """

    default_excludes: bool = True
    everything: bool = False
    files: tuple[_IgnoreFile, ...] = ()
    secrets: list[str] = field(default_factory=list)
    airflow: list[str] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)

    @property
    def by_git(self) -> list[str]:
        """Paths that only `.gitignore` leaves out, sorted; those of directories end in `/`."""
        return sorted(path for path, by in self.ignored.items() if by == _GIT)

    def below(self, folder: str, relative: str, names: set[str]) -> Rules:
        """The rules in `folder` (`relative` to the root, "" for the root), which holds `names`.

        Raises InvalidProject for an ignore file that cannot be read or understood.
        """
        if self.everything or (_GIT not in names and KINETIC_IGNORE not in names):
            return self
        found = [
            _read(os.path.join(folder, name), strip=len(relative) + 1 if relative else 0)
            for name in (_GIT, KINETIC_IGNORE)
            if name in names and os.path.isfile(os.path.join(folder, name))
        ]
        return replace(self, files=(*self.files, *found))

    def inside(self, path: str, name: str, folder: str) -> Rules | None:
        """The rules that hold in the directory `folder`; None if it is left out, with all in it."""
        if self.everything:
            return self
        if name in _NEVER_SHIPPED:
            return None
        excluded = self._decision(path, True) if self.files else None
        if excluded is not None:
            return None if excluded else replace(self, default_excludes=False)
        if name == _AIRFLOW_LOGS and not os.path.isfile(os.path.join(folder, "__init__.py")):
            self.airflow.append(f"{path}/")
            return None
        return None if self.default_excludes and name in _DEFAULTS else self

    def excludes_file(self, path: str, name: str) -> bool:
        """Is this file, or link, left out? Remembers it if that is for looking like a secret."""
        if self.everything:
            return False
        excluded = self._decision(path, False) if self.files else None
        if excluded or self.is_airflows(path, name):
            return True
        if excluded is not None:
            return False
        if _SECRET.fullmatch(name):
            self.secrets.append(path)
            return True
        return self.default_excludes and name == _DEFAULT_FILE

    def is_airflows(self, path: str, name: str) -> bool:
        """Is a file of this name Airflow's own, which nothing re-includes? Remembers its `path` if it is."""
        if self.everything or not is_airflow_file(name):
            return False
        self.airflow.append(path)
        return True

    def is_virtualenv(self, names: set[str]) -> bool:
        """Is a directory that holds `names` left out for being a virtual environment?"""
        return self.default_excludes and not self.everything and "pyvenv.cfg" in names

    def _decision(self, path: str, is_folder: bool) -> bool | None:
        """What the ignore files say: True out, False in whatever the defaults are, None nothing.

        A `!` in a `.gitignore` only takes back what a rule of Git's took away: projects commit their
        `.env` files by it, which is no wish to upload them.
        """
        for file in reversed(self.files):
            excluded = file.decision(path, is_folder)
            if excluded:
                if path.rpartition("/")[2] not in (*_DEFAULTS, _DEFAULT_FILE):
                    self.ignored[f"{path}/" if is_folder else path] = KINETIC_IGNORE if file.ours else _GIT
                return True
            if excluded is not None:
                return False if file.ours else None
        return None


def is_airflow_file(name: str) -> bool:
    """Does Airflow keep its keys, passwords or database in files of this name?"""
    return _AIRFLOW.fullmatch(name) is not None


def project_rules(root: str, default_excludes: bool) -> Rules:
    """The rules that come from above the project's root: those of the Git repository it lies in."""
    found: list[_IgnoreFile] = []
    above, folder = "", root
    while not os.path.exists(os.path.join(folder, ".git")):
        folder, name = os.path.split(folder)
        if not name:
            return Rules(default_excludes)
        above = f"{name}/{above}"
        if os.path.isfile(os.path.join(folder, _GIT)):
            found.append(_read(os.path.join(folder, _GIT), above=above))
    return Rules(default_excludes, False, tuple(reversed(found)))


def _read(path: str, strip: int = 0, above: str = "") -> _IgnoreFile:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            patterns = parse(stream.read())
    except (OSError, ValueError) as exc:
        raise InvalidProject(f"{path} cannot be used: {exc}. Correct it, or remove it") from exc
    return _IgnoreFile(patterns, strip, above, os.path.basename(path) == KINETIC_IGNORE)


_BY_DEFAULT = "a default rule"


class Hidden(NamedTuple):
    """Entry, a file or a directory with `/`, that does not ship, and what leaves it out."""

    entry: str
    by: str


def hidden(root: str, paths: Iterable[str], default_excludes: bool) -> Iterator[tuple[str, Hidden]]:
    """Yield those of a project's files that do not ship, and what keeps them. Raises InvalidProject."""
    above = project_rules(root, default_excludes)
    known: dict[str, Rules | Hidden] = {"": above.below(root, "", {_GIT, KINETIC_IGNORE})}

    def inside(folder: str) -> Rules | Hidden:
        if folder not in known:
            parent, _, name = folder.rpartition("/")
            rules, place = inside(parent), os.path.join(root, folder)
            if isinstance(rules, Rules):
                found = rules.inside(folder, name, place)
                by = above.ignored.get(f"{folder}/", _BY_DEFAULT)
                rules = Hidden(f"{folder}/", by) if found is None else found
            known[folder] = (
                rules.below(place, folder, {_GIT, KINETIC_IGNORE}) if isinstance(rules, Rules) else rules
            )
        return known[folder]

    for path in paths:
        folder, _, name = path.rpartition("/")
        rules = inside(folder)
        if isinstance(rules, Hidden):
            yield path, rules
        elif rules.excludes_file(path, name):
            yield path, Hidden(path, above.ignored.get(path, _BY_DEFAULT))


def name_notices(rules: Rules) -> list[str]:
    """The notices about what was left out for its name or by Git's rules, one of each kind."""
    notices = []
    if rules.secrets:
        notices.append(
            f"left out {len(rules.secrets)} file(s) that look like secrets: {_listed(rules.secrets)}. "
            "To ship one all the same, add a line like "
            f"'!{os.path.basename(min(rules.secrets))}' to .kineticignore"
        )
    if rules.airflow:
        logs = any(path.endswith("/") for path in rules.airflow)
        how = (
            f". For a directory of your own, add a line '!{_AIRFLOW_LOGS}/' to .kineticignore" if logs else ""
        )
        notices.append(f"left out Airflow's own: {_listed(rules.airflow)}{how}")
    if by_git := rules.by_git:
        notices.append(
            f"left out {len(by_git)} file(s) and directories that .gitignore names: {_listed(by_git)}. "
            "`kinetic package FILE --dry-run --json` lists them; a line '!NAME' in .kineticignore ships "
            "one, and a line 'NAME' ends this notice"
        )
    return notices


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(sorted(paths)[:5]) + (", …" if len(paths) > 5 else "")
