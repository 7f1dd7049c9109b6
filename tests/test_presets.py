"""Presets are the models' geometry; batches are deterministic and what they are called."""

import dataclasses

import pytest
import torch

from dsv4kernels import presets
from dsv4kernels.presets import C128A, FLASH_C4A, PRESETS, PRO_C4A, SWA_ONLY

SMALL = FLASH_C4A.replace(name="small", topk=8, row_width=8, window_size=8, block_size=4)


def test_geometry_of_the_models():
    names = ("topk", "row_width", "compress_ratio", "window_size", "block_size")
    geometry = {p.name: tuple(getattr(p, n) for n in names) for p in PRESETS.values()}
    assert geometry == {
        "Flash C4A": (512, 512, 4, 128, 64),
        "Pro C4A": (1024, 1024, 4, 128, 64),
        "C128A": (8192, 8192, 128, 128, 64),
        "SWA only": (0, 512, 1, 128, 64),
    }
    assert PRESETS["C128A"] is C128A
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRO_C4A.topk = 3


KINDS = {
    "decode": lambda **options: presets.decode(SMALL, 5, 90, **options),
    "prefill": lambda **options: presets.prefill(SMALL, 33, **options),
    "chunk": lambda **options: presets.chunked_prefill(SMALL, 9, 100, **options),
    "mixed": lambda **options: presets.mixed(SMALL, 21, **options),
    "mapping": lambda **options: presets.mapping(SMALL, 7, 3, **options),
}


def tensors(batch):
    return {k: v for k, v in vars(batch).items() if isinstance(v, torch.Tensor)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_depends_on_its_arguments_alone(kind):
    torch.manual_seed(1)
    one = KINDS[kind](padding=2)
    torch.manual_seed(2)
    other = KINDS[kind](padding=2)
    assert all(torch.equal(v, tensors(other)[k]) for k, v in tensors(one).items())
    seeded = KINDS[kind](padding=2, seed=5)
    assert not torch.equal(one.topk_indices, seeded.topk_indices)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_distinct_visible_and_in_no_order(kind):
    batch = KINDS[kind]()
    request = batch.token_to_req_indices.long()
    start = batch.query_start_loc[request] - batch.query_start_loc[0]
    query = batch.query_start_loc[request + 1] - batch.query_start_loc[request]
    position = batch.seq_lens[request] - query + torch.arange(batch.tokens) - start
    for row, seen in zip(batch.topk_indices.tolist(), (position + 1).tolist(), strict=True):
        taken = [p for p in row if p >= 0]
        assert len(set(taken)) == len(taken)
        visible = 16_384 if kind == "mapping" else seen // SMALL.compress_ratio
        assert all(p < visible for p in taken)
        if kind != "mapping":
            assert len(taken) == min(visible, SMALL.topk)
            assert row[: len(taken)] == taken
    full = [row for row in batch.topk_indices.tolist() if min(row) >= 0]
    assert not full or any(row != sorted(row) for row in full)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_distinct_and_none_is_the_null_block(kind):
    batch = KINDS[kind]()
    table = batch.block_table
    assert batch.topk_indices.max() < table.shape[1] * SMALL.block_size
    assert table.unique().numel() == table.numel()
    assert table.min() > 0


def test_holes_stand_anywhere_in_about_as_many_places_as_asked():
    rows = presets.mapping(FLASH_C4A, 40).topk_indices
    assert 0.08 < (rows < 0).float().mean() < 0.17
    assert (rows[:, 0] < 0).any()
    assert (rows[:, -1] < 0).any()
    assert (rows[:, -1] >= 0).any()


def test_padding_rows_are_invalid_with_a_stale_request():
    batch = presets.decode(SMALL, 3, 50, padding=2)
    assert batch.tokens == 5
    assert batch.is_valid_token.tolist() == [True] * 3 + [False] * 2
    assert batch.token_to_req_indices.tolist()[3:] == [1 << 29] * 2
    assert batch.query_start_loc.tolist() == [0, 1, 2, 3]


def test_kinds_are_what_they_are_called():
    assert presets.chunked_prefill(SMALL, 9, 100).query_start_loc.tolist() == [700, 709]
    mixed = presets.mixed(SMALL, 21)
    lens = mixed.query_start_loc.diff().tolist()
    assert sum(lens) == 21
    assert 0 in lens
    assert len(set(lens)) > 3
    prefill = presets.prefill(SMALL, 33)
    assert prefill.seq_lens.tolist() == prefill.gather_lens.tolist() == [33]
    assert presets.decode(SMALL, 4, 90).gather_lens.tolist() == [8] * 4
    each = presets.batch(FLASH_C4A, [128] * 64, [8192] * 64)
    assert set(each.gather_lens.tolist()) == {255}
    swa = presets.decode(SWA_ONLY, 2, 50)
    assert (swa.N, swa.M) == (0, 50)
    assert (swa.topk_indices == -1).all()


def test_lengths_and_workspaces_follow_from_the_arguments():
    mapping = presets.mapping(SMALL, 7, 3)
    assert mapping.query_start_loc.diff().tolist() == [3, 2, 2]
    assert mapping.block_table.shape == (3, 16_384 // 4)
    # 9 tokens have 9 // 4 = 2 compressed keys; the windows of 3 new tokens reach 3 + 7 tokens back.
    batch = presets.batch(SMALL, [3, 1], [9, 40], first_query_start=5)
    assert batch.query_start_loc.tolist() == [5, 8, 9]
    assert batch.token_to_req_indices.tolist() == [0, 0, 0, 1]
    assert batch.gather_lens.tolist() == [9, 8]
    assert (batch.N, batch.M) == (10, 10 + 9)
    batch = presets.batch(SMALL, [3], [9], gather_lens=[5])
    assert batch.gather_lens.tolist() == [5]
    assert (batch.N, batch.M) == (2, 7)


def test_a_window_lies_inside_what_was_gathered():
    for kind in ("decode", "prefill", "chunk", "mixed"):
        batch = KINDS[kind]()
        query_lens = batch.query_start_loc.diff()
        oldest = (batch.seq_lens - query_lens - SMALL.window_size + 1).clamp(min=0)
        assert (batch.seq_lens - batch.gather_lens <= oldest)[query_lens > 0].all()
        assert (batch.gather_lens <= batch.M - batch.N).all()


def test_strided_views_and_another_device():
    batch = presets.mixed(SMALL, 9, row_stride=13, table_stride=50)
    assert batch.topk_indices.stride() == (13, 1)
    assert batch.block_table.stride() == (50, 1)
    moved = batch.to("meta")
    assert moved.topk_indices.device.type == "meta"
    assert moved.topk_indices.stride() == (13, 1)
    assert batch.to("cpu").topk_indices is batch.topk_indices


def test_lengths_that_do_not_agree():
    with pytest.raises(ValueError, match="seq_lens must have 2 entries"):
        presets.batch(SMALL, [1, 2], [3])
    with pytest.raises(ValueError, match="row_stride must be at least the width 8, got 7"):
        presets.prefill(SMALL, 3, row_stride=7)
