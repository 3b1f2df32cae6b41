"""What of a project ships with a function, told before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinetic_core.configuration import Settings
from kinetic_core.lifecycle.backends import backend_name, open_backend
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.packaging.callables import source_file
from kinetic_core.packaging.ignore import project_rules, secrets_notice
from kinetic_core.packaging.project import Project, locate_project, only_notice
from kinetic_core.packaging.scan import FileFacts, scan
from kinetic_core.packaging.tree import StoredTree, store_project


@dataclass(frozen=True)
class Contents:
    """A project's files as they would ship. `size` is in bytes."""

    project: Project
    files: tuple[FileFacts, ...]
    notices: tuple[str, ...]

    @property
    def root(self) -> Path:
        return self.project.root

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def store(self, options: RunOptions, settings: Settings) -> StoredTree:
        """Store them where a job with these options would look. Raises as `pack` does."""
        backend = open_backend(backend_name(options.backend, 1, settings), settings)  # for its store
        return store_project(
            self.project,
            backend.store,
            cache=settings.cache,
            default_excludes=settings.default_excludes,
            without=[settings.local_store, settings.cache],
            warn_bytes=settings.project_warn_bytes,
        )


def project_contents(function: Callable[..., Any], settings: Settings) -> Contents:
    """The files of a function's project, data of its arguments excepted. Opens none of them.

    Raises InvalidProject.
    """
    project = locate_project(source_file(function), package_root=settings.package_root)
    secrets: list[str] = []
    rules = replace(project_rules(str(project.root), settings.default_excludes), secrets=secrets)
    left_out = [str(settings.local_store), str(settings.cache)]
    listing = scan(str(project.root), rules, only=project.only, without=left_out)
    notices = [*listing.notices, *only_notice(project), *([secrets_notice(secrets)] if secrets else [])]
    return Contents(project, tuple(sorted(listing.files)), tuple(notices))
