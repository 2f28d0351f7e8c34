"""Each fault that is promised to be survived or named has a test that is there, and marked as one."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = tomllib.loads((HERE / "faults.toml").read_text(encoding="utf-8"))


@cache
def marked(file: str) -> frozenset[str]:
    """Return the test functions of a file that carry the mark, by themselves or by their module."""
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))

    def is_fault(node: ast.expr) -> bool:
        return any(isinstance(part, ast.Attribute) and part.attr == "fault" for part in ast.walk(node))

    whole = any(
        isinstance(node, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "pytestmark" for name in node.targets)
        and is_fault(node.value)
        for node in tree.body
    )
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and (whole or any(is_fault(one) for one in node.decorator_list))
    )


@pytest.mark.parametrize("group", TABLE)
def test_each_fault_of_a_group_has_its_tests(group: str) -> None:
    for fault, tests in TABLE[group].items():
        assert tests, fault
        missing = [test for test in tests if test.partition("::")[2] not in marked(test.partition("::")[0])]
        assert not missing, f"{fault}: no such test marked as a fault: {missing}"


def test_the_mark_is_really_looked_for() -> None:
    assert "test_a_folder_that_cannot_be_written_is_a_problem" in marked("test_doctor.py")
    assert "test_a_workspace_in_memory_is_warned_of" not in marked("test_doctor.py")
