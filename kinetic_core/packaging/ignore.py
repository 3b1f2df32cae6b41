"""What of a project stays at home: by the user's ignore files, by default, and because it looks secret.

Ignore files have Git's meaning (nested, later and deeper rules win, `!` re-includes, nothing below an
excluded directory is looked at). A `.kineticignore` counts after the `.gitignore` beside it, and what it
re-includes is shipped whatever the defaults say; of a directory, that is all but what looks secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kinetic_core.errors import InvalidProject
from kinetic_core.packaging.git_patterns import GitPatterns, parse

_NEVER_SHIPPED = frozenset({".git", "__pycache__"})
_DEFAULTS = frozenset({
    ".venv", "venv", "node_modules", ".tox", ".nox", ".mypy_cache", ".ruff_cache", ".pytest_cache",
    ".ipynb_checkpoints", "site-packages",
})  # fmt: skip
_GIT, _KINETIC = ".gitignore", ".kineticignore"
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

    `secrets` collects what was left out for its name, in every directory. With `everything`, nothing is
    left out.
    """

    default_excludes: bool = True
    everything: bool = False
    files: tuple[_IgnoreFile, ...] = ()
    secrets: list[str] = field(default_factory=list)

    def below(self, folder: str, relative: str, names: set[str]) -> Rules:
        """The rules in `folder` (`relative` to the root, "" for the root), which holds `names`.

        Raises InvalidProject for an ignore file that cannot be read or understood.
        """
        if self.everything or (_GIT not in names and _KINETIC not in names):
            return self
        found = [
            _read(os.path.join(folder, name), strip=len(relative) + 1 if relative else 0)
            for name in (_GIT, _KINETIC)
            if name in names and os.path.isfile(os.path.join(folder, name))
        ]
        return Rules(self.default_excludes, False, (*self.files, *found), self.secrets)

    def inside(self, path: str, name: str) -> Rules | None:
        """The rules that hold in this directory; None if it is left out, with all in it."""
        if self.everything:
            return self
        if name in _NEVER_SHIPPED:
            return None
        excluded = self._decision(path, True) if self.files else None
        if excluded is None:
            return None if self.default_excludes and name in _DEFAULTS else self
        return None if excluded else Rules(False, False, self.files, self.secrets)

    def excludes_file(self, path: str, name: str) -> bool:
        """Is this file, or link, left out? Remembers it if that is for looking like a secret."""
        if self.everything:
            return False
        excluded = self._decision(path, False) if self.files else None
        if excluded is not None:
            return excluded
        if _SECRET.fullmatch(name):
            self.secrets.append(path)
            return True
        return self.default_excludes and name == ".DS_Store"

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
            if excluded is not None:
                return True if excluded else (False if file.ours else None)
        return None


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
    return _IgnoreFile(patterns, strip, above, os.path.basename(path) == _KINETIC)


def secrets_notice(secrets: Sequence[str]) -> str:
    """The one notice about files that were left out for their names."""
    shown = ", ".join(sorted(secrets)[:5]) + (", …" if len(secrets) > 5 else "")
    return (
        f"left out {len(secrets)} file(s) that look like secrets: {shown}. "
        "To ship one all the same, add a line like "
        f"'!{os.path.basename(min(secrets))}' to .kineticignore"
    )
