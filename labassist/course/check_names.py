"""What checks.py declares, read without importing it: its checks, its measures, and the names of its criteria."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Declared:
    """The functions of a checks.py."""

    checks: dict[str, int] = field(default_factory=dict)
    """Name -> line, of those that return list[Criterion] of an Evidence."""
    measures: dict[str, int] = field(default_factory=dict)
    """Name -> line, of those called measured_…"""
    criteria: dict[str, tuple[set[str], bool]] = field(default_factory=dict)
    """Check -> names written out, and whether there are no others."""


def read(path: Path) -> Declared:
    """Return what a checks.py declares. Raises SyntaxError."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    found = Declared()
    for name, function in functions.items():
        if name.startswith("measured_"):
            found.measures[name] = function.lineno
        elif not name.startswith("_") and _is_check(function):
            found.checks[name] = function.lineno
            found.criteria[name] = _criteria(name, functions)
    return found


def _is_check(function: ast.FunctionDef) -> bool:
    arguments = function.args
    alone = len(arguments.args) == 1 and not (arguments.vararg or arguments.kwonlyargs or arguments.kwarg)
    return alone and function.returns is not None and ast.unparse(function.returns) == "list[Criterion]"


def _criteria(name: str, functions: dict[str, ast.FunctionDef]) -> tuple[set[str], bool]:
    """Return the names that a check, and the functions of the file that it calls, give to Criterion."""
    names: set[str] = set()
    whole = True
    seen: set[str] = set()
    todo = [name]
    while todo:
        current = todo.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in ast.walk(functions[current]):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in functions:
                todo.append(node.func.id)
            elif node.func.id == "Criterion":
                first = (
                    node.args[0]
                    if node.args
                    else next((one.value for one in node.keywords if one.arg == "name"), None)
                )
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    names.add(first.value)
                else:
                    whole = False
    return names, whole
