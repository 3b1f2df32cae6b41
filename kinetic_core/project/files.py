"""List what a directory holds, by `stat` alone: no file is opened here."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kinetic_core.errors import InvalidProject
from kinetic_core.project.ignore import Rules, is_airflow_file


class FileFacts(NamedTuple):
    """A regular file, its path relative to the root. Times are in nanoseconds.

    All but the path and mode together say whether the content is the one that was hashed before.
    """

    path: str
    mode: int
    size: int
    modified: int
    changed: int
    inode: int


@dataclass
class Listing:
    """What a directory tree holds that can be shipped; `empty` are directories with nothing in them.

    `sources` says where a file lies that is not at its path below the root, `left_out` what Git's rules name.
    Of `files`, `linked` has those that are links, with the file outside the root that each leads to.
    """

    files: list[FileFacts] = field(default_factory=list)
    empty: list[tuple[str, int]] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    linked: dict[str, str] = field(default_factory=dict)

    def add(self, other: Listing, root: str, prefix: str) -> None:
        """Add what another directory, `root`, holds, as if it lay at `prefix` below this one."""
        for facts in other.files:
            path = f"{prefix}/{facts.path}"
            self.files.append(facts._replace(path=path))
            self.sources[path] = os.path.join(root, facts.path)
        self.empty += [(f"{prefix}/{path}", mode) for path, mode in other.empty]
        self.links += [(f"{prefix}/{path}", target) for path, target in other.links]
        self.notices += other.notices
        self.left_out += [f"{prefix}/{path}" for path in other.left_out]
        self.linked |= {f"{prefix}/{path}": real for path, real in other.linked.items()}


@dataclass(frozen=True)
class _Folder:
    """A directory yet to be listed. `above` are the identities of the directories it was reached through."""

    path: str
    relative: str
    rules: Rules
    above: tuple[tuple[int, int], ...] = ()
    whole: bool = True
    """Whether all in it is taken; else only what was named."""


def scan(
    root: str, rules: Rules, *, only: Collection[str] | None = None, without: Collection[str] = ()
) -> Listing:
    """List `root`, leaving out what the rules say and the absolute paths in `without`.

    `only` names paths below the root: these are taken, with all that lies below them, and nothing else.
    Links that stay inside a root of which everything is taken are kept as links; others give what they lead
    to. Raises InvalidProject for a directory that cannot be listed.
    """
    return _Scan(root, only, without).run(rules)


class _Scan:
    def __init__(self, root: str, only: Collection[str] | None, without: Collection[str]) -> None:
        self.root = root
        self.real_root = os.path.realpath(root)
        self.only = None if only is None else frozenset(only)
        self.above_only = {folder for path in only or () for folder in _folders_above(path)}
        real = {os.path.realpath(path) for path in without} | set(without)
        self.without = real - {root, self.real_root}
        self.listing = Listing()
        self.pending: list[_Folder] = []

    def run(self, rules: Rules) -> Listing:
        self.pending.append(_Folder(self.root, "", rules, whole=self.only is None))
        while self.pending:
            self._list(self.pending.pop())
        return self.listing

    def _list(self, folder: _Folder) -> None:
        try:
            with os.scandir(folder.path) as found:
                entries = list(found)
        except FileNotFoundError:
            if not folder.relative:
                raise InvalidProject(f"{folder.path} is not there") from None
            return  # removed since its parent was listed
        except OSError as exc:
            raise unreadable(folder.path, exc) from exc
        names = {entry.name for entry in entries}
        prefix = folder.relative + "/" if folder.relative else ""
        if not folder.whole:
            entries = [entry for entry in entries if self._is_wanted(prefix + entry.name)]
        elif folder.relative and folder.rules.is_virtualenv(names):
            return
        rules = folder.rules.below(folder.path, folder.relative, names)
        taken = [self._take(entry, prefix + entry.name, rules, folder) for entry in entries]
        if folder.relative and not any(taken):
            with suppress(FileNotFoundError):  # removed since it was listed
                mode = stat.S_IMODE(os.stat(folder.path).st_mode) & 0o777
                self.listing.empty.append((folder.relative, mode))

    def _is_wanted(self, path: str) -> bool:
        return self.only is None or path in self.only or path in self.above_only

    def _is_whole(self, path: str, parent: _Folder) -> bool:
        return parent.whole or self.only is None or path in self.only

    def _take(self, entry: os.DirEntry[str], path: str, rules: Rules, folder: _Folder) -> bool:
        """Put one entry where it belongs; False if it is left out."""
        name = entry.name
        if self.without and (entry.path in self.without or f"{self.real_root}/{path}" in self.without):
            return False
        if not name.isascii() and not _is_text(name):
            self.listing.notices.append(f"left out {path!r}: its name is not UTF-8")
            return False
        if entry.is_symlink():
            return self._take_link(entry, path, rules, folder)
        if entry.is_dir(follow_symlinks=False):
            inside = rules.inside(path, name, entry.path)
            if inside is not None:
                whole = self._is_whole(path, folder)
                self.pending.append(_Folder(entry.path, path, inside, folder.above, whole))
            return inside is not None
        if rules.excludes_file(path, name):
            return False
        try:
            return self._take_file(entry.stat(follow_symlinks=False), path)
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise unreadable(entry.path, exc) from exc

    def _take_file(self, facts: os.stat_result, path: str) -> bool:
        if not stat.S_ISREG(facts.st_mode):
            self.listing.notices.append(f"left out {path!r}: it is a socket, pipe or device")
            return False
        self.listing.files.append(file_facts(path, facts))
        return True

    def _take_link(self, entry: os.DirEntry[str], path: str, rules: Rules, folder: _Folder) -> bool:
        if rules.excludes_file(path, entry.name):
            return False
        real = os.path.realpath(entry.path)
        if rules.is_airflows(path, os.path.basename(real)):
            return False
        try:
            facts = os.stat(real)
        except OSError:
            self.listing.notices.append(f"left out {path!r}: the link leads nowhere")
            return False
        if real in self.without:
            return False
        if (real + "/").startswith(self.real_root + "/") and folder.whole and self.only is None:
            self.listing.links.append((path, self._target(entry.path, path, real)))
            return True
        if not stat.S_ISDIR(facts.st_mode):
            self.listing.linked[path] = real
            return self._take_file(facts, path)
        identity = (facts.st_dev, facts.st_ino)
        if identity in folder.above or (self.real_root + "/").startswith(real.rstrip("/") + "/"):
            self.listing.notices.append(f"left out {path!r}: the link leads to a directory around it")
            return False
        inside = rules.inside(path, entry.name, real)
        if inside is not None:
            whole = self._is_whole(path, folder)
            self.pending.append(_Folder(entry.path, path, inside, (*folder.above, identity), whole))
        return inside is not None

    def _target(self, link: str, path: str, real: str) -> str:
        """The relative target of a link inside the root; as written, if that works anywhere."""
        written = os.readlink(link)
        parent = os.path.dirname(path)
        if not written.startswith("/") and _is_text(written):
            meant = os.path.normpath(os.path.join(self.real_root, parent, written))
            if (meant + "/").startswith(self.real_root + "/"):
                return written
        return os.path.relpath(real, os.path.join(self.real_root, parent))


def _folders_above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def file_facts(path: str, facts: os.stat_result) -> FileFacts:
    return FileFacts(
        path, facts.st_mode & 0o777, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino
    )


def unreadable(path: str, exc: OSError) -> InvalidProject:
    """The refusal of a file or directory that cannot be read."""
    return InvalidProject(
        f"{path!r} cannot be read: {exc.strerror or exc}. Make it readable, or leave it out (.kineticignore)"
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_LINE_BREAKS = ("\n", "\r")


def data_listing(path: Path) -> tuple[str, Callable[[], Listing]]:
    """The root that a path's entries are relative to, and what lists them, each time it is called.

    Listing raises InvalidProject, naming the path, if it is not there, cannot be read, is or holds one of
    Airflow's own files, or holds a name with a line break, which Cloud Storage does not have.
    """
    full = os.path.abspath(path)
    root, name = (full, None) if os.path.isdir(full) else os.path.split(full)

    def look() -> Listing:
        listing = scan(root, Rules(everything=True)) if name is None else _alone(full, name)
        _refuse_line_breaks(root, listing)
        names = {facts.path: facts.path for facts in listing.files}
        _refuse_airflow_files(root, {full: os.path.realpath(full), **names, **listing.linked})
        return listing

    return root, look


def _alone(full: str, name: str) -> Listing:
    if not os.path.isfile(full):
        raise InvalidProject(f"data {full!r} is neither a file nor a directory")
    try:
        return Listing(files=[file_facts(name, os.stat(full))])
    except OSError as exc:
        raise unreadable(full, exc) from exc


def _refuse_airflow_files(root: str, files: Mapping[str, str]) -> None:
    """Refuse files, by path, that are Airflow's own or links to such.

    A path that a template or a run's configuration says may lead into AIRFLOW_HOME.
    """
    for path, real in files.items():
        name = os.path.basename(real)
        if is_airflow_file(name):
            what = "is" if os.path.basename(path) == name else f"leads to {real!r}, which is"
            raise InvalidProject(
                f"data {os.path.join(root, path)!r} {what} Airflow's own: its configuration, database or "
                "passwords. Name the files that the job needs"
            )


def _refuse_line_breaks(root: str, listing: Listing) -> None:
    paths = [facts.path for facts in listing.files]
    paths += [path for path, _ in listing.empty] + [path for path, _ in listing.links]
    for path in paths:
        if any(mark in path for mark in _LINE_BREAKS):
            raise InvalidProject(
                f"data {os.path.join(root, path)!r} has a line break in its name, which Cloud Storage does "
                "not allow. Rename it"
            )
