"""What a launch reads and writes, and what the kernels do with it: who owns which element."""

import pytest
import torch
import triton.language as tl
from helpers import POISON, poisoned
from triton.runtime.interpreter import interpreter_builder

from dsv4kernels import combine, presets, runtime, slot_mapping
from dsv4kernels.launches.trace import COLUMNS, OUTSIDE, trace

SMALL = presets.FLASH_C4A.replace(name="small", topk=8, row_width=8, window_size=8, block_size=4)


def stores(table, tensor):
    return table[(table.op == "store") & (table.tensor == tensor)]


def assert_written_once(table, outputs, names):
    """Every element of every output is stored by exactly one lane, and nothing lies outside."""
    assert OUTSIDE not in set(table.tensor)
    for tensor, name in zip(outputs, names, strict=True):
        written = stores(table, name)
        assert len(written) == tensor.numel()
        assert not written.duplicated(["row", "column"]).any()
        elements = tensor if tensor.ndim == 2 else tensor[:, None]
        places = written["row"].to_numpy(), written["column"].to_numpy()
        assert (elements.numpy()[places] == written["value"].to_numpy()).all()


@pytest.mark.parametrize("width", [6, 1030, 2051])
@pytest.mark.parametrize("valid_tokens", [3, 34])
def test_own_slot_mapping_writes_each_element_once(width, valid_tokens):
    preset = SMALL.replace(topk=width, row_width=width)
    batch = presets.mapping(preset, valid_tokens, requests=3, keys=2 * width, padding=1,
                            row_stride=width + 5, device="cpu")  # fmt: skip
    out = poisoned(batch.tokens, width, stride=width + 3)
    outputs, launch = slot_mapping.plan(*batch.slot_mapping_args(), out=out)
    assert_written_once(trace(launch), outputs, ("slots", "lens"))
    assert (
        out[0].as_strided((batch.tokens, width + 3), out[0].stride())[:-1, width:] == POISON
    ).all()


@pytest.mark.parametrize("rank", [0, 2])
def test_dcp_writes_each_element_once(rank):
    batch = presets.decode(SMALL, 3, 90, holes=0.25, padding=2, row_stride=11, device="cpu")
    outputs, launch = slot_mapping.plan_dcp(*batch.dcp_args(3, rank, 2), out=poisoned(5, 8, 9))
    assert_written_once(trace(launch), outputs, ("slots", "lens"))


@pytest.mark.parametrize(
    "preset", [SMALL, presets.SWA_ONLY, SMALL.replace(topk=7, window_size=1100)]
)
def test_own_combine_writes_each_element_once(preset):
    batch = presets.batch(preset, [1, 1, 0, 9, 2], [5, 1, 0, 60, 33], padding=3,
                          first_query_start=7, device="cpu")  # fmt: skip
    outputs, launch = combine.plan(*batch.combine_args())
    table = trace(launch)
    assert_written_once(table, outputs, ("indices", "lens"))
    owners = stores(table, "indices").groupby("program")["row"].agg(set)
    assert any({0, 1} <= rows for rows in owners)  # several requests in a tile
    assert any(rows & {13, 14, 15} for rows in owners)  # tokens of no request


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_a_worker_of_the_published_combine_strides_over_its_request(workers):
    query_lens = [7, 0, 11]
    batch = presets.batch(SMALL, query_lens, [40, 0, 11], device="cpu")
    _, launch = combine.plan(*batch.combine_args(), num_workers=workers)
    table = trace(launch)
    assert OUTSIDE not in set(table.tensor)
    start = 0
    for request, length in enumerate(query_lens):
        for worker in range(workers):
            mine = table[(table.program == request) & (table.worker == worker)]
            rows = list(range(start + worker, start + length, workers))
            assert stores(mine, "lens")["row"].tolist() == rows
            assert set(stores(mine, "indices")["row"]) <= set(rows)
        start += length


def test_a_padding_row_never_reaches_the_block_table():
    batch = presets.decode(SMALL, 2, 90, padding=3, device="cpu")
    for variant in slot_mapping.VARIANTS:
        _, launch = slot_mapping.plan(*batch.slot_mapping_args(), variant=variant)
        table = trace(launch)
        assert OUTSIDE not in set(table.tensor)
        looked_up = table[table.tensor == "block_table"]
        assert set(looked_up["program"]) == {0, 1}


@runtime.kernel
def _copy(copied, original, length, last, TILE: tl.constexpr):
    lane = tl.arange(0, TILE)
    tl.store(copied + lane, tl.load(original + lane, mask=lane < length) + 1, mask=lane <= last)


def test_a_mask_off_by_one_is_seen_outside_and_not_carried_out():
    buffer = torch.full((6,), POISON, dtype=torch.int32)
    copied, original = buffer[:5], torch.arange(5, dtype=torch.int32) * 10
    table = trace(runtime.Launch(_copy, (1,), (copied, original, 5, 5, 8)))
    outside = table[table.tensor == OUTSIDE]
    assert outside[["program", "worker", "order", "op", "row", "column"]].values.tolist() == [
        [0, 0, 1, "store", -1, -1]
    ]
    assert buffer.tolist() == [1, 11, 21, 31, 41, POISON]


def test_lists_the_lanes_that_are_not_masked_in_order():
    copied, original = torch.zeros(5, dtype=torch.int32), torch.arange(5, dtype=torch.int32) * 10
    table = trace(runtime.Launch(_copy, (1,), (copied, original, 3, 1, 8)))
    assert tuple(table) == COLUMNS
    assert table.drop(columns=["program", "worker"]).values.tolist() == [
        [0, "load", "original", 0, 0, 0],
        [0, "load", "original", 1, 0, 10],
        [0, "load", "original", 2, 0, 20],
        [1, "store", "copied", 0, 0, 1],
        [1, "store", "copied", 1, 0, 11],
    ]
    assert copied.tolist() == [1, 11, 0, 0, 0]


def test_a_column_between_the_rows_of_a_view_is_outside():
    view = torch.zeros(3, 4, dtype=torch.int32)[:, :3]
    original = torch.arange(12, dtype=torch.int32)
    table = trace(runtime.Launch(_copy, (1,), (view, original, 12, 11, 16)))
    written = table[table.op == "store"]
    assert (written.tensor == OUTSIDE).tolist() == [False, False, False, True] * 3
    inside = written[written.tensor == "copied"]
    assert inside[["row", "column"]].values.tolist() == [[r, c] for r in range(3) for c in range(3)]


def test_the_interpreter_is_itself_again_even_after_a_failure():
    methods = {"create_masked_load", "create_masked_store"}
    ints = torch.zeros(5, dtype=torch.int32)
    assert trace(runtime.Launch(_copy, (0,), (ints, ints, 5, 4, 8))).empty
    with pytest.raises(Exception, match="power of"):
        trace(runtime.Launch(_copy, (1,), (ints, ints, 5, 4, 7)))
    assert not methods & vars(interpreter_builder).keys()


def test_names_a_tensor_it_cannot_trace():
    with pytest.raises(ValueError, match="copied must be a vector or matrix"):
        cube = torch.zeros(2, 2, 2, dtype=torch.int32)
        trace(runtime.Launch(_copy, (1,), (cube, cube, 5, 4, 8)))
