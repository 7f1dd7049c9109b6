"""Figures of lesson 06: what each change of a kernel brings, and the sweep behind the rules."""

import re
import textwrap
from collections.abc import Mapping

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle

from .. import presets, variants
from ..combine import output_width
from ..measure import records
from . import headline, new, plain_numbers, source, styled

_CURVES = ("o-", "s--", "D-.", "^:", "v-", "P--")  # a shape's marker and line, beside its colour


def span(panels: Mapping[str, pd.DataFrame]) -> str:
    """How far the steps lead, from 128 workers to `own`: least and most of all batches.

    Args:
        panels: as for `steps`.
    """
    ends = []
    for variant in ("workers=128", "own"):
        over = pd.concat(t.loc[t["variant"] == variant, "over_traffic"] for t in panels.values())
        ends.append(f"{over.min():.1f}–{over.max():.1f}")
    return f"from {ends[0]} times a copy's time to {ends[1]}"


@styled
def steps(panels: Mapping[str, pd.DataFrame], title: str, origin: str):
    """Time over that of a plain copy, change by change: a curve for each shape.

    Args:
        panels: what to call a source, and its rows: columns `variant` (in the order of the
            changes), `mix`, `tokens`, `over_traffic`, and more of `records.COLUMNS`.
        title: what the figure shows.
        origin: of the data, for the small print.

    Raises:
        records.DataError: no panel, an empty table, one that mixes devices, protocols or caches,
            or several figures for a point.
    """
    if not panels:
        raise records.DataError("no panels to draw")
    figure, row = new(1, len(panels), size=(8, 4.2), sharey=True, squeeze=False)
    for axes, (label, table) in zip(row[0], panels.items(), strict=True):
        facts = records.one_source(table)
        if table.duplicated(["variant", "mix", "tokens"]).any():
            raise records.DataError("more than one figure for a shape and a variant")
        order = list(dict.fromkeys(table["variant"]))
        shapes = list(table.groupby(["mix", "tokens"], sort=False))
        shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(shapes)))
        curves = zip(shapes, shades, _CURVES * len(shapes), strict=False)
        for ((mix, tokens), curve), shade, style in curves:
            name = f"one request of {tokens:,}" if mix == "one request" else mix
            name += " tokens"
            place = [order.index(variant) for variant in curve["variant"]]
            axes.plot(
                place, curve["over_traffic"], style, color=shade, markersize=4.5, linewidth=1.5,
                label=name,
            )  # fmt: skip
        axes.axhline(1, color="#333333", linestyle=":", linewidth=1.2)
        axes.annotate("a copy of the required bytes", (0, 1), (0, -10), textcoords="offset points",
                      fontsize=8, color="#555555")  # fmt: skip
        axes.set_yscale("log", base=2)
        plain_numbers(axes.yaxis)
        names = [
            textwrap.fill(re.sub("([/=])", r"\1 ", variant), 9, break_long_words=False)
            for variant in order
        ]
        axes.set_xticks(range(len(order)), names, fontsize=8)
        axes.set_ymargin(0.12)
        axes.set_title(
            textwrap.fill(f"{label}, {facts['protocol']} protocol, {facts['cache']}", 64),
            fontsize=9, fontweight="normal",
        )  # fmt: skip
    row[0][0].set_ylabel("time over a copy's")
    row[0][-1].legend(fontsize=8.5)
    headline(figure, title)
    source(figure, origin)
    return figure


def width_of(kernel: str, preset: str) -> int:
    """Columns of a row that the rule of the project's own kernel goes by."""
    layer = presets.PRESETS[preset]
    if kernel == "combine":
        return output_width(layer.topk, layer.window_size)
    return layer.row_width


def framed(swept: Mapping[str, pd.DataFrame], kernel: str) -> pd.Series:
    """The cells of `shapes` that hold the rule's choice; indexed by preset, mix, tokens, shape.

    Args:
        swept: ratios by preset, as `sources.swept` gives them.
        kernel: `slot_mapping` or `combine`.
    """
    found = {}
    for preset, cells in swept.items():
        for mix, tokens in cells.index:
            shape = variants.chosen(kernel, tokens, width_of(kernel, preset))
            if shape in cells:
                found[preset, mix, tokens, shape] = cells.loc[(mix, tokens), shape]
    return pd.Series(found, dtype=float)


@styled
def shapes(swept: Mapping[str, pd.DataFrame], kernel: str, title: str, origin: str):
    """Maps of a kernel's shapes: time over that of the rule's choice, which is framed.

    Args:
        swept: ratios by preset, as `sources.swept` gives them.
        kernel: `slot_mapping` or `combine`.
        title: what the figure shows.
        origin: of the data, for the small print.

    Raises:
        records.DataError: nothing to draw.
    """
    if not swept or any(cells.empty for cells in swept.values()):
        raise records.DataError("no cells to draw")
    heights = [len(cells) + 1.8 for cells in swept.values()]
    figure, column = new(
        len(swept), 1, size=(8, 0.29 * sum(heights) + 0.9), squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )  # fmt: skip
    for axes, (name, cells) in zip(column[:, 0], swept.items(), strict=True):
        width = width_of(kernel, name)
        axes.pcolormesh(cells.to_numpy(), norm=LogNorm(0.5, 2), cmap="RdBu_r", edgecolor="white")
        for (y, x), ratio in np.ndenumerate(cells.to_numpy()):
            axes.text(
                x + 0.5, y + 0.5, f"{ratio:.2f}", ha="center", va="center", fontsize=8,
                color="white" if ratio > 1.55 or ratio < 0.65 else "black",
            )  # fmt: skip
        for _, *batch, chosen in framed({name: cells}, kernel).index:
            corner = list(cells).index(chosen), list(cells.index).index(tuple(batch))
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, linewidth=2, zorder=3))
        labels = [shape.replace("=", "\n") for shape in cells]
        axes.set_xticks(np.arange(cells.shape[1]) + 0.5, labels, fontsize=7.5)
        batches = [f"{mix}, {tokens:,} token{'s' * (tokens > 1)}" for mix, tokens in cells.index]
        axes.set_yticks(np.arange(len(cells)) + 0.5, batches, fontsize=8)
        axes.grid(visible=False)
        axes.invert_yaxis()
        axes.set_title(f"{name}, rows of {width:,}", fontsize=9, fontweight="normal")
    headline(figure, title)
    source(figure, origin)
    return figure
