"""Counting programs, waves and rows, against brute force and against the kernel itself."""

import heapq
import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4kernels import combine, presets, reference
from dsv4kernels.launches import occupancy, trace

MIXES = st.lists(st.integers(0, 40), max_size=8)
WORKERS = st.integers(1, 20)


def by_hand(query_lens, workers):
    """Rows of every program, written as the kernel walks them."""
    return {
        (request, worker): list(range(worker, length, workers))
        for request, length in enumerate(query_lens)
        for worker in range(workers)
    }


@given(MIXES, WORKERS)
def test_assignment_is_the_kernels_walk(query_lens, workers):
    walked, starts = by_hand(query_lens, workers), np.cumsum([0, *query_lens])
    table = occupancy.assignment(query_lens, workers)
    assert table["token"].tolist() == list(range(sum(query_lens)))
    for line in table.itertuples():
        assert walked[line.request, line.worker][line.turn] == line.row
        assert starts[line.request] + line.row == line.token
    each = occupancy.rows(query_lens, workers)
    assert each.shape == (len(query_lens), workers)
    assert all(len(walked[place]) == count for place, count in np.ndenumerate(each))


@given(MIXES, WORKERS, st.integers(1, 30))
def test_shape_and_waves_against_brute_force(query_lens, workers, slots):
    walked = by_hand(query_lens, workers)
    order = [walked[r, w] for w in range(workers) for r in range(len(query_lens))]
    found, table = (f(query_lens, workers, slots) for f in (occupancy.shape, occupancy.waves))
    held = [order[first : first + slots] for first in range(0, len(order), slots)]
    assert found["programs"] == len(order)
    assert found["idle"] == sum(not rows for rows in order) == table["idle"].sum()
    assert found["waves"] == len(held) == len(table)
    assert found["longest"] == max(map(len, order), default=0)
    assert table["busy"].tolist() == [sum(bool(rows) for rows in wave) for wave in held]
    assert (table.sum(axis=1) == slots).all()
    if held:
        assert found["tail"] == pytest.approx(1 - len(held[-1]) / slots)
        assert table["empty"].iloc[-1] == slots - len(held[-1])


@given(MIXES, WORKERS, st.integers(1, 30))
def test_steps_bound_a_schedule_from_below(query_lens, workers, slots):
    walked = by_hand(query_lens, workers)
    free = [0] * slots  # when each slot falls free; programs start in order, as soon as one does
    for worker, request in itertools.product(range(workers), range(len(query_lens))):
        heapq.heappush(free, heapq.heappop(free) + 1 + len(walked[request, worker]))
    steps = occupancy.shape(query_lens, workers, slots)["steps"]
    assert steps <= max(free) <= 2 * steps


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_the_kernel_writes_the_rows_of_the_assignment(workers):
    preset = presets.FLASH_C4A.replace(topk=4, row_width=4, window_size=3)
    query_lens = [7, 0, 2]
    batch = presets.batch(preset, query_lens, first_query_start=5, device="cpu")
    (indices, lens), launch = combine.plan(*batch.combine_args(), num_workers=workers)
    indices.fill_(-1)
    seen = trace.trace(launch)
    assigned = occupancy.assignment(query_lens, workers)[["request", "worker", "token"]]
    assert launch.grid == (3, workers)
    for output in ("indices", "lens"):
        stores = seen[(seen["op"] == "store") & (seen["tensor"] == output)]
        written = stores[["program", "worker", "row"]].drop_duplicates()
        assert sorted(map(tuple, written.to_numpy())) == sorted(map(tuple, assigned.to_numpy()))
    want = reference.combine_topk_swa_indices(*batch.combine_args())
    assert torch.equal(indices, want[0]) and torch.equal(lens, want[1])


@pytest.mark.parametrize(
    ("tokens", "requests", "lens"),
    [(10, 4, [3, 3, 2, 2]), (2, 3, [1, 1, 0]), (8192, 1, [8192]), (0, 2, [0, 0])],
)
def test_even(tokens, requests, lens):
    assert presets.even(tokens, requests) == lens


def test_slots_of_known_gpus():
    # 48 warps of a Blackwell workstation SM hold 12 programs of 4, 64 of a Hopper SM 16.
    assert occupancy.slots(12.0, 188, registers=38) == 188 * 12
    assert occupancy.slots(9.0, 132, registers=32) == 132 * 16
    # 128 registers x 32 threads x 4 warps = 16,384: four programs fill the 65,536.
    assert occupancy.slots(9.0, 1, registers=128) == 4
    assert occupancy.slots(9.0, 1, registers=129) == 3
    assert occupancy.slots("12.0", 1, registers=16, warps=1) == 24  # programs limit
    with pytest.raises(
        ValueError, match=r"no limits known for compute capability 7\.5; known: .*9\.0"
    ):
        occupancy.slots(7.5, 1, registers=32)


def test_published_worker_counts_on_the_cards_of_the_lessons():
    """One request is a fraction of a wave; 64 requests of 128 rows leave half of 256 idle."""
    slots = occupancy.slots(12.0, 188, registers=38)
    one, many = [8192], [128] * 64
    assert occupancy.shape(one, 128, slots)["longest"] == 64
    assert occupancy.shape(one, 256, slots)["longest"] == 32
    assert occupancy.shape(one, 256, slots)["waves"] == 1
    assert occupancy.shape(many, 128, slots)["idle"] == 0
    assert occupancy.shape(many, 256, slots)["idle"] == 64 * 128
    assert occupancy.shape(many, 256, slots)["longest"] == 1
    assert occupancy.gain(one, slots, 256, 128) < 1 < occupancy.gain(many, slots, 256, 128)


def test_sweep_and_the_fewest_workers():
    table = occupancy.sweep({"one": [64], "many": [1] * 64}, slots=32, workers=range(1, 65))
    assert len(table) == 128 and set(table) >= {"mix", "workers", "steps", "idle"}
    best = occupancy.fewest(table)
    assert isinstance(best, pd.Series) and best["many"] == 1
    # 64 rows in 32 slots: 22 workers write at most 3, and (64 + 22) / 32 < 4 steps.
    least = table[table["mix"] == "one"].set_index("workers")["steps"]
    assert least[best["one"]] == least.min() and (least[: best["one"] - 1] > least.min()).all()


def test_no_programs():
    assert occupancy.shape([], 4, 8)["programs"] == 0
    assert occupancy.waves([], 4, 8).empty and occupancy.assignment([], 4).empty
    assert occupancy.shape([0], 4, 8) | {"steps": 0} == {
        "programs": 4, "idle": 4, "waves": 1, "tail": 0.5, "longest": 0, "steps": 0,
    }  # fmt: skip
