"""Tasks without a kernel: predict what a compiler does, and what a launch looks like.

The truth is compiled or counted, never stored. Each function gives the first wrong answer as
(what is wrong, hint), or None where all is right.
"""

import math

import numpy as np
import pandas as pd

from .. import presets, slot_mapping
from ..compiler import codegen
from ..launches import occupancy

WORDS = {
    "reciprocal": "the reciprocal that starts a division",
    "loops": "the loop over a row's tiles",
    "loads": "loads from memory",
    "exchange": "adding up a count across threads",
}
FOLDED = ("block_size", "width")
LAUNCH = ("workers", "programs", "idle", "waves")
_VANISH_HINTS = {
    ("block_size", "reciprocal"): "A division by a number known in advance needs no reciprocal: a "
    "power of two is a shift, any other a multiplication.",
    ("block_size", "loops"): "The loop runs over the columns of a row. Their number is `width`, "
    "which the block size says nothing about.",
    ("width", "loops"): "A width of 512 fits one tile of 1,024 columns. Once the compiler knows "
    "it, there is one pass, and one pass is no loop.",
    ("width", "reciprocal"): "Each position is still divided by `block_size`, a number that comes "
    "with the call.",
}
_DATA_HINT = (
    "Positions, the request and block numbers are data: they differ from call to call, and no "
    "constant stands in for them. Fewer instructions may do for them, not none."
)
_COUNT_HINT = (
    "A row's length is a count over its lanes, which sit in different threads; how many there are "
    "does not spare adding them up."
)


def vanishing(target: str) -> pd.DataFrame:
    """SASS instructions of slot mapping with nothing folded, and with one argument folded.

    Returns:
        A line for each class in `WORDS`, a column "nothing" and one for each argument.
    """
    batch = presets.mapping(presets.FLASH_C4A, tokens=4, device="cpu")
    _, launch = slot_mapping.plan(*batch.slot_mapping_args(), variant="runtime")
    folds = {"nothing": (), "block_size": ("block_size",), "width": ("width",)}
    launches = [launch._replace(kernel=slot_mapping.folded(*names)) for names in folds.values()]
    compiled = codegen.compile_all(launches, target)
    reports = {name: codegen.report(kernel) for name, kernel in zip(folds, compiled, strict=True)}
    return pd.DataFrame(reports).loc[list(WORDS)]


def judge_vanishing(answer: dict, counts: pd.DataFrame) -> tuple[str, str] | None:
    """Compare {argument: {class: whether it vanishes}} with what `vanishing` has counted."""
    for argument in FOLDED:
        for name, words in WORDS.items():
            before, after = int(counts.loc[name, "nothing"]), int(counts.loc[name, argument])
            told = answer[argument][name]
            if told is not (before > 0 == after):
                moved = f"go from {before} to {after}" if before != after else f"stay at {after}"
                hint = _DATA_HINT if name == "loads" else _COUNT_HINT
                return (
                    f"with `{argument}` folded, the instructions for {words} ({name}) {moved}; "
                    f"you said that they {'vanish' if told else 'stay'}",
                    _VANISH_HINTS.get((argument, name), hint),
                )
    return None


def judge_launch(answer: dict, query_lens, most_rows: int, slots: int) -> tuple[str, str] | None:
    """Compare workers, programs, idle and waves with what the mix of requests asks for.

    Args:
        answer: the four numbers by name.
        query_lens: rows of each request, none without.
        most_rows: rows that a program may write one after the other.
        slots: programs that the GPU holds at once.
    """
    lens = np.asarray(query_lens)
    longest, workers = int(lens.max()), math.ceil(lens.max() / most_rows)
    launch = {"workers": workers} | occupancy.shape(query_lens, workers, slots)
    busy = launch["programs"] - launch["idle"]
    mistakes = {
        "workers": {
            longest // most_rows: "Round up: the rows that are left over need a worker too.",
            math.ceil(lens.mean() / most_rows): "The average decides nothing: the longest request "
            "leaves its workers the most rows.",
            math.ceil(lens.sum() / most_rows): "Workers are counted for each request: those of one "
            "request write no row of another.",
        },
        "programs": {
            workers: "The grid is (requests, workers): every request gets that many.",
            busy: "A program without a row is launched all the same: it is in the grid.",
        },
        "idle": {
            launch["programs"] - int(lens.sum()): "A program may write several rows: idle are "
            "those without any, not as many as there are more programs than rows.",
            0: "A request with fewer rows than workers leaves the others without one.",
        },
        "waves": {
            launch["programs"] // slots: "Round up: what does not fill a wave still takes one.",
            math.ceil(busy / slots): "Programs without a row take a slot as well, if only for a "
            "moment.",
        },
    }
    for name in LAUNCH:
        value, told = launch[name], answer[name]
        if told != value:
            more = "That keeps to the rule, but fewer do: each one more is a program a request."
            hint = more if name == "workers" and told > value else ""
            return f"{name} = {told}", mistakes[name].get(told, hint)
    return None
