"""Notebooks as they are stored: one anatomy, no outputs, nothing that papermill would trip over."""

import ast
import io
import tokenize

import nbformat
import papermill
import pytest

from dsv4kernels.lessons import NOTEBOOKS, read

PATHS = [*sorted(NOTEBOOKS.glob("*.ipynb")), *sorted(NOTEBOOKS.glob("solutions/*.ipynb"))]


def test_there_are_lessons():
    assert PATHS


@pytest.fixture(params=PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_is_valid_and_short(notebook):
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) >= (4, 5)
    given = [c for c in notebook.cells if "answer" not in c.metadata.get("tags", [])]
    assert len(given) <= 30  # beside what a learner writes
    assert notebook.cells[0].source.startswith("# ")


def test_is_stored_without_results(notebook):
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata and "papermill" not in notebook.metadata
    for cell in code(notebook):
        assert cell.outputs == [] and cell.execution_count is None


def test_has_one_parameters_cell_of_literals_with_comments(path):
    lesson = read(path)  # raises unless there is one cell, of literal assignments
    lines = {node.lineno for node in ast.parse(lesson.parameters).body}
    assert len(lines) == len(lesson.defaults)
    tokens = tokenize.generate_tokens(io.StringIO(lesson.parameters).readline)
    assert lines <= {t.end[0] for t in tokens if t.type == tokenize.COMMENT}


def test_papermill_sees_the_same_parameters(path):
    lesson = read(path)
    seen = papermill.inspect_notebook(path)
    assert {n: ast.literal_eval(p["default"]) for n, p in seen.items()} == lesson.defaults
    assert all(parameter["help"] for parameter in seen.values())


# What a lesson may import. Nothing here starts a process or fetches anything, but pandas' and
# torch's readers, which take addresses too.
MODULES = {"collections", "contextlib", "dataclasses", "functools", "inspect", "itertools", "json"}
MODULES |= {"math", "pathlib", "random", "re", "statistics", "string", "sys", "textwrap", "time"}
MODULES |= {"types", "typing", "warnings"}
MODULES |= {"IPython", "dsv4kernels", "ipywidgets", "matplotlib", "numpy", "pandas", "torch"}
MODULES |= {"triton"}
NAMES = {"__builtins__", "__import__", "compile", "eval", "exec", "get_ipython"}
ATTRIBUTES = {"__builtins__", "__import__", "get_ipython", "getoutput", "hub", "modules", "popen"}
ATTRIBUTES |= {"load_state_dict_from_url", "run_cell_magic", "run_line_magic", "system"}
SHOWN = {"HTML", "Markdown"}  # what may be given an address


def reaches_out(source):
    """What in a cell's source could start a process, fetch something, or hide that it does."""
    for node in ast.walk(ast.parse(source)):
        imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            imported = [node.module or "."]
        yield from (name for name in imported if name.split(".")[0] not in MODULES)
        if isinstance(node, ast.Name) and node.id in NAMES:
            yield node.id
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] not in SHOWN:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            texts = [each.value for each in given if isinstance(each, ast.Constant)]
            yield from (text for text in texts if "://" in str(text))


def test_code_is_plain_python_that_reaches_for_nothing(notebook):
    for cell in code(notebook):
        assert "pip install" not in cell.source
        assert not list(reaches_out(cell.source))  # a `!` or `%` is no Python: SyntaxError


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess",
        "from urllib.request import urlopen",
        "import os, math",
        "import requests as math",
        "import IPython\nIPython.get_ipython().system('ls')",
        "get_ipython().run_line_magic('pip', 'install x')",
        "__import__('socket')",
        "exec('import socket')",
        "import sys\nsys.modules['os']",
        "import pandas as pd\npd.read_csv('https://a.b/c.csv')",
        "import torch\ntorch.hub.load('a', 'b')",
        "from . import x",
    ],
)
def test_reaching_out_is_seen(source):
    assert list(reaches_out(source))


@pytest.mark.parametrize("source", ["!ls", "%pip install x", "%%bash\nls", "x = !ls", "ls?"])
def test_a_magic_is_no_python(source):
    with pytest.raises(SyntaxError):
        list(reaches_out(source))


def test_an_address_may_be_shown():
    assert not list(reaches_out("from IPython.display import Markdown\nMarkdown('https://a.b')"))
