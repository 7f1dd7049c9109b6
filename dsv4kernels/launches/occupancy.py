"""Programs, waves and tail of the published combine: arithmetic on a launch, no GPU needed.

The published kernel launches `workers` programs for each request; worker w writes the request's
rows w, w + workers, w + 2 * workers, ... A GPU holds a number of programs at once (its slots) and
runs a larger grid wave after wave. What this leaves out is said with each function; times come
from `timing` and `records`, never from here.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

# Resident at once on an SM, by compute capability: (warps, programs). From the CUDA C++
# Programming Guide, technical specifications per compute capability.
RESIDENT = {9.0: (64, 32), 10.0: (64, 32), 10.3: (64, 32), 12.0: (48, 24), 12.1: (48, 24)}
REGISTERS, REGISTER_UNIT = 65_536, 256  # 32-bit registers of an SM; a warp is given whole units


def slots(compute_capability: float, sm_count: int, registers: int, warps: int = 4) -> int:
    """Programs that a GPU holds at once.

    Assumes that every SM is free, and that warps, programs and registers are what limits them:
    the combine kernel uses no shared memory.

    Args:
        compute_capability: as in 12.0.
        sm_count: streaming multiprocessors.
        registers: 32-bit registers of a thread, as the compiler reports them.
        warps: of a program.

    Raises:
        ValueError: a compute capability that `RESIDENT` does not have.
    """
    capability = round(float(compute_capability), 1)
    if capability not in RESIDENT:
        known = ", ".join(map(str, RESIDENT))
        raise ValueError(f"no limits known for compute capability {capability}; known: {known}")
    most_warps, most_programs = RESIDENT[capability]
    warp_registers = math.ceil(registers * 32 / REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // max(warp_registers, 1)
    return sm_count * min(most_programs, min(most_warps, by_registers) // warps)


def assignment(query_lens: Sequence[int], workers: int) -> pd.DataFrame:
    """Which worker writes which row: a line for each token.

    Returns:
        Columns `token` (row of the output), `request`, `row` (of the request), `worker`, and
        `turn`, how many rows the worker has written before this one.
    """
    request = np.repeat(np.arange(len(query_lens)), query_lens)
    row = np.concatenate([np.arange(length) for length in query_lens] or [[]]).astype(int)
    return pd.DataFrame(
        {
            "token": np.arange(len(row)),
            "request": request,
            "row": row,
            "worker": row % workers,
            "turn": row // workers,
        }
    )


def rows(query_lens: Sequence[int], workers: int) -> np.ndarray:
    """Rows that each program writes, as int [requests, workers]."""
    lens, worker = np.asarray(query_lens, dtype=int)[:, None], np.arange(workers)
    return lens // workers + (worker < lens % workers)


def waves(query_lens: Sequence[int], workers: int, slots: int) -> pd.DataFrame:
    """What the slots hold, wave by wave: a line for each wave.

    Programs are taken in the order of their number, the request being the fastest axis, and a
    wave ends before the next begins; a GPU refills each slot as it falls free.

    Returns:
        Columns `busy` (programs with a row), `idle` (programs without one), `empty` (slots
        without a program).
    """
    has_row = (rows(query_lens, workers) > 0).T.ravel()
    first = np.arange(0, len(has_row), slots)
    if not len(first):
        return pd.DataFrame({"busy": [], "idle": [], "empty": []}, dtype=int)
    busy = np.add.reduceat(has_row.astype(int), first)
    held = np.minimum(len(has_row) - first, slots)
    return pd.DataFrame({"busy": busy, "idle": held - busy, "empty": slots - held})


def shape(query_lens: Sequence[int], workers: int, slots: int) -> dict[str, float]:
    """A launch in numbers.

    Returns:
        `programs`; `idle`, those without a row; `waves`; `tail`, the part of the last wave's slots
        that holds no program; `longest`, the rows that one program writes one after the other;
        `steps`, the least time the launch can take if a row takes one step and so does starting a
        program: the longest program's steps, or all programs' steps shared by all slots, whichever
        is more. Steps know nothing of bytes: a launch limited by memory takes longer.
    """
    lens = np.asarray(query_lens, dtype=int)
    programs, longest = lens.size * workers, -(-int(lens.max(initial=0)) // workers)
    count = -(-programs // slots)
    return {
        "programs": programs,
        "idle": int(np.maximum(workers - lens, 0).sum()),
        "waves": count,
        "tail": (count * slots - programs) / slots,
        "longest": longest,
        "steps": max(longest + 1, (int(lens.sum()) + programs) / slots) if programs else 0,
    }


def sweep(
    mixes: Mapping[str, Sequence[int]], slots: int, workers: Iterable[int] = range(1, 1025)
) -> pd.DataFrame:
    """`shape` of every mix of query lengths under every worker count, a line for each.

    Args:
        mixes: query lengths by what to call them.
        slots: programs the GPU holds at once.
        workers: worker counts.
    """
    return pd.DataFrame(
        [
            {"mix": mix, "workers": count} | shape(query_lens, count, slots)
            for mix, query_lens in mixes.items()
            for count in workers
        ]
    )


def gain(query_lens: Sequence[int], slots: int, workers: int, comparator: int) -> float:
    """Steps with `workers` over steps with `comparator`; below 1 the launch has less to do."""
    after, before = (shape(query_lens, w, slots)["steps"] for w in (workers, comparator))
    return after / before


def fewest(counts: pd.DataFrame) -> pd.Series:
    """Of a `sweep`, the fewest workers that reach each mix's least steps, indexed by mix."""
    least = counts.groupby("mix", sort=False)["steps"].idxmin()
    return counts.loc[least].set_index("mix")["workers"]
