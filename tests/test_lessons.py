"""The runner, on small notebooks made here: what it refuses, runs, shows, and how it ends."""

import contextlib
import io
import json
import os
import re
import sys

import nbformat
import papermill
import pytest
from helpers import Loads
from small_lessons import PARAMETERS, command, profile, store

from dsv4kernels import lessons
from dsv4kernels.lessons import pages, runner
from dsv4kernels.parameters import LessonError, ParameterError

SETUP = """\
from dsv4kernels import lessons, parameters
p = parameters.check(globals(), tokens=[range(1, 65537)], exact=bool, label=str)
lessons.announce(live="on a test", compiled_for=["sm_90", "sm_120"])"""
GOOD = [
    "tokens = [8]  # tokens of each batch\nexact = False  # is a = b?\nlabel = 'none'  # any text",
    SETUP,
    "import sys\nfrom pathlib import Path\nprint(vars(p))\nprint(sys.executable, Path.cwd())",
    "import ipywidgets\nipywidgets.IntSlider(description='tokens')",
    "from IPython.display import HTML, Javascript\n"
    "display(Javascript('alert(1)'))\nHTML('<table><tr><td>a table</td></tr></table>')",
]
PYTHON3 = {"name": "python3", "display_name": "Python 3", "language": "python"}
BROKEN = {
    "raises": (
        ["x = 1", "1 / 0", "print('after')"],
        "ZeroDivisionError: division by zero (In [3])",
    ),
    "hangs": (["import time\ntime.sleep(60)", "x = 1"], "a cell took more than 1 s"),
    "dies": (["import os\nos._exit(3)", "x = 1"], "the kernel died (exit status 3)"),
    "leaves": (["import sys\nsys.exit(0)", "x = 1"], "ended before its last cell"),
    "empty": ([], "no cell was executed"),
}


@pytest.fixture
def folder(tmp_path):
    """Two small lessons with parameters; nothing in them is slow."""
    folder = tmp_path / "notebooks"
    store(folder, "01_first", [PARAMETERS, "print(count)"])
    store(folder, "02_second", ["counts = [1]  # how many\nrate = 0.5  # share", "print(counts)"])
    profile(folder)
    return folder


