"""How long a kernel takes on a GPU: named protocols, A/B/A, and the floors no kernel can beat.

    graph   N calls captured in a CUDA graph, replayed; time over N. Device time, no launch gaps.
    event   CUDA events around a single call, 100 warm-ups, 300 measured: what a table of kernel
            latencies usually shows, host dispatch included.
    host    wall time of the Python call alone, the GPU left running behind.

Each is taken warm (the same buffers every call) or cold (as many sets of buffers in rotation as
exceed the L2 cache). Callers pass callables that have already been compiled and checked: nothing
here verifies, and nothing is compiled inside a measurement.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from .. import runtime

PROTOCOLS = ("graph", "event", "host")
WARMUPS, SAMPLES = 100, 300  # of the event and host protocols, as in the published table
REPLAYS = 30  # of a graph
GRAPH_US, GRAPH_CALLS = 3_000, 400  # a graph holds about this much work, in at most so many calls

Call = Callable[[], object]


class Timing(NamedTuple):
    """Microseconds a call: the median, the 20th and 80th percentile, and how many samples."""

    median_us: float
    p20_us: float
    p80_us: float
    count: int


def pool(timings: Sequence[Timing]) -> Timing:
    """One timing of several: median of the medians, the whole spread, all samples."""
    medians, lows, highs, counts = zip(*timings, strict=True)
    return Timing(float(np.median(medians)), min(lows), max(highs), sum(counts))


class SkippedError(Exception):
    """A measurement that cannot be taken here; the message says why."""


def measure(calls: Sequence[Call], protocol: str) -> Timing:
    """Time the calls in rotation; one call is warm, many on buffers of their own are cold.

    Args:
        calls: what to time; each allocates nothing and writes to buffers it owns.
        protocol: one of `PROTOCOLS`.

    Raises:
        SkippedError: no GPU, or out of its memory.
    """
    if not runtime.has_gpu():
        raise SkippedError("no GPU: a protocol measures device time")
    try:
        samples = {"graph": _graph, "event": _event, "host": _host}[protocol](calls)
    except torch.cuda.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise SkippedError("out of GPU memory") from error
    p20, median, p80 = np.percentile(samples, (20, 50, 80))
    return Timing(float(median), float(p20), float(p80), len(samples))


def _graph(calls):
    for call in calls[:2]:  # compiled, and modules loaded, before capture
        call()
    torch.cuda.synchronize()
    estimate = _event(calls, warmups=3, samples=10)
    wanted = int(min(GRAPH_CALLS, max(5, GRAPH_US / np.median(estimate))))
    rounds = max(1, -(-wanted // len(calls)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    for _ in range(3):
        graph.replay()
    return [us / (rounds * len(calls)) for us in _event([graph.replay], 0, REPLAYS)]


def _event(calls, warmups=WARMUPS, samples=SAMPLES):
    for index in range(warmups):
        calls[index % len(calls)]()
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(samples)
    ]
    torch.cuda.synchronize()
    for index, (start, end) in enumerate(pairs):
        start.record()
        calls[index % len(calls)]()
        end.record()
        if index % 50 == 49:  # a full queue would make the host wait inside a pair
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in pairs]


def _host(calls, warmups=WARMUPS, samples=SAMPLES):
    taken = []
    for index in range(warmups + samples):
        if index % 50 == 0:  # a full queue would make the host wait inside a call
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        calls[index % len(calls)]()
        taken.append((time.perf_counter_ns() - start) / 1e3)
    torch.cuda.synchronize()
    return taken[warmups:]


def rotation(set_bytes: int, most: int = 8192) -> int:
    """Sets of buffers that together exceed twice the L2 cache, so that each call is cold.

    Raises:
        SkippedError: `most` sets do not even fill it once.
    """
    l2 = runtime.describe().get("l2_bytes")
    if l2 is None:
        raise SkippedError("no GPU: no cache to exceed")
    if most * set_bytes < l2:
        raise SkippedError(f"too small to be cold: {most:,} sets of {set_bytes:,} B fit the L2")
    return max(2, min(most, -(-2 * l2 // set_bytes)))


@runtime.kernel
def _nothing(anything):
    pass


@runtime.kernel(do_not_specialize=("read", "written"))
def _move(destination, origin, read, written, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    element = first + tl.arange(0, TILE)
    four = element // 4 * 4  # masks that do not cut a 16-byte access, so that copies are wide
    value = tl.load(origin + element, mask=four < read, other=-1)
    # What is read beyond what is written is never stored, which the compiler cannot know.
    tl.store(destination + element, value, mask=(four < written) | (value == -(2**31)))


def wake(seconds: float = 2.0) -> None:
    """Keep the GPU busy, so that its clocks have settled before the first sample.

    With large copies and small launches in turn, as the suites are: the clocks of either alone are
    not those of the other.
    """
    copy, nothing = traffic_floor(1 << 26, 1 << 26), launch_floor()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(100):
            copy()
        measure([nothing], "graph")


def launch_floor() -> Call:
    """An empty kernel: what no launch is quicker than."""
    anything = torch.empty(1, dtype=torch.int32, device="cuda")
    return runtime.Launch(_nothing, (1,), (anything,)).run


def traffic_floor(read: int, written: int) -> Call:
    """A plain copy that reads and writes so many bytes, contiguous and aligned."""
    TILE = 2048
    programs = triton.cdiv(max(read, written) // 4, TILE)
    origin = torch.arange(programs * TILE, dtype=torch.int32, device="cuda")
    destination = torch.empty_like(origin)
    args = (destination, origin, read // 4, written // 4, TILE)
    launch = runtime.Launch(_move, (programs,), args, {"num_warps": 4})
    return launch.run


def a_b_a(
    comparator: Sequence[Call], candidates: dict[str, Sequence[Call]], protocol: str
) -> tuple[Timing, dict[str, Timing], float]:
    """Comparator, candidates, comparator again, in one process.

    Returns:
        (comparator's first timing, each candidate's timing, noise): the noise is the relative
        difference of the two comparator medians. A change smaller than it is noise.
    """
    before = measure(comparator, protocol)
    timings = {name: measure(calls, protocol) for name, calls in candidates.items()}
    after = measure(comparator, protocol)
    return before, timings, abs(after.median_us / before.median_us - 1)
