"""docs/: links lead somewhere, how-tos name what exists, and their example is right."""

import ast
import importlib
import re

import nbformat
import pytest

from dsv4kernels import lessons, variants
from dsv4kernels.lessons import DOCS, NOTEBOOKS, ROOT, pages
from dsv4kernels.measure import records
from dsv4kernels.variants import candidates, trials

PAGES = sorted(DOCS.glob("*.md"))
LESSONS = [*sorted(NOTEBOOKS.glob("*.ipynb")), *sorted(NOTEBOOKS.glob("solutions/*.ipynb"))]
HOW_TO = sorted(DOCS.glob("add_a_*.md"))
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def words(text):
    """A page's text without code, in which brackets mean something else."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def markdown(path):
    """The text of a page, or of a lesson's Markdown cells."""
    if path.suffix == ".md":
        return path.read_text()
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def prose(path):
    return words(markdown(path))


def slug(heading):
    """The anchor that code hosts and the site give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def headings(path):
    lines = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
    return [re.sub(r'<a id="[^"]*"></a>|`', "", line).strip() for line in lines]


@pytest.mark.parametrize("path", [*PAGES, *LESSONS, ROOT / "README.md"], ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z]+://", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists() and target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in map(slug, headings(target)), link


def test_every_lesson_links_to_the_glossary():
    used = set()
    for path in LESSONS:
        found = re.findall(r"docs/glossary\.md#([\w-]+)\)", prose(path))
        assert found, path.name
        assert len(found) == len(set(found)), path.name  # where the term first appears
        used |= set(found)
    assert len(used) > 40


def test_glossary_entries_are_short_and_there_once():
    text = (DOCS / "glossary.md").read_text()
    entries = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    slugs = [slug(heading) for heading in headings(DOCS / "glossary.md")]
    assert len(slugs) == len(set(slugs)) and len(entries) > 50
    for entry in entries:
        term, _, words = entry.partition("\n")
        words = words.partition("\n## ")[0].strip()
        assert 1 <= len(re.findall(r"[.?](?=\s|$)", words)) <= 5, term


def test_the_half_day_has_every_lesson_and_the_paths_their_time():
    for name, minutes in {"one_hour": range(55, 66), "half_a_day": range(240, 301)}.items():
        text = (DOCS / f"{name}.md").read_text()
        assert sum(map(int, re.findall(r"^\| (\d+) \|", text, re.M))) in minutes
    assert re.findall(r"notebooks/(\w+)\.ipynb", text) == list(lessons.read_all())


def test_the_hours_sections_are_sections():
    for line in (DOCS / "one_hour.md").read_text().splitlines():
        if found := re.search(r"\(\.\./(notebooks/\w+\.ipynb)\): (.*?) \|", line):
            path, sections = found.groups()
            known = re.findall(r"^## (.*)$", markdown(ROOT / path), re.M)
            assert set(re.findall(r"\*([^*]+)\*", sections)) <= set(known), path


def test_the_story_is_told_as_it_is_recorded():
    """The alternative text of the picture, in README and on the site's first page."""
    table = records.load_measured("NVIDIA H200")
    kept = {"suite": "tokens", "kernel": "combine", "protocol": "graph", "cache": "warm"}
    table = records.select(table, **kept).query("tokens >= 256")
    us = table.pivot(index="tokens", columns="variant", values="median_us")
    share = us["own"] / us["workers=256"]
    told = f"takes {100 * share.min():.0f} to {100 * share.max():.0f} percent of"
    for path in (ROOT / "README.md", DOCS / "index.md"):
        assert told in re.sub(r"\s+", " ", path.read_text())


def test_an_anchor_is_the_same_everywhere():
    """JupyterLab's anchors keep capitals and marks: there an entry has one of its own."""
    for line in re.findall(r"^### (.*)$", (DOCS / "glossary.md").read_text(), re.MULTILINE):
        own, heading = re.fullmatch(r'(?:<a id="([^"]*)"></a>)?(.*)', line).groups()
        wanted = slug(heading)
        assert own == (None if heading.replace(" ", "-") == wanted else wanted)


@pytest.mark.parametrize("path", HOW_TO, ids=lambda p: p.name)
def test_how_tos_name_files_that_exist(path):
    named = re.findall(r"(?:dsv4kernels|tests|notebooks|data|docs)/[\w/.-]*", path.read_text())
    named = [name.rstrip(".") for name in named if "my_" not in name]
    assert named
    for name in named:
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("path", HOW_TO, ids=lambda p: p.name)
def test_how_tos_name_functions_that_exist(path):
    found = 0
    for code in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", path.read_text(), flags=re.S)):
        dotted = re.match(r"(?:p = )?(\w+)\.(\w+)\b", code)
        if dotted and (ROOT / "dsv4kernels" / f"{dotted[1]}.py").exists():
            module = importlib.import_module(f"dsv4kernels.{dotted[1]}")
            assert hasattr(module, dotted[2]), code
            found += 1
        elif (
            re.fullmatch(r"_?[A-Z_]{4,}|_[a-z]+", code) and code != "NAME"
        ):  # of the file beside it
            beside = re.findall(rf"`{code}`[^`]*`([\w/.]+\.py)`", path.read_text())
            assert beside, code
            tree = ast.parse((ROOT / beside[0]).read_text())
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            names |= {node.name for node in tree.body if hasattr(node, "name")}
            assert code in names, code
            found += 1
    assert found or path.stem == "add_a_device"


def test_the_example_of_a_kernel_is_right(tmp_path):
    [example] = re.findall(r"```python\n(.*?)```", (DOCS / "add_a_kernel.md").read_text(), re.S)
    file = tmp_path / "my_kernels.py"
    file.write_text(example)
    function = variants.load(f"{file}:map_slots")
    tried = [trial for trial in trials.of("slot_mapping", 4) if trial.group == "corner"]
    for trial in tried:
        assert not candidates.fault_of(function, "slot_mapping", trial.arguments()), trial.name
    assert len(tried) > 10


def test_pages_beside_the_lessons(tmp_path):
    pages.documents(DOCS, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.html")} == {p.stem for p in PAGES} - {"index"}
    glossary = (tmp_path / "glossary.html").read_text()
    notebook = nbformat.v4.new_notebook()
    text = "[slot](../docs/glossary.md#slot) [A/B/A](../../docs/glossary.md#aba) [up](../x.ipynb)"
    notebook.cells = [nbformat.v4.new_markdown_cell(text)]
    lesson = pages.page(notebook, "one")
    for anchor in ("slot", "aba"):
        assert f'href="glossary.html#{anchor}"' in lesson
        assert re.search(f'<(?:a|h3)[^>]* id="{anchor}"', glossary)
    assert 'href="../x.ipynb"' in lesson
    for path in tmp_path.glob("*.html"):
        for href in re.findall(r'<a[^>]* href="([^"]+)"', path.read_text()):
            file = href.partition("#")[0]
            lessons = {"index.html", *(f"{lesson.stem}.html" for lesson in LESSONS)}
            assert "://" in file or not file or file in lessons or (tmp_path / file).exists(), href
