"""
Check the source text of a hook against the rules before any of it runs.

This rejects mistakes (a clock, randomness, a file, state between calls, a column that
does not exist). It is no sandbox: a person who may release a version may run code on
the server.
"""

from __future__ import annotations

import ast
import functools
import math
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import NamedTuple, NoReturn

import numpy as np

from tollgate.errors import HookError

MODULES = MappingProxyType({"numpy": np, "math": math})
BUILTINS = (
    *("abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "len", "list"),
    *("max", "min", "pow", "range", "reversed", "round", "sorted", "sum", "tuple"),
    "zip",
)
_ALLOWED = (
    *(ast.Module, ast.Expr, ast.Constant, ast.Import, ast.ImportFrom, ast.alias),
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.FunctionDef, ast.arguments),
    *(ast.arg, ast.Return, ast.If, ast.For, ast.Break, ast.Continue, ast.Pass),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.keyword, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple),
    *(ast.List, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.Lambda),
    *(ast.comprehension, ast.Starred, ast.expr_context, ast.operator, ast.unaryop),
    *(ast.boolop, ast.cmpop),
)
_REASONS = {
    ast.Global: "global keeps something from one call to the next",
    ast.Nonlocal: "nonlocal keeps something from one call to the next",
    ast.ClassDef: "a class keeps state: a hook is made of functions",
    ast.While: "nobody can see that a while ends: use for and range",
    ast.Set: "the order of a set hangs on the process: use a tuple",
    ast.SetComp: "the order of a set hangs on the process: use a list",
    ast.Try: "errors are not to be hidden: NaN says that there is no value",
    ast.With: "a hook needs no with: NumPy's warnings are off",
    ast.JoinedStr: "a hook makes numbers and no texts",
    ast.Raise: "a hook has an answer for every row: NaN says that there is no value",
    ast.Assert: "a hook has an answer for every row: NaN says that there is no value",
}
_IMPORTS = "a hook has numpy, math and what it defines itself"
_MUTABLE_STATE = (
    "{} could keep something from one call to the next: use a tuple or np.array"
)
_MUTABLE = (ast.List, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp)
_MEMORY = "holds whatever was in memory: use np.zeros or np.full"
_FILES = "reads or writes files"
_PRODUCT = "has last bits that hang on the batch: write the sum of the products"
_SETTINGS = "changes or shows settings of the process"
_NUMPY_REFUSED = {
    **dict.fromkeys(("empty", "empty_like", "ndarray"), _MEMORY),
    **dict.fromkeys(
        ("load", "save", "savez", "savez_compressed", "loadtxt", "savetxt"), _FILES
    ),
    **dict.fromkeys(("genfromtxt", "fromfile", "fromregex", "memmap"), _FILES),
    **dict.fromkeys(("seterr", "seterrcall", "setbufsize", "errstate"), _SETTINGS),
    **dict.fromkeys(("set_printoptions", "printoptions", "info"), _SETTINGS),
    **dict.fromkeys(("show_config", "show_runtime", "get_include"), _SETTINGS),
    **dict.fromkeys(
        ("dot", "matmul", "inner", "vdot", "einsum", "tensordot"), _PRODUCT
    ),
}
_ATTRIBUTES_REFUSED = frozenset(
    (
        *("base", "ctypes", "data", "dump", "dumps", "flags", "format", "format_map"),
        *("mro", "setflags", "tofile"),
    )
)
_CLOCK_WORDS = ("now", "today")  # NumPy's words for the current time


def refuse(path: Path, node: ast.AST, problem: str) -> NoReturn:
    """Raise a HookError that names the line of a piece of a hook, and the problem."""
    line = getattr(node, "lineno", 1)
    raise HookError(path, problem, where=f"line {line}")


