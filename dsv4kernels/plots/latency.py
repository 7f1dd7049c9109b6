"""Figures of lesson 04: latency against tokens, each source in a panel of its own."""

import textwrap
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from ..measure import limits, records
from . import STYLES, headline, new, plain_numbers, source, styled

ROLES = {
    "runtime": "comparator",
    "workers=128": "comparator",
    "constexpr": "optimised",
    "workers=256": "optimised",
    "own": "own",
}
FLOORS = {"launch_floor_us": "an empty kernel", "traffic_floor_us": "a copy of the bytes"}


def role(variant: str) -> str:
    """Which of `STYLES` a variant has: a registered candidate's own, if it is not built in."""
    return ROLES.get(variant, "candidate")


@styled
def curves(panels: Mapping[str, pd.DataFrame], title: str, origin: str, fits: bool = False):
    """Latency over tokens, a panel for each source, a curve for each variant.

    Rows with percentiles are drawn as a line in its 20-80 % band, others as dots; floors, where a
    source has them, as thin dotted lines.

    Args:
        panels: what to call a source (it must name the device), and its rows: columns `variant`,
            `tokens`, `median_us`, and more of `records.COLUMNS` where there are any.
        title: what the figure shows.
        origin: of the data, for the small print.
        fits: draw a line of fixed cost and cost a token through the points.

    Raises:
        records.DataError: no panel, an empty table, one that mixes devices, protocols or caches,
            several kernels or mixes, or a label that does not name the device.
    """
    if not panels:
        raise records.DataError("no panels to draw")
    figure, row = new(1, len(panels), size=(8, 4.3), sharey=True, squeeze=False)
    for axes, (label, table) in zip(row[0], panels.items(), strict=True):
        facts = records.one_source(table)
        _one_curve_each(label, table, facts)
        for variant, curve in table.groupby("variant", sort=False):
            _curve(axes, variant, curve.sort_values("tokens"), fits)
        _floors(axes, table.sort_values("tokens"))
        _token_axis(axes, table["tokens"])
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axes.minorticks_off()
        plain_numbers(axes.yaxis)
        wrapped = textwrap.fill(label, 76 // len(panels))
        axes.set_title(wrapped, fontsize=9, fontweight="normal")
        axes.legend(loc="best", fontsize=8.5 if len(panels) < 3 else 7.5)
        axes.set_ymargin(0.12)
        words = [facts[c] for c in ("protocol", "cache") if c in facts]
        if words:
            axes.annotate(
                " protocol, ".join(words), (0.98, 0.02), xycoords="axes fraction", fontsize=8,
                ha="right", color="#555555",
            )  # fmt: skip
    row[0][0].set_ylabel("µs a call")
    headline(figure, textwrap.fill(title, 84))
    source(figure, origin)
    return figure


def finding(panels: Mapping[str, pd.DataFrame]) -> str:
    """What each source shows at its largest token count; no two sources are held together.

    Where `own` was measured: its time over the optimised kernel's and over a copy's. Elsewhere the
    optimised kernel's over the comparator's.

    Args:
        panels: as for `curves`. Beside measured ones, published ones are passed over.

    Raises:
        records.DataError: no panel.
    """
    if not panels:
        raise records.DataError("no panels to tell of")
    measured = {label: table for label, table in panels.items() if "p20_us" in table}
    words = []
    for label, table in (measured or panels).items():
        longest = table[table["tokens"] == table["tokens"].max()]
        by_role = longest.set_index(longest["variant"].map(role))
        us, names = by_role["median_us"], by_role["variant"]
        if {"own", "optimised"} <= set(us.index):
            copy = us["own"] / longest["traffic_floor_us"].iloc[0]
            told = f"own takes {us['own'] / us['optimised']:.2f} of {names['optimised']}'s time"
            told += f" and {copy:.2f} of a copy's"
        else:
            less = us["optimised"] / us["comparator"]
            told = f"{names['optimised']} takes {less:.2f} of {names['comparator']}'s time"
        words.append(f"{label}: at {longest['tokens'].iloc[0]:,} tokens {told}")
    return "; ".join(words)


def _one_curve_each(label, table, facts):
    """Raise unless the panel holds one point for each variant and token count, and says whose."""
    for column in ("kernel", "mix", "preset", "source"):
        if column in table and table[column].nunique() > 1:
            mixed = ", ".join(map(str, table[column].unique()))
            raise records.DataError(f"one curve must not mix {column}s: {mixed}")
    if table.duplicated(["variant", "tokens"]).any():
        raise records.DataError("more than one figure for a variant and token count")
    if facts["device"].removeprefix("NVIDIA ") not in label:
        raise records.DataError(f"the label {label!r} does not name the device, {facts['device']}")


def _curve(axes, variant, curve, fits):
    style = STYLES[role(variant)]
    banded = "p20_us" in curve
    axes.plot(
        curve["tokens"], curve["median_us"], color=style["color"], marker=style["marker"],
        linestyle=style["linestyle"] if banded else "", markersize=4.5, label=variant, zorder=3,
    )  # fmt: skip
    if banded:
        axes.fill_between(
            curve["tokens"], curve["p20_us"], curve["p80_us"], color=style["color"], alpha=0.2,
            linewidth=0,
        )  # fmt: skip
    if fits:
        fit = limits.line(curve["tokens"], curve["median_us"])
        tokens = np.geomspace(curve["tokens"].min(), curve["tokens"].max(), 200)
        axes.plot(
            tokens, fit.at(tokens), color=style["color"], linestyle=style["linestyle"],
            linewidth=1,
        )  # fmt: skip


def _floors(axes, table):
    for shade, (column, label) in zip(("#999999", "#333333"), FLOORS.items(), strict=True):
        if column in table:
            floor = table.groupby("tokens")[column].median()
            line = {"color": shade, "linestyle": STYLES["floor"]["linestyle"], "linewidth": 1.2}
            line["label"] = f"floor: {label}"
            if len(floor) == 1:  # a line through one point has no length
                axes.axhline(floor.iloc[0], **line)
            else:
                axes.plot(floor.index, floor, **line)


def _token_axis(axes, tokens):
    """A log-2 axis of tokens, with as many of their counts for ticks as a panel has room for."""
    counts = sorted(set(tokens), reverse=True)
    ticks = counts[:1]
    for count in counts:
        if ticks[-1] / count >= (counts[0] / counts[-1]) ** 0.18:
            ticks.append(count)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks[::-1])
    plain_numbers(axes.xaxis)
    axes.set_xlabel("tokens")
    axes.tick_params(axis="x", labelsize=8.5)


