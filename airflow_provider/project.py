"""Project of a task's job: its part of the DAG bundle, without files of Airflow or of other teams.

A DAG bundle is usually a folder that many people write to, in a directory where Airflow keeps its keys,
passwords, database and logs. So files are chosen, not the directory: the DAG's file and what it imports,
with the data beside them (ADR 0043).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinetic_core.errors import InvalidProject
from kinetic_core.project.callables import source_file
from kinetic_core.project.import_closure import closure
from kinetic_core.project.root import (
    MARKERS,
    Place,
    Project,
    in_virtualenv,
    is_installed,
    locate_project,
    relative_path,
)

_INCLUDE = "include"
"""Astronomer's directory of shared code and queries, beside the DAGs folder."""


_OF_AIRFLOW = "requirements.txt"


@dataclass(frozen=True)
class Surroundings:
    """Location of a task's code: its DAG's file and bundle, and the directories of its Airflow."""

    dag_file: Path
    bundle: Path
    airflow_home: Path
    dags_folder: Path
    plugins_folder: Path

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> Surroundings | None:
        """Return the location of a running task's code; None without a bundle, as in `dag.test()`."""
        dag_file = Path(getattr(context.get("dag"), "fileloc", None) or "")
        if not dag_file.is_absolute():
            return None
        from airflow_provider.airflow_sdk import conf

        home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
        dags_folder = Path(conf.get("core", "dags_folder", fallback=f"{home}/dags")).expanduser()
        plugins_folder = Path(conf.get("core", "plugins_folder", fallback=f"{home}/plugins")).expanduser()
        given = getattr(getattr(context.get("ti"), "bundle_instance", None), "path", None)
        bundles = [Path(each) for each in (given, dags_folder) if each is not None]
        bundle = next((each for each in bundles if relative_path(dag_file, each) is not None), None)
        return None if bundle is None else cls(dag_file, bundle, home, dags_folder, plugins_folder)


def project_of_task(
    function: Callable[..., Any], context: Mapping[str, Any], package_root: str | None = None
) -> Project | None:
    """Return the project that ships with a task; None outside a DAG bundle, where the file decides.

    `package_root`: the setting. Raises InvalidProject if the project would contain Airflow's own directory.
    """
    around = Surroundings.of(context)
    if around is None:
        return None
    source = source_file(function)
    if package_root is None:
        return bundle_project(source, around)
    return asked_project(package_root, source, around)


def asked_project(asked: str, source: Path | None, around: Surroundings) -> Project:
    """Return the directory in KINETIC_PACKAGE_ROOT. Raises InvalidProject if Airflow's own lies in it."""
    project = locate_project(source, package_root=asked)
    if relative_path(around.airflow_home, project.root) is not None:
        raise InvalidProject(
            f"KINETIC_PACKAGE_ROOT={asked!r} holds AIRFLOW_HOME ({around.airflow_home}), whose "
            "configuration, database and logs no job may have. Name a directory in it, or unset it: then the "
            "DAG's file ships with all that it imports, and the data beside it"
        )
    return project


def bundle_project(
    source: Path | None,
    around: Surroundings,
    *,
    sys_path: Sequence[str] | None = None,
    cwd: Path | None = None,
) -> Project:
    """Return the files of a bundle that a DAG and its function need, at the same places below one root.

    `source` is the function's file, None if it has none. The root is the bundle, or for the DAGs folder its
    parent, of which only these files ship. A function in a project outside of Airflow's directories ships
    with that project. `sys_path` and `cwd` default to this process's. Raises InvalidProject.
    """
    bundle, beside = around.bundle, around.bundle.parent
    near = beside in (around.airflow_home, around.dags_folder.parent)
    root = beside if near else bundle
    tops = [bundle, around.plugins_folder, around.airflow_home / "config", beside / _INCLUDE]
    closed = [beside, around.airflow_home]
    roots = _import_roots([*(sys.path if sys_path is None else sys_path), str(bundle)], [*tops, *closed])
    own = source if source is not None and not is_installed(source) else None
    detected = locate_project(own or around.dag_file, cwd=cwd)
    airflows = any(relative_path(each, detected.root) is not None for each in (bundle, around.airflow_home))
    if own is not None and not airflows and not _is_below_one(own, [*tops, *closed]):
        return detected
    files = [str(file) for file in dict.fromkeys((around.dag_file, own or around.dag_file)) if file.is_file()]
    needed = closure(
        files,
        roots,
        shared=[str(top) for top in tops],
        closed=[str(top) for top in closed],
        named=[str(beside / _INCLUDE)],
    )
    whole = [str(detected.root)] if _is_project_in(bundle, detected.root) else []
    selected = sorted({*needed.modules, *needed.data, *whole})
    layout = _Layout(root, [beside, *tops, *closed])
    only = tuple(layout.paths(selected))
    return Project(
        root=root,
        entry=relative_path((own or around.dag_file).parent, root) or "",
        cwd=relative_path(cwd or Path.cwd(), root),
        sys_path=tuple(_used(roots, selected, bundle, layout)),
        only=only,
        elsewhere=tuple(layout.elsewhere()),
        base=detected.root,
        notices=_notices(around.dag_file, needed.unknown, bool(files)),
    )


