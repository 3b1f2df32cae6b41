"""`%%kinetic`: a notebook's cell that runs as a job.

    %load_ext kinetic_core
    %kinetic accelerator="tpu-v6e-8", warm="10m"    # for all cells that follow

    %%kinetic -o losses
    losses = [step(batch) for batch in batches]
    losses[-1]

The cell becomes the body of a function. What it reads of the notebook's variables goes with it; its last
expression is its value; with `-o`, these of its variables come back into the notebook.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any, Protocol

from kinetic_core.decorator import run
from kinetic_core.errors import InvalidRequest

_RETURNED = re.compile(r"\s*-o\s+(\w+(?:,\w+)*)(?:\s+|$)")
_EXAMPLE = '%%kinetic -o losses accelerator="tpu-v6e-8", warm="10m"'


class Compiler(Protocol):
    """What is used of IPython's compiler."""

    def cache(self, transformed_code: str, number: int = 0) -> str:
        """Keep the source of a cell for tracebacks; return what stands for its file."""


class Shell(Protocol):
    """What is used of IPython's shell, an `IPython.core.interactiveshell.InteractiveShell`."""

    user_ns: dict[str, Any]
    compile: Compiler
    execution_count: int

    def ev(self, expr: str) -> Any:
        """Evaluate an expression with the notebook's variables."""

    def transform_cell(self, raw_cell: str) -> str:
        """Turn IPython's own syntax into Python."""

    def register_magic_function(
        self, func: Callable[..., Any], magic_kind: str = "line", magic_name: str | None = None
    ) -> None:
        """Make a function a magic command."""


def load_ipython_extension(shell: Shell) -> None:
    """Add `%kinetic` and `%%kinetic` to a notebook: IPython calls this for `%load_ext kinetic_core`."""
    shell.register_magic_function(_Cells(shell).kinetic, "line_cell", "kinetic")


class _Cells:
    """Cells of one notebook, with the options that hold for all of them."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._options: dict[str, Any] = {}

    def kinetic(self, line: str, cell: str | None = None) -> Any:
        """Run the cell as a job, print what it prints, and return the value of its last expression.

        The line has the options of `kinetic_core.run`, as keyword arguments. `%kinetic OPTIONS`, without a
        cell, sets those of all cells that follow, and `%kinetic` alone returns them. `-o NAME,NAME` brings
        variables of the cell back.

        Raises InvalidRequest for a line or a cell that cannot be understood, and what a call of a decorated
        function raises.
        """
        returned, options = self._of_line(line)
        if cell is None:
            if returned:
                raise InvalidRequest(f"-o is for one cell, after %%kinetic, not for %kinetic {line.strip()}")
            if not options:
                return dict(self._options)
            run(**options)
            self._options = options
            return None
        function, arguments = self._function(cell, returned)
        value, named = run(**{**self._options, **options})(function)(**arguments)
        self._shell.user_ns.update(named)
        return value

    def _of_line(self, line: str) -> tuple[list[str], dict[str, Any]]:
        """Return the names after `-o`, and the options."""
        returned: list[str] = []
        if found := _RETURNED.match(line):
            returned, line = found[1].split(","), line[found.end() :]
        try:
            call = ast.parse(f"run({line.strip()}\n)", mode="eval").body
        except SyntaxError as exc:
            raise InvalidRequest(f"{line.strip()!r} has no options of @run. Write: {_EXAMPLE}") from exc
        if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
            raise InvalidRequest(f"{line.strip()!r} has something without a name. Write: {_EXAMPLE}")
        return returned, {str(each.arg): self._shell.ev(ast.unparse(each.value)) for each in call.keywords}

    def _function(self, cell: str, returned: Sequence[str]) -> tuple[FunctionType, dict[str, Any]]:
        """Return the function whose body is the cell, and the variables that are its arguments."""
        shell = self._shell
        source = shell.transform_cell(cell)
        if "get_ipython()" in source and "get_ipython()" not in cell:
            raise InvalidRequest(
                "a %%kinetic cell is plain Python, without lines that begin with % or !: there is no IPython "
                "where it runs. Use subprocess for a command, and a cell of its own for a magic"
            )
        file = shell.compile.cache(source, shell.execution_count)
        body = ast.parse(source, file).body
        code = _compiled(body, (), (), file)
        own = {*code.co_varnames, *code.co_cellvars}
        if missing := [each for each in returned if each not in own]:
            raise InvalidRequest(f"the cell assigns no {', '.join(missing)}, which -o names")
        wanted = own & _read_first(body) & shell.user_ns.keys()
        arguments = {each: shell.user_ns[each] for each in sorted(wanted)}
        code = _compiled(body, tuple(arguments), returned, file)
        return FunctionType(code, shell.user_ns), arguments


def _compiled(
    body: Sequence[ast.stmt], arguments: Sequence[str], returned: Sequence[str], file: str
) -> CodeType:
    """Compile a function with that body, which returns its last expression's value, and variables by name."""
    module = ast.Module([*body], [])
    awaits = compile(module, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT).co_flags & inspect.CO_COROUTINE
    variables = ", ".join(f"{each!r}: {each}" for each in returned)
    text = f"{'async ' if awaits else ''}def cell({', '.join(arguments)}): return None, {{{variables}}}"
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)  # noqa: S101  see the text
    (end,) = function.body
    assert isinstance(end, ast.Return)  # noqa: S101
    assert isinstance(end.value, ast.Tuple)  # noqa: S101
    statements = [*body]
    if statements and isinstance(last := statements[-1], ast.Expr):
        del statements[-1]
        end.value.elts[0] = last.value
        ast.copy_location(end, last)
    function.body = [*statements, end]
    whole = compile(ast.Module([function], []), file, "exec")
    return next(each for each in whole.co_consts if isinstance(each, CodeType))


def _read_first(body: Sequence[ast.stmt]) -> set[str]:
    """Return the names that a body may read before it has set them itself."""
    known: set[str] = set()
    read: set[str] = set()
    for statement in body:
        for each in ast.walk(statement):
            name = each.target if isinstance(each, ast.AugAssign) else each
            is_read = name is not each or not isinstance(getattr(name, "ctx", None), ast.Store)
            if isinstance(name, ast.Name) and is_read and name.id not in known:
                read.add(name.id)
        known |= _bound(statement)
    return read


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement sets whenever it ends without an exception, as far as is certain."""
    targets: list[ast.expr] = []
    match statement:
        case ast.Assign():
            targets = statement.targets
        case ast.AnnAssign() if statement.value is not None:
            targets = [statement.target]
        case ast.Import() | ast.ImportFrom():
            return {(each.asname or each.name).partition(".")[0] for each in statement.names}
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case _:
            return set()
    names = (each for target in targets for each in ast.walk(target))
    return {each.id for each in names if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
