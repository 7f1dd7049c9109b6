"""Every variant of the slot mapping, and its DCP form, against the reference."""

import dataclasses
import json
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers import POISON, assert_same, far_apart, int32, poisoned
from test_reference import assert_case

from dsv4kernels import own_mapping, presets, reference, slot_mapping
from dsv4kernels.compiler import codegen
from dsv4kernels.launches.trace import OUTSIDE, trace
from dsv4kernels.presets import C128A, FLASH_C4A, PRO_C4A, SWA_ONLY

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
SMALL = FLASH_C4A.replace(name="small", topk=8, row_width=8, window_size=8, block_size=4)
# The own variant has other kernels where there are many rows; here they take the few as well.
MANY_ROWS = "own, as for many rows"
VARIANTS = (*slot_mapping.VARIANTS, MANY_ROWS)


def mapped(*args, variant, out=None, function=slot_mapping.compute_global_topk_indices_and_lens):
    if variant != MANY_ROWS:
        return function(*args, variant=variant, out=out)
    many = dict.fromkeys(("FEW_ENTRIES", "FEW_WIDE", "SOME_WIDE", "SOME_ROWS"), -1)
    with mock.patch.multiple(own_mapping, **many, LONGER=own_mapping.LONGER[-1:]):
        return function(*args, out=out)


dcp_mapped = slot_mapping.compute_dcp_global_topk_indices_and_lens


def run(variant, batch, out=None):
    return mapped(*batch.slot_mapping_args(), variant=variant, out=out)


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
    "a single row": lambda: presets.decode(SMALL, 1, 50),
    "requests without tokens": lambda: presets.batch(SMALL, [0, 3, 0, 2, 0], [4, 9, 0, 7, 5]),
    "warm-up: sequences shorter than queries": lambda: presets.batch(SMALL, [6, 3], [2, 1]),
    "no compressed keys": lambda: presets.batch(SWA_ONLY, [2], [50]),
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
    "several tiles, some tokens": lambda: presets.mapping(
        C128A.replace(row_width=5000, topk=4999), 17, 3, row_stride=5003
    ),
    "one long tile, some tokens": lambda: presets.mapping(
        C128A.replace(row_width=2000, topk=1999), 32, 3, row_stride=2001
    ),
    "several tiles, many tokens": lambda: presets.mapping(
        C128A.replace(row_width=5000, topk=4999), 33, 3, row_stride=5003
    ),
    "one tile of a wide preset": lambda: presets.mapping(PRO_C4A, 3),
    "the widest preset": lambda: presets.mapping(C128A, 2),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_the_reference(variant, kind):
    check(variant, BATCHES[kind]())


def test_own_takes_two_rows_a_program_where_there_are_many():
    batch = presets.mapping(FLASH_C4A, 513, 3, padding=2)  # 515 rows: the last program has one
    _, launch = slot_mapping.plan(*batch.slot_mapping_args())
    assert launch.grid == (258,)
    check("own", batch)


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize("rank", [0, 3])
def test_dcp_equals_the_reference(kind, rank):
    batch = BATCHES[kind]()
    dcp_check(batch, 4, rank, 2 if batch.preset.block_size % 2 == 0 else 1)


@pytest.mark.parametrize(
    ("world", "rank", "interleave"),
    [(1, 0, 1), (1, 0, 6), (2, 1, 6), (3, 2, 1), (3, 1, 2), (8, 5, 3)],
)
def test_dcp_of_other_worlds(world, rank, interleave):
    batch = presets.decode(SMALL.replace(row_width=30, topk=29, block_size=6), 4, 2000, holes=0.2)
    lens = dcp_check(batch, world, rank, interleave)
    assert lens.sum() > 0


def dcp_check(batch, *dcp):
    args = batch.dcp_args(*dcp)
    out = poisoned(batch.tokens, batch.preset.row_width)
    got = dcp_mapped(*args, out=out)
    # Padding rows are specified here: wholly -1.
    assert_same(got, reference.compute_dcp_global_topk_indices_and_lens(*args))
    return got[1]


