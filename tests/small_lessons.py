"""Small lessons for tests of the runner: stored in a folder, and run by the command line."""

import nbformat
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from dsv4kernels.__main__ import main

PARAMETERS = "count = 1  # how many"
SUMMARY = "What *it* shows.\nAnd [why](x)."


def store(folder, name, cells, tags=("parameters",), metadata=None):
    """Write a lesson; the first cells have the tags."""
    notebook = new_notebook(metadata=metadata or {})
    notebook.cells.append(new_markdown_cell(f"# Lesson {name}\n\n{SUMMARY}\n\nMore."))
    for index, source in enumerate(cells):
        tagged = [tags[index]] if index < len(tags) else []
        notebook.cells.append(new_code_cell(source, metadata={"tags": tagged}))
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, folder / f"{name}.ipynb")


def profile(folder, **profiles):
    """Write profiles by name, and empty `full` and `quick` ones."""
    (folder / "profiles").mkdir(parents=True, exist_ok=True)
    for name, content in {"full": {}, "quick": {}, **profiles}.items():
        (folder / "profiles" / f"{name}.yml").write_text(yaml.safe_dump(content))


def command(folder, *arguments):
    """Run the lessons of a folder into `build` beside it; the exit status."""
    return main(
        ["run", "--notebooks", str(folder), "--build", str(folder.parent / "build"), *arguments]
    )