class _Layout:
    """Places of files in the job: below the root as here, those of other directories beside them."""

    def __init__(self, root: Path, others: Iterable[Path]) -> None:
        self._root = root
        self._others = [other for other in others if relative_path(other, root) is None]
        self._places: dict[Path, list[str]] = {}

    def paths(self, files: Iterable[str]) -> list[str]:
        """Return the paths below the root, and remember the files that lie elsewhere."""
        found = []
        for file in files:
            relative = relative_path(Path(file), self._root)
            if relative is not None:
                found.append(relative)
            elif (other := self._other(Path(file))) is not None:
                self._places.setdefault(other, []).append(relative_path(Path(file), other) or "")
        return found

    def elsewhere(self) -> list[Place]:
        """Return the directories that hold the files from elsewhere."""
        return [Place(place, self._name(place), tuple(only)) for place, only in sorted(self._places.items())]

    def path(self, directory: Path) -> str | None:
        """Return where a directory appears, relative to the root; None if it does not ship."""
        relative = relative_path(directory, self._root)
        if relative is not None:
            return relative
        other = self._other(directory)
        if other is None:
            return None
        below = relative_path(directory, other)
        return f"{self._name(other)}/{below}" if below else self._name(other)

    def _other(self, path: Path) -> Path | None:
        holding = (other for other in self._others if relative_path(path, other) is not None)
        return max(holding, key=lambda each: len(each.parts), default=None)

    def _name(self, place: Path) -> str:
        name = place.name
        while (self._root / name).exists():
            name = f"airflow-{name}"
        return name


def _import_roots(entries: Sequence[str], tops: Sequence[Path]) -> list[str]:
    """List the entries of `sys.path` with code of the bundle or of this Airflow, not installed packages."""
    found: dict[str, None] = {}
    for entry in entries:
        path = Path(entry).absolute()
        if not entry or not path.is_dir() or is_installed(path / "module.py"):
            continue
        top = next((top for top in tops if relative_path(path, top) is not None), None)
        if top is not None and not in_virtualenv(path, top):
            found[str(top / (relative_path(path, top) or ""))] = None
    return list(found)


def _is_below_one(file: Path, tops: Sequence[Path]) -> bool:
    return any(relative_path(file, top) is not None for top in tops)


def _is_project_in(bundle: Path, directory: Path) -> bool:
    """Return whether a directory below the bundle is a whole project by one of its files.

    `requirements.txt` does not count: people put it into folders of DAGs to say what Airflow needs.
    """
    below = relative_path(directory, bundle)
    return bool(below) and any((directory / marker).exists() for marker in MARKERS if marker != _OF_AIRFLOW)


def _used(roots: Sequence[str], selected: Sequence[str], bundle: Path, layout: _Layout) -> Iterable[str]:
    """Return the job's import directories, those from which something ships, in their order."""
    found: dict[str, None] = {}
    for entry in roots:
        if entry == str(bundle) or any((file + os.sep).startswith(entry + os.sep) for file in selected):
            path = layout.path(Path(entry))
            if path is not None:
                found[path] = None
    return found


def _notices(dag_file: Path, unknown: Sequence[str], has_files: bool) -> tuple[str, ...]:
    notices = [
        f"{place} imports a module whose name only running it tells: if that lies in the DAG bundle, it does "
        "not ship. Import it by its name, or set KINETIC_PACKAGE_ROOT to the directory that a job needs"
        for place in unknown
    ]
    if not has_files:
        notices.append(
            f"{dag_file} is no file of its own (a zip file?): the function ships by value, and modules that "
            "it imports while it runs do not. Put the DAG into a directory"
        )
    return tuple(notices)
