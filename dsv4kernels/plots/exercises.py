"""Figure of lesson 07: the first row that a kernel got wrong, beside what it should be."""

import numpy as np
from matplotlib.patches import Rectangle

from . import EMPTY, new, source, styled
from .metadata import FROM_TOPK, INK, TINTS, cells, name_strip

WRONG = "#D55E00"
SHOWN = 24  # columns about the first wrong one


@styled
def wrong_row(got, expected, wrong, title: str, across: str):
    """A row as it should be and as it was written, about its first wrong column.

    Args:
        got, expected: what to write in the cells, column by column.
        wrong: bool [columns], where they differ and should not; one at least.
        title: which row it is.
        across: what the columns are.
    """
    first = int(np.flatnonzero(wrong)[0])
    start = max(0, min(first - SHOWN // 2, len(got) - SHOWN))
    got, expected, wrong = (row[start : start + SHOWN] for row in (got, expected, wrong))
    pale = [EMPTY if value == -1 else TINTS[FROM_TOPK] for value in expected]
    figure, (top, bottom) = new(2, size=(7.6, 2.1))
    cells(top, expected, pale)
    cells(bottom, got, [WRONG if off else shade for off, shade in zip(wrong, pale, strict=True)])
    name_strip(top, "expected")
    name_strip(bottom, "got")
    frame = {"fill": False, "edgecolor": INK, "linewidth": 2.5, "zorder": 3}
    for axes in (top, bottom):
        axes.add_patch(Rectangle((first - start, 0), 1, 1, **frame))
    top.set_title(title)
    bottom.set_xticks(np.arange(len(got)) + 0.5, np.arange(start, start + len(got)))
    bottom.tick_params(length=0, labelsize=8)
    bottom.set_xlabel(across)
    source(figure, "Run in Triton's interpreter; orange: wrong; framed: the first; ?: not written")
    return figure
