"""What a Python file needs of the directories it imports from: the modules it imports, and their data.

For a directory that holds the code of many people, of which a job shall get only its own. Everything is
read from the source, nothing is imported, so every process finds the same.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES

_MODULES = (".py", *EXTENSION_SUFFIXES)
_OURS = frozenset({"kinetic_core", "airflow_provider", "airflow"})
_LONGEST_NAME = 255
_IMPORTERS = frozenset({"import_module", "__import__"})


@dataclass(frozen=True)
class Closure:
    """Absolute paths of `modules`, and of `data`: files, and directories that are meant as a whole.

    `unknown` are places, as `file:line`, that import what only running the code tells.
    """

    modules: frozenset[str]
    data: frozenset[str]
    unknown: tuple[str, ...]


def closure(
    files: Iterable[str],
    import_roots: Sequence[str],
    *,
    shared: Collection[str] = (),
    closed: Collection[str] = (),
    named: Collection[str] = (),
) -> Closure:
    """Return what the modules `files` need of `import_roots`, directories in the order of `sys.path`.

    All they import, inside functions too, belongs to it; where the name of a module is computed, all modules
    below the package that its beginning names. Data is what lies beside these modules: each file that is no
    module, and each directory without modules. In the `shared` directories, which belong to nobody alone, it
    is only what a string in the code names, by a path, a pattern or an f-string, or what has a module's
    name; in the `closed` ones it is nothing. `named` are directories which count as shared if a string names
    them. Files that cannot be parsed are taken alone.
    """
    reader = _Reader(tuple(import_roots), frozenset(shared) | frozenset(closed))
    for file in files:
        reader.take_with_packages(file)
    reader.run()
    return Closure(frozenset(reader.modules), reader.data(closed, named), tuple(reader.unknown))


def foreign_imports(script: str, name: str, import_roots: Sequence[str]) -> dict[str, str]:
    """Return the top-level modules that a function of a script needs from elsewhere, each with the place of
    an import, as `file:line`.

    Of the script, whose functions travel by value, only those imports count that the function, and what it
    names of the script, uses; of a module that it imports from `import_roots`, all. The standard library and
    imports that may fail (in `try` with an `except ImportError`) or are for type checkers only are left out.
    """
    reader = _Reader(tuple(import_roots), frozenset(import_roots))
    reader.read_needed(script, name)
    reader.run()
    return reader.foreign


@dataclass
class _Reader:
    roots: tuple[str, ...]
    shared: frozenset[str]
    foreign: dict[str, str] = field(default_factory=dict)
    modules: dict[str, None] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)
    _pending: list[str] = field(default_factory=list)
    _with_modules: dict[str, bool] = field(default_factory=dict)

    def take(self, module: str) -> None:
        if module not in self.modules:
            self.modules[module] = None
            self._pending.append(module)

    def take_with_packages(self, module: str) -> None:
        """Take a module and the packages it lies in."""
        self.take(module)
        folder = os.path.dirname(module)
        while folder not in self.shared and os.path.isfile(os.path.join(folder, "__init__.py")):
            self.take(os.path.join(folder, "__init__.py"))
            folder = os.path.dirname(folder)

    def run(self) -> None:
        while self._pending:
            file = self._pending.pop()
            if file.endswith(".py"):
                self._read(file)

    def read_needed(self, file: str, name: str) -> None:
        """Read what the top-level `name` of a file uses, and not the rest of the file."""
        if (tree := _parsed(file)) is not None:
            self._read_nodes(file, tree, (node for each in _used_by(tree, name) for node in ast.walk(each)))

    def _read(self, file: str) -> None:
        if (tree := _parsed(file)) is not None:
            self._read_nodes(file, tree, ast.walk(tree))

    def _read_nodes(self, file: str, tree: ast.Module, nodes: Iterable[ast.AST]) -> None:
        optional = _optional(tree)
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._follow(self.roots, alias.name)
                    if node not in optional:
                        self._note(alias.name, file, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(file, node)
                if node.level == 0 and node not in optional:
                    self._note(node.module or "", file, node.lineno)
            elif isinstance(node, ast.Call):
                self._call(file, node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._mention(node.value)
            elif isinstance(node, ast.JoinedStr):
                self._mention(_pattern(node))

    def _note(self, name: str, file: str, line: int) -> None:
        """Note a top-level module that is neither the project's nor Python's."""
        top = name.partition(".")[0]
        known = top in _OURS or top in sys.stdlib_module_names or top in self.foreign
        if not known and not any(_has_module(root, top) for root in (*self.roots, os.path.dirname(file))):
            self.foreign[top] = f"{os.path.basename(file)}:{line}"

    def _follow(self, folders: Sequence[str], name: str) -> Sequence[str]:
        """Take the module of a dotted name; the directories in which its own modules are looked for."""
        parts = name.split(".") if name else []
        if folders is self.roots and parts and (parts[0] in _OURS or parts[0] in sys.stdlib_module_names):
            return ()
        for part in parts:
            namespaces: list[str] = []
            for folder in folders:
                base = os.path.join(folder, part)
                if os.path.isfile(os.path.join(base, "__init__.py")):
                    self.take(os.path.join(base, "__init__.py"))
                    namespaces = [base]
                    break
                module = next((base + end for end in _MODULES if os.path.isfile(base + end)), None)
                if module is not None:
                    self.take(module)
                    return ()
                if os.path.isdir(base):
                    namespaces.append(base)
            folders = namespaces
        return folders

    def _import_from(self, file: str, node: ast.ImportFrom) -> None:
        start = self.roots if node.level == 0 else (_package(file, node.level),)
        folders = self._follow(start, node.module or "")
        for alias in node.names:
            if folders and alias.name != "*":
                self._follow(folders, alias.name)

    def _call(self, file: str, node: ast.Call) -> None:
        """An import by a function: of a module, or of any in a package that the name begins with."""
        function = node.func
        called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if called not in _IMPORTERS or not node.args:
            return
        name = _pattern(node.args[0], file)
        beginning, computed, _ = name.partition("*")
        relative = beginning.lstrip(".")
        level = len(beginning) - len(relative)
        start = (_package(file, level),) if level else self.roots
        if not computed:
            self._follow(start, relative)
            return
        package = relative.rpartition(".")[0]
        if package or level:
            folders = self._follow(start, package)
        elif os.path.dirname(file) in self.shared:
            self.unknown.append(f"{file}:{node.lineno}")
            return
        else:
            folders = (os.path.dirname(file),)
        for folder in folders:
            if folder not in self.shared:
                for module in _modules_below(folder):
                    self.take(module)

    def _mention(self, text: str) -> None:
        if len(text) > _LONGEST_NAME or "\n" in text:
            return
        for part in text.split("/"):
            if "*" not in part:
                self.names.add(part)
            elif len(part.replace("*", "")) > 1:
                self.patterns.add(part)

    def _is_mentioned(self, name: str) -> bool:
        return name in self.names or any(fnmatch.fnmatchcase(name, each) for each in self.patterns)

    def data(self, closed: Collection[str], named: Collection[str]) -> frozenset[str]:
        found: set[str] = set()
        looked: set[str] = set()
        stems = {os.path.splitext(module)[0] for module in self.modules}
        for module in list(self.modules):
            folder = os.path.dirname(module)
            if folder not in self.shared and folder not in looked:
                looked.add(folder)
                found.update(self._beside(folder))
            for above in self._folders_to_shared(folder):
                if above not in closed:
                    found.update(self._mentioned(above, looked, stems))
        for folder in named:
            if os.path.basename(folder) in self.names:
                found.update(self._mentioned(folder, looked, stems))
        return frozenset(found - self.modules.keys())

    def _folders_to_shared(self, folder: str) -> Iterator[str]:
        yield folder
        while folder not in self.shared and os.path.dirname(folder) != folder:
            folder = os.path.dirname(folder)
            if not any((folder + os.sep).startswith(each + os.sep) for each in self.shared):
                return
            yield folder

    def _beside(self, folder: str) -> Iterator[str]:
        """All data in a directory."""
        for entry in _entries(folder):
            if entry.is_dir():
                if not entry.name.startswith(".") and not self._has_modules(entry.path):
                    yield entry.path
            elif not entry.name.endswith(".py"):
                yield entry.path

    def _mentioned(self, folder: str, looked: set[str], stems: Collection[str]) -> Iterator[str]:
        """The data in a directory that the code names."""
        if f"named:{folder}" in looked:
            return
        looked.add(f"named:{folder}")
        for entry in _entries(folder):
            named = self._is_mentioned(entry.name)
            if not entry.is_dir():
                if named or os.path.splitext(entry.path)[0] in stems:
                    yield entry.path
            elif named and self._has_modules(entry.path):
                yield from self._mentioned(entry.path, looked, stems)
            elif named:
                yield entry.path

    def _has_modules(self, folder: str) -> bool:
        if folder not in self._with_modules:
            self._with_modules[folder] = next(_modules_below(folder), None) is not None
        return self._with_modules[folder]


def _pattern(node: ast.expr, file: str = "") -> str:
    """The text of an expression, with `*` for what only running it tells.

    With a `file`, `__name__` and `__package__` are its package, written with dots as in a relative import.
    """
    if isinstance(node, ast.Constant):
        return str(node.value) if isinstance(node.value, str) else "*"
    if isinstance(node, ast.JoinedStr):
        return "".join(_pattern(part, file) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _pattern(node.value, file)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _pattern(node.left, file) + _pattern(node.right, file)
    if file and isinstance(node, ast.Name) and node.id in ("__name__", "__package__"):
        return ""  # what follows begins with a dot, so it is relative to the file's package
    return "*"


def _parsed(file: str) -> ast.Module | None:
    try:
        with open(file, "rb") as stream:
            return ast.parse(stream.read())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _used_by(tree: ast.Module, name: str) -> list[ast.AST]:
    """The body of a top-level function or class, and the statements that bind what is used there."""
    bound: dict[str, list[ast.AST]] = {}
    for statement in tree.body:
        for each in _bound_by(statement):
            bound.setdefault(each, []).append(statement)
    found: dict[ast.AST, None] = {}
    left = [part for each in bound.get(name, ()) for part in getattr(each, "body", [each])]
    while left:
        node = left.pop()
        if node not in found:
            found[node] = None
            names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
            left += [statement for each in names if each != name for statement in bound.get(each, ())]
    return list(found)


def _bound_by(statement: ast.stmt) -> set[str]:
    """The names that a top-level statement binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
    return found


def _optional(tree: ast.AST) -> set[ast.AST]:
    """The nodes of a module that only a type checker reads, or that may fail to import."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        tried = isinstance(node, ast.Try) and any(map(_catches_import_error, node.handlers))
        typing = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if (tried or typing) and isinstance(node, ast.Try | ast.If):
            found.update(each for statement in node.body for each in ast.walk(statement))
    return found


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    caught = "Exception" if handler.type is None else ast.unparse(handler.type)
    return any(name in caught for name in ("ImportError", "ModuleNotFoundError", "Exception"))


def _has_module(folder: str, name: str) -> bool:
    base = os.path.join(folder, name)
    return os.path.isdir(base) or any(os.path.isfile(base + end) for end in _MODULES)


def _package(file: str, level: int) -> str:
    """The directory that a relative import of so many dots starts from."""
    folder = os.path.dirname(file)
    for _ in range(level - 1):
        folder = os.path.dirname(folder)
    return folder


def _modules_below(folder: str) -> Iterator[str]:
    for above, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith((".", "__pycache__")))
        for name in sorted(files):
            if name.endswith(_MODULES):
                yield os.path.join(above, name)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
