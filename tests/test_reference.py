"""The reference against worked examples, and against plain loops written from the definition."""

import json
import random
from pathlib import Path

import pytest
import torch
from helpers import int32

from dsv4kernels import presets, reference

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
TABLE = [[10, 11, 12, 13], [20, 21, 22, 23]]


@pytest.mark.parametrize("case", CASES, ids=[case["why"] for case in CASES])
def test_case(case):
    args = [int32(v) if isinstance(v, list) else v for v in case["args"].values()]
    indices, lens = getattr(reference, case["kernel"])(*args)
    assert_case(indices, lens, case["expect"])


def assert_case(indices, lens, expect):
    """A case's right value; a null row is unspecified."""
    assert lens.tolist() == expect["lens"]
    if "slots" in expect:
        rows = expect["slots"]
    else:
        assert indices.shape[1] == expect["width"]
        width = expect["width"]
        rows = [row + [expect["rest"]] * (width - len(row)) for row in expect["valid_columns"]]
    for got, row in zip(indices.tolist(), rows, strict=True):
        assert row is None or got == row


def test_slots_of_the_worked_example():
    # block 1 of request 0 is 11: position 2 -> 11 * 2 + 0
    slots, lens = reference.compute_global_topk_indices_and_lens(
        int32([[0, 1, 2, -1]]), int32([0]), int32(TABLE), 2, torch.tensor([True])
    )
    assert slots.tolist() == [[20, 21, 22, -1]]
    assert lens.tolist() == [3]


def test_slots_of_another_request_and_block_size():
    # block size 4, request 1: 5 -> block 1 = 21, offset 1 -> 85; 15 -> block 3 = 23, 3 -> 95
    slots, lens = reference.compute_global_topk_indices_and_lens(
        int32([[5, -1, 15]]), int32([1]), int32(TABLE), 4, torch.tensor([True])
    )
    assert slots.tolist() == [[85, -1, 95]]
    assert lens.tolist() == [2]


def test_dcp_worked_example():
    # 4 positions a block; rank 0 owns 0 and 2: 0 -> 10 * 2, 2 -> offset 2 // 2 = 1 -> 21
    slots, lens = reference.compute_dcp_global_topk_indices_and_lens(
        int32([[0, 1, 2, -1]]), int32([0]), int32(TABLE), 2, torch.tensor([True]), 2, 0, 1
    )
    assert slots.tolist() == [[20, 21, -1, -1]]
    assert lens.tolist() == [2]


def test_dcp_over_one_rank_is_the_plain_map_without_its_holes():
    # 5 -> block 2 = 12, offset 1 -> 25; 0 -> 10 * 2
    slots, lens = reference.compute_dcp_global_topk_indices_and_lens(
        int32([[-1, 5, -1, 0]]), int32([0]), int32(TABLE), 2, torch.tensor([True]), 1, 0, 2
    )
    assert slots.tolist() == [[25, 20, -1, -1]]
    assert lens.tolist() == [2]


def test_dcp_with_an_interleave_over_three_ranks():
    # block size 4, W = 3, I = 2: a block spans 12. Position 9: o = 9, owner 9 // 2 % 3 = 1,
    # offset 9 // 6 * 2 + 9 % 2 = 3. Position 14: block 1, o = 2, owner 1, offset 0.
    slots, lens = reference.compute_dcp_global_topk_indices_and_lens(
        int32([[9, 0, 14, 7]]), int32([0]), int32(TABLE), 4, torch.tensor([True]), 3, 1, 2
    )
    assert slots.tolist() == [[10 * 4 + 3, 11 * 4 + 0, -1, -1]]
    assert lens.tolist() == [2]


def combine_one(query_start_loc, seq_lens, gather_lens, rows, **geometry):
    geometry = {"window_size": 2, "compress_ratio": 2, "topk": 2, "M": 16, "N": 8} | geometry
    args = (int32(rows), int32(query_start_loc), int32(seq_lens), int32(gather_lens))
    indices, lens = reference.combine_topk_swa_indices(*args, **geometry)
    kept = [row[: max(length, 0)] for row, length in zip(indices.tolist(), lens, strict=True)]
    assert all(set(row[n:]) <= {-1} for row, n in zip(indices.tolist(), lens, strict=True))
    return kept, indices.shape[1]