@styled
def bandwidth(reached: pd.DataFrame, limit_gb_s: float, gpu: str, layer: str, origin: str):
    """Bytes over published latency, against the card's bandwidth; the bytes counted in two ways.

    Args:
        reached: a row for each point: `variant`, `tokens`, `moved_gb_s` (every byte the variant
            moves) and `required_gb_s` (those the definition requires).
        limit_gb_s: the card's memory bandwidth by its datasheet.
        gpu: the card's name.
        layer: what the rows are taken to be of; the source does not say.
        origin: who published the latencies, for the small print.

    Raises:
        records.DataError: nothing to draw.
    """
    if reached.empty:
        raise records.DataError("no rows to plot")
    figure, axes = new(size=(7.5, 3.8))
    for variant, curve in reached.groupby("variant", sort=False):
        style, curve = STYLES[role(variant)], curve.sort_values("tokens")
        for column, fill in (("moved_gb_s", style["color"]), ("required_gb_s", "white")):
            axes.plot(
                curve["tokens"], curve[column], color=style["color"], marker=style["marker"],
                linestyle=style["linestyle"], linewidth=1, markerfacecolor=fill,
            )  # fmt: skip
    axes.axhline(limit_gb_s, color="#333333", linestyle=":", linewidth=1.2)
    axes.annotate(
        f"datasheet bandwidth, {limit_gb_s:,.0f} GB/s", (1, limit_gb_s), (0, 3),
        xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8.5, ha="right",
    )  # fmt: skip
    _token_axis(axes, reached["tokens"])
    axes.minorticks_off()
    axes.set_ylim(0, max(limit_gb_s, reached["moved_gb_s"].max()) * 1.15)
    plain_numbers(axes.yaxis)
    axes.set_ylabel("GB/s")
    best = reached["moved_gb_s"].max() / limit_gb_s
    useful = reached["required_gb_s"].max() / limit_gb_s
    headline(
        figure,
        f"Published times, {layer} assumed: {best:.0%} of the datasheet bandwidth,\n"
        f"{useful:.0%} if only required bytes count",
    )
    entries = [
        Line2D([], [], **STYLES[role(v)], label=v) for v in dict.fromkeys(reached["variant"])
    ]
    for label, fill in (("all bytes it moves", "#555555"), ("required bytes only", "white")):
        entries.append(
            Line2D([], [], color="#555555", marker="o", linestyle="", markerfacecolor=fill,
                   label=label)
        )  # fmt: skip
    axes.legend(handles=entries, fontsize=8.5, loc="lower right", ncols=2)
    source(figure, f"bytes counted here; latencies of {gpu}, published by {origin}")
    return figure


@styled
def prediction(
    published: pd.DataFrame, checked: pd.Series, predicted: pd.Series, errors: tuple, gpu: str
):
    """Published dots, the rule checked on them, and what the rule predicts for one pass.

    Args:
        published: rows as `curves` takes them, of one source.
        checked: the rule's time for the optimised kernel, indexed by tokens.
        predicted: the rule's time for a kernel that writes each element once.
        errors: the smallest and the largest of measured over predicted, less one, in the check.
        gpu: the card's name.

    The title says that it is a prediction.

    Raises:
        records.DataError: as `curves`.
    """
    _one_curve_each(gpu, published, records.one_source(published))
    figure, axes = new(size=(7.5, 4))
    for variant, curve in published.groupby("variant", sort=False):
        style = STYLES[role(variant)]
        axes.plot(
            curve["tokens"], curve["median_us"], color=style["color"], marker=style["marker"],
            linestyle="", label=f"{variant}, published",
        )  # fmt: skip
    axes.plot(checked.index, checked, color="#333333", linewidth=1, label="rule, two passes")
    style = STYLES["own"]
    axes.plot(
        predicted.index, predicted, color=style["color"], linestyle="-.",
        label="rule, one pass: a prediction",
    )  # fmt: skip
    low, high = (1 + error for error in errors)
    axes.fill_between(
        predicted.index, predicted * low, predicted * high, color=style["color"], alpha=0.2,
        linewidth=0, label="the same, with the error of the check",
    )  # fmt: skip
    _token_axis(axes, checked.index)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.minorticks_off()
    plain_numbers(axes.yaxis)
    axes.set_ylabel("µs a call")
    longest = checked.index.max()
    axes.set_title(
        f"Predicted, not measured: one pass takes {predicted[longest] / checked[longest]:.2f} of "
        f"two passes' time at {longest:,} tokens", fontsize=10,
    )  # fmt: skip
    axes.legend(fontsize=8.5)
    source(figure, f"{gpu}: dots published by {published['source'].iloc[0]}; lines computed here")
    return figure
