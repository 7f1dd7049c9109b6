"""Every variant of the slot mapping, and its DCP form, against the reference."""

import json
from pathlib import Path

import pytest
import torch
from conftest import POISON, assert_same, int32, poisoned
from test_reference import assert_case

from dsv4kernels import presets, reference, slot_mapping
from dsv4kernels.presets import C128A, FLASH_C4A, PRO_C4A

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
SMALL = FLASH_C4A.replace(name="small", topk=8, row_width=8, window_size=8, block_size=4)


def run(variant, batch, out=None):
    args = batch.slot_mapping_args()
    return slot_mapping.compute_global_topk_indices_and_lens(*args, variant=variant, out=out)


def check(variant, batch):
    expected = reference.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
    out = poisoned(batch.tokens, batch.preset.row_width)
    assert_same(run(variant, batch, out), expected, batch.is_valid_token)
    return out


BATCHES = {
    "decode": lambda: presets.decode(SMALL, 5, 90),
    "decode at full width": lambda: presets.decode(FLASH_C4A, 2, 3000),
    "prefill": lambda: presets.prefill(SMALL, 33),
    "chunk of a longer prompt": lambda: presets.chunked_prefill(SMALL, 9, 100),
    "mixed lengths": lambda: presets.mixed(SMALL, 21),
    "padding rows with a stale request": lambda: presets.decode(SMALL, 3, 50, padding=5),
    "an odd number of rows": lambda: presets.decode(SMALL, 1, 50, padding=2),
    "rows that are views of wider ones": lambda: presets.mixed(
        SMALL, 9, row_stride=13, table_stride=50
    ),
    "holes inside rows": lambda: presets.decode(SMALL, 6, 200, holes=0.5),
    "width not a power of two": lambda: presets.decode(SMALL.replace(row_width=11, topk=11), 3, 99),
    "width of one": lambda: presets.decode(SMALL.replace(row_width=1, topk=1), 3, 99),
    "block size not a power of two": lambda: presets.decode(SMALL.replace(block_size=3), 3, 99),
    "blocks of one position": lambda: presets.decode(SMALL.replace(block_size=1), 2, 50),
    "blocks of 256": lambda: presets.decode(FLASH_C4A.replace(block_size=256), 2, 9000),
    "several tiles, few tokens": lambda: presets.mapping(
        C128A.replace(row_width=2500, topk=2400), 3, 2
    ),
    "several tiles, many tokens": lambda: presets.mapping(
        C128A.replace(row_width=5000, topk=4999), 33, 3, row_stride=5003
    ),
    "one tile of a wide preset": lambda: presets.mapping(PRO_C4A, 3),
    "the widest preset": lambda: presets.mapping(C128A, 2),
    "more rows than one a program": lambda: presets.decode(
        SMALL.replace(row_width=4, topk=4), 515, 64, padding=2
    ),
}


@pytest.mark.parametrize("variant", slot_mapping.VARIANTS)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_the_reference(variant, kind):
    check(variant, BATCHES[kind]())


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("rank", [0, 3])
def test_dcp_equals_the_reference(kind, rank):
    batch = BATCHES[kind]()
    if batch.tokens > 500:
        pytest.skip("as many rows as this show nothing that fewer do not")
    interleave = 2 if batch.preset.block_size % 2 == 0 else 1
    args = batch.dcp_args(4, rank, interleave)
    out = poisoned(batch.tokens, batch.preset.row_width)
    got = slot_mapping.compute_dcp_global_topk_indices_and_lens(*args, out=out)
    # Padding rows are specified here: wholly -1.
    assert_same(got, reference.compute_dcp_global_topk_indices_and_lens(*args))


def applies(case, variant):
    return variant == "own" or not case.get("own_variant_only")


@pytest.mark.parametrize("variant", slot_mapping.VARIANTS)
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["kernel"] == "compute_global_topk_indices_and_lens"],
    ids=lambda case: case["why"],
)
def test_case(variant, case):
    if not applies(case, variant):
        pytest.skip("the published variants promise this for padding rows only")
    args = [int32(v) if isinstance(v, list) else v for v in case["args"].values()]
    out = poisoned(*args[0].shape)
    got = slot_mapping.compute_global_topk_indices_and_lens(*args, variant=variant, out=out)
    assert_case(*got, case["expect"])


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["kernel"] == "compute_dcp_global_topk_indices_and_lens"],
    ids=lambda case: case["why"],
)
def test_dcp_case(case):
    args = [int32(v) if isinstance(v, list) else v for v in case["args"].values()]
    out = poisoned(*args[0].shape)
    got = slot_mapping.compute_dcp_global_topk_indices_and_lens(*args, out=out)
    assert_case(*got, case["expect"])