def applies(case, variant):
    return variant in ("own", MANY_ROWS) or not case.get("own_variant_only")


@pytest.mark.parametrize("variant", VARIANTS)
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
    got = mapped(*args, variant=variant, out=out)
    assert_case(*got, case["expect"])


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["kernel"] == "compute_dcp_global_topk_indices_and_lens"],
    ids=lambda case: case["why"],
)
def test_dcp_case(case):
    args = [int32(v) if isinstance(v, list) else v for v in case["args"].values()]
    out = poisoned(*args[0].shape)
    assert_case(*dcp_mapped(*args, out=out), case["expect"])


# The unsafe cases' twins for DCP: two ranks over blocks of 4, so 8 positions a block; rank 0 owns
# the even ones, position o of a block at offset o // 2. (positions, request, table, slots)
DCP_UNSAFE = {
    "request past the table": ([0, 6], 1, [10, 11], []),
    "negative request": ([0, 6], -1, [10, 11], []),
    # 16 -> block 2 of 2; 10 -> block 1 = 11, o = 2: 11 * 4 + 1
    "position past the table": ([16, 10], 0, [10, 11], [45]),
    # 8 -> block 1 = -1; 4 -> block 0 = 2, o = 4: 2 * 4 + 2
    "null block": ([8, 4], 0, [2, -1], [10]),
    "very negative block": ([8, 4], 0, [2, -(2**31)], [10]),
    # 2 -> block 0 = 7, o = 2: 7 * 4 + 1
    "largest position": ([2**31 - 2, 2], 0, [7, 8], [29]),
    "very negative position": ([-(2**31), 2], 0, [7, 8], [29]),
    "negative position that wraps to an early one": ([-(2**31) + 2, -8], 0, [7, 8], []),
}


@pytest.mark.parametrize(
    "function", [dcp_mapped, reference.compute_dcp_global_topk_indices_and_lens]
)
@pytest.mark.parametrize("corner", DCP_UNSAFE)
def test_dcp_is_safe(corner, function):
    positions, request, blocks, kept = DCP_UNSAFE[corner]
    larger = torch.full((3, 5), 55_555, dtype=torch.int32)
    table = larger[:1, :2].copy_(int32([blocks]))
    args = (int32([positions]), int32([request]), table, 4, torch.tensor([True]), 2, 0, 1)
    slots, lens = function(*args)
    assert slots.tolist() == [kept + [-1] * (2 - len(kept))]
    assert lens.tolist() == [len(kept)]


# What a safe kernel survives: (positions, requests, table), two rows, blocks of 4.
UNSAFE = {
    "request past the table": ([[0, 5], [1, 2]], [1, 0], [[10, 11]]),
    "request far past the table": ([[0, 5], [1, 2]], [1 << 29, 0], [[10, 11]]),
    "negative request": ([[0, 5], [1, 2]], [-1, 0], [[10, 11]]),
    "position past the table": ([[8, 5], [2**31 - 1, 0]], [0, 0], [[10, 11]]),
    "null block": ([[0, 4], [7, 3]], [0, 0], [[2, -1]]),
    "very negative block": ([[0, 4], [7, 3]], [0, 0], [[2, -(2**31)]]),
    "very negative position": ([[-(2**31), 4], [-(2**31) + 5, -7]], [0, 0], [[2, 3]]),
    "every block null": ([[0, 4], [7, 3]], [0, 0], [[-1, -1]]),
}


