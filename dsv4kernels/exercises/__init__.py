"""The checker of lesson 07: is an answer right, and if not, which row is wrong first and why.

A kernel is run on its task's cases in the interpreter, every access watched and none outside a
tensor carried out; what is right there is also compiled, and run on a GPU where there is one.
Verdicts are words, with a picture and a hint; no answer ends the lesson with an error.
"""

import ast
import html
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from .. import parameters, plots, runtime
from ..compiler import codegen
from ..plots import exercises, workers
from . import combining, conduct, mapping, parts, predictions
from .tasks import ANY, UNWRITTEN, Attempt, Task, attempt

NOT_YET, RIGHT, NOT_RIGHT = "not yet", "right", "not right"
KERNELS: dict[str, Task] = {
    "mask": mapping.MASK,
    "stale index": mapping.STALE,
    "count": mapping.COUNT,
    "tail": parts.TAIL,
    "request": parts.REQUEST,
    "owner": mapping.OWNER,
    "combine": combining.COMBINE,
    "aligned": combining.ALIGNED,
}
NAMES = ("mask", "stale index", "count", "fold", "launch", *list(KERNELS)[3:])


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        status: `NOT_YET`, `RIGHT` or `NOT_RIGHT`.
        words: what was found, in a sentence or two.
        hint: what to think of, where the mistake is a typical one.
        picture: draws a matplotlib Figure; of the first wrong row where one is wrong.
        table: counts that belong to the answer.
    """

    status: str
    words: str
    hint: str = ""
    picture: Callable[[], Figure] | None = None
    table: pd.DataFrame | None = None

    def __str__(self):
        lines = [f"{self.status.capitalize()}: {self.words}", f"Hint: {self.hint}"]
        return "\n".join(lines if self.hint else lines[:1])

    def _ipython_display_(self):
        from IPython.display import display

        words = f"<b>{self.status.capitalize()}:</b> {_html(self.words)}"
        if self.hint:
            words += f"<br><b>Hint:</b> {_html(self.hint)}"
        page = f'<div role="status" style="max-width:44rem;margin:0.3em 0">{words}</div>'
        display({"text/html": page, "text/plain": str(self)}, raw=True)
        if self.table is not None:
            display(self.table)
        if self.picture is not None:
            plots.show(self.picture(), alt=self.words)


class Sheet:
    """A lesson's answers and what was found: `check` each, look at all with `table`."""

    def __init__(self, target: str, seed: int = 0):
        """Compile for `target`; draw the batches from `seed`."""
        self.target, self.seed = target, seed
        self.found: dict[str, Verdict] = {}

    def check(self, name: str, answer: Any, **facts: Any) -> Verdict:
        """Judge an answer, and note the verdict.

        Args:
            name: one of `NAMES`.
            answer: a kernel, or a dict of predictions.
            **facts: for "launch": query_lens, most_rows and slots.

        Raises:
            ValueError: no such exercise.
        """
        if name not in NAMES:
            raise ValueError(f"no exercise {name!r}{parameters.closest(name, NAMES)}")
        if name == "fold":
            verdict = check_fold(answer, self.target)
        elif name == "launch":
            verdict = check_launch(answer, **facts)
        else:
            verdict = check_kernel(KERNELS[name], answer, self.target, self.seed)
        self.found[name] = verdict
        return verdict

    def table(self) -> pd.DataFrame:
        """A line for each exercise: its verdict."""
        status = {name: self.found[name].status if name in self.found else "-" for name in NAMES}
        return pd.DataFrame({"verdict": status}).rename_axis("exercise")

    def require_all(self):
        """Raise AssertionError unless every answer is right; the message names the others."""
        table = self.table()["verdict"]
        left = table[table != RIGHT]
        if len(left):
            raise AssertionError("; ".join(f"{name}: {status}" for name, status in left.items()))