# What a safe kernel survives: (positions, requests, table), two rows, blocks of 4.
UNSAFE = {
    "request past the table": ([[0, 5], [1, 2]], [1, 0], [[10, 11]]),
    "negative request": ([[0, 5], [1, 2]], [-1, 0], [[10, 11]]),
    "position past the table": ([[8, 5], [2**31 - 1, 0]], [0, 0], [[10, 11]]),
    "null block": ([[0, 4], [7, 3]], [0, 0], [[2, -1]]),
    "very negative block": ([[0, 4], [7, 3]], [0, 0], [[2, -(2**31)]]),
    "very negative position": ([[-(2**31), 4], [-(2**31) + 5, -7]], [0, 0], [[2, 3]]),
    "every block null": ([[0, 4], [7, 3]], [0, 0], [[-1, -1]]),
}


@pytest.mark.parametrize("tokens", [2, 40])
@pytest.mark.parametrize("width", [2, 1500])
@pytest.mark.parametrize("corner", UNSAFE)
def test_own_is_safe(corner, width, tokens):
    topk, requests, table = map(int32, UNSAFE[corner])
    topk = torch.nn.functional.pad(topk, (0, width - 2), value=1).repeat(tokens // 2, 1)
    requests, valid = requests.repeat(tokens // 2), torch.ones(tokens, dtype=torch.bool)
    # The table is a view: what lies beyond its last row and column would be seen in the output.
    larger = torch.full((4, 9), 55_555, dtype=torch.int32)
    table = larger[: table.shape[0], : table.shape[1]].copy_(table)
    args = (topk, requests, table, 4, valid)
    expected = reference.compute_global_topk_indices_and_lens(*args)
    assert_same(slot_mapping.compute_global_topk_indices_and_lens(*args), expected)
    dcp = (*args, 2, 1, 1)
    expected = reference.compute_dcp_global_topk_indices_and_lens(*dcp)
    assert_same(slot_mapping.compute_dcp_global_topk_indices_and_lens(*dcp), expected)


@pytest.mark.parametrize("variant", slot_mapping.VARIANTS)
def test_a_padding_rows_request_is_not_used(variant):
    for stale in (0, 1 << 29, -(2**31), 2**31 - 1):
        batch = presets.decode(SMALL, 2, 50, padding=3)
        batch.token_to_req_indices[2:] = stale
        _, lens = check(variant, batch)
        assert lens.tolist()[2:] == [0, 0, 0]


@pytest.mark.parametrize("variant", slot_mapping.VARIANTS)
def test_token_to_req_indices_may_be_longer(variant):
    batch = presets.decode(SMALL, 3, 50)
    args = list(batch.slot_mapping_args())
    expected = reference.compute_global_topk_indices_and_lens(*args)
    args[1] = torch.cat([args[1], int32([1 << 29] * 4)])
    got = slot_mapping.compute_global_topk_indices_and_lens(*args, variant=variant)
    assert_same(got, expected)


@pytest.mark.parametrize("variant", slot_mapping.VARIANTS)
def test_nothing_to_map(variant):
    slots, lens = run(variant, presets.decode(SMALL, 0, 50))
    assert slots.shape == (0, 8)
    assert lens.shape == (0,)


@pytest.mark.parametrize("variant", slot_mapping.VARIANTS)
def test_tokens_without_requests(variant):
    args = (int32([[0, 1], [2, 3]]), int32([0, 5]), torch.empty(0, 4, dtype=torch.int32), 4)
    out = poisoned(2, 2)
    valid = torch.tensor([True, False])
    slot_mapping.compute_global_topk_indices_and_lens(*args, valid, variant=variant, out=out)
    assert (out[0].tolist(), out[1].tolist()) == ([[-1, -1]] * 2, [0, 0])
    out = poisoned(2, 2)
    slot_mapping.compute_dcp_global_topk_indices_and_lens(*args, valid, 2, 0, 1, out=out)
    assert (out[0].tolist(), out[1].tolist()) == ([[-1, -1]] * 2, [0, 0])


@pytest.mark.parametrize("variant", slot_mapping.VARIANTS)
def test_out_is_written_in_place_and_nothing_beside_it(variant):
    batch = presets.decode(SMALL, 5, 90, padding=2)
    slots, lens = poisoned(batch.tokens, 8, stride=11)
    got = run(variant, batch, (slots, lens))
    assert got[0] is slots
    assert got[1] is lens
    expected = reference.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
    assert_same(got, expected, batch.is_valid_token)
    beside = torch.as_strided(slots, (batch.tokens, 3), (11, 1), 8)[:-1]
    assert (beside == POISON).all()


def test_new_outputs_are_wholly_written():
    torch.use_deterministic_algorithms(True)  # fills what is allocated with 2147483647
    try:
        for variant in slot_mapping.VARIANTS:
            batch = presets.mixed(SMALL, 9, padding=1)
            slots, lens = run(variant, batch)
            assert (slots[batch.is_valid_token] != 2**31 - 1).all()
            assert (lens != 2**31 - 1).all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_dcp_ranks_share_out_the_whole_map():
    batch = presets.mixed(SMALL, 21)
    *args, world, _, interleave = batch.dcp_args(4, 0, 2)
    counts = sum(
        slot_mapping.compute_dcp_global_topk_indices_and_lens(*args, world, rank, interleave)[1]
        for rank in range(world)
    )
    assert torch.equal(counts, (batch.topk_indices >= 0).sum(1).int())
