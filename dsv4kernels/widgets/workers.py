"""Explorer of lesson 03: requests, their lengths, workers and SMs of the published combine kernel.

Who writes which row and how many waves that takes is counted, not timed; beside it stands the
nearest shape for which a time is recorded, with the shape's name.
"""

import functools
from collections.abc import Sequence

import pandas as pd

from .. import combine, plots, presets
from ..compiler import codegen, jit
from ..launches import occupancy
from ..measure import records, sources
from ..plots import workers as figures
from . import Explorer, dropdown, paragraph, steps, table

POWERS = tuple(2**n for n in range(11))
LENGTHS = (0, 1, 2, 3, 4, 8, 13, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
DRAWN_ROWS, DRAWN_WORKERS, DRAWN_WAVES = 256, 64, 200  # the most that can be told apart


@functools.cache
def registers(target: str) -> int:
    """32-bit registers of a thread of the published combine kernel, compiled for a target."""
    batch = presets.prefill(presets.FLASH_C4A, 64, device="cpu")
    return codegen.compile(combine.plan(*batch.combine_args(), num_workers=1)[1], target).registers


def lengths(requests: int, first: int, others: int) -> list[int]:
    """Rows of each request: the first one's, and that of all others."""
    return [first] + [others] * (requests - 1)


def picture(query_lens: Sequence[int], workers: int, target: str, sms: int) -> str:
    """Who writes which row, the waves, and the nearest recorded time, as HTML.

    Args:
        query_lens: rows of each request.
        workers: programs a request.
        target: one of `codegen.TARGETS`, whose limits an SM has.
        sms: streaming multiprocessors of the GPU.

    Raises:
        ValueError: no request has a row, or an argument that `occupancy.slots` refuses.
    """
    if not any(query_lens):
        raise ValueError("no request has a row: give the first or the others a length above 0")
    tokens = sum(query_lens)
    slots = occupancy.slots(jit.gpu(target).arch / 10, sms, registers(target))
    found = occupancy.shape(query_lens, workers, slots)
    if tokens <= DRAWN_ROWS and workers <= DRAWN_WORKERS:
        written = occupancy.assignment(query_lens, workers)
        figure = figures.ownership(written, query_lens, workers, "counted from the definition")
        words = "A cell for each row, in the lane of the worker that writes it."
    else:
        figure = figures.programs(query_lens, workers)
        words = "Too many rows to draw one by one: how many each program writes."
    idle = f"{found['idle']:,}"
    alt = f"{found['programs']:,} programs write {tokens:,} rows; without a row: {idle}."
    parts = [plots.page(figure, alt=alt, caption=words)]
    if found["waves"] <= DRAWN_WAVES:
        mix = f"{len(query_lens)} requests" if len(query_lens) > 1 else "one request"
        figure = figures.waves({mix: query_lens}, (workers,), slots, f"{sms} SMs of {target}")
        plural = "s" if found["waves"] != 1 else ""
        empty = f"{found['tail']:.0%} of the last empty"
        alt = f"{found['waves']} wave{plural} of {slots:,} slots, {empty}."
        parts.append(plots.page(figure, alt=alt, caption="What the GPU's slots hold, in turn."))
    else:
        parts.append(paragraph(f"{found['waves']:,} waves are too many to draw."))
    counted = pd.DataFrame({"counted": found}).T[["programs", "idle", "waves", "longest"]]
    counted = counted.astype(int).assign(tail=f"{found['tail']:.0%}", slots=slots)
    return "".join([*parts, table(counted), paragraph(recorded(query_lens, workers))])


def recorded(query_lens: Sequence[int], workers: int) -> str:
    """The nearest recorded time in words: of which shape, on which GPU, and how far off."""
    graph = {"kernel": "combine", "protocol": "graph", "cache": "warm"}
    try:
        known = records.select(records.load_measured(), preset=presets.FLASH_C4A.name, **graph)
        known = known[known["suite"].isin(["workers", "grid", "mixes"])]
        row, off = sources.nearest(known, len(query_lens), sum(query_lens), workers)
    except records.DataError as error:
        return f"No recorded time: {error}."
    many = f"{row['requests']} requests" if row["requests"] > 1 else "one request"
    shape = f"{row['tokens']:,} tokens of {many}, {row['workers']:,} workers"
    even = sorted(query_lens) == sorted(presets.even(sum(query_lens), len(query_lens)))
    if off == 0:
        near = "this size" if even else "this size, but with its tokens spread evenly"
    else:
        far = f"{off:.0f} doublings away" if off >= 1.5 else "less than two doublings away"
        near = f"not this size but the nearest, {far}, with its tokens spread evenly"
    return (
        f"Recorded on {row['device']}, whichever GPU is counted for above ({row['preset']}, graph "
        f"protocol, warm): {row['median_us']:.1f} µs for {shape}; {near}."
    )


def explore(
    requests: int = 3,
    first: int = 13,
    others: int = 4,
    workers: int = 4,
    target: str = "sm_120",
    sms: int = 188,
) -> Explorer:
    """The controls over `picture`, which start at these values."""
    controls = {
        "requests": steps("requests", POWERS[:9], requests),
        "first": steps("rows of the first", LENGTHS, first),
        "others": steps("rows of each other", LENGTHS, others),
        "workers": steps("workers a request", POWERS, workers),
        "target": dropdown("kind of GPU", codegen.TARGETS, target),
        "sms": steps("SMs", (1, 8, 16, 32, 48, 64, 84, 108, 132, 148, 170, 188), sms),
    }

    def draw(requests, first, others, workers, target, sms):
        return picture(lengths(requests, first, others), workers, target, sms)

    return Explorer(draw, controls)
