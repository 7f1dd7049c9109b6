"""Figures of lesson 03: which worker writes which row, waves of programs, sweeps of workers."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from .. import combine
from ..launches import occupancy
from ..measure import records
from . import EMPTY, STYLES, headline, new, plain_numbers, source, styled

MARKED = {"comparator": combine.COMPARATOR_WORKERS, "optimised": combine.OPTIMISED_WORKERS}
# Curves of a sweep, told apart by colour (from light to dark), marker and line.
_CURVES = ("o-", "s--", "D-.", "^:", "v-", "P--", "X-.", "*:")


@styled
def ownership(written: pd.DataFrame, query_lens: Sequence[int], workers: int, origin: str):
    """Who writes which row: a lane for each worker, a cell for each row, numbered by its turn.

    Args:
        written: columns `token`, `request` and `worker`, as `occupancy.assignment` has them; from
            there or from a trace.
        query_lens: rows of each request.
        workers: lanes to draw; one that writes no row of a request is hatched there.
        origin: what `written` comes from, for the small print.

    Raises:
        records.DataError: nothing is written.
    """
    if written.empty:
        raise records.DataError("no rows to draw: nothing was written")
    tokens, written = sum(query_lens), written.sort_values("token")
    size = (8, min(1.5 + 0.3 * workers, 7))
    figure, axes = new(size=size)
    shades = matplotlib.colormaps["Blues"]
    turn = written.groupby(["request", "worker"]).cumcount()
    deepest = int(turn.max()) + 1
    numbered = tokens <= 48
    for token, worker, nth in zip(written["token"], written["worker"], turn, strict=True):
        shade = shades(0.25 + 0.6 * nth / max(deepest, 2))
        axes.add_patch(Rectangle((token, worker), 1, 1, facecolor=shade, edgecolor="white"))
        if numbered:
            axes.text(
                token + 0.5, worker + 0.5, nth + 1, ha="center", va="center", fontsize=8,
                color="white" if nth / deepest > 0.5 else "black",
            )  # fmt: skip
    start, rows = 0, occupancy.rows(query_lens, workers)
    for request, length in enumerate(query_lens):
        for worker in np.flatnonzero(rows[request] == 0) if length else ():
            axes.add_patch(
                Rectangle(
                    (start, worker), length, 1, hatch="////", facecolor="white",
                    edgecolor="#BBBBBB", linewidth=0,
                )
            )  # fmt: skip
        axes.axvline(start, color="#333333", linewidth=1.2)
        if length:
            axes.annotate(
                f"request {request}" if length > tokens / 10 else request,
                (start + length / 2, 1), xycoords=("data", "axes fraction"),
                xytext=(0, 3), textcoords="offset points", ha="center", fontsize=8.5,
            )  # fmt: skip
        start += length
    axes.set_xlim(0, tokens)
    axes.set_ylim(workers, 0)
    axes.set_xticks(np.arange(0, tokens, max(1, tokens // 16)) + 0.5)
    axes.set_xticklabels(np.arange(0, tokens, max(1, tokens // 16)))
    step = max(1, workers // 16)
    axes.set_yticks(np.arange(0, workers, step) + 0.5, np.arange(0, workers, step))
    axes.grid(visible=False)
    axes.set_xlabel("row of the output (token)")
    axes.set_ylabel("worker")
    idle = int((rows == 0).sum())
    axes.set_title(
        f"{rows.size} programs write {tokens} rows, up to {rows.max()} each; {_none(idle)}",
        pad=18,
    )
    turns = "numbers" if numbered else "from light to dark"
    absent = "; a request without rows is not drawn" if 0 in query_lens else ""
    source(figure, f"{origin}; {turns}: a worker's first, second, ... row; hatched: no row{absent}")
    return figure


@styled
def waves(mixes: Mapping[str, Sequence[int]], workers: Sequence[int], slots: int, gpu: str):
    """What a GPU's slots hold wave by wave, a panel for each mix and worker count.

    Args:
        mixes: query lengths by what to call them.
        workers: worker counts, one a column.
        slots: programs the GPU holds at once (`occupancy.slots`).
        gpu: its name, for the small print.
    """
    figure, panels = new(
        len(mixes), len(workers), size=(8, 1.3 + 1.35 * len(mixes)), sharey=True, squeeze=False
    )
    parts = {
        "busy": ("programs with a row", {"facecolor": STYLES["comparator"]["color"]}),
        "idle": ("programs without a row", {"facecolor": "#E69F00", "hatch": "////"}),
        "empty": ("empty slots", {"facecolor": EMPTY}),
    }
    taken, without_row = [], []  # panel by panel: of the slots, and of the programs
    for row, (mix, query_lens) in zip(panels, mixes.items(), strict=True):
        most = max(len(occupancy.waves(query_lens, count, slots)) for count in workers)
        for axes, count in zip(row, workers, strict=True):
            table = occupancy.waves(query_lens, count, slots)
            bottom = np.zeros(len(table))
            for part, (_, style) in parts.items():
                width = 0.8 if most <= 40 else 1.0
                axes.bar(
                    table.index + 1, table[part], bottom=bottom, width=width, linewidth=0,
                    edgecolor="white", **style,
                )  # fmt: skip
                bottom += table[part]
            found = occupancy.shape(query_lens, count, slots)
            taken.append(min(found["programs"] / slots, 1))
            without_row.append(found["idle"] / max(found["programs"], 1))
            plural = "s" if len(table) != 1 else ""
            axes.set_title(
                f"{mix}, {count} workers:\n{len(table)} wave{plural}, "
                f"{without_row[-1]:.0%} of programs without a row",
                fontsize=9, fontweight="normal",
            )  # fmt: skip
            axes.set_xlim(0.3, max(most, 3) + 0.7)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(axis="x", visible=False)
            plain_numbers(axes.yaxis)
        row[0].set_ylabel("slots")
    for axes in panels[-1]:
        axes.set_xlabel("wave")
    entries = [Patch(label=label, edgecolor="white", **style) for label, style in parts.values()]
    if panels.size == 1:
        figure.legend(handles=entries, loc="outside upper center", ncols=3)
    else:
        panels[0][-1].legend(handles=entries, loc="best", fontsize=8, framealpha=1)
        headline(
            figure,
            f"As few as {min(taken):.0%} of the slots taken, "
            f"up to {max(without_row):.0%} of programs without a row",
        )
    source(figure, f"computed for {gpu}: {slots:,} programs at once; nothing was run")
    return figure


@styled
def sweep(panels: Mapping[str, pd.DataFrame], value: str, unit: str, title: str):
    """A quantity over the number of workers, a curve for each mix, a panel for each source.

    The comparator's and the optimised worker count are marked. Measured tables bring their 20th
    and 80th percentiles, drawn as a band, and the time of a plain copy of the required bytes,
    drawn as a short line at the right.

    Args:
        panels: what to call a source, and its table: columns `mix`, `workers` and `value`.
        value: the column to draw.
        unit: of the axis, as in "µs a call".
        title: what the figure shows.

    Raises:
        records.DataError: no panel, an empty table, one that mixes devices, protocols or caches,
            or has several figures for a point.
    """
    if not panels:
        raise records.DataError("no panels to draw")
    figure, row = new(1, len(panels), size=(8, 4.6), sharey=True, squeeze=False)
    for axes, (label, table) in zip(row[0], panels.items(), strict=True):
        facts = records.one_source(table)
        if table.duplicated(["mix", "workers"]).any():
            raise records.DataError("more than one figure for a mix and a number of workers")
        names = list(dict.fromkeys(table["mix"]))
        shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(names)))
        for name, shade, style in zip(names, shades, _CURVES * len(names), strict=False):
            curve = table[table["mix"] == name].sort_values("workers")
            axes.plot(
                curve["workers"], curve[value], style, color=shade, label=name, markersize=4,
                linewidth=1.5, markevery=_powers(curve["workers"]),
            )  # fmt: skip
            if "p20_us" in curve:
                axes.fill_between(
                    curve["workers"], curve["p20_us"], curve["p80_us"], color=shade, alpha=0.2,
                    linewidth=0,
                )  # fmt: skip
            if "traffic_floor_us" in curve:
                axes.plot(
                    [curve["workers"].max() * 1.15, curve["workers"].max() * 1.7],
                    [curve["traffic_floor_us"].median()] * 2, color=shade, linewidth=1,
                )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks([4**n for n in range(6)])
        axes.minorticks_off()
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
        for role, count in MARKED.items():
            style = STYLES[role]
            axes.axvline(count, color=style["color"], linestyle=style["linestyle"], linewidth=1)
            axes.annotate(
                count, (count, 1), xycoords=("data", "axes fraction"), xytext=(0, 2),
                textcoords="offset points", ha="center", fontsize=8, color=style["color"],
            )  # fmt: skip
        axes.set_xlabel("workers a request")
        words = [facts[c] for c in ("protocol", "cache") if c in facts]
        axes.set_title(
            textwrap.fill(label, 84 // len(panels)), fontsize=9, fontweight="normal", pad=14
        )
        if words:
            axes.annotate(
                " protocol, ".join(words), (0.98, 0.97), xycoords="axes fraction", fontsize=8,
                ha="right", va="top", color="#555555",
            )  # fmt: skip
    row[0][0].set_ylabel(unit)
    headline(figure, title)
    handles, names = row[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8.5)
    return figure


def _none(idle):
    """How many programs write no row, in words."""
    return f"{idle:,} write{'s' if idle == 1 else ''} none"


def finding(panels: Mapping[str, pd.DataFrame]) -> str:
    """The range of worker counts with the least time, mix by mix, over all panels."""
    best = [
        int(curve.loc[curve["median_us"].idxmin(), "workers"])
        for table in panels.values()
        for _, curve in table.groupby("mix")
    ]
    return f"The least time is at {min(best):,} to {max(best):,} workers, depending on the mix"


def _powers(workers):
    """Places of powers of two among worker counts, where a long curve has its markers."""
    counts = workers.to_numpy()
    return [at for at, count in enumerate(counts) if count & (count - 1) == 0]


@styled
def gain(panels: Mapping[str, pd.DataFrame], title: str):
    """Optimised over comparator as a map of requests and tokens: below 1 (blue) it helps.

    Args:
        panels: what to call a source, and its table: columns `requests`, `tokens`, `ratio`, one
            line for each cell.
        title: what the figure shows.

    Raises:
        records.DataError: no panel, an empty table, or one that mixes devices, protocols or
            caches.
    """
    if not panels:
        raise records.DataError("no panels to draw")
    figure, row = new(1, len(panels), size=(8, 3.6), sharey=True, squeeze=False)
    for axes, (label, table) in zip(row[0], panels.items(), strict=True):
        records.one_source(table)
        cells = table.pivot(index="requests", columns="tokens", values="ratio").sort_index()
        axes.pcolormesh(
            cells.to_numpy(), norm=LogNorm(0.45, 1 / 0.45), cmap="RdBu_r", edgecolor="white"
        )
        for (y, x), ratio in np.ndenumerate(cells.to_numpy()):
            if np.isfinite(ratio):
                strong = ratio < 0.62 or ratio > 1.65
                axes.text(
                    x + 0.5, y + 0.5, f"{ratio:.2f}", ha="center", va="center",
                    fontsize=8 if len(panels) * cells.shape[1] <= 14 else 6.5,
                    color="white" if strong else "black",
                )  # fmt: skip
        axes.set_xticks(np.arange(cells.shape[1]) + 0.5, [f"{t:,}" for t in cells.columns])
        axes.tick_params(axis="x", rotation=45)
        axes.set_yticks(np.arange(cells.shape[0]) + 0.5, [f"{r:,}" for r in cells.index])
        axes.grid(visible=False)
        axes.set_xlabel("tokens of the batch")
        axes.set_title(textwrap.fill(label, 76 // len(panels)), fontsize=9, fontweight="normal")
    row[0][0].set_ylabel("requests")
    headline(figure, title)
    return figure


@styled
def programs(query_lens: Sequence[int], workers: int):
    """How many rows each program writes, for launches too large for `ownership`.

    Args:
        query_lens: rows of each request.
        workers: programs a request.
    """
    rows = occupancy.rows(query_lens, workers).T
    idle, most = int((rows == 0).sum()), int(rows.max(initial=0))
    figure, axes = new(size=(8, 3.6))
    shades = matplotlib.colormaps["Blues"].with_extremes(bad="#E69F00")
    drawn = axes.imshow(
        np.ma.masked_equal(rows, 0), cmap=shades, vmin=0, vmax=max(most, 1), aspect="auto",
        interpolation="nearest", extent=(-0.5, len(query_lens) - 0.5, workers - 0.5, -0.5),
    )  # fmt: skip
    figure.colorbar(drawn, label="rows written", ticks=MaxNLocator(integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False)
    axes.set_xlabel("request")
    axes.set_ylabel("worker")
    axes.set_title(
        f"{rows.size:,} programs write {sum(query_lens):,} rows, up to {most:,} each; {_none(idle)}"
    )
    source(figure, "counted from the definition; orange: a program without a row")
    return figure