def check_kernel(task: Task, kernel: Any, target: str, seed: int = 0) -> Verdict:
    """Judge a kernel: in the interpreter, then compiled for `target`, then on a GPU if any."""
    if not isinstance(kernel, runtime.Kernel):
        return Verdict(
            NOT_RIGHT,
            f"a function under `@runtime.kernel` is needed, not a {type(kernel).__name__}",
        )
    source = textwrap.dedent(inspect.getsource(kernel.plain))
    code = ast.parse(source)
    for line in conduct.gaps(code):
        text = source.splitlines()[line - 1].partition("#")[0].strip()
        where = f" in `{text}`" if text != "..." else ""
        return Verdict(NOT_YET, f"`...` stands for your answer{where}")
    if any(isinstance(n, ast.Attribute) and n.attr.startswith("atomic") for n in ast.walk(code)):
        return Verdict(NOT_RIGHT, "atomic operations are not watched here, and none is needed")
    attempts = []
    for case in task.cases(seed):
        try:
            attempts.append(attempt(kernel, case))
        except Exception as error:
            if isinstance(runtime.raised(error), NotImplementedError):
                return Verdict(NOT_YET, "the kernel says itself that it is not implemented")
            words, hint = conduct.stopped(error, kernel)
            where = f", in the batch with {case.words}" if attempts else ""  # others went well
            return Verdict(NOT_RIGHT, words + where, hint or conduct.logical(code))
    verdict = _judge(task, attempts, conduct.logical(code))
    if verdict is None:
        verdict = _compiled(task, kernel, [a.case for a in attempts], target)
    return verdict


def _judge(task, attempts, guess):
    """The verdict on what a kernel did in the interpreter; None where all is right.

    The hint is that of a typical mistake, else `guess`, else what the accesses give.
    """
    words, picture = next(filter(None, map(_difference, attempts)), ("", None))
    faults = ((conduct.fault(task, a), a.case.words) for a in attempts)
    (fault, hint), where = next((f for f in faults if f[0]), (("", ""), ""))
    if not words and not fault:
        return None
    mistake = next((m for m in task.mistakes if m.seen(attempts)), None)
    hint = mistake.hint if mistake is not None else guess or hint
    status = NOT_YET if mistake is not None and mistake.given else NOT_RIGHT
    words = words or f"the values are right, how they are reached is not, with {where}"
    return Verdict(status, ". ".join(filter(None, (words, fault))), hint, picture)


def first_difference(got, expected, rows=()) -> str | None:
    """The first element that differs, in words: its row, its column, got and expected.

    Args:
        got: int32 [rows] or [rows, columns].
        expected: the same shape, `ANY` where any value will do.
        rows: what each row is; empty where its number says it.
    """
    wrong = (got != expected) & (expected != ANY)
    if not wrong.any():
        return None
    row, *column = (int(place) for place in wrong.nonzero()[0])
    where = rows[row] if rows else f"row {row}"
    where += "".join(f", column {number}" for number in column)
    value = int(got[row, *column])
    told = "nothing was written" if value == UNWRITTEN else f"got {value}"
    many, unit = int(wrong.reshape(len(wrong), -1).any(1).sum()), "rows" if column else "elements"
    return (
        f"{where}: {told}, expected {int(expected[row, *column])} "
        f"({many} of {len(wrong)} {unit} are wrong)"
    )


def _difference(attempt: Attempt):
    """The first wrong output of a case, as words and a picture; None where there is none."""
    case = attempt.case
    for name, expected in case.expected.items():
        words = first_difference(attempt.got[name], expected, case.rows)
        if words:
            picture = _picture(name, attempt.got[name], expected, attempt.wrong(name), case.rows)
            return f"`{name}`, {words}, in the batch with {case.words}", picture
    return None


def _picture(name, got, expected, wrong, rows):
    """Draws the first wrong row of an output, or of a vector what is about its first wrong one."""
    what, across = name, rows[0].split()[0]
    if got.ndim == 2:
        row = int(wrong.any(1).nonzero()[0])
        got, expected, wrong = got[row], expected[row], wrong[row]
        what, across = f"{name}, {rows[row]}", "column"
    words = {UNWRITTEN: "?", ANY: "any"}
    got, expected = ([words.get(v, v) for v in strip.tolist()] for strip in (got, expected))
    first = int(wrong.nonzero()[0])
    title = f"{what}: {got[first]} in {across} {first}, not {expected[first]}"
    return partial(exercises.wrong_row, got, expected, wrong.numpy(), title, across)