class HookRules:
    """
    Check the source text of one hook.

    Args:
        path: The file, for messages.
        tree: Its syntax tree.
    """

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path = path
        self._tree = tree
        self._modules: dict[str, str] = {}  # name in the file -> module
        self._bound = {*BUILTINS}

    def check(self) -> None:
        """
        Check the whole file.

        Raises:
            HookError: The file breaks a rule for hooks.
        """
        for statement in self._tree.body:
            self._at_top(statement)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self._bind(node, node.id)
            if isinstance(node, ast.arg):
                self._bind(node, node.arg)
            if isinstance(node, ast.FunctionDef):
                self._bind(node, node.name)
        self._visit(self._tree)

    def _refuse(self, node: ast.AST, problem: str) -> NoReturn:
        refuse(self._path, node, problem)

    def _at_top(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name not in MODULES:
                    self._refuse(node, f"import {name.name}: {_IMPORTS}")
                self._modules[name.asname or name.name] = name.name
            return
        if isinstance(node, ast.ImportFrom):
            self._import_from(node)
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if isinstance(node.value, _MUTABLE):
                self._refuse(node, _MUTABLE_STATE.format("this"))
            return
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        allowed = text or isinstance(node, ast.FunctionDef) or type(node) in _REASONS
        if not allowed:
            self._refuse(node, "only imports, constants and functions stand here")

    def _import_from(self, node: ast.ImportFrom) -> None:
        if node.level or node.module not in (*MODULES, "__future__"):
            self._refuse(node, f"import from {node.module or '.'}: {_IMPORTS}")
        for name in node.names:
            if name.name == "*":
                self._refuse(node, "import *: name what is used")
            if node.module != "__future__":
                self._member(node, str(node.module), name.name)
            self._bound.add(name.asname or name.name)

    def _bind(self, node: ast.AST, name: str) -> None:
        if name in self._modules:
            self._refuse(node, f"{name} is the name of a module")
        self._bound.add(name)

    def _visit(self, node: ast.AST, *, depth: int = 0) -> None:
        """
        Check a node and its children, except annotations, which are never evaluated.
        """
        if type(node) in _REASONS:
            self._refuse(node, _REASONS[type(node)])
        if not isinstance(node, _ALLOWED):
            self._refuse(node, f"a hook has no {type(node).__name__}")
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef)) and depth:
            self._refuse(node, "imports and functions stand at the top of the file")
        if isinstance(node, ast.FunctionDef):
            if node.decorator_list:
                self._refuse(node, "a hook has no decorators")
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if isinstance(default, (*_MUTABLE, ast.Call)):
                    self._refuse(default, _MUTABLE_STATE.format("a default"))
        if isinstance(getattr(node, "op", None), ast.MatMult):
            self._refuse(node, f"@ {_PRODUCT}")
        if isinstance(node, ast.Name):
            self._name(node)
        if isinstance(node, ast.Attribute):
            self._attribute(node)
            if isinstance(node.value, ast.Name) and node.value.id in self._modules:
                return
        if isinstance(node, ast.Constant) and _is_clock(node.value):
            self._refuse(node, f"{node.value!r} reads the clock")
        inside = depth + (not isinstance(node, ast.Module))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._visit(child, depth=inside)

    def _name(self, node: ast.Name) -> None:
        if node.id in self._modules:
            self._refuse(node, f"{node.id} is a module: take something of it")
        if node.id not in self._bound or node.id.startswith("__"):
            problem = f"{node.id} is not there: {_IMPORTS}, and a few builtins"
            self._refuse(node, problem)

    def _attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._refuse(node, _MUTABLE_STATE.format(f".{node.attr}"))
        if node.attr.startswith("_") or node.attr in _ATTRIBUTES_REFUSED:
            self._refuse(node, f".{node.attr} is out of a hook's reach")
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            self._member(node, self._modules[node.value.id], node.attr)

    def _member(self, node: ast.AST, module: str, name: str) -> None:
        """Refuse a member of a module that a hook may not use."""
        if module == "numpy" and name == "random":
            self._refuse(node, "numpy.random: a hook must give the same every time")
        if name.startswith("_") or not hasattr(MODULES[module], name):
            self._refuse(node, f"{module} has no {name}")
        if isinstance(getattr(MODULES[module], name), ModuleType):
            self._refuse(node, f"{module}.{name}: of {module} itself only")
        if module == "numpy" and name in _NUMPY_REFUSED:
            self._refuse(node, f"numpy.{name} {_NUMPY_REFUSED[name]}")


def _is_clock(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() in _CLOCK_WORDS


# Find from a hook's source text the columns that it reads and returns.

FUNCTION = "hook"
PARAMETERS = ("request", "features")


class HookText(NamedTuple):
    """Hold the columns that a hook reads and returns, each with its first line."""

    request: dict[str, int]
    features: dict[str, int]
    columns: dict[str, int]


@functools.lru_cache(maxsize=64)
def read_text(source: str, path: Path) -> HookText:
    """
    Check the text of a hook, and return the columns that it reads and returns.

    Raises:
        HookError: It is not Python, or breaks a rule for hooks; the message names the
            line.
    """
    try:
        tree = ast.parse(source, str(path))
    except SyntaxError as exc:
        raise HookError(path, f"{exc.msg}", where=f"line {exc.lineno or 1}") from exc
    except (ValueError, RecursionError, MemoryError) as exc:
        raise HookError(path, f"cannot be read: {exc}") from exc
    hook = _function(tree, path)
    HookRules(path, tree).check()
    columns_read = {name: _columns_read(hook, name, path) for name in PARAMETERS}
    return HookText(**columns_read, columns=_columns_returned(hook, path))


def _function(tree: ast.Module, path: Path) -> ast.FunctionDef:
    """Find the hook's function."""
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == FUNCTION
    ]
    wanted = f"def {FUNCTION}({', '.join(PARAMETERS)})"
    if len(found) != 1:
        where: ast.AST = found[1] if found else tree
        refuse(path, where, f"has not one {wanted}")
    (hook,) = found
    own = hook.args
    names = tuple(one.arg for one in (*own.posonlyargs, *own.args))
    extra = (own.vararg, own.kwarg, *own.kwonlyargs, *own.defaults)
    if names != PARAMETERS or any(extra):
        refuse(path, hook, f"must be {wanted}")
    return hook


def _columns_read(hook: ast.FunctionDef, name: str, path: Path) -> dict[str, int]:
    """List the columns that the hook reads from a parameter, as `request["x"]`."""
    lines: dict[str, int] = {}
    by_name = set()
    for node in ast.walk(hook):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id == name
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
            and isinstance(node.ctx, ast.Load)
        ):
            by_name.add(node.value)
            lines.setdefault(node.slice.value, node.lineno)
    for node in ast.walk(hook):
        if isinstance(node, ast.Name) and node.id == name and node not in by_name:
            refuse(path, node, f'{name} is for taking columns: {name}["a_name"]')
    return lines


def _columns_returned(hook: ast.FunctionDef, path: Path) -> dict[str, int]:
    """List the columns of the hook's one return."""
    returns = [node for node in ast.walk(hook) if isinstance(node, ast.Return)]
    last = hook.body[-1]
    if len(returns) != 1 or not isinstance(last, ast.Return):
        refuse(path, last, f"{FUNCTION} ends with its one return")
    if not isinstance(last.value, ast.Dict) or not last.value.keys:
        refuse(path, last, 'must return {"a_name": a_column, …}')
    columns: dict[str, int] = {}
    for key in last.value.keys:
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            refuse(path, key or last, "each key of what is returned is a text")
        if key.value in columns:
            refuse(path, key, f"{key.value!r} is returned twice")
        columns[key.value] = key.lineno
    return columns