def test_combine_worked_example():
    # seq 6, query 3: token 0 stands at 3; (3 + 1) // 2 = 2 compressed keys, window 2 and 3
    rows, width = combine_one([0, 3], [6], [6], [[5, 4], [7, 6], [9, 8]])
    assert rows == [[5, 4, 10, 11], [7, 6, 11, 12], [9, 8, 12, 13]]
    assert width == 128


def test_combine_adds_each_requests_workspace():
    # request 1 stands at 8: 16 + keys; window 8 - 2 + 1 = 7, 8 of the gathered 5..8 -> rows 2, 3
    rows, _ = combine_one([0, 1, 2], [1, 9], [1, 4], [[3, 3], [0, 1]])
    assert rows == [[8], [16, 17, 16 + 8 + 2, 16 + 8 + 3]]


def test_combine_at_the_edges_of_a_compressed_key():
    # Ratio 4: positions 2, 3, 4 have seen 3, 4, 5 tokens: 0, 1, 1 keys. Window 3: all gathered, so
    # position p is row 8 + p.
    rows, _ = combine_one(
        [0, 3], [5], [5], [[7, 7], [6, 7], [5, 7]], window_size=3, compress_ratio=4
    )
    assert rows == [[8, 9, 10], [6, 9, 10, 11], [5, 10, 11, 12]]


def test_combine_when_only_part_was_gathered():
    # Sequence 100, 1 new token at position 99, the newest 4 gathered: row 8 is position 96.
    # Window 3: positions 97, 98, 99 -> 9, 10, 11. 100 // 2 = 50 keys, of which topk takes 2.
    rows, _ = combine_one([9, 10], [100], [4], [[31, 17]], window_size=3)
    assert rows == [[31, 17, 9, 10, 11]]


def test_combine_keeps_an_empty_entry_as_it_keeps_any():
    # The definition adds M * r to whatever the row holds: request 1, 16 - 1.
    rows, _ = combine_one([0, 0, 1], [0, 4], [0, 4], [[-1, 3]])
    assert rows == [[15, 19, 16 + 8 + 2, 16 + 8 + 3]]


def test_combine_width_is_a_multiple_of_128():
    assert combine_one([0, 1], [1], [1], [[0] * 100], topk=100, window_size=28)[1] == 128
    assert combine_one([0, 1], [1], [1], [[0] * 100], topk=100, window_size=29)[1] == 256


def looped_slots(topk, requests, table, block_size, valid, world=1, rank=0, interleave=1, *, front):
    """The definition of the slot mapping, one entry after another; to the `front` under DCP."""
    rows, lens = [], []
    for t, row in enumerate(topk):
        out = []
        for p in row:
            block, inside = p // (block_size * world), p % (block_size * world)
            slot = -1
            exists = valid[t] and p >= 0 and 0 <= requests[t] < len(table)
            if exists and block < len(table[0]) and table[requests[t]][block] >= 0:
                offset = inside // (world * interleave) * interleave + inside % interleave
                if inside // interleave % world == rank:
                    slot = table[requests[t]][block] * block_size + offset
            out.append(slot)
        lens.append(sum(slot >= 0 for slot in out))
        if front:
            out = [slot for slot in out if slot >= 0]
            out += [-1] * (len(row) - len(out))
        rows.append(out)
    return rows, lens


@pytest.mark.parametrize("seed", range(60))
def test_slots_equal_a_plain_loop(seed):
    rng = random.Random(seed)
    dcp = seed % 2 == 1
    world = rng.choice([1, 2, 3, 4]) if dcp else 1
    interleave = rng.choice([1, 2, 3, 4]) if dcp else 1
    block_size = interleave * rng.randint(1, 6)
    tokens, width, blocks, count = (rng.randint(*r) for r in ((1, 6), (1, 20), (1, 5), (1, 4)))
    topk = [
        [rng.randint(-2, blocks * block_size * world + 3) for _ in range(width)]
        for _ in range(tokens)
    ]
    requests = [rng.choice([*range(count), count, -1, 1 << 29]) for _ in range(tokens)]
    table = [[rng.randint(-1, 99) for _ in range(blocks)] for _ in range(count)]
    valid = [rng.random() < 0.8 for _ in range(tokens)]
    args = [int32(topk), int32(requests), int32(table), block_size, torch.tensor(valid)]
    rank = rng.randrange(world)
    if dcp:
        function = reference.compute_dcp_global_topk_indices_and_lens
        slots, lens = function(*args, world, rank, interleave)
    else:
        slots, lens = reference.compute_global_topk_indices_and_lens(*args)
    split = (world, rank, interleave)
    wanted = looped_slots(topk, requests, table, block_size, valid, *split, front=dcp)
    assert (slots.tolist(), lens.tolist()) == wanted