def _compiled(task, kernel, cases, target):
    """What the compiler, and the GPU if there is one, say about a kernel that is right so far."""
    try:
        compiled = codegen.compile(cases[0].launch(kernel)[0], target)
    except Exception as error:
        return Verdict(
            NOT_RIGHT,
            f"it is right in the interpreter, but Triton cannot compile it for {target}: "
            f"{conduct.sentence(error)}",
            conduct.hint(conduct.sentence(error))
            or "The interpreter runs any Python; the compiler knows Triton's own language only.",
        )
    hint = ""
    words = f"{len(cases)} batches as the reference has them; compiled for {target}"
    if task.tells_stores:
        stores = codegen.report(compiled)["store_bits"]
        words += f", where the stores of a thread are {stores} (bits x instructions)"
        if task.aligned and "128 x" not in stores:
            hint = (
                "128 bits are four columns a thread: a chunk of 128 for each warp of 32 threads, "
                "and here a program has one."
            )
    if runtime.has_gpu():
        for case in cases:
            launch, outputs = case.launch(kernel, "cuda")
            launch.run()
            outputs = {name: output.cpu() for name, output in outputs.items()}
            wrong = _difference(Attempt(case, outputs, None))
            if wrong:
                return Verdict(NOT_RIGHT, f"right in the interpreter, on the GPU not: {wrong[0]}",
                               picture=wrong[1])  # fmt: skip
        words += "; run on this GPU too"
    return Verdict(RIGHT, words, hint)


def check_fold(answer: dict, target: str) -> Verdict:
    """Judge {argument: {class of instructions: whether it vanishes}} by compiling for `target`."""
    try:
        told = {f"{n} ({a})": value for a, part in answer.items() for n, value in part.items()}
    except AttributeError:
        told = None
    wanted = [f"{n} ({a})" for a in predictions.FOLDED for n in predictions.WORDS]
    unusable = _unusable(told, wanted, bool, "True or False")
    if unusable:
        return unusable
    counts = predictions.vanishing(target)
    wrong = predictions.judge_vanishing(answer, counts)
    if wrong:
        return Verdict(NOT_RIGHT, *wrong)
    counts.columns = [f"{name} folded" for name in counts]
    words = f"so the compiler has it for {target}; below, the instructions it left"
    return Verdict(RIGHT, words, table=counts)


def check_launch(answer: dict, query_lens, most_rows: int, slots: int, gpu: str) -> Verdict:
    """Judge workers, programs, idle and waves of a mix; see `predictions.judge_launch`."""
    unusable = _unusable(answer, predictions.LAUNCH, Real, "a number")
    if unusable:
        return unusable
    wrong = predictions.judge_launch(answer, query_lens, most_rows, slots)
    if wrong:
        return Verdict(NOT_RIGHT, *wrong)
    mix = {"this mix": query_lens}
    picture = partial(workers.waves, mix, [answer["workers"]], slots, gpu)
    waves = answer["waves"]
    words = f"the launch takes {waves} wave{'s' if waves != 1 else ''}"
    return Verdict(RIGHT, words, picture=picture)


def _unusable(told, wanted, kind, words):
    """The verdict on answers by name that cannot be judged; None where all can."""
    if not isinstance(told, dict):
        return Verdict(NOT_RIGHT, f"a dict is needed, in which every answer is {words}")
    left = [name for name in wanted if told.get(name) is ...]
    if left:
        return Verdict(NOT_YET, f"still `...`: {', '.join(left)}")
    left = [name for name in wanted if name not in told]
    if left:
        return Verdict(NOT_RIGHT, f"no answer for {', '.join(left)}")
    for name in wanted:
        if not isinstance(told[name], kind):
            return Verdict(NOT_RIGHT, f"every answer is {words}, and not {told[name]!r}: {name}")
    return None


def _html(text):
    """Escaped, with `code` as code."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
