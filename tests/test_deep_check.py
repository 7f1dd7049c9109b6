"""The deep check: silent on every batch that is right, and exact about every value that is not."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from dsv4kernels import check_batch, deep_check, presets
from dsv4kernels.presets import FLASH_C4A, PRESETS

SMALL = FLASH_C4A.replace(topk=8, row_width=10, window_size=6, block_size=4)
KINDS = {
    "decode": lambda p: presets.decode(p, 4, 700, padding=2, device="cpu"),
    "prefill": lambda p: presets.prefill(p, 30, device="cpu"),
    "chunk": lambda p: presets.chunked_prefill(p, 20, 65_536, device="cpu"),
    "mixed": lambda p: presets.mixed(p, 40, padding=3, device="cpu"),
    "warm-up": lambda p: presets.batch(p, [6, 3], [2, 3], device="cpu"),
    "no requests": lambda p: presets.batch(p, [], padding=2, device="cpu"),
    "no tokens": lambda p: presets.batch(p, [0, 0], [40, 9], device="cpu"),
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_batch_has_no_fault(kind, preset):
    batch = KINDS[kind](PRESETS[preset])
    blocks = int(batch.block_table.max()) + 1 if batch.block_table.numel() else 1
    assert check_batch(batch, cache_blocks=blocks).empty


def test_a_batch_for_slot_mapping_alone_is_right_for_it():
    batch = presets.mapping(FLASH_C4A, 20, 3, device="cpu")
    assert check_batch(batch, kernels=["slot_mapping"]).empty
    assert not check_batch(batch).empty  # its keys are more than its sequences have


def drawn():
    """Two requests of 4 and 3 tokens at 40 and 60, and a padding row."""
    return presets.batch(SMALL, [4, 3], [40, 60], padding=1, device="cpu")


def changed(**tensors):
    batch = drawn()
    ints = {name: torch.tensor(value, dtype=torch.int32) for name, value in tensors.items()}
    return dataclasses.replace(batch, **ints)


def edited(name, place, value):
    batch = drawn()
    getattr(batch, name)[place] = value
    return batch


def found(batch, **options):
    table = check_batch(batch, **options)
    assert list(table) == list(deep_check.COLUMNS)
    return [
        tuple(None if value is table["got"].dtype.na_value else value for value in row)
        for row in table.drop(columns="needed").itertuples(index=False)
    ]


@pytest.mark.parametrize(
    ("batch", "options", "faults"),
    [
        (
            lambda: changed(token_to_req_indices=[0, 0, 0, 0, 1, 2, -7, 1 << 29]),
            {},
            [("token_to_req_indices", 2, 5, None, 2), ("token_to_req_indices", -7, 6, None, -7)],
        ),
        (
            lambda: changed(token_to_req_indices=[0, 0, 1, 0, 1, 1, 1, 1 << 29]),
            {},
            [("token_to_req_indices", 1, 2, None, 1)],
        ),
        (
            lambda: edited("topk_indices", (1, 9), 16),  # 4 blocks of 4: past the table
            {"kernels": ["slot_mapping"]},
            [("topk_indices", 0, 1, 9, 16)],
        ),
        (
            lambda: edited("topk_indices", (1, 9), 16),
            {"kernels": ["slot_mapping"], "dcp_world_size": 2},
            [],
        ),
        (
            lambda: edited("topk_indices", (4, 2), -1),  # a hole that combine would read
            {"kernels": ["combine"]},
            [("topk_indices", 1, 4, 2, -1)],
        ),
        (
            lambda: edited("topk_indices", (4, 2), 15),  # 60 tokens have 15 keys
            {},
            [("topk_indices", 1, 4, 2, 15)],
        ),
        (lambda: changed(query_start_loc=[3, 7, 6]), {"kernels": ["combine"]},
         [("query_start_loc", 1, None, None, 6)]),
        (lambda: changed(query_start_loc=[0, 4, 99]), {"kernels": ["combine"]},
         [("query_start_loc", None, None, None, 99), ("gather_lens", 1, None, None, 8)]),
        (lambda: changed(seq_lens=[40, -2], gather_lens=[9, 0]), {"kernels": ["combine"]},
         [("seq_lens", 1, None, None, -2)]),
        (lambda: changed(gather_lens=[41, 8]), {"kernels": ["combine"]},
         [("gather_lens", 0, None, None, 41), ("M", 0, None, None, 24)]),
        (lambda: changed(gather_lens=[8, 8]), {}, [("gather_lens", 0, None, None, 8)]),
        (lambda: dataclasses.replace(drawn(), M=23), {}, [("M", 0, None, None, 23)]),
        (lambda: dataclasses.replace(drawn(), N=14), {}, [("N", 1, None, None, 14)]),
    ],
)  # fmt: skip
def test_each_fault_is_told_where_it_is(batch, options, faults):
    assert found(batch(), **options) == faults


def test_blocks_count_where_a_position_leads_there():
    batch = drawn()
    reached = sorted(set((batch.topk_indices[:4] // 4)[batch.topk_indices[:4] >= 0].tolist()))
    assert 0 < len(reached) < batch.block_table.shape[1]  # request 0 is the shorter one
    unread = next(b for b in range(batch.block_table.shape[1]) if b not in reached)
    batch.block_table[0, unread] = -5
    assert check_batch(batch).empty
    batch.block_table[0, reached[0]] = -5
    batch.block_table[0, reached[1]] = 77
    assert found(batch, cache_blocks=77) == [
        ("block_table", 0, None, reached[0], -5),
        ("block_table", 0, None, reached[1], 77),
    ]
    assert len(check_batch(batch, cache_blocks=78)) == 1


def test_all_faults_are_told_at_once():
    batch = changed(gather_lens=[41, 2], seq_lens=[40, 60])
    batch.block_table[:] = -1
    table = check_batch(batch)
    assert set(table["argument"]) == {"gather_lens", "block_table", "M"}
    assert (table["argument"] == "block_table").sum() > 3


def test_importing_the_package_does_not_load_pandas():
    code = "import sys, dsv4kernels; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
