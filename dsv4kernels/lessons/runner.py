"""Run the lessons: papermill in parallel kernels, a page for each, an index and a ledger.

Names and parameters are checked before anything starts. Then each lesson has a kernel process of
its own and a thread here that follows it; a failing lesson stops no other one.
"""

import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from ..parameters import LessonError
from . import (
    ANNOUNCED,
    DOCS,
    NOTEBOOKS,
    ROOT,
    Lesson,
    choose,
    pages,
    read_all,
    read_profile,
    select,
)
from .processes import Kernels

BUILD = ROOT / "build"
_VERSIONS = ("torch", "triton", "numpy", "pandas", "matplotlib", "papermill", "nbclient")


def run(
    names: Iterable[str] | None = None,
    profile: str = "full",
    overrides: Mapping[str, Any] | None = None,
    build: Path | str = BUILD,
    notebooks: Path | str = NOTEBOOKS,
    jobs: int | None = None,
    cell_timeout: int = 600,
    out: TextIO | None = None,
) -> dict[str, Any]:
    """Run lessons, write `notebooks/NAME.ipynb`, `NAME.html`, `index.html` and `ledger.json`.

    Args:
        names: lessons to run, by whole names or their beginnings; None for all.
        profile: the file of parameters under `profiles/` of the notebooks' folder.
        overrides: parameters for every selected lesson that has them.
        build: folder to write to.
        notebooks: folder of the lessons, and of their kernels.
        jobs: lessons at a time; None for the number of CPUs, or one by one where there is a GPU,
            whose timings would disturb each other.
        cell_timeout: seconds that one cell may take.
        out: where progress goes; None for standard output.

    Returns:
        The ledger; under "lessons", by name, each one's status ("ran", "failed", "not run"),
        seconds, cells, mode, error and parameters.

    Raises:
        LessonError: nothing was run: lessons, names, parameters or the build folder are at fault.
        KeyboardInterrupt: kernels have been ended, and pages of what there is are written.
    """
    lessons = read_all(notebooks)
    selected = select(lessons, names)
    values = choose(lessons, selected, read_profile(profile, notebooks), overrides or {})
    runs = {name: _Run(lesson, values.get(name, {})) for name, lesson in lessons.items()}
    chosen = [runs[name] for name in selected]
    build = Path(build).resolve()
    if (build / "notebooks").resolve() == Path(notebooks).resolve():
        raise LessonError(f"{build} holds the lessons themselves; choose another folder for pages")
    at_once = 1 if Path("/dev/nvidiactl").exists() else os.cpu_count() or 1
    jobs = max(1, min(jobs or at_once, len(chosen)))
    with pages.prepared(build, selected):
        if Path(notebooks).resolve().is_relative_to(NOTEBOOKS):
            pages.documents(DOCS, build)
        began = time.monotonic()
        try:
            with _scratch() as scratch:
                kernels = Kernels(Path(notebooks).resolve(), scratch, jobs)
                work = partial(_follow, kernels=kernels, build=build, cell_timeout=cell_timeout)
                _in_parallel(chosen, work, jobs, kernels, _Progress(chosen, out or sys.stdout))
        finally:
            ledger = _ledger(runs, profile, dict(overrides or {}), time.monotonic() - began)
            there = {name for name in runs if (build / f"{name}.html").exists()}
            try:
                text = json.dumps(ledger, indent=1, ensure_ascii=False)
                pages.write(build / "ledger.json", text)
                pages.write(build / "index.html", pages.index(ledger, there))
            except OSError as error:
                raise LessonError(f"cannot write to {build}: {error.strerror}") from error
        return ledger


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder that is there for as long as the run."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="dsv4kernels-")
    except OSError as error:
        raise LessonError(f"no folder for temporary files: {error.strerror}") from None
    with folder as name:
        yield Path(name)


@dataclass
class _Run:
    """One lesson's way through a run: written by its thread, read by the progress lines."""

    lesson: Lesson
    values: dict[str, Any]
    status: str = "not run"
    done: int = 0
    started: float = 0.0
    seconds: float = 0.0
    error: str = ""
    executed: Any = None
    announced: list[dict[str, Any]] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(map(_counts, self.lesson.notebook.cells))

    def line(self) -> str:
        seconds = time.monotonic() - self.started if self.status == "running" else self.seconds
        text = f"{self.status:8} {self.lesson.name:26} {self.done:3}/{self.total} cells"
        return f"{text} {seconds:7.1f} s  {self.error}".rstrip()

    def entry(self) -> dict[str, Any]:
        return {
            "title": self.lesson.title,
            "summary": self.lesson.summary,
            "status": self.status,
            "seconds": round(self.seconds, 2),
            "cells": {"done": self.done, "total": self.total},
            "mode": list(dict.fromkeys(mode for said in self.announced for mode in said["mode"])),
            "announced": " · ".join(said["line"] for said in self.announced),
            "error": self.error,
            "parameters": self.lesson.defaults | self.values,
        }


def _counts(cell: Any) -> bool:
    # Parameters alone show nothing: a lesson of which only they ran did not run.
    tags = cell.metadata.get("tags", [])
    return (
        cell.cell_type == "code"
        and bool(cell.source.strip())
        and not {"parameters", "injected-parameters", "skip-execution"} & set(tags)
    )


