"""What can go wrong around a run: each fault ends with a clear message, or the run works anyway.

Further ones are in test_lessons.py: a lesson that raises, hangs, exits or leaves, a kernel that
cannot start, hostile kernelspecs, another directory, an awkward path, parameters that do not fit.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import nbformat
import pytest
from small_lessons import PARAMETERS, command, profile, store

from dsv4kernels import __main__, lessons
from dsv4kernels.lessons import pages, runner
from dsv4kernels.parameters import LessonError


@pytest.fixture
def folder(tmp_path):
    """Two small lessons."""
    folder = tmp_path / "notebooks"
    store(folder, "01_first", [PARAMETERS, "print('first', count)"])
    store(folder, "02_second", [PARAMETERS, "print('second', count)"])
    profile(folder)
    return folder


def ledger_of(build):
    return json.loads((build / "ledger.json").read_text(encoding="utf-8"))["lessons"]


def files(build):
    return sorted(str(path.relative_to(build)) for path in build.rglob("*") if path.is_file())


def printed(build, name):
    cells = nbformat.read(build / "notebooks" / f"{name}.ipynb", as_version=4).cells
    return "".join(o.get("text", "") for cell in cells for o in cell.get("outputs", []))


# A kernel that dies, signals


def test_a_kernel_killed_in_mid_run(folder, tmp_path, monkeypatch, capsys):
    store(folder, "01_first", [PARAMETERS, "print('before')", "import os\nos.kill(os.getpid(), 9)"])
    scratch = tmp_path / ("long" * 20)  # too long for a socket's path
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert command(folder) == 1
    build = folder.parent / "build"
    error = "the kernel died (SIGKILL: did memory run out?)"
    ledger = ledger_of(build)
    assert ledger["01_first"]["error"] == error and ledger["01_first"]["cells"]["done"] == 1
    assert ledger["02_second"]["status"] == "ran"
    page = (build / "01_first.html").read_text(encoding="utf-8")
    assert "before" in page and f"Stopped: {error}" in page and page.rstrip().endswith("</html>")
    assert error in capsys.readouterr().out
    assert not any(scratch.iterdir())


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize("signals", [["SIGINT", "SIGINT", "SIGINT"], ["SIGTERM"]], ids="-".join)
def test_an_interrupted_run_leaves_whole_pages_and_no_process(tmp_path, signals):
    folder, pids, scratch = tmp_path / "notebooks", tmp_path / "pids", tmp_path / "scratch"
    scratch.mkdir()
    busy = (
        "import os, subprocess, time\nfrom pathlib import Path\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"Path({str(tmp_path)!r}, 'part').write_text(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.replace({str(tmp_path / 'part')!r}, {str(pids)!r})\ntime.sleep(60)"
    )
    store(folder, "01_busy", [PARAMETERS, busy])
    store(folder, "02_waits", [PARAMETERS, "print(count)"])
    profile(folder)
    options = ["--notebooks", folder, "--build", tmp_path / "build", "--jobs", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dsv4kernels", "run", *options],
        cwd=lessons.ROOT,
        env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Where the tests run in the background, SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not pids.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        for name in signals:  # to the whole group, as a terminal does, and impatiently
            os.killpg(process.pid, getattr(signal, name))
            time.sleep(0.05)
        said, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, error
    assert error.strip() == "interrupted"
    assert "failed   01_busy" in said and "not run  02_waits" in said
    assert not any(alive(int(pid)) for pid in pids.read_text().split())
    build = tmp_path / "build"
    assert files(build) == ["01_busy.html", "index.html", "ledger.json", "notebooks/01_busy.ipynb"]
    assert ledger_of(build)["01_busy"]["error"] == "interrupted"
    assert (build / "01_busy.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert not any(scratch.iterdir())


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_interrupts_once(name):
    number = getattr(signal, name)
    before = {each: signal.getsignal(each) for each in map(signal.Signals, (1, 2, 15))}
    try:
        signal.signal(number, signal.SIG_IGN)
        __main__._end_on_signals()
        assert signal.getsignal(number) is signal.SIG_IGN  # as under nohup
        signal.signal(number, signal.SIG_DFL)
        __main__._end_on_signals()
        handler = signal.getsignal(number)
        with pytest.raises(KeyboardInterrupt):
            handler(number, None)
        try:
            handler(number, None)
        except KeyboardInterrupt:
            pytest.fail("the ending was disturbed")
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# Folders that are full, shared, or not to be written to


@pytest.fixture(scope="module")
def confined(tmp_path_factory):
    """A run without any network, into a disk that only the first of two pages fits on."""
    place = tmp_path_factory.mktemp("confined")
    folder, disk = place / "notebooks", place / "disk"
    disk.mkdir()
    alone = ["unshare", "--map-root-user", "--mount", "--net", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=1m tmpfs '{disk}'"
    tried = shutil.which("unshare") and subprocess.run([*alone, mount], capture_output=True)
    if not tried or tried.returncode:
        pytest.skip("no user namespaces here, in which to mount a small disk without network")
    store(folder, "01_small", [PARAMETERS, "import socket\nprint(socket.if_nameindex())"])
    store(folder, "02_large", [PARAMETERS, "print('x' * 600_000)"])
    profile(folder)
    run = f"'{sys.executable}' -m dsv4kernels run --notebooks '{folder}' --build '{disk}' --jobs 1"
    copy = f"cp -r '{disk}' '{place / 'copy'}'"
    done = subprocess.run(
        [*alone, f"{mount} && {run}; status=$?; {copy}; exit $status"],
        cwd=lessons.ROOT,
        capture_output=True,
        text=True,
    )
    return done, place / "copy"


def test_a_full_disk_takes_no_half_page(confined):
    done, build = confined
    assert done.returncode == 1, done.stderr
    assert "its page could not be written: [Errno 28] No space left on device" in done.stdout
    notebooks = ["notebooks/01_small.ipynb", "notebooks/02_large.ipynb"]
    assert files(build) == ["01_small.html", "index.html", "ledger.json", *notebooks]
    assert (build / "01_small.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    ledger = ledger_of(build)
    assert [entry["status"] for entry in ledger.values()] == ["ran", "failed"]
    index = (build / "index.html").read_text(encoding="utf-8")
    assert "01_small.html" in index and "02_large.html" not in index


def test_no_network_is_needed(confined):
    _, build = confined
    assert printed(build, "01_small") == "[(1, 'lo')]\n"  # and even that interface is down


def test_two_runs_into_one_folder(folder, tmp_path, capsys):
    build, go, started = tmp_path / "build", tmp_path / "go", tmp_path / "started"
    wait = (
        f"import time\nfrom pathlib import Path\nPath({str(started)!r}).touch()\n"
        f"while not Path({str(go)!r}).exists():\n    time.sleep(0.05)\nprint(count)"
    )
    store(folder, "01_first", [PARAMETERS, wait])
    (build / "notebooks").mkdir(parents=True)
    (build / ".01_first.html.1.part").write_text("left by a killed run")
    ledgers = []

    def first():
        options = {"overrides": {"count": 5}, "build": build, "out": io.StringIO()}
        ledgers.append(runner.run(["01"], notebooks=folder, **options))

    thread = threading.Thread(target=first)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert command(folder, "-p", "count=6") == 2
    finally:
        go.touch()
        thread.join()
    assert f"another run is writing to {build}" in capsys.readouterr().err
    assert ledger_of(build)["01_first"]["parameters"] == {"count": 5}
    assert printed(build, "01_first") == "5\n"
    assert files(build) == [
        "01_first.html",
        "index.html",
        "ledger.json",
        "notebooks/01_first.ipynb",
    ]
    with pages.prepared(build, []):
        pass  # free again


def test_caches_that_cannot_be_written(folder, tmp_path, monkeypatch):
    # A file in the way stops root too, which a mode does not.
    (tmp_path / "home").write_text("a file, no folder")
    for name in ("HOME", "TRITON_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("TRITON_CACHE_DIR", "MPLCONFIGDIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    compiled = (
        "from triton.runtime.cache import get_cache_manager\n"
        "kept = get_cache_manager('a' * 64).put('x', 'file')\nprint(open(kept).read())"
    )
    store(folder, "01_first", [PARAMETERS, compiled])
    store(folder, "02_second", [PARAMETERS, "import matplotlib\nprint(matplotlib.get_configdir())"])
    assert command(folder) == 0
    build = folder.parent / "build"
    assert printed(build, "01_first") == "x\n"
    assert "dsv4kernels-" in printed(build, "02_second")
    assert "temporary" not in printed(build, "02_second")


def test_no_folder_for_temporary_files(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert command(folder) == 2
    assert "error: no folder for temporary files: No such file" in capsys.readouterr().err


def test_the_lessons_themselves_are_not_written_over(folder):
    before = {path.name: path.read_bytes() for path in folder.glob("*.ipynb")}
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "notebooks").symlink_to(folder)
    for build in (folder.parent, folder.parent / "elsewhere"):
        with pytest.raises(LessonError, match="holds the lessons themselves"):
            runner.run(build=build, notebooks=folder)
    assert {path.name: path.read_bytes() for path in folder.glob("*.ipynb")} == before


def test_output_that_nobody_takes_ends_no_run(folder, monkeypatch, capsys):
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:  # closing it fails
        monkeypatch.setattr(sys, "stdout", full)
        assert command(folder, "--jobs", "1") == 2
        monkeypatch.undo()
    assert "No space left on device" in capsys.readouterr().err
    statuses = [entry["status"] for entry in ledger_of(folder.parent / "build").values()]
    assert statuses == ["ran", "ran"]


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pages.write(tmp_path / "page.html", "text")
    assert not any(tmp_path.iterdir())


# Notebooks that are broken


def without(key):
    def change(notebook):
        del notebook["cells"][-1][key]
        return json.dumps(notebook)

    return change


def with_tags_null(notebook):
    notebook["cells"][-1]["metadata"]["tags"] = None
    return json.dumps(notebook)


BROKEN = {
    "empty": (lambda notebook: "", "does not appear to be JSON"),
    "cut short": (lambda notebook: json.dumps(notebook)[:-40], "does not appear to be JSON"),
    "in conflict": (lambda notebook: f"<<<<<<< HEAD\n{json.dumps(notebook)}", "to be JSON"),
    "a list": (lambda notebook: "[]", "no attribute"),
    "of tomorrow": (lambda notebook: json.dumps(notebook | {"nbformat": 9}), "version 9"),
    "no cells": (lambda notebook: json.dumps(notebook | {"cells": None}), "not iterable"),
    "no source": (without("source"), "'source' is a required property"),
    "no outputs": (without("outputs"), "'outputs' is a required property"),
    "no metadata": (without("metadata"), "missing an expected key: metadata"),
    "tags null": (with_tags_null, "None is not of type 'array'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_notebook_is_named(folder, capsys, name):
    change, reason = BROKEN[name]
    path = folder / "02_second.ipynb"
    path.write_text(change(json.loads(path.read_text())))
    assert command(folder) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: 02_second.ipynb is not a notebook: ") and reason in line
    assert not (folder.parent / "build").exists()
