"""Figures of lesson 05: dispatch keys and their padding, and what a replay saves."""

import numpy as np
import pandas as pd

from .. import records
from . import PADDING, STYLES, TOPK, new, plain_numbers, source, styled


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
    axes.set_yticks(place, [f"{tokens} tokens" for tokens in batches])
    axes.invert_yaxis()
    axes.set_xticks(keys)
    axes.set_xlim(0, max(taken) * 1.35)
    axes.set_xlabel("rows that the graph's kernels run over")
    axes.set_title(f"Each batch takes the smallest of {len(keys)} captured sizes")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    source(figure, "counted, not measured")
    return figure


@styled
def dispatch(table: pd.DataFrame, label: str):
    """Host time of a call beside its device time, a pair of bars for each variant.

    Args:
        table: rows of one device and one batch with columns `kernel`, `variant`, `protocol`,
            `median_us`, `p20_us`, `p80_us`; protocols `host` and `graph`.
        label: where the figures are from, naming the device.

    Raises:
        records.DataError: several devices, or a protocol that is missing.
    """
    if table["device"].nunique() != 1:
        raise records.DataError("one figure must not mix devices")
    records.select(table, protocol="host"), records.select(table, protocol="graph")
    names = list(dict.fromkeys(zip(table["kernel"], table["variant"], strict=True)))
    figure, axes = new(size=(7, 0.5 * len(names) + 1.5))
    colours = {"host": STYLES["comparator"]["color"], "graph": STYLES["optimised"]["color"]}
    words = {"host": "the Python call, on the host", "graph": "the kernels, on the device"}
    for offset, protocol in ((-0.18, "host"), (0.18, "graph")):
        rows = table[table["protocol"] == protocol].set_index(["kernel", "variant"]).loc[names]
        spread = [rows["median_us"] - rows["p20_us"], rows["p80_us"] - rows["median_us"]]
        place = np.arange(len(names)) + offset
        axes.barh(
            place,
            rows["median_us"],
            0.36,
            xerr=spread,
            color=colours[protocol],
            hatch="" if protocol == "host" else "//",
            edgecolor="white",
            label=words[protocol],
        )
        for at, value, end in zip(place, rows["median_us"], rows["p80_us"], strict=True):
            axes.text(end * 1.06, at, f"{value:.3g}", va="center", fontsize=8)
    axes.set_yticks(
        range(len(names)), [f"{k.replace('_', ' ')}, {v}" for k, v in names], fontsize=9
    )
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks([1, 2, 5, 10, 20, 50])
    plain_numbers(axes.xaxis)
    axes.set_xlim(0.8, 90)
    axes.set_xlabel("µs a call (log scale)")
    axes.set_title("The host takes far longer to ask than the GPU to do")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper right", ncols=2)
    source(figure, label)
    return figure