@pytest.mark.parametrize("variant", ["own", MANY_ROWS])
@pytest.mark.parametrize("width", [2, 1500])
@pytest.mark.parametrize("corner", UNSAFE)
def test_own_is_safe(corner, width, variant):
    tokens = 4
    topk, requests, table = map(int32, UNSAFE[corner])
    topk = torch.nn.functional.pad(topk, (0, width - 2), value=1).repeat(tokens // 2, 1)
    requests, valid = requests.repeat(tokens // 2), torch.ones(tokens, dtype=torch.bool)
    # The table is a view: what lies beyond its last row and column would be seen in the output.
    larger = torch.full((4, 9), 55_555, dtype=torch.int32)
    table = larger[: table.shape[0], : table.shape[1]].copy_(table)
    args = (topk, requests, table, 4, valid)
    expected = reference.compute_global_topk_indices_and_lens(*args)
    assert_same(traced(mapped(*args, variant=variant, function=slot_mapping.plan)), expected)
    dcp = (*args, 2, 1, 1)
    expected = reference.compute_dcp_global_topk_indices_and_lens(*dcp)
    assert_same(traced(slot_mapping.plan_dcp(*dcp)), expected)


def traced(planned):
    """Run a planned launch; nothing outside a tensor's shape is read or written."""
    outputs, launch = planned
    assert OUTSIDE not in set(trace(launch).tensor)
    return outputs


@pytest.mark.parametrize("null", [0, 1, 2047, 2048, 4999, 5000])
def test_own_finds_a_null_block_anywhere_in_a_wide_table(null):
    # Blocks of 2: the row names blocks 0, 2047, 2048 and 4999, and -1; column 5000 is not a block.
    larger = torch.arange(2 * 6000, dtype=torch.int32).view(2, 6000) + 1
    larger[1, null] = -1
    rows = torch.full((2, 1100), -1, dtype=torch.int32)
    rows[:, :: 1099 // 3] = int32([0, 4095, 4096, 9999])
    # The second row is padding, whose request has no row in the table to look through.
    args = (rows, int32([1, 1 << 29]), larger[:, :5000], 2, torch.tensor([True, False]))
    slots, lens = traced(slot_mapping.plan(*args))
    assert lens.tolist() == [3 if null in (0, 2047, 2048, 4999) else 4, 0]
    # Request 1's block b has the number 6001 + b.
    wanted = [12002, 2 * 8048 + 1, 2 * 8049, 2 * 11000 + 1]
    hit = {0: 0, 2047: 1, 2048: 2, 4999: 3}.get(null)
    assert slots[0, :: 1099 // 3].tolist() == [-1 if i == hit else w for i, w in enumerate(wanted)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_as_large_as_positions_get(variant):
    # Blocks of 2^30: only two can be reached. 2^31 - 1 -> block 1, 2^30 + 5 -> 1 * 2^30 + 5.
    row = [-1, -(2**31), -(2**30), 2**31 - 1, 2**30 + 5, 7]
    args = (int32([row]), int32([0]), int32([[0, 1, 5, 6, 7]]), 1 << 30, torch.tensor([True]))
    slots, lens = mapped(*args, variant=variant)
    assert slots.tolist() == [[-1, -1, -1, 2**31 - 1, 2**30 + 5, 7]]
    assert lens.tolist() == [3]


def test_dcp_blocks_as_large_as_positions_get():
    # 4 ranks over blocks of 2^29: a block spans 2^31 positions, so that only one can be reached.
    # Rank 3 owns 2^31 - 1, at offset (2^31 - 1) // 4, and -1 and -5 if they wrapped around.
    row = [-1, -5, -(2**31), 2**31 - 1, 1 << 30, 5]
    args = (int32([row]), int32([0]), int32([[0, 1, 5, 6, 7]]), 1 << 29, torch.tensor([True]))
    slots, lens = traced(slot_mapping.plan_dcp(*args, 4, 3, 1))
    assert slots.tolist() == [[2**29 - 1, -1, -1, -1, -1, -1]]
    assert lens.tolist() == [1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("width", [8, 1030])
def test_addresses_take_64_bits(variant, width):
    batch = presets.mapping(SMALL.replace(row_width=width, topk=width), 3, 3, keys=64)
    args = list(batch.slot_mapping_args())
    expected = reference.compute_global_topk_indices_and_lens(*args)
    args[0], args[2] = far_apart(args[0]), far_apart(args[2])
    slots, lens = far_apart(torch.full((3, width), POISON)), poisoned(3, 1)[1]
    assert_same(mapped(*args, variant=variant, out=(slots, lens)), expected)
    if variant == "own":
        expected = reference.compute_dcp_global_topk_indices_and_lens(*args, 2, 1, 1)
        assert_same(dcp_mapped(*args, 2, 1, 1, out=(slots, lens)), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_may_start_at_any_column(variant):
    batch = presets.mixed(SMALL, 9)
    args = list(batch.slot_mapping_args())
    expected = reference.compute_global_topk_indices_and_lens(*args)
    for i in (0, 2):  # neither first column nor stride a multiple of anything
        args[i] = torch.nn.functional.pad(args[i], (1, 2), value=999)[:, 1:-2]
    slots, lens = poisoned(batch.tokens, 11)
    assert_same(mapped(*args, variant=variant, out=(slots[:, 3:], lens)), expected)
    assert (slots[:, :3] == POISON).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stride_may_change_from_call_to_call(variant):
    # A graph keeps its stride and narrows the width; a new batch may come with another stride.
    for stride, width in ((16, 8), (16, 5), (9, 8), (8, 8), (1, 1)):
        small = SMALL.replace(row_width=width, topk=width)
        check(variant, presets.decode(small, 3, 99, row_stride=stride))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_padding_rows_request_is_not_used(variant):
    for stale in (0, 1 << 29, -(2**31), 2**31 - 1):
        batch = presets.decode(SMALL, 2, 50, padding=3)
        batch.token_to_req_indices[2:] = stale
        _, lens = check(variant, batch)
        assert lens.tolist()[2:] == [0, 0, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_token_to_req_indices_may_be_longer(variant):
    batch = presets.decode(SMALL, 3, 50)
    args = list(batch.slot_mapping_args())
    expected = reference.compute_global_topk_indices_and_lens(*args)
    args[1] = torch.cat([args[1], int32([1 << 29] * 4)])
    assert_same(mapped(*args, variant=variant), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_to_map(variant):
    nothing = presets.decode(SMALL, 0, 50)
    requests_only = presets.batch(SMALL, [0, 0], [5, 9])
    for batch in (nothing, requests_only):
        for slots, lens in (run(variant, batch), dcp_mapped(*batch.dcp_args(2, 0, 1))):
            assert slots.shape == (0, 8)
            assert lens.shape == (0,)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_without_columns(variant):
    batch = dataclasses.replace(presets.decode(SMALL, 2, 50), preset=SMALL.replace(row_width=0))
    batch = dataclasses.replace(batch, topk_indices=batch.topk_indices[:, :0])
    _, lens = check(variant, batch)
    assert lens.tolist() == [0, 0]
    assert dcp_check(batch, 2, 0, 1).tolist() == [0, 0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_without_requests(variant):
    args = (int32([[0, 1], [2, 3]]), int32([0, 5]), torch.empty(0, 4, dtype=torch.int32), 4)
    out = poisoned(2, 2)
    valid = torch.tensor([True, False])
    mapped(*args, valid, variant=variant, out=out)
    assert (out[0].tolist(), out[1].tolist()) == ([[-1, -1]] * 2, [0, 0])
    out = poisoned(2, 2)
    dcp_mapped(*args, valid, 2, 0, 1, out=out)
    assert (out[0].tolist(), out[1].tolist()) == ([[-1, -1]] * 2, [0, 0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_out_is_written_in_place_and_nothing_beside_it(variant):
    batch = presets.decode(SMALL, 5, 90, padding=2)
    slots, lens = poisoned(batch.tokens, 8, stride=11)
    got = run(variant, batch, (slots, lens))
    assert got[0] is slots
    assert got[1] is lens
    expected = reference.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
    assert_same(got, expected, batch.is_valid_token)
    assert_untouched_beside(slots)


def test_dcp_out_is_written_in_place_and_nothing_beside_it():
    args = presets.decode(SMALL, 5, 90, padding=2).dcp_args(2, 1, 1)
    slots, lens = poisoned(7, 8, stride=11)
    got = dcp_mapped(*args, out=(slots, lens))
    assert got[0] is slots
    assert got[1] is lens
    assert_same(got, reference.compute_dcp_global_topk_indices_and_lens(*args))
    assert_untouched_beside(slots)


def assert_untouched_beside(slots):
    """The three columns between a row's end and the next row hold their old values."""
    rows, columns = slots.shape
    beside = torch.as_strided(slots, (rows, 3), (columns + 3, 1), columns)
    assert (beside == POISON).all()


def test_new_outputs_are_wholly_written():
    batch = presets.mixed(SMALL, 9, padding=1)
    args, dcp = batch.slot_mapping_args(), batch.dcp_args(2, 1, 1)
    expected = reference.compute_global_topk_indices_and_lens(*args)
    dcp_expected = reference.compute_dcp_global_topk_indices_and_lens(*dcp)
    torch.use_deterministic_algorithms(True)  # fills what is allocated with 2147483647
    try:
        for variant in VARIANTS:
            assert_same(run(variant, batch), expected, batch.is_valid_token)
        assert_same(dcp_mapped(*dcp), dcp_expected)
    finally:
        torch.use_deterministic_algorithms(False)


def test_dcp_ranks_share_out_the_whole_map():
    batch = presets.mixed(SMALL, 21)
    *args, world, _, interleave = batch.dcp_args(4, 0, 2)
    counts = sum(dcp_mapped(*args, world, rank, interleave)[1] for rank in range(world))
    assert torch.equal(counts, (batch.topk_indices >= 0).sum(1).int())


@pytest.mark.parametrize(
    ("block_size", "world", "rank", "interleave"),
    [
        (1 << 30, 8, 0, 1 << 20),
        (1 << 30, 8, 1, 1 << 20),
        (64, 2**31 - 1, 5, 1),
        (2**31 - 2, 2**31 - 1, 0, 2),
    ],
)
def test_dcp_blocks_longer_than_any_position(block_size, world, rank, interleave):
    arguments = (
        torch.tensor([[0, 5, 2**31 - 1, -1, 7, 1 << 20]], dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        torch.tensor([[0, 3]], dtype=torch.int32),
        block_size,
        torch.ones(1, dtype=torch.bool),
        world,
        rank,
        interleave,
    )
    outputs, launch = slot_mapping.plan_dcp(*arguments)
    assert codegen.compile(launch, "sm_120").registers > 0
    launch.run()
    expected = reference.compute_dcp_global_topk_indices_and_lens(*arguments)
    assert all(map(torch.equal, outputs, expected))


@pytest.mark.parametrize("width", [own_mapping.WIDEST_COUNTED, (1 << 20) + 3])
def test_rows_wider_than_any_model_has(width):
    arguments = (
        torch.randint(-1, 128, (2, width), dtype=torch.int32, generator=torch.manual_seed(0)),
        torch.zeros(2, dtype=torch.int32),
        torch.tensor([[4, 9]], dtype=torch.int32),
        64,
        torch.ones(2, dtype=torch.bool),
    )
    outputs, launch = slot_mapping.plan(*arguments)
    assert codegen.compile(launch, "sm_120").registers > 0
    launch.run()
    expected = reference.compute_global_topk_indices_and_lens(*arguments)
    assert all(map(torch.equal, outputs, expected))


def test_sizes_that_no_int32_holds_are_named():
    batch = presets.decode(presets.FLASH_C4A, 2, 512, device="cpu")
    wide = (*batch.slot_mapping_args()[:3], 2**31, batch.is_valid_token)
    with pytest.raises(ValueError, match="block_size must be an int32, as slots are, got 2147"):
        slot_mapping.compute_global_topk_indices_and_lens(*wide)
    with pytest.raises(ValueError, match="dcp_world_size must be an int32, got 2147483648"):
        slot_mapping.compute_dcp_global_topk_indices_and_lens(*batch.dcp_args(2**31, 0))


@pytest.mark.parametrize("width", [0, 1, 64, 128, 300, 512, 1000, 1024, 2048, 8192, 8320, 70_000])
def test_all_choices_of_a_geometry_are_known_ahead(width):
    """What is compiled at a geometry's first call is all that its later batches can ask for."""
    ahead = own_mapping.choices(width)
    assert {own_mapping.rule(tokens, width) for tokens in range(1, 300_000, 31)} <= ahead
    assert len(ahead) <= 4
