"""Rules that hold in every kernel file, read off the source: what an interpreter would not notice."""

import ast
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "kernels").glob("*.py"))


def kernel_functions(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and any(
            "triton.jit" in ast.unparse(d) for d in node.decorator_list
        ):
            yield node


def calls(function: ast.FunctionDef, name: str):
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
            yield node


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_masked_load_says_what_the_rest_holds(path):
    # the interpreter reads 0 there, a GPU anything
    for function in kernel_functions(path):
        for call in calls(function, "tl.load"):
            given = {k.arg for k in call.keywords}
            masked = "mask" in given or len(call.args) > 1
            assert not masked or "other" in given or len(call.args) > 2, f"{path.name}:{call.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_product_states_its_precision(path):
    # the default for float32 is tf32: an error of 3e-4
    for function in kernel_functions(path):
        for call in calls(function, "tl.dot"):
            assert "input_precision" in {k.arg for k in call.keywords}, f"{path.name}:{call.lineno}"
