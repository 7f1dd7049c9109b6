"""The site: pages of docs/ and the executed lessons, one folder of HTML that needs no network.

Sphinx builds it from a folder in which both lie as they do in the repository, so that a link
between them is the same link everywhere. What was built is checked before it takes its place.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..parameters import LessonError
from . import DOCS, NOTEBOOKS, ROOT, pages, read_all

_SHELVES = {
    "Paths": ["one_hour", "half_a_day"],
    "Lessons": ["/notebooks/*"],
    "How to": [],  # every page that no other shelf names
    "Reference": [
        "glossary",
        "README </README>",
        "The recorded figures </data/README>",
        "supply_chain",
    ],
}
_FRONT = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>dsv4kernels</title>
<meta http-equiv="refresh" content="0; url=docs/index.html"></head>
<body><a href="docs/index.html">dsv4kernels</a></body></html>
"""


def build(build: Path, notebooks: Path = NOTEBOOKS) -> Path:
    """Build the site from a run's notebooks.

    Args:
        build: folder of the run; the site goes to `site` in it.
        notebooks: the lessons as they are stored, each of which has to have run as it is.

    Returns:
        The site's first page.

    Raises:
        LessonError: Sphinx is missing, a lesson has not run, or the site has faults (all are told).
    """
    if missing := [name for name in ("sphinx", "furo", "myst_nb") if not _is_there(name)]:
        raise LessonError(f'no {", ".join(missing)} here: pip install -e ".[docs]"')
    work = build.resolve() / "site.part"
    shutil.rmtree(work, ignore_errors=True)
    gather(work / "source", build, notebooks)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto"]
    command += ["-c", str(DOCS), str(work / "source"), str(work / "html")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise LessonError(f"Sphinx does not like the pages:\n{done.stderr.strip()}")
    (work / "html" / "index.html").write_text(_FRONT, encoding="utf-8")
    if faults := list(check(work / "html")):
        raise LessonError("the site has faults:\n" + "\n".join(faults))
    site = build / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(work / "html", site)
    shutil.rmtree(work)
    return site / "index.html"


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def gather(source: Path, build: Path, notebooks: Path = NOTEBOOKS) -> None:
    """Put docs/, both READMEs and the executed lessons into one folder for Sphinx.

    Raises:
        LessonError: a lesson has not run, has failed, or is not as it was when it ran.
    """
    import nbformat

    executed, faults = {}, []
    statuses = _statuses(build)
    for name, lesson in read_all(notebooks).items():
        path = build / "notebooks" / f"{name}.ipynb"
        if not path.exists():
            faults.append(f"{name} has not run")
            continue
        if statuses.get(name) == "failed":
            faults.append(f"{name} has failed")
            continue
        executed[name] = nbformat.read(path, as_version=4)
        if _sources(executed[name]) != _sources(lesson.notebook):
            faults.append(f"{name} has changed since it ran")
    if faults:
        raise LessonError("\n".join([*faults, "`make notebooks` runs them"]))
    shutil.copytree(DOCS / "images", source / "docs" / "images")
    for path in [ROOT / "README.md", ROOT / "data" / "README.md", *sorted(DOCS.glob("*.md"))]:
        # An anchor that only JupyterLab needs would be a second one here.
        text = re.sub(r'<a id="[^"]*"></a>', "", path.read_text(encoding="utf-8"))
        if path == DOCS / "index.md":
            text += _contents()
        pages.write(source / path.relative_to(ROOT), text)
    for name, notebook in executed.items():
        text = nbformat.writes(pages.without_controls(notebook))
        pages.write(source / "notebooks" / f"{name}.ipynb", text)


def _statuses(build: Path) -> dict[str, str]:
    try:
        ledger = json.loads((build / "ledger.json").read_text(encoding="utf-8"))
        return {name: lesson["status"] for name, lesson in ledger["lessons"].items()}
    except (OSError, ValueError):
        return {}


def _sources(notebook: Any) -> list[str]:
    added = {"injected-parameters", "papermill-error-cell-tag"}
    return [c.source for c in notebook.cells if not added & set(c.metadata.get("tags", []))]


def _contents() -> str:
    """The site's table of contents: pages of docs/ on their shelves, and the lessons."""
    named = {page for shelf in _SHELVES.values() for page in shelf} | {"index"}
    others = [path.stem for path in sorted(DOCS.glob("*.md")) if path.stem not in named]
    text = ""
    for caption, shelf in (_SHELVES | {"How to": others}).items():
        text += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n"
        text += "\n".join(shelf) + "\n```\n"
    return text


_FETCHED = re.compile(r"(?:url\(|@import|import\(|fetch\()\s*[\"']?((?:https?:)?//[^\"')]+)")
_LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Page(HTMLParser):
    """What a page names: anchors it has, links to follow, files to load, images without words."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.mute: list[str] = []
        self.within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag in _LOADS and given.get(_LOADS[tag]):
            self.loads.append(given[_LOADS[tag]])
        self.within = tag if tag in ("script", "style") else ""
        if tag == "img" and not (given.get("alt") or "").strip():
            self.mute.append((given.get("src") or "")[:80])

    def handle_data(self, data: str) -> None:
        if self.within:
            self.loads += _FETCHED.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self.within = ""


def check(site: Path) -> Iterator[str]:
    """Faults of a built site, a sentence each.

    Links and files have to be there, with the place in a page that a link names; nothing may be
    loaded from outside; an image has alternative text; and the search index is one that
    knows the glossary's first words.
    """
    read = {path.resolve(): _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in read.items():
        where = path.relative_to(site.resolve())
        for image in page.mute:
            yield f"{where}: an image without alternative text: {image}"
        for url in page.loads:
            if urlsplit(url).scheme in ("http", "https") or url.startswith("//"):
                yield f"{where}: loads {url} from outside"
        for url in page.links + page.loads:
            parts = urlsplit(url)
            if parts.scheme or url.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{where}: links to {url}, which is not there"
            elif parts.fragment and target in read:
                if unquote(parts.fragment) not in read[target].anchors:
                    yield f"{where}: links to {url}, a place that the page does not have"
    for path in sorted(site.rglob("*.css")):
        text = path.read_text("utf-8")
        for url in _FETCHED.findall(text):
            yield f"{path.relative_to(site)}: loads {url} from outside"
    yield from _search(site / "searchindex.js")


def _search(path: Path) -> Iterator[str]:
    try:
        text = path.read_text("utf-8")
        index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
        pages_of = index["alltitles"]["block table"]
        found = [index["docnames"][number] for number, _ in pages_of]
    except (OSError, ValueError, KeyError) as error:
        yield f"{path.name}: does not find `block table` ({error!r})"
        return
    if "docs/glossary" not in found:
        yield f"{path.name}: does not find `block table` in the glossary"
