"""Figures of lesson 05: dispatch keys and their padding, and what asking for a kernel costs."""

import numpy as np
import pandas as pd

from ..measure import records
from . import PADDING, TOPK, new, plain_numbers, source, styled


@styled
def padding(keys: list[int], batches: list[int]):
    """Rows of each batch and the padding up to its dispatch key.

    Args:
        keys: captured token counts, rising.
        batches: tokens of the batches to draw, at most the largest key.
    """
    taken = [min(key for key in keys if key >= tokens) for tokens in batches]
    idle = [key - tokens for key, tokens in zip(taken, batches, strict=True)]
    figure, axes = new(size=(7, 0.45 * len(batches) + 1.6))
    place = np.arange(len(batches))
    axes.barh(place, batches, color=TOPK, label="tokens of the batch")
    axes.barh(
        place, idle, left=batches, color=PADDING, hatch="///", edgecolor="white", label="padding"
    )
    for row, (key, spare) in enumerate(zip(taken, idle, strict=True)):
        axes.text(key, row, f"  key {key}, {spare / key:.0%} padding", va="center", fontsize=8)
    axes.set_yticks(place, [f"{n} token{'s' * (n > 1)}" for n in batches])
    axes.invert_yaxis()
    axes.set_xticks(sorted(set(taken)))
    axes.set_xlim(0, max(taken) * 1.3)
    axes.set_xlabel("rows that the graph's kernels run over")
    axes.set_title(f"{sum(idle) / sum(taken):.0%} of the rows that run are padding")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper right", ncols=2)
    source(figure, f"counted, not measured; captured sizes: {', '.join(map(str, keys))}")
    return figure


# What is asked and what is done: neither is a variant, so neither has a variant's colour.
_WHERE = {
    "host": ("the Python call, on the host", {"color": "#CC79A7", "marker": "o"}),
    "graph": ("the kernels, on the device", {"color": "#333333", "marker": "s"}),
}


@styled
def dispatch(table: pd.DataFrame, label: str):
    """Host time of a call beside its device time, a line for each variant.

    A variant may have been recorded several times under a protocol: each is drawn.

    Args:
        table: rows of one device, a batch for each kernel, with columns `kernel`, `variant`,
            `protocol`, `cache`, `device`, `median_us`, `p20_us`, `p80_us`; protocols `host` and
            `graph`.
        label: where the figures are from, naming the device.

    Raises:
        records.DataError: several devices or caches, or a protocol that is missing.
    """
    for protocol in _WHERE:
        records.one_source(records.select(table, protocol=protocol))
    records.one_source(table.drop(columns="protocol"))
    table = table[table["protocol"].isin(list(_WHERE))]
    spans = table.groupby(["kernel", "variant"], sort=False)
    figure, axes = new(size=(7, 0.42 * len(spans) + 1.9))
    times = []
    for place, (_, rows) in enumerate(spans):
        axes.plot(
            [rows["median_us"].min(), rows["median_us"].max()], [place] * 2, color="#BBBBBB",
            linewidth=3, zorder=1,
        )  # fmt: skip
        device, host = (rows.loc[rows["protocol"] == p, "median_us"] for p in ("graph", "host"))
        times += [us / device.median() for us in host]
        for protocol, (words, style) in _WHERE.items():
            some = rows[rows["protocol"] == protocol]
            middle = some["median_us"]
            axes.errorbar(
                middle, [place] * len(some),
                xerr=[middle - some["p20_us"], some["p80_us"] - middle], linestyle="",
                label=words if not place else None, **style,
            )  # fmt: skip
            axes.annotate(
                ", ".join(f"{us:.3g}" for us in sorted(middle)), (middle.max(), place),
                xytext=(0, 5), textcoords="offset points", va="bottom", fontsize=8,
                ha="right" if len(some) > 1 else "center",
            )  # fmt: skip
    names = [f"{kernel.replace('_', ' ')}, {variant}" for kernel, variant in spans.groups]
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.7)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100, 200, 500])
    plain_numbers(axes.xaxis)
    axes.set_xlim(table["p20_us"].min() * 0.8, table["p80_us"].max() * 1.25)
    axes.set_xlabel("µs a call")
    axes.set_title(f"Asking takes {min(times):.0f} to {max(times):.0f} times as long as doing")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper right", ncols=2)
    source(figure, f"{label}; protocols host and graph, {table['cache'].iloc[0]}; bars: 20 to 80 %")
    return figure
