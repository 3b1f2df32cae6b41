"""What a project depends on: requirements with the place they were written at, from any kind of file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from kinetic_core.errors import InvalidDependencies

_REMOTE = re.compile(r"((git|hg|bzr|svn)\+)?(https?|ssh|git)://", re.IGNORECASE)
IMPORTED = "imported by "
"""How the place of a requirement begins that nobody wrote: the project imports the package."""
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
        """As a line of a requirements file, written in the same way by every version of `packaging`."""
        written = copy(self.requirement)
        written.name, written.extras = self.name, {canonicalize_name(one) for one in written.extras}
        text = re.sub(r"(?<=\S)@ ", " @ ", str(written), count=1)
        return " ".join([text, *(f"--hash={one}" for one in sorted(self.hashes))])


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


_COMMENT = re.compile(r"(^|\s)#.*$")
_OPTION = re.compile(r"\s--?[a-z]")
_SHORT = {
    "-i": "--index-url",
    "-f": "--find-links",
    "-r": "--requirement",
    "-c": "--constraint",
    "-e": "--editable",
}
_INDEXES = ("--index-url", "--extra-index-url", "--find-links")
_KEPT = ("--no-binary", "--only-binary")
_NEEDLESS = ("--require-hashes", "--prefer-binary", "--no-cache-dir", "--disable-pip-version-check")
"""They change nothing: uv checks every hash that is there, and prefers wheels."""


@dataclass
class _Reading:
    """What has been read so far, of a file and those it includes."""

    wanted: list[Wanted] = field(default_factory=list)
    constraints: list[Wanted] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    open: list[Path] = field(default_factory=list)


def read_requirements(path: Path, name: str) -> Dependencies:
    """The dependencies in a requirements file, called `name` in messages. Raises InvalidDependencies."""
    reading = _Reading()
    _read_file(reading, path, name, reading.wanted)
    return _done(reading, name)


def parse_requirements(texts: Iterable[str], name: str, folder: Path) -> Dependencies:
    """As the lines of a requirements file in `folder`."""
    reading = _Reading()
    _read_lines(reading, "\n".join(texts), name, folder, reading.wanted)
    return _done(reading, name)


def _done(reading: _Reading, name: str) -> Dependencies:
    options = tuple(dict.fromkeys(reading.options))
    return Dependencies(name, tuple(reading.wanted), tuple(reading.constraints), options)


def _read_file(reading: _Reading, path: Path, name: str, into: list[Wanted]) -> None:
    if path.resolve() in reading.open:
        raise InvalidDependencies(f"{name} includes itself")
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidDependencies(f"{name} cannot be read: {exc}") from exc
    reading.open.append(path.resolve())
    _read_lines(reading, text, name, path.parent, into)
    reading.open.pop()


def _read_lines(reading: _Reading, text: str, name: str, folder: Path, into: list[Wanted]) -> None:
    for number, line, keep in _logical_lines(text):
        where = f"{name}:{number}"
        if line.startswith("-"):
            _read_option(reading, line, where, name, folder, into)
        else:
            into.append(_read_requirement(line, where, keep))


def _logical_lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """Number of its first line, content without comments, whether a comment says to keep it as it is."""
    start, parts, keep = 0, [], False
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        start = start or number
        comment = _COMMENT.search(line)
        keep = keep or (comment is not None and KEEP in comment[0])
        bare = _COMMENT.sub("", line)
        goes_on = comment is None and bare.endswith("\\") and number < len(lines)
        parts.append(bare.removesuffix("\\").strip())
        if goes_on:
            continue
        if whole := " ".join(part for part in parts if part):
            yield start, whole, keep
        start, parts, keep = 0, [], False


def _read_option(
    reading: _Reading, line: str, where: str, name: str, folder: Path, into: list[Wanted]
) -> None:
    option, value = _option(line)
    if option in ("--requirement", "--constraint"):
        target = reading.constraints if option == "--constraint" else into
        below = value if "/" not in name else f"{name.rpartition('/')[0]}/{value}"
        if "://" in value:
            raise refused(where, line, "is not a file of the project")
        _read_file(reading, folder / value, below, target)
    elif option == "--editable":
        into.append(_read_requirement(value, where, keep=False))
    elif option in _INDEXES:
        check_url(value, where)
        reading.options.append(f"{option} {value}")
    elif option in _KEPT:
        reading.options.append(f"{option} {value}")
    elif option not in _NEEDLESS:
        raise InvalidDependencies(
            f"{where}: {option!r} is not an option that jobs' images are built with; drop it"
        )


def _option(line: str) -> tuple[str, str]:
    option, _, value = line.partition(" ")
    if "=" in option:
        option, _, value = line.partition("=")
    elif not option.startswith("--") and len(option) > 2:
        option, value = line[:2], line[2:]
    return _SHORT.get(option, option), value.strip().strip("\"'")


def _read_requirement(line: str, where: str, keep: bool) -> Wanted:
    found = _OPTION.search(line)
    text, options = (line[: found.start()], line[found.start() :]) if found else (line, "")
    hashes = []
    for word in shlex.split(options.replace("--hash ", "--hash=")):
        if not word.startswith("--hash="):
            raise InvalidDependencies(f"{where}: {word!r} behind a requirement is not understood; drop it")
        hashes.append(word.removeprefix("--hash="))
    return requirement(_named(text.strip(), where), where, hashes=hashes, keep=keep)


def _named(text: str, where: str) -> str:
    """A bare URL as `name @ URL`, a repository without `egg=` by its own name; everything else as it is."""
    if "://" not in text.partition(" ")[0] or text.startswith("file:"):
        return text
    url, _, marker = text.partition(" ")
    address, _, fragment = url.partition("#")
    egg = re.search(r"(?:^|&)egg=([^&]+)", fragment)
    name = egg[1] if egg else _name_of_file(address)
    if name is None:
        raise refused(where, text, "does not say which package it is: write 'name @ URL'")
    rest = "&".join(part for part in fragment.split("&") if part and not part.startswith("egg="))
    return f"{name} @ {address}{'#' + rest if rest else ''} {marker}".strip()


def _name_of_file(address: str) -> str | None:
    file = address.rpartition("/")[2]
    if address.startswith("git+"):
        return file.partition("@")[0].removesuffix(".git") or None
    try:
        return parse_wheel_filename(file)[0] if file.endswith(".whl") else parse_sdist_filename(file)[0]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