def _in_parallel(
    runs: list[_Run], work: Callable[[_Run], None], jobs: int, kernels: Kernels, progress
) -> None:
    import papermill  # noqa: F401  imported here once rather than by several threads at a time

    # They log what the progress lines and pages tell: timeouts, dead kernels, reads given up.
    for name in ("papermill", "asyncio"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    pool = ThreadPoolExecutor(jobs)
    try:
        pending = {pool.submit(work, run) for run in runs}
        while pending:
            finished, pending = wait(pending, timeout=0.2)
            for future in finished:
                future.result()
            progress.show()
    finally:
        kernels.stop()
        pool.shutdown(cancel_futures=True)
        progress.show(last=True)


def _follow(run: _Run, kernels: Kernels, build: Path, cell_timeout: int) -> None:
    """Execute one lesson and write its notebook and page."""
    run.started, run.status = time.monotonic(), "running"
    error = _execute(run, kernels, cell_timeout)
    run.seconds = time.monotonic() - run.started
    if kernels.stopping.is_set():
        error = "interrupted"
    elif not error and run.done < run.total:
        error = "ended before its last cell"
    elif not error and not run.done:
        error = "no cell was executed"
    run.announced = [
        output.data[ANNOUNCED]
        for cell in run.executed.cells
        for output in cell.get("outputs", [])
        if ANNOUNCED in output.get("data", {})
    ]
    try:
        import nbformat

        name = run.lesson.name
        pages.write(build / "notebooks" / f"{name}.ipynb", nbformat.writes(run.executed))
        pages.write(build / f"{name}.html", pages.page(run.executed, run.lesson.title))
    except Exception as failure:
        error = error or f"its page could not be written: {_short(failure)}"
    run.error = error
    run.status = "failed" if error else "ran"


def _execute(run: _Run, kernels: Kernels, cell_timeout: int) -> str:
    """Run the notebook as far as it goes, kept in `run.executed`; the error in short, or ""."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill import PapermillExecutionError, execute_notebook
    from papermill.execute import raise_for_execution_errors

    notebook = run.lesson.notebook
    python = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata["kernelspec"] = python
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    run.executed, current, started = notebook, None, 0

    def start(notebook):
        run.executed = notebook
        notebook.metadata.papermill["input_path"] = f"{run.lesson.name}.ipynb"

    def cell_start(cell, cell_index):
        nonlocal current, started
        current, started = cell, started + 1

    def cell_executed(cell, cell_index, execute_reply):
        run.done += _counts(cell) and execute_reply["content"]["status"] == "ok"

    try:
        execute_notebook(
            notebook,
            None,
            parameters=run.values,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            execution_timeout=cell_timeout,
            iopub_timeout=60,
            kernel_manager_class=kernels.manager_class(run.lesson.name),
            on_notebook_start=start,
            on_cell_execute=cell_start,
            on_cell_executed=cell_executed,
        )
        return ""
    except PapermillExecutionError as error:
        return _short(f"{error.ename}: {error.evalue}", f" (In [{error.exec_count}])")
    except CellTimeoutError:
        reason = f"a cell took more than {cell_timeout} s"
    except DeadKernelError:
        reason = f"the kernel died ({kernels.deaths.get(run.lesson.name, 'cause unknown')})"
    except Exception as error:
        reason = _short(f"{type(error).__name__}: {error}")
    if current is None:
        reason = " · ".join([reason, *kernels.last_words(run.lesson.name)])
    else:
        # Shown in the page where it happened, as papermill shows an exception.
        from nbformat.v4 import new_output

        current["execution_count"] = started
        stopped = {"ename": "Stopped", "evalue": reason, "traceback": [f"Stopped: {reason}"]}
        current.outputs.append(new_output("error", **stopped))
        with suppress(PapermillExecutionError):
            raise_for_execution_errors(run.executed, None)
    return reason


def _short(error: Any, end: str = "") -> str:
    text = " ".join(str(error).split())
    return (text if len(text) <= 300 else f"{text[:299]}…") + end


class _Progress:
    """A line for each lesson: redrawn on a terminal, else printed when a lesson has ended."""

    def __init__(self, runs: list[_Run], out: TextIO):
        size = shutil.get_terminal_size()
        fits = len(runs) < size.lines - 2
        self.live = out.isatty() and os.environ.get("TERM") != "dumb" and fits
        self.runs, self.out, self.width = runs, out, size.columns - 1
        self.drawn = 0
        self.printed: set[str] = set()

    def show(self, last: bool = False) -> None:
        with suppress(OSError):  # nobody reads them any more, or the disk is full: the run goes on
            self._write(last)

    def _write(self, last: bool) -> None:
        lines = []
        if self.live:
            lines = [run.line()[: None if last else self.width] for run in self.runs]
            up = f"\x1b[{self.drawn}F" if self.drawn else ""
            self.out.write(up + "".join(f"\x1b[2K{line}\n" for line in lines))
            self.drawn = len(lines)
        for run in self.runs:
            ended = run.status in ("ran", "failed") or last
            if ended and run.lesson.name not in self.printed:
                self.printed.add(run.lesson.name)
                if not self.live:
                    self.out.write(run.line() + "\n")
        self.out.flush()


def _ledger(runs: Mapping[str, _Run], profile: str, overrides: dict, seconds: float) -> dict:
    from ..runtime import describe

    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _VERSIONS:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": describe()["device"],
        "versions": versions,
        "profile": profile,
        "overrides": overrides,
        "seconds": round(seconds, 2),
        "lessons": {name: run.entry() for name, run in runs.items()},
    }
