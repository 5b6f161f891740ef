"""The engine alone runs served models and applies policies."""

from __future__ import annotations

import ast
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[2]


def callers(name: str) -> set[str]:
    """Return the modules of the library that call a function or class by its name."""
    found = set()
    for path in (HOUSE / "tollgate").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            last = getattr(called, "attr", getattr(called, "id", None))
            if last == name:
                found.add(str(path.relative_to(HOUSE / "tollgate")))
    return found


def test_one_module_opens_models_in_onnxruntime() -> None:
    """Steps, replays, trials and speed measurements run the same session."""
    assert callers("InferenceSession") == {"engine/onnx_session.py"}


def test_only_the_engine_applies_a_policy() -> None:
    """`decide` of the policy is called by the decision stage and for past rows."""
    importers = {
        str(path.relative_to(HOUSE / "tollgate"))
        for path in (HOUSE / "tollgate").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("tollgate.policy")
        and "decide" in {one.name for one in node.names}
    }
    assert importers == {
        "engine/batches.py",
        "engine/decision_stage.py",
        "policy/__init__.py",
    }