# What is refused before anything runs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "cuont=2"], "cuont: no lesson to run has this parameter; did you mean count?"),
        (["-p", "count=2", "--only", "02"], "count: no lesson to run .* counts"),
        (["-p", "count=1.5"], "01_first: count = '1.5': must be a whole number"),
        (["-p", "count=true"], "must be a whole number"),
        (["-p", "rate=inf"], "must be a finite number"),
        (["-p", "counts=[]"], "at least one"),
        (["--only", "03"], "no lesson '03'"),
        (["--only", "01", "02_secnd"], "no lesson '02_secnd'; did you mean 02_second"),
        (["--profile", "quik"], "no profile 'quik'; did you mean quick"),
        (["--profile", "lesson"], "no lesson '01_frist'; did you mean 01_first"),
        (["--profile", "name"], "02_second: no parameter count; did you mean counts"),
        (["--profile", "type"], "02_second: rate = 'fast': must be a number"),
        (["--profile", "number"], "no lesson 1; known: 01_first, 02_second"),
        (["--profile", "list"], "profile list must be a map"),
    ],
)
def test_refused_before_running(folder, capsys, arguments, message):
    profile(
        folder,
        lesson={"01_frist": {"count": 2}},
        name={"02_second": {"count": 2}},
        type={"02_second": {"rate": "fast"}},
        number={1: {"count": 2}},
        list=["01_first"],
    )
    assert command(folder, *arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (folder.parent / "build").exists()


@pytest.mark.parametrize("arguments", [["-p", "count"], ["-p", "=1"], ["--jobs", "0"], ["--only"]])
def test_misused_options(folder, arguments):
    with pytest.raises(SystemExit) as ended:
        command(folder, *arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("cells", "tags", "message"),
    [
        ([PARAMETERS, "x = 1"], (), "bad.ipynb has 0 cells tagged"),
        ([PARAMETERS, PARAMETERS], ("parameters", "parameters"), "bad.ipynb has 2 cells tagged"),
        (["count = max(1, 2)"], ("parameters",), "bad.ipynb: the parameters cell"),
        (["import os"], ("parameters",), "bad.ipynb: the parameters cell"),
        (["a = b = 1"], ("parameters",), "bad.ipynb: the parameters cell"),
        (["a = "], ("parameters",), "bad.ipynb: the parameters cell"),
    ],
)
def test_a_lesson_without_its_parameters_cell(folder, capsys, cells, tags, message):
    store(folder, "bad", cells, tags)
    assert command(folder) == 2
    assert message in capsys.readouterr().err


def test_no_lessons_or_no_notebook(folder, capsys):
    assert command(folder / "nowhere") == 2
    (folder / "03_third.ipynb").write_text("{")
    assert command(folder) == 2
    error = capsys.readouterr().err
    assert "no lessons in" in error and "03_third.ipynb is not a notebook" in error


def test_a_build_folder_that_cannot_be_written(folder, capsys):
    (folder.parent / "build").write_text("in the way")
    assert command(folder) == 2
    assert f"cannot write to {folder.parent / 'build'}" in capsys.readouterr().err


def test_values_are_converted_and_the_profile_gives_way(folder):
    stored = lessons.read_all(folder)
    values = lessons.choose(
        stored,
        ["01_first", "02_second"],
        {"02_second": {"rate": "1e-1", "counts": 4}, "01_first": None},
        {"rate": "0.25", "count": "1e3"},
    )
    assert values == {"01_first": {"count": 1000}, "02_second": {"rate": 0.25, "counts": [4]}}
    assert lessons.select(stored, ["02", "01_first", "0"]) == ["01_first", "02_second"]
    assert lessons.select(stored, None) == list(stored)


def test_a_whole_name_is_not_a_beginning(folder):
    store(folder, "01_first_again", [PARAMETERS])
    assert lessons.select(lessons.read_all(folder), ["01_first"]) == ["01_first"]


def test_list_shows_parameters(folder, capsys):
    assert command(folder, "--list", "--only", "01") == 0
    assert capsys.readouterr().out == f"01_first: Lesson 01_first\n    {PARAMETERS}\n"


# A run that goes well


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run for several tests: an awkward path, another directory, hostile kernelspecs."""
    place = tmp_path_factory.mktemp("nötes {a} $b c")
    folder, specs = place / "notebooks", place / "jupyter" / "kernels" / "python3"
    foreign = {"kernelspec": {"name": "julia-1.9", "display_name": "Julia", "language": "julia"}}
    store(folder, "00_good", GOOD, metadata=foreign)
    store(folder, "01_raises", [PARAMETERS, *BROKEN["raises"][0]])
    store(folder, "02_left_out", [PARAMETERS, "print(count)"])
    profile(folder, other={"00_good": {"label": "from the profile", "exact": "on"}})
    specs.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "mine", "language": "python"}
    (specs / "kernel.json").write_text(json.dumps(spec))
    build = place / "build"
    build.mkdir()
    (build / "00_good.html").write_text("stale")
    (build / "02_left_out.html").write_text("of an earlier run")
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setenv("JUPYTER_PATH", str(place / "jupyter"))
        patch.chdir("/")
        options = ["--only", "00", "01", "--profile", "other", "-p", "tokens=[1e3,8]"]
        status = command(folder, *options)
    ledger = json.loads((build / "ledger.json").read_text(encoding="utf-8"))
    return status, said.getvalue(), build, ledger


def test_a_failing_lesson_stops_no_other_and_the_status_tells(ran):
    status, said, _, ledger = ran
    assert status == 1
    assert {name: entry["status"] for name, entry in ledger["lessons"].items()} == {
        "00_good": "ran",
        "01_raises": "failed",
        "02_left_out": "not run",
    }
    lines = said.splitlines()
    assert len(lines) == 3 and "\x1b" not in said
    assert any(line.startswith("ran      00_good") and "4/4 cells" in line for line in lines)
    assert any(line.startswith("failed   01_raises") and "(In [3])" in line for line in lines)
    assert lines[-1].startswith("1 ran, 1 failed, 1 not run in ")


def test_ledger(ran):
    *_, ledger = ran
    good = ledger["lessons"]["00_good"]
    assert good["seconds"] > 0 and good["cells"] == {"done": 4, "total": 4} and not good["error"]
    assert good["mode"] == ["live", "compiled"]
    assert good["announced"] == "Live on a test · compiled for sm_90, sm_120"
    assert good["parameters"] == {"tokens": [1000, 8], "exact": True, "label": "from the profile"}
    failed = ledger["lessons"]["01_raises"]
    assert failed["cells"] == {"done": 1, "total": 3}
    assert failed["error"] == BROKEN["raises"][1]
    assert ledger["profile"] == "other" and ledger["overrides"] == {"tokens": "[1e3,8]"}
    assert ledger["device"] and ledger["date"] and {"python", "torch"} <= ledger["versions"].keys()


def test_the_kernel_is_this_interpreter_in_the_notebooks_folder(ran):
    _, _, build, _ = ran
    executed = nbformat.read(build / "notebooks" / "00_good.ipynb", as_version=4)
    nbformat.validate(executed)
    assert executed.metadata.kernelspec.name == "python3"
    printed = "".join(o.get("text", "") for c in executed.cells for o in c.get("outputs", []))
    assert f"{sys.executable} {build.parent / 'notebooks'}" in printed
    assert "{'tokens': [1000, 8], 'exact': True, 'label': 'from the profile'}" in printed

    def handle_endtag(self, tag):
        self.in_style = False


def test_pages_load_nothing_and_read_well(ran):
    _, _, build, _ = ran
    names = ("00_good", "01_raises", "index")
    html = {name: (build / f"{name}.html").read_text(encoding="utf-8") for name in names}
    for name in names:
        assert Loads(html[name]).found == [], name
    good = html["00_good"]
    assert '<span class="kn">import</span>' in good, "code has syntax colours"
    assert (
        "<td>a table</td>" in good and "alert(1)" not in good.split("<main>")[1].split("<table>")[1]
    )
    assert "<p><em>Run the lesson in JupyterLab to move the controls.</em></p>" in good
    assert "IntSlider(" not in good and "widget-view" not in good
    assert "Live on a test · compiled for sm_90, sm_120" in good
    assert 'href="index.html"' in good and "<title>Lesson 00_good</title>" in good
    assert "ZeroDivisionError" in html["01_raises"]
    assert 'id="papermill-error-cell"' in html["01_raises"]


def test_index(ran):
    _, _, build, ledger = ran
    html = (build / "index.html").read_text(encoding="utf-8")
    for name in ledger["lessons"]:
        assert f'<a href="{name}.html">Lesson {name}</a>' in html
    assert "What it shows. And why." in html and "More." not in html
    assert BROKEN["raises"][1] in html and ledger["device"] in html
    assert sorted(path.name for path in build.iterdir()) == [
        "00_good.html",
        "01_raises.html",
        "02_left_out.html",
        "index.html",
        "ledger.json",
        "notebooks",
    ]


# Runs that go wrong


@pytest.mark.parametrize("name", [name for name in BROKEN if name != "raises"])
def test_a_broken_lesson_fails_the_run(tmp_path, name, capsys):
    cells, error = BROKEN[name]
    store(tmp_path / "notebooks", name, [PARAMETERS, *cells])
    profile(tmp_path / "notebooks")
    assert command(tmp_path / "notebooks", "--cell-timeout", "1") == 1
    ledger = json.loads((tmp_path / "build" / "ledger.json").read_text())
    assert ledger["lessons"][name]["status"] == "failed"
    assert ledger["lessons"][name]["error"] == error
    page = (tmp_path / "build" / f"{name}.html").read_text(encoding="utf-8")
    assert error in page or name in ("leaves", "empty")
    assert error in capsys.readouterr().out


def test_a_misspelt_parameter_is_caught_under_plain_papermill(tmp_path):
    store(tmp_path, "00_good", GOOD[:2], metadata={"kernelspec": PYTHON3})
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        papermill.execute_notebook(
            tmp_path / "00_good.ipynb",
            None,
            parameters={"tokns": [8], "exact": "maybe"},
            kernel_name="python3",
            language="python",
            cwd=lessons.ROOT,
            progress_bar=False,
        )
    assert caught.value.ename == "ParameterError"
    assert "exact = 'maybe': must be true or false" in caught.value.evalue
    assert "tokns is not a parameter of this lesson; did you mean tokens?" in caught.value.evalue


def test_a_kernel_that_cannot_start_says_why(folder, tmp_path, monkeypatch, capsys):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no ipykernel here >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    assert command(folder, "--only", "01") == 1
    assert (
        "Kernel died before replying to kernel_info · no ipykernel here" in capsys.readouterr().out
    )
    assert "print" in (folder.parent / "build" / "01_first.html").read_text()


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    pages.write(tmp_path / "page.html", "before")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        pages.write(tmp_path / "page.html", "after")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (tmp_path / "page.html").read_text() == "before"


def test_a_full_disk_is_told(folder, monkeypatch, capsys):
    write = pages.write

    def full(path, text):
        if path.suffix in (".html", ".json"):
            raise OSError(28, "No space left on device")
        write(path, text)

    monkeypatch.setattr(pages, "write", full)
    assert command(folder, "--only", "01") == 2
    said = capsys.readouterr()
    assert "its page could not be written" in said.out
    assert "cannot write to" in said.err and "No space left on device" in said.err


# Pieces


def test_announce_outside_a_notebook_prints(capsys):
    lessons.announce(live="in Triton's interpreter on this CPU", published="one card, one source")
    line = "Live in Triton's interpreter on this CPU · published figures: one card, one source\n"
    assert capsys.readouterr().out == line
    lessons.announce(recorded="data/measured/x.csv", compiled_for="sm_120")
    assert capsys.readouterr().out == "Compiled for sm_120 · recorded: data/measured/x.csv\n"
    with pytest.raises(ValueError, match="announce what is live"):
        lessons.announce()


def test_progress_is_redrawn_on_a_terminal(folder, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    runs = [runner._Run(lesson, {}) for lesson in lessons.read_all(folder).values()]
    progress = runner._Progress(runs, out)
    progress.show()
    runs[0].status = "ran"
    progress.show(last=True)
    first, second = out.getvalue().split("\x1b[2F")
    assert first.count("\n") == second.count("\n") == 2
    assert all(len(line) < 40 for line in first.replace("\x1b[2K", "").splitlines())
    assert "ran      01_first" in second and "0/1 cells" in second


def test_errors_are_one_family():
    assert issubclass(ParameterError, LessonError) and not issubclass(LessonError, ValueError)


def test_links_between_lessons_lead_to_pages():
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_markdown_cell("[next](02_next.ipynb), [web](https://a.b/c.ipynb)")
    ]
    html = pages.page(notebook, "one")
    assert 'href="02_next.html"' in html
    assert 'href="https://a.b/c.ipynb"' in html
