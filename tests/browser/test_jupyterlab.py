"""The lessons as a reader meets them: opened in JupyterLab, run, and their controls moved."""

import re

import nbformat
import pytest
from nbformat import NotebookNode

from dsv4kernels.lessons import NOTEBOOKS, ROOT

SCREENSHOTS = ROOT / "build" / "screenshots"
LESSONS = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
LONG = 240_000  # ms that a lesson may take, on a machine that does other things too
SLIDERS = {  # of the lessons with an explorer: a key moves it from its start, a mouse elsewhere
    "01": ("position", "ArrowRight", 0.85),
    "02": ("top-k width", "ArrowLeft", 0.85),
    "03": ("workers a request", "ArrowLeft", 0.45),
    "04": ("to", "ArrowLeft", 0.85),
}
OTHERS = {  # a control of another kind in each, and how to change it
    "01": ("layer", "C128A"),
    "02": ("fold width", None),
    "03": ("kind of GPU", "sm_90"),
    "04": ("protocol", "event"),
}
# What the explorer's pictures are.
PICTURES = (
    "[...document.querySelectorAll('.jupyter-widgets .widget-html img')].map(i => i.src).join()"
)
# Watches the explorer's picture at every frame: its least height, and whether it was replaced.
WATCH = """picture => {
  window.least = Infinity;
  window.watched = picture;
  const look = () => {
    window.least = Math.min(window.least, picture.getBoundingClientRect().height);
    requestAnimationFrame(look);
  };
  look();
}"""


def open_notebook(page, address):
    """Open JupyterLab there, and wait for the notebook and its kernel."""
    page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)


def run_all(page, path) -> NotebookNode:
    """Run every cell from the menu, save, and read what was saved."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(
        """() => {
          const prompts = [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
          const texts = prompts.map(prompt => prompt.textContent.trim());
          const stopped = document.querySelector('[data-mime-type*="jupyter.error"]');
          const done = texts.every(text => /^.[0-9]+.:?$/.test(text));
          return done || (stopped && !texts.includes('[*]:'));
        }""",
        timeout=LONG,
    )
    page.keyboard.press("Control+s")
    page.wait_for_selector(".jp-mod-dirty", state="detached", timeout=30_000)
    return nbformat.read(path, as_version=4)


def errors(notebook):
    """What went wrong in an executed notebook."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output["evalue"] for output in outputs if output["output_type"] == "error"]


def test_make_lab_opens_the_first_lesson_with_its_kernel_ready(lab, page):
    assert "/lab/tree/notebooks/00_start_here.ipynb?token=" in lab.printed
    open_notebook(page, lab.printed)
    assert page.locator(".jp-NotebookPanel").count() == 1
    assert page.get_by_role("tab", name="00_start_here.ipynb").count() == 1
    page.screenshot(path=SCREENSHOTS / "make_lab.png")


@pytest.mark.parametrize(("word", "term"), [("slots", "slot"), ("SWA", "SWA")])
def test_a_term_leads_to_its_place_in_the_glossary(lab, page, word, term):
    open_notebook(page, lab.lesson("01_sparse_metadata"))
    page.locator(".jp-MarkdownCell").get_by_role("link", name=word, exact=True).click()
    entry = page.locator(".jp-MarkdownViewer h3").filter(has_text=re.compile(f"^{term}¶?$"))
    entry.wait_for(timeout=30_000)
    page.wait_for_timeout(500)  # it scrolls after it is there
    view = page.locator(".jp-MarkdownViewer").bounding_box()
    top = entry.bounding_box()["y"] - view["y"]
    assert -5 < top < view["height"] / 2
    page.screenshot(path=SCREENSHOTS / f"glossary_{term}.png")


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_and_its_controls_move_the_picture(lab, page, name):
    open_notebook(page, lab.lesson(name))
    executed = run_all(page, lab.notebooks / f"{name}.ipynb")
    assert not errors(executed)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert page.locator('[data-mime-type*="jupyter.error"]').count() == 0
    explorer = page.locator(".jp-OutputArea-output .jupyter-widgets.widget-vbox")
    assert explorer.count() == (name[:2] in SLIDERS)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
    if explorer.count():
        move(page, explorer, name)


def move(page, explorer, name):
    """Move a slider by key and by mouse, then another control: each time another picture."""
    explorer.scroll_into_view_if_needed()
    explorer.locator(".widget-html").evaluate(WATCH)
    height = explorer.locator(".widget-html").bounding_box()["height"]
    seen = [page.evaluate(PICTURES)]

    def changed():
        """Wait for a picture that was not there before."""
        there = f"seen => {{ const now = {PICTURES}; return now && !seen.includes(now); }}"
        page.wait_for_function(there, arg=seen, timeout=30_000)
        seen.append(page.evaluate(PICTURES))

    label, key, share = SLIDERS[name[:2]]
    labelled = page.get_by_text(label, exact=True)
    slider = explorer.locator(".widget-inline-hbox").filter(has=labelled)
    handle = slider.locator(".noUi-handle")
    handle.focus()
    page.keyboard.press(key)
    changed()
    start, bar = handle.bounding_box(), slider.locator(".noUi-target").bounding_box()
    level = start["y"] + start["height"] / 2
    page.mouse.move(start["x"] + start["width"] / 2, level)
    page.mouse.down()
    page.mouse.move(bar["x"] + bar["width"] * share, level, steps=8)
    assert page.evaluate(PICTURES) == seen[-1]  # until it is let go
    page.mouse.up()
    changed()
    label, option = OTHERS[name[:2]]
    other = explorer.get_by_label(label, exact=True)
    if option is None:
        other.focus()
        page.keyboard.press("Space")
    else:
        other.select_option(option)
    changed()
    # One element all along, never emptied: at no frame was it shorter than half.
    least, same = explorer.locator(".widget-html").evaluate(
        "picture => [window.least, window.watched === picture]"
    )
    assert same and least > height / 2
    assert explorer.get_by_role("alert").count() == 0
    page.screenshot(path=SCREENSHOTS / f"{name}_moved.png")
