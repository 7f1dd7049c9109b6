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


def test_code_is_plain_python(notebook):
    for cell in code(notebook):
        assert not any(line.lstrip().startswith(("!", "%")) for line in cell.source.splitlines())
        assert "pip install" not in cell.source
        ast.parse(cell.source)
