"""Explorer of lesson 04: tokens, variants, devices, protocols and caches of the recorded tables.

All numbers of a picture stand in a table below it, so that it can be read in print. A choice for
which nothing is recorded is told in words; no other figure takes its place.
"""

from collections.abc import Sequence

import pandas as pd

from .. import plots
from ..measure import limits, records
from ..plots import latency as figures
from . import Explorer, dropdown, paragraph, several, steps, table

KERNELS = {"combine": "combine", "slot mapping": "slot_mapping"}
ROLES = {
    "comparator": ("runtime", "workers=128"),
    "optimised": ("constexpr", "workers=256"),
    "own": ("own",),
}
TOKENS = tuple(2**n for n in range(17))
MIX = "one request"
PUBLISHED = "published: "  # in front of a device whose figures are others'


def devices() -> list[str]:
    """Devices to choose from: those with recorded figures, then those others published."""
    named = [name for name in records.load_published()["device"].unique() if name != "not stated"]
    return records.recorded_devices() + [PUBLISHED + name for name in named]


def rows(device: str, kernel: str, layer: str, protocol: str, cache: str) -> pd.DataFrame:
    """The curves of one device: of all suites the one with the most token counts.

    Args:
        device: one of `devices()`. Published figures have a protocol of their own and say nothing
            of layer and cache, so these are not asked for.
        kernel: `combine` or `slot_mapping`.
        layer: name of a preset.
        protocol: graph, event or host.
        cache: warm or cold.

    Raises:
        records.DataError: nothing is recorded for that.
    """
    if device.startswith(PUBLISHED):
        published = limits.long(records.load_published(kernel))
        return records.select(published, device=device.removeprefix(PUBLISHED))
    known = records.select(records.load_measured(device), kernel=kernel, mix=MIX)
    # The sweep behind the rules holds the comparator and the project's own shapes alone.
    known = known[known["variant"].isin(figures.ROLES) & (known["suite"] != "rule")]
    known = records.select(known, preset=layer, protocol=protocol, cache=cache)
    counts = known.groupby("suite", sort=False)["tokens"].nunique()
    return known[known["suite"] == counts.idxmax()]


def picture(
    kernel: str = "combine",
    devices: Sequence[str] = (),
    variants: Sequence[str] = tuple(ROLES),
    layer: str = "Flash C4A",
    protocol: str = "graph",
    cache: str = "warm",
    least: int = 1,
    most: int = 65_536,
) -> str:
    """Latency over tokens as HTML: a panel for each device, and a table of all numbers drawn.

    Args:
        kernel: `combine` or `slot_mapping`.
        devices: of `devices()`; default those with recorded figures.
        variants: of `ROLES`.
        layer, protocol, cache: as for `rows`.
        least, most: tokens.

    Raises:
        records.DataError: nothing is recorded for that.
    """
    names = [name for role in variants for name in ROLES[role]]
    panels, origins = {}, []
    for device in devices or records.recorded_devices():
        known = records.select(rows(device, kernel, layer, protocol, cache), variant=names)
        known = known[known["tokens"].between(least, most)]
        if known.empty:
            raise records.DataError(f"no figures of {device} from {least:,} to {most:,} tokens")
        panels[device if device.startswith(PUBLISHED) else f"recorded: {device}"] = known
        origins += list(known["source"].unique()) if "source" in known else []
    if not panels:
        raise records.DataError("no device is chosen, and none has recorded figures")
    words = f"{kernel.replace('_', ' ')}, one request"
    origin = "measured by this project where it says recorded"
    origin += f"; published by {', '.join(origins)}" if origins else ""
    title = f"Latency of {words}"
    if len(panels) == 1 and {"comparator", "optimised"} <= set(variants):
        title = f"{kernel.replace('_', ' ').capitalize()}, {figures.finding(panels)}"
    figure = figures.curves(panels, title, origin)
    wide = {
        label: known.set_index(["tokens", "variant"])["median_us"].unstack()[
            list(dict.fromkeys(known["variant"]))
        ]
        for label, known in panels.items()
    }
    numbers = pd.concat(wide, axis=1).sort_index()
    numbers = numbers.map(lambda us: "" if pd.isna(us) else f"{us:,.2f}")
    numbers.index = [f"{tokens:,}" for tokens in numbers.index]
    return (
        plots.page(
            figure,
            alt=f"Latency of {words}, over tokens on log axes, {', '.join(variants)}; "
            + "; ".join(panels),
            caption="Recorded times are medians in a band from the 20th to the 80th percentile, "
            "with their two floors; dots are published. Different devices and protocols are not "
            "to be compared in microseconds.",
        )
        + paragraph(f"µs a call; recorded ones of {layer}, {protocol} protocol, {cache} cache:")
        + table(numbers.rename_axis(index="tokens", columns=[None, None]))
    )


def explore(
    layer: str = "Flash C4A", protocol: str = "graph", cache: str = "warm", kernel: str = "combine"
) -> Explorer:
    """The controls over `picture`, which start at these values."""
    there = devices()
    controls = {
        "kernel": dropdown("kernel", KERNELS.items(), kernel),
        "layer": dropdown("layer", ("Flash C4A", "C128A"), layer),
        "protocol": dropdown("protocol", ("graph", "event", "host"), protocol),
        "cache": dropdown("cache", ("warm", "cold"), cache),
        "variants": several("variants", ROLES, ROLES),
        "devices": several("devices", there, records.recorded_devices() or there),
        "least": steps("tokens from", TOKENS, 1),
        "most": steps("to", TOKENS, 65_536),
    }

    def draw(variants, devices, **choices):
        if not variants or not devices:
            raise ValueError("choose a variant and a device at least")
        return picture(variants=variants, devices=devices, **choices)

    return Explorer(draw, controls)
