"""Find from a hook's source text the columns that it reads and returns."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import NamedTuple

from tollgate.errors import HookError
from tollgate.features.hook_rules import HookRules, refuse

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
