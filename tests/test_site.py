"""The site: what it is gathered from, and that its check finds each kind of fault."""

import json
import shutil

import nbformat
import pytest

from dsv4kernels import lessons
from dsv4kernels.lessons import site
from dsv4kernels.parameters import LessonError

INDEX = {"docnames": ["docs/glossary"], "alltitles": {"block table": [[0, "block-table"]]}}
HEAD = '<html><head><link rel="stylesheet" href="x.css"></head><body>'


@pytest.fixture
def built(tmp_path):
    """A small site without a fault."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "x.css").write_text("body { color: red; background: url(x.png) }")
    (tmp_path / "x.png").write_bytes(b"")
    (tmp_path / "index.html").write_text(HEAD + '<a href="docs/glossary.html#slot">slot</a>')
    text = '<h2 id="slot">slot</h2><img src="../x.png" alt="a slot"><a href="https://a.b">out</a>'
    (tmp_path / "docs" / "glossary.html").write_text(text)
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({json.dumps(INDEX)})")
    return tmp_path


def test_a_good_site_has_no_fault(built):
    assert list(site.check(built)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('<a href="nowhere.html">x</a>', "index.html: links to nowhere.html, which is not there"),
        ('<a href="docs/glossary.html#slo">x</a>', "a place that the page does not have"),
        ('<a href="#here">x</a>', "a place that the page does not have"),
        ('<img src="x.png">', "an image without alternative text: x.png"),
        ('<img src="x.png" alt=" ">', "an image without alternative text: x.png"),
        ('<img src="y.png" alt="y">', "links to y.png, which is not there"),
        ('<img src="https://a.b/c.png" alt="c">', "loads https://a.b/c.png from outside"),
        ('<script src="https://a.b/c.js"></script>', "loads https://a.b/c.js from outside"),
        ('<script src="//a.b/c.js"></script>', "loads //a.b/c.js from outside"),
        ('<link rel="stylesheet" href="https://a.b/c.css">', "from outside"),
        ("<style>@import 'https://a.b/c.css';</style>", "loads https://a.b/c.css from outside"),
        ("<script>import('https://a.b/c.js')</script>", "loads https://a.b/c.js from outside"),
    ],
)
def test_faults_of_a_page(built, text, fault):
    page = built / "index.html"
    page.write_text(page.read_text() + text)
    [found] = site.check(built)
    assert fault in found


def test_a_stylesheet_that_fetches(built):
    (built / "x.css").write_text('@font-face { src: url("https://a.b/font.woff2") }')
    assert list(site.check(built)) == ["x.css: loads https://a.b/font.woff2 from outside"]


@pytest.mark.parametrize("text", ["", "Search.setIndex({})"])
def test_a_search_that_finds_nothing(built, text):
    (built / "searchindex.js").write_text(text)
    [found] = site.check(built)
    assert "does not find `block table`" in found


@pytest.fixture
def ran(tmp_path):
    """A run of two lessons, as the runner leaves it: (build, notebooks)."""
    notebooks, build = tmp_path / "notebooks", tmp_path / "build"
    notebooks.mkdir()
    (build / "notebooks").mkdir(parents=True)
    for name in ("01_one", "02_two"):
        notebook = nbformat.v4.new_notebook()
        given = nbformat.v4.new_code_cell("n = 1  # any", metadata={"tags": ["parameters"]})
        notebook.cells = [nbformat.v4.new_markdown_cell(f"# {name}"), given]
        nbformat.write(notebook, str(notebooks / f"{name}.ipynb"))
        injected = nbformat.v4.new_code_cell("n = 2", metadata={"tags": ["injected-parameters"]})
        notebook.cells.append(injected)
        nbformat.write(notebook, str(build / "notebooks" / f"{name}.ipynb"))
    status = {name: {"status": "ran"} for name in ("01_one", "02_two")}
    (build / "ledger.json").write_text(json.dumps({"lessons": status}))
    return build, notebooks


def test_what_is_gathered(ran, tmp_path):
    site.gather(tmp_path / "source", *ran)
    gathered = {str(p.relative_to(tmp_path / "source")) for p in (tmp_path / "source").rglob("*.*")}
    assert {"README.md", "data/README.md", "docs/index.md", "notebooks/02_two.ipynb"} <= gathered
    contents = (tmp_path / "source" / "docs" / "index.md").read_text()
    for page in lessons.DOCS.glob("*.md"):
        assert page.stem == "index" or f"\n{page.stem}\n" in contents
    assert "<a id=" not in (tmp_path / "source" / "docs" / "glossary.md").read_text()


def test_lessons_that_did_not_run_as_they_are(ran, tmp_path):
    build, notebooks = ran
    one = nbformat.read(notebooks / "01_one.ipynb", as_version=4)
    one.cells[0].source = "# Another"
    nbformat.write(one, str(notebooks / "01_one.ipynb"))
    (build / "notebooks" / "02_two.ipynb").unlink()
    shutil.copy(notebooks / "01_one.ipynb", notebooks / "03_three.ipynb")
    shutil.copy(notebooks / "01_one.ipynb", build / "notebooks" / "03_three.ipynb")
    (build / "ledger.json").write_text(json.dumps({"lessons": {"03_three": {"status": "failed"}}}))
    with pytest.raises(LessonError) as error:
        site.gather(tmp_path / "source", build, notebooks)
    assert str(error.value).splitlines() == [
        "01_one has changed since it ran",
        "02_two has not run",
        "03_three has failed",
        "`make notebooks` runs them",
    ]


def test_without_its_tools_a_site_is_refused_in_words(monkeypatch, tmp_path):
    monkeypatch.setattr(site, "_is_there", lambda name: name != "furo")
    with pytest.raises(LessonError, match=r'no furo here: pip install -e "\.\[docs\]"'):
        site.build(tmp_path)
