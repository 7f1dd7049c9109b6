"""Pages of executed lessons: HTML that needs no network, an index, files that are never half there.

What a browser would have to fetch (MathJax, require.js, mermaid, the widgets' renderer) is left
out: code is coloured by CSS, figures and tables are in the page, a widget becomes a remark.
"""

import contextlib
import copy
import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any

from ..parameters import LessonError

_TEMPLATE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block html_head_css -%}
<style>
body.jp-Notebook { max-width: 62rem; margin: 0 auto; }
.jp-InputPrompt, .jp-OutputPrompt { min-width: 4.5rem; flex-basis: 4.5rem; }
.jp-RenderedHTMLCommon table {
  display: block; width: fit-content; max-width: 100%; overflow-x: auto; font-size: 90%;
}
.lesson-index { font: 14px system-ui, sans-serif; margin: 1rem 0.5rem 0; }
</style>
{%- endblock -%}
{%- block body_header -%}
{{ super() }}
<nav class="lesson-index"><a href="index.html">&larr; All lessons</a></nav>
{%- endblock -%}
"""

_INDEX = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>DeepSeek V4 metadata kernels: lessons</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.5rem 0.8rem 0.5rem 0;
  border-bottom: 1px solid #8886; }}
td p {{ margin: 0.2rem 0 0; }}
.number {{ text-align: right; white-space: nowrap; }}
.failed {{ color: light-dark(#b00020, #ff8a80); font-weight: 600; }}
small, .not {{ opacity: 0.75; }}
</style>
</head>
<body>
<h1>Lessons</h1>
<p>{facts}</p>
<table>
<thead><tr><th>Lesson</th><th>Status</th><th class="number">Time</th><th>Shown here</th></tr>
</thead>
<tbody>
{rows}
</tbody>
</table>
</body>
</html>
"""

_ROW = """\
<tr><td>{title}<p>{summary}</p>{error}</td><td class="{kind}">{status}</td>
<td class="number">{time}</td><td>{mode}</td></tr>"""

_WIDGET = "application/vnd.jupyter.widget-view+json"


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: the folder cannot be written to or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())  # a quota may be told of as late as this
        os.replace(part, path)
    except BaseException:  # Ctrl-C too
        with contextlib.suppress(OSError):
            part.unlink()
        raise


@contextlib.contextmanager
def prepared(build: Path, names: Iterable[str]) -> Iterator[None]:
    """Hold a folder for one run's pages of these lessons; an earlier run's are taken away.

    Raises:
        LessonError: it cannot be written to, or another run holds it, whose pages stay.
    """
    try:
        (build / "notebooks").mkdir(parents=True, exist_ok=True)
        held = os.open(build, os.O_RDONLY)
    except OSError as error:
        raise LessonError(f"cannot write to {build}: {error.strerror}") from None
    try:
        _hold(held, build)
        _clear(build, names)
        yield
    finally:
        os.close(held)


def _hold(folder: int, build: Path) -> None:
    # The lock is the process's, not a file's: a run that is killed leaves none behind.
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LessonError(f"another run is writing to {build}; wait, or choose --build") from None
    except OSError:
        pass  # a file system without locks


def _clear(build: Path, names: Iterable[str]) -> None:
    stale = [build / "index.html", build / "ledger.json"]
    for name in names:
        stale += [build / f"{name}.html", build / "notebooks" / f"{name}.ipynb"]
    folders = (build, build / "notebooks")
    stale += [part for folder in folders for part in folder.glob(".*.part")]  # of a killed run
    try:
        for path in stale:
            path.unlink(missing_ok=True)
        for folder in folders:
            write(folder / "probe", "x" * 4096)
            (folder / "probe").unlink()
    except OSError as error:
        raise LessonError(f"cannot write to {build}: {error.strerror}") from None


def without_controls(notebook: Any) -> Any:
    """A copy of an executed notebook (`nbformat` node) with a remark where a control would be."""
    from ..widgets import REMARK

    notebook = copy.deepcopy(notebook)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if data.pop(_WIDGET, None) is not None:
                data["text/html"] = f"<p><em>{REMARK}</em></p>"
            data.setdefault("text/plain", "")
    return notebook


def page(notebook: Any, title: str) -> str:
    """An executed notebook (`nbformat` node) as one HTML page that loads nothing."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    notebook = without_controls(notebook)
    notebook.metadata["title"] = title
    # Without scripts a page cannot show JavaScript, so the next best form is taken.
    shown = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg"]
    shown += ["text/latex", "text/plain"]
    exporter = HTMLExporter(config=Config(NbConvertBase={"display_data_priority": shown}))
    exporter.raw_template = _TEMPLATE
    html, _ = exporter.from_notebook_node(notebook)
    # A lesson names another by its notebook and a term by a file of docs/; beside a page lie pages.
    html = re.sub(r'<a href="(?:\.\./)+(?:data/)?README\.md">(.*?)</a>', r"\1", html)
    beside = r'href="(?:(?:\.\./)+docs/|\.\./notebooks/)?([\w-]+)\.(?:ipynb|md)(?=["#])'
    return re.sub(beside, r'href="\1.html', html)


def documents(folder: Path, build: Path) -> None:
    """Pages of the Markdown files of a folder, beside those of the lessons that link to them.

    Raises:
        LessonError: they cannot be written.
    """
    from nbformat.v4 import new_markdown_cell, new_notebook

    try:
        for path in sorted(folder.glob("*.md")):
            if path.stem == "index":  # the lessons have one of their own
                continue
            text = path.read_text(encoding="utf-8")
            title = text.lstrip("# ").partition("\n")[0]
            notebook = new_notebook(cells=[new_markdown_cell(text)])
            write(build / f"{path.stem}.html", page(notebook, title))
    except OSError as error:
        raise LessonError(f"cannot write to {build}: {error.strerror}") from None


def index(ledger: dict[str, Any], pages: set[str]) -> str:
    """The ledger as a page; `pages` are the lessons whose page can be linked to."""
    rows = []
    for name, lesson in ledger["lessons"].items():
        title = escape(lesson["title"])
        rows.append(
            _ROW.format(
                title=f'<a href="{escape(name)}.html">{title}</a>' if name in pages else title,
                summary=escape(lesson["summary"]),
                error=f'<p class="failed">{escape(lesson["error"])}</p>' if lesson["error"] else "",
                kind=lesson["status"].split()[0],
                status=lesson["status"],
                time=f"{lesson['seconds']:.1f} s" if lesson["seconds"] else "",
                mode=escape(lesson["announced"]),
            )
        )
    versions = ", ".join(f"{name} {version}" for name, version in ledger["versions"].items())
    facts = f"{ledger['device']} · profile {ledger['profile']} · {ledger['date']}"
    facts = f"{escape(facts)}<br><small>{escape(versions)}</small>"
    return _INDEX.format(facts=facts, rows="\n".join(rows))
