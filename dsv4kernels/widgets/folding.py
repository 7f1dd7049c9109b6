"""Explorer of lesson 02: fold arguments, choose a target and a geometry, and see the machine code.

Every kernel is compiled once; going back to a choice compiles nothing.
"""

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from .. import plots, presets, slot_mapping
from ..compiler import codegen
from ..plots import folding
from ..slot_mapping import GEOMETRY
from . import Explorer, checkbox, dropdown, paragraph, steps, table

COUNTS = ("instructions", "arithmetic", "ptx_divides", "loops", "branches", "loads", "load_bits")
COUNTS += ("registers", "spills", "parameters", "code_bytes")
NOTHING, BEFORE = "nothing folded", "the choice before"
WIDTHS = (64, 128, 256, 500, 501, 512, 1000, 1024, 1025, 2048, 4096, 8192)
BLOCK_SIZES = (16, 32, 48, 64, 100, 128, 256)


@functools.lru_cache(maxsize=256)
def compiled(
    folded: tuple[str, ...], target: str, width: int, block_size: int, warps: int
) -> codegen.Compiled:
    """Slot mapping with these arguments folded, compiled for a target.

    Args:
        folded: names of `slot_mapping.GEOMETRY`, in its order.
        target: one of `codegen.TARGETS`.
        width: columns of a row of top-k positions.
        block_size: positions in a block of the KV cache.
        warps: of a program.

    Raises:
        ValueError: no such target or argument.
    """
    preset = presets.FLASH_C4A.replace(row_width=width, topk=width, block_size=block_size)
    batch = presets.mapping(preset, tokens=4, device="cpu")
    _, launch = slot_mapping.plan(*batch.slot_mapping_args(), variant="runtime")
    launch = launch._replace(kernel=slot_mapping.folded(*folded), options={"num_warps": warps})
    return codegen.compile(launch, target)


def picture(
    folded: Sequence[str] = GEOMETRY,
    target: str = "sm_120",
    width: int = 512,
    block_size: int = 64,
    warps: int = 4,
    before: Mapping[str, Any] | None = None,
) -> str:
    """Two compiled kernels side by side as HTML: their classes, counts and SASS.

    Args:
        folded, target, width, block_size, warps: the kernel on the right; as for `compiled`.
        before: the same of the one on the left; default the same geometry with nothing folded.
    """
    now = {
        "folded": tuple(name for name in GEOMETRY if name in folded),
        "target": target,
        "width": width,
        "block_size": block_size,
        "warps": warps,
    }
    before = dict(now, folded=()) if before is None else dict(before)
    kernels = [compiled(**choice) for choice in (before, now)]
    names = _names(before, now)
    where = f", for {target}" if before["target"] == target else ""
    reports = [codegen.report(kernel) for kernel in kernels]
    left, right = (report["instructions"] for report in reports)
    figure = folding.composition(
        codegen.table(dict(zip(("left", "right"), reports, strict=True))),
        f"{left:,} instructions on the left, {right:,} on the right",
    )
    counts = codegen.table(dict(zip(names, reports, strict=True)))
    difference = codegen.diff(*kernels, "sass", names)
    signs = [sign for sign, _, _ in difference.rows]
    alike, gone, new = signs.count(""), signs.count("-"), signs.count("+")
    return (
        plots.page(
            figure,
            alt=f"Stacked bars of instruction classes: {left} instructions, {names[0]}; "
            f"{right} instructions, {names[1]}.",
            caption=f"Slot mapping compiled twice{where}; {names[0]}; {names[1]}.",
        )
        + table(counts.loc[list(COUNTS)])
        + paragraph(
            f"SASS: {alike} lines are alike; \N{MINUS SIGN} marks {gone} that only the left has, "
            f"+ {new} that only the right has, ~ {signs.count('~')} that do the same with other "
            "operands."
        )
        + difference._repr_html_()
    )


def explore(
    target: str = "sm_120",
    width: int = 512,
    block_size: int = 64,
    warps: int = 4,
    folded: Sequence[str] = GEOMETRY,
) -> Explorer:
    """The controls over `picture`, which start at these values."""
    controls = {f"fold_{name}": checkbox(f"fold {name}", name in folded) for name in GEOMETRY}
    controls |= {
        "target": dropdown("target", codegen.TARGETS, target),
        "width": steps("top-k width", WIDTHS, width),
        "block_size": steps("block size", BLOCK_SIZES, block_size),
        "warps": steps("warps", (1, 2, 4, 8), warps),
        "against": dropdown("compare with", (NOTHING, BEFORE), NOTHING),
    }
    kernels = deque(maxlen=2)  # the last two that were chosen, whatever they were compared with

    def draw(against, target, width, block_size, warps, **ticks):
        now = {
            "folded": tuple(name for name in GEOMETRY if ticks[f"fold_{name}"]),
            "target": target,
        }
        now |= {"width": width, "block_size": block_size, "warps": warps}
        if now not in list(kernels)[-1:]:
            kernels.append(now)
        return picture(**now, before=kernels[0] if against == BEFORE else None)

    return Explorer(draw, controls)


def _names(before, now):
    """What to call two kernels: what is folded, and where else they differ."""
    names = []
    for side, choice in (("left", before), ("right", now)):
        what = "all five" if len(choice["folded"]) == len(GEOMETRY) else ", ".join(choice["folded"])
        words = [f"{side}: {what or NOTHING}"]
        words += [choice["target"]] if before["target"] != now["target"] else []
        words += [
            f"{name.replace('_', ' ')} {choice[name]:,}"
            for name in ("width", "block_size", "warps")
            if before[name] != now[name]
        ]
        names.append("; ".join(words))
    return tuple(names)
