"""The picture of the README: `python -m dsv4kernels.plots.story docs/images/story.png`."""

import sys

from .. import codegen, presets, records, slot_mapping
from . import STYLE, STYLES, matplotlib, new, source, styled


@styled
def story():
    """Instructions folded away, published changes, and what was measured past them."""
    figure, (left, middle, right) = new(columns=3, size=(9, 3.2), width_ratios=(1, 1.25, 1.5))
    comparator, optimised = (STYLES[name]["color"] for name in ("comparator", "optimised"))

    batch = presets.mapping(presets.FLASH_C4A, 2, device="cpu")
    counts = {}
    for variant in slot_mapping.PUBLISHED:
        _, launch = slot_mapping.plan(*batch.slot_mapping_args(), variant=variant)
        counts[variant] = codegen.report(codegen.compile(launch, "sm_120"))["instructions"]
    bars = left.bar(list(counts), list(counts.values()), color=[comparator, optimised], width=0.6)
    left.bar_label(bars)
    left.set_title("Geometry folded in", fontsize=9)
    left.set_ylabel("SASS instructions, sm_120")

    published = records.select(records.load_published(), compute_capability="12.0")
    place = range(len(published))
    names = [f"{row.kernel.replace('_', ' ')}, {row.tokens:,}" for row in published.itertuples()]
    bars = middle.barh(place, published["change"] * 100, color=optimised)
    middle.bar_label(bars, fmt="%.0f %%", padding=2, fontsize=8)
    middle.set_yticks(place, names, fontsize=8)
    middle.invert_yaxis()
    middle.set_xlim(-22, 0)
    middle.set_xlabel("change of latency, %")
    middle.set_title("Published, RTX PRO 6000 Blackwell", fontsize=9)

    table = records.select(
        records.load_measured("NVIDIA H200"),
        suite="tokens",
        kernel="combine",
        protocol="graph",
        cache="warm",
    )
    styles = zip(("workers=128", "workers=256", "own"), STYLES, strict=False)
    for variant, style in styles:
        curve = records.select(table, variant=variant).sort_values("tokens")
        curve = curve[curve["tokens"] >= 256]
        right.plot(curve["tokens"], curve["median_us"], label=variant, ms=4, **STYLES[style])
    right.set_xscale("log", base=2)
    right.set_yscale("log", base=2)
    right.minorticks_off()
    right.set_xticks([256, 4096, 65_536], ["256", "4,096", "65,536"])
    right.set_yticks([2, 8, 32, 128], ["2", "8", "32", "128"])
    right.set_xlabel("tokens of one request")
    right.set_ylabel("µs, combine")
    right.set_title("Measured, NVIDIA H200", fontsize=9)
    right.legend(fontsize=8)
    for axes in (left, middle):
        axes.grid(axis="x" if axes is left else "y", visible=False)
    source(
        figure,
        "left: compiled here; middle: local-inference-lab/vllm pull request 434; "
        "right: data/measured/nvidia-h200, graph protocol, warm",
    )
    return figure


if __name__ == "__main__":
    with matplotlib.rc_context(STYLE):
        story().savefig(sys.argv[1], dpi=110)
