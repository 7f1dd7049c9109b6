"""The picture of the README: `python -m dsv4kernels.plots.story docs/images/story.png`."""

import sys

from .. import presets, slot_mapping
from ..compiler import codegen
from ..measure import records
from . import STYLE, STYLES, matplotlib, new, plain_numbers, source, styled

TARGET, PUBLISHED, MEASURED = "sm_120", "12.0", "NVIDIA H200"


@styled
def story():
    """Instructions folded away, published changes, and what was measured past them.

    Raises:
        records.DataError: a figure that it shows is not recorded.
    """
    figure, (left, middle, right) = new(columns=3, size=(9, 3.5), width_ratios=(1, 1.25, 1.5))
    _instructions(left)
    sources = _published(middle)
    _measured(right)
    source(
        figure,
        f"left: compiled here; middle: published by {', '.join(sources)}; right: "
        "data/measured, CUDA graph, warm",
    )
    return figure


def _instructions(axes):
    batch = presets.mapping(presets.FLASH_C4A, 2, device="cpu")
    counts = {}
    for variant in slot_mapping.PUBLISHED:
        _, launch = slot_mapping.plan(*batch.slot_mapping_args(), variant=variant)
        counts[variant] = codegen.report(codegen.compile(launch, TARGET))["instructions"]
    colours = [STYLES[name]["color"] for name in ("comparator", "optimised")]
    axes.bar_label(axes.bar(list(counts), list(counts.values()), color=colours, width=0.6))
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("SASS instructions")
    axes.set_title(f"Constants folded,\nslot mapping, {TARGET}", fontsize=9)


def _published(axes):
    table = records.select(records.load_published(), compute_capability=PUBLISHED)
    names = [f"{row.kernel.replace('_', ' ')}, {row.tokens:,}" for row in table.itertuples()]
    less = -100 * table["change"]
    colour = STYLES["optimised"]["color"]
    bars = axes.barh(range(len(table)), less, color=colour)
    axes.bar_label(bars, fmt="%.0f %%", padding=2, fontsize=8)
    axes.set_yticks(range(len(table)), names, fontsize=8)
    axes.set_ylabel("kernel, tokens a call", fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, less.max() * 1.25)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("less time a call, %")
    axes.set_title("Published by others,\nRTX PRO 6000 Blackwell", fontsize=9)
    return table["source"].unique()


def _measured(axes):
    graph = {"suite": "tokens", "kernel": "combine", "protocol": "graph", "cache": "warm"}
    table = records.select(records.load_measured(MEASURED), **graph)
    table = table[table["tokens"] >= 256].sort_values("tokens")
    variants = {"workers=128": "comparator", "workers=256": "optimised", "own": "own"}
    for variant, role in variants.items():
        curve, style = records.select(table, variant=variant), STYLES[role]
        axes.plot(curve["tokens"], curve["median_us"], label=variant, markersize=4, **style)
        axes.fill_between(
            curve["tokens"], curve["p20_us"], curve["p80_us"], color=style["color"], alpha=0.2
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks([256, 2_048, 16_384, 65_536])
    axes.minorticks_off()
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.set_xlabel("tokens of one request")
    axes.set_ylabel("µs, combine")
    axes.set_title(f"Measured by this project,\n{MEASURED}", fontsize=9)
    axes.legend(fontsize=8)


if __name__ == "__main__":
    with matplotlib.rc_context(STYLE):
        story().savefig(sys.argv[1], dpi=110)