def looped_combine(rows, starts, seq_lens, gather_lens, window, ratio, topk, M, N):
    """The definition of combine, one column after another."""
    width = -(-(topk + window) // 128) * 128
    out, lens = [[-1] * width for _ in rows], [0] * len(rows)
    for r, (seq, gather) in enumerate(zip(seq_lens, gather_lens, strict=True)):
        first, last = starts[r] - starts[0], starts[r + 1] - starts[0]
        for t in range(first, last):
            position = seq - (last - first) + t - first
            topk_len = max(min((position + 1) // ratio, topk), 0) if topk else 0
            swa_len = max(min(position + 1, window), 0)
            for c in range(topk_len):
                out[t][c] = rows[t][c] + M * r
            for j in range(swa_len):
                row = M * r + N + (position - swa_len + 1 + j) - (seq - gather)
                out[t][topk_len + j] = row
            lens[t] = topk_len + swa_len
    return out, lens


@pytest.mark.parametrize("seed", range(60))
def test_combine_equals_a_plain_loop(seed):
    rng = random.Random(seed)
    query_lens = [rng.choice([0, 1, 2, 5, 9]) for _ in range(rng.randint(1, 5))]
    seq_lens = [max(0, q + rng.randint(-3, 30)) for q in query_lens]
    gather_lens = [rng.randint(0, seq) for seq in seq_lens]
    starts = [rng.choice([0, 700])]
    for query in query_lens:
        starts.append(starts[-1] + query)
    topk, ratio = rng.choice([0, 3, 8]), rng.choice([1, 2, 4])
    width = topk + rng.randint(1, 4)
    tokens = sum(query_lens) + rng.randint(0, 3)
    rows = [[rng.randint(-1, 50) for _ in range(width)] for _ in range(tokens)]
    geometry = (rng.choice([1, 5, 130]), ratio if topk else 0, topk, 64, 16)
    args = [torch.zeros(0, width, dtype=torch.int32) if not rows else int32(rows)]
    args += [int32(starts), int32(seq_lens), int32(gather_lens)]
    indices, lens = reference.combine_topk_swa_indices(*args, *geometry)
    wanted = looped_combine(rows, starts, seq_lens, gather_lens, *geometry)
    assert (indices.tolist(), lens.tolist()) == wanted


def test_tokens_without_requests():
    args = (int32([[0, 1]]), int32([0]), torch.empty(0, 4, dtype=torch.int32), 2)
    slots, lens = reference.compute_global_topk_indices_and_lens(*args, torch.tensor([True]))
    assert (slots.tolist(), lens.tolist()) == ([[-1, -1]], [0])
    args = (*args, torch.tensor([True]), 2, 0, 1)
    slots, lens = reference.compute_dcp_global_topk_indices_and_lens(*args)
    assert (slots.tolist(), lens.tolist()) == ([[-1, -1]], [0])
    none = torch.empty(0, dtype=torch.int32)
    args = (int32([[0, 1]]), int32([5]), none, none, 2, 2, 2, 16, 8)
    indices, lens = reference.combine_topk_swa_indices(*args)
    assert (indices.tolist(), lens.tolist()) == ([[-1] * 128], [0])


def test_no_tokens_and_no_requests():
    empty = presets.batch(presets.SWA_ONLY, [])
    for function, args in (
        (reference.compute_global_topk_indices_and_lens, empty.slot_mapping_args()),
        (reference.combine_topk_swa_indices, empty.combine_args()),
    ):
        indices, lens = function(*args)
        assert indices.shape[0] == lens.shape[0] == 0
