"""Figures of lesson 02: what folding arguments into a kernel leaves of its machine code."""

import itertools

import pandas as pd
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..slot_mapping import GEOMETRY
from . import STYLES, new, source, styled

# From most to least telling; grey is what every kernel has.
CLASSES = {
    "arithmetic": ("integer arithmetic, compare, select", "#0072B2", ""),
    "reciprocal": ("floating-point start of a division", "#D55E00", ""),
    "uniform": ("uniform (once for a warp)", "#56B4E9", "///"),
    "move": ("moves, constants, parameters", "#E69F00", "..."),
    "local": ("spilled registers", "#882255", ""),
    "global": ("global loads and stores", "#009E73", "xx"),
    "exchange": ("exchange between threads", "#CC79A7", "\\\\"),
    "control": ("branches, exit", "#777777", ""),
}


@styled
def subsets(table: pd.DataFrame):
    """Instructions of every folded subset, longest first, above a matrix of what is folded.

    Args:
        table: what `codegen.subsets` returns.
    """
    table = table.sort_values("instructions", ascending=False, kind="stable", ignore_index=True)
    figure, (bars, matrix) = new(
        2, 1, size=(8, 5.2), sharex=True, gridspec_kw={"height_ratios": (3, 1.3)}
    )
    place = range(len(table))
    divides, loops = table.ptx_divides + table.ptx_remainders > 0, table.loops > 0
    colours = [STYLES["comparator" if d else "optimised"]["color"] for d in divides]
    drawn = bars.bar(place, table.instructions, color=colours, width=0.8)
    for bar, looping in zip(drawn, loops, strict=True):
        bar.set(hatch="///" if looping else "", edgecolor="white", linewidth=0)
    bars.set_ylim(0, table.instructions.max() * 1.22)
    for words, names in (("none folded", ()), ("all five", GEOMETRY)):
        at = table.index[_is(table, names)].item()
        bars.annotate(
            f"{words}: {table.instructions[at]:,}",
            (at, table.instructions[at]),
            (at, table.instructions[at] + 0.09 * table.instructions.max()),
            ha="left" if at < len(table) / 2 else "right",
            arrowprops={"arrowstyle": "-", "color": "#555555"},
        )
    bars.set_ylabel("SASS instructions")
    bars.grid(axis="x", visible=False)
    bars.set_title(_finding(table))
    bars.legend(handles=_legend(divides, loops), loc="upper right")

    for row, name in enumerate(GEOMETRY):
        matrix.scatter(place, [row] * len(table), s=22, facecolor="#DDDDDD", linewidth=0)
        on = table.index[table[name]]
        matrix.scatter(on, [row] * len(on), s=40, facecolor="#222222", linewidth=0)
    matrix.set_yticks(range(len(GEOMETRY)), GEOMETRY)
    matrix.set_ylim(len(GEOMETRY) - 0.4, -0.6)
    matrix.set_xlim(-0.8, len(table) - 0.2)
    matrix.set_xticks([])
    matrix.grid(visible=False)
    for side in matrix.spines.values():
        side.set_visible(False)
    matrix.set_xlabel("each column one compiled kernel; a black dot: the argument is folded")
    source(figure, f"compiled for {table.target[0]} without a GPU; counted in the machine code")
    return figure


def _finding(table):
    """What the best one argument saves of what all five do, or the best two if those are needed."""

    def left(names):
        return table.instructions[_is(table, names)].item()

    best = [min(itertools.combinations(GEOMETRY, n), key=left) for n in (1, 2)]
    one, two = [(left(()) - left(names)) / (left(()) - left(GEOMETRY)) for names in best]
    names, verb, share = (best[0], "saves", one) if one >= 0.9 else (best[1], "save", two)
    return f"{' and '.join(names)} {verb} {share:.0%} of the instructions that all five do"


def _is(table, names):
    """The row in which exactly these arguments are folded."""
    return (table[list(GEOMETRY)] == [name in names for name in GEOMETRY]).all(axis=1)


def _legend(divides, loops):
    comparator, optimised = STYLES["comparator"]["color"], STYLES["optimised"]["color"]
    entries = []
    if divides.any():
        entries.append(Patch(color=comparator, label="divides at run time"))
    if not divides.all():
        entries.append(Patch(color=optimised, label="no divide left"))
    if loops.any():
        entries.append(Patch(facecolor="#999999", hatch="///", edgecolor="white", label="a loop"))
    if not loops.all():
        entries.append(Patch(facecolor="#999999", label="no loop"))
    return entries


@styled
def composition(reports: pd.DataFrame, title: str = ""):
    """What kinds of instruction each kernel consists of, as stacked bars.

    Args:
        reports: what `codegen.table` returns.
        title: default what folds away from the first column to the last.
    """
    figure, axes = new(size=(8, 2.1 + 0.42 * reports.shape[1]))
    left = pd.Series(0, index=reports.columns)
    for name, (label, colour, hatch) in CLASSES.items():
        count = reports.loc[name].astype(int)
        if not count.any():
            continue
        axes.barh(
            reports.columns, count, left=left, label=label, color=colour, hatch=hatch,
            edgecolor="white", linewidth=0.6, height=0.7,
        )  # fmt: skip
        left += count
    for at, total in enumerate(reports.loc["instructions"]):
        axes.annotate(f" {total:,}", (total, at), va="center")
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("SASS instructions")
    axes.margins(x=0.08)
    first, last = reports.iloc[:, 0], reports.iloc[:, -1]
    gone = first["instructions"] - last["instructions"]
    share = (first["arithmetic"] - last["arithmetic"]) / gone if gone else 0
    axes.set_title(
        title or f"Of {gone:,} instructions that fold away, {share:.0%} are integer arithmetic"
    )
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.22), ncols=3, fontsize=8.5)
    targets = " and ".join(dict.fromkeys(reports.loc["target"]))
    source(figure, f"compiled for {targets} without a GPU")
    return figure


@styled
def compilations(counts: pd.DataFrame):
    """Kernels compiled so far, call by call, for each way to build the kernel.

    Args:
        counts: a row for each call, a column for each way.
    """
    figure, axes = new(size=(7, 3.2))
    fixed = {"color": "#CC79A7", "marker": "^", "linestyle": "-."}
    styles = itertools.cycle([STYLES["comparator"], STYLES["optimised"], fixed])
    for (name, count), style in zip(counts.items(), styles, strict=False):
        axes.step(counts.index, count, where="post", label=name, markersize=4, **style)
    worst = counts.iloc[-1].idxmax()
    axes.set_title(f"{len(counts)} calls: {counts[worst].iloc[-1]} kernels where {worst}")
    axes.set_xlabel("call, each with a longer context")
    axes.set_ylabel("kernels compiled")
    axes.set_ylim(0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    source(figure, "counted by Triton's own JIT, which compiled and did not launch")
    return figure
