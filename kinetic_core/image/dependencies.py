"""What a project depends on: requirements with the place they were written at, from any kind of file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kinetic_core.errors import InvalidDependencies

_REMOTE = re.compile(r"((git|hg|bzr|svn)\+)?(https?|ssh|git)://", re.IGNORECASE)
KEEP = "kn:keep"
"""In the comment behind a requirement: install exactly this, whatever the accelerator."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One requirement, `where` it was written (`requirements.txt:3`), and the hashes its file may have."""

    requirement: Requirement
    where: str
    hashes: tuple[str, ...] = ()
    keep: bool = False

    @property
    def name(self) -> str:
        """The normalised name."""
        return canonicalize_name(self.requirement.name)

    @property
    def line(self) -> str:
        """As a line of a requirements file, always written in the same way."""
        return " ".join([str(self.requirement), *(f"--hash={one}" for one in sorted(self.hashes))])


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a project wants installed.

    `source` is the file they are from, "" if nothing says what they are. `options` are lines of a
    requirements file about package indexes, in their order. `constraints` limit versions only. `is_exact`
    is what a lock says: one version of everything.
    """

    source: str = ""
    wanted: tuple[Wanted, ...] = ()
    constraints: tuple[Wanted, ...] = ()
    options: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    is_exact: bool = False


def lines(wanted: Iterable[Wanted]) -> tuple[str, ...]:
    """Sorted, each once: neither order nor comments nor spelling make a difference."""
    return tuple(sorted({one.line for one in wanted}))


def requirement(text: str, where: str, *, hashes: Iterable[str] = (), keep: bool = False) -> Wanted:
    """A checked requirement. Raises InvalidDependencies for one that no pod can install."""
    if is_local(text):
        raise refused(where, text, "is a path of this machine, which no pod has")
    try:
        parsed = Requirement(text)
    except InvalidRequirement as exc:
        raise refused(where, text, f"is not a requirement ({str(exc).splitlines()[0]})") from exc
    if parsed.url is not None:
        check_url(parsed.url, where)
    return Wanted(parsed, where, tuple(hashes), keep)


def is_local(text: str) -> bool:
    """Whether a requirement's text is a path instead of a name."""
    return text in (".", "..") or bool(re.match(r"\.{0,2}[/\\]|~|[A-Za-z]:[/\\]|file:|\.\[", text))


def check_url(url: str, where: str) -> None:
    """Raise InvalidDependencies for a URL that is local, or that carries what must stay secret."""
    if not _REMOTE.match(url):
        raise refused(where, url, "is a path of this machine, which no pod has")
    parts = urlsplit(url.partition("+")[2] if "+" in url.partition(":")[0] else url)
    if parts.password or (parts.username and parts.scheme != "ssh"):
        hidden = url.replace(parts.netloc, f"***@{parts.hostname}")
        raise refused(where, hidden, "carries credentials, which would be readable in the image")
    if "${" in url:
        raise refused(where, url, "has a variable, which is not expanded: it would be readable in the image")


def refused(where: str, text: str, why: str) -> InvalidDependencies:
    """The error for a requirement, with what to do."""
    return InvalidDependencies(
        f"{where}: {text!r} {why}. The project's own code travels with the job; publish other packages to an "
        "index, name them as 'package @ git+https://…', or use an image that has them (container_image=)"
    )
