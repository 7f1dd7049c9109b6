"""How outputs change as a batch does: relations between calls, which need no reference."""

import itertools

import pytest
import torch
from drawn import OTHERS, OWN, RedZone, batches, caller, examples, geometries, splits
from helpers import assert_same
from hypothesis import given
from hypothesis import strategies as st

from dsv4kernels import presets
from dsv4kernels.presets import Batch

MAPPINGS, COMBINES = (
    st.sampled_from(OWN[kernel] + OTHERS[kernel]) for kernel in ("slot_mapping", "combine")
)


def mapped(variant, batch):
    return caller("slot_mapping", variant)(*batch.slot_mapping_args())


def combined(variant, batch):
    return caller("combine", variant)(*batch.combine_args())


def changed(batch, **tensors):
    return Batch(**(vars(batch) | tensors))


def added(indices, number):
    """A number added to what is not empty."""
    return torch.where(indices >= 0, indices + number, indices)


def rows_of(batch, chosen):
    """The tokens of the chosen requests, in that order."""
    start = (batch.query_start_loc - batch.query_start_loc[0]).tolist()
    return [token for r in chosen for token in range(start[r], start[r + 1])]


def of_requests(batch, chosen, first_start=0):
    """A batch of only the chosen requests, in that order, without padding; M and N as they were."""
    rows = rows_of(batch, chosen)
    query_lens = batch.query_start_loc.diff()[chosen]
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), query_lens.cumsum(0)]) + first_start
    number = torch.arange(len(chosen), dtype=torch.int32)
    return changed(
        batch,
        topk_indices=batch.topk_indices[rows],
        token_to_req_indices=torch.repeat_interleave(number, query_lens),
        is_valid_token=batch.is_valid_token[rows],
        block_table=batch.block_table[chosen],
        query_start_loc=starts.int(),
        seq_lens=batch.seq_lens[chosen],
        gather_lens=batch.gather_lens[chosen],
    )


@examples(12)
@given(batches(least_requests=1, paddings=0), MAPPINGS, COMBINES, st.data())
def test_permuting_requests_permutes_rows(batch, mapping, combining, data):
    order = data.draw(st.permutations(range(batch.requests)))
    other, rows = of_requests(batch, order), rows_of(batch, order)
    slots, lens = mapped(mapping, batch)
    assert_same(mapped(mapping, other), (slots[rows], lens[rows]))
    indices, lens = combined(combining, batch)
    # A request's workspace lies where its new number says.
    further = batch.M * (other.token_to_req_indices - batch.token_to_req_indices[rows])
    used = torch.arange(indices.shape[1]) < lens[rows, None]
    moved = torch.where(used, indices[rows] + further[:, None], -1)
    assert_same(combined(combining, other), (moved, lens[rows]))


@examples(12)
@given(batches(least_requests=1, paddings=0), MAPPINGS, COMBINES, st.data())
def test_chunks_of_requests_make_up_the_whole(batch, mapping, combining, data):
    cut = data.draw(st.integers(0, batch.requests))
    halves = [range(cut), range(cut, batch.requests)]
    chunks = [of_requests(batch, list(half), first_start=7) for half in halves]
    whole = [torch.cat(parts) for parts in zip(*(mapped(mapping, c) for c in chunks), strict=True)]
    assert_same(mapped(mapping, batch), whole)
    # A chunk counts its requests from 0, and so its workspaces: those of the whole lie further on.
    (first, first_lens), (second, second_lens) = (combined(combining, c) for c in chunks)
    lens = torch.cat([first_lens, second_lens])
    used = torch.arange(first.shape[1]) < second_lens[:, None]
    second = torch.where(used, second + batch.M * cut, second)
    assert_same(combined(combining, batch), (torch.cat([first, second]), lens))


@examples(12)
@given(geometries(), st.integers(1, 8), st.integers(0, 99), COMBINES, st.data())
def test_chunks_of_one_request_make_up_the_whole(preset, query_len, context, combining, data):
    cut = data.draw(st.integers(0, query_len))
    batch = presets.batch(preset, [query_len], [query_len + context], device="cpu")

    def rows(start, end):
        """Tokens [start, end) of the query; all that the sequence then has is gathered."""
        seen = batch.seq_lens - query_len + end
        return combined(
            combining,
            changed(
                batch,
                topk_indices=batch.topk_indices[start:end],
                query_start_loc=torch.tensor([start, end], dtype=torch.int32),
                seq_lens=seen,
                gather_lens=seen,
            ),
        )

    parts = zip(rows(0, cut), rows(cut, query_len), strict=True)
    assert_same(rows(0, query_len), [torch.cat(part) for part in parts])


@examples(15)
@given(batches(least_requests=1), st.data())
def test_each_position_is_kept_by_one_rank_in_order(batch, data):
    world, _, interleave = data.draw(splits(batch.preset.block_size))
    own = batch.preset.block_size
    undistributed = caller("slot_mapping", "own")(
        batch.topk_indices, batch.token_to_req_indices, batch.block_table, own * world,
        batch.is_valid_token,
    )[0]  # fmt: skip
    kept_by_rank = []
    for rank in range(world):
        slots, lens = caller("dcp", "own")(*batch.dcp_args(world, rank, interleave))
        assert torch.equal(slots >= 0, torch.arange(slots.shape[1]) < lens[:, None])
        number, offset = slots // own, slots % own
        stripe, inside = offset // interleave, offset % interleave
        global_offset = (stripe * world + rank) * interleave + inside
        kept_by_rank.append(torch.where(slots >= 0, number * own * world + global_offset, -1))
    for token, row in enumerate(undistributed.tolist()):
        wanted = [slot for slot in row if slot >= 0 and batch.is_valid_token[token]]
        kept = [[slot for slot in ranks[token].tolist() if slot >= 0] for ranks in kept_by_rank]
        assert sorted(itertools.chain(*kept)) == sorted(wanted)
        for slots in kept:
            assert slots == [slot for slot in wanted if slot in set(slots)]


@pytest.mark.parametrize("kernel", OWN)
def test_strides_buffers_and_spare_entries_change_nothing(kernel):
    @examples(12)
    @given(batches(), st.sampled_from(OWN[kernel] + OTHERS[kernel]), st.data())
    def holds(batch, variant, data):
        gap = data.draw(st.integers(1, 40))

        def wider(matrix):
            return torch.nn.functional.pad(matrix, (0, gap), value=5)[:, : matrix.shape[1]]

        spare = data.draw(st.integers(0, 3))
        other = changed(
            batch,
            topk_indices=wider(batch.topk_indices),
            block_table=wider(batch.block_table),
            token_to_req_indices=torch.nn.functional.pad(batch.token_to_req_indices, (0, spare)),
        )
        split = data.draw(splits(batch.preset.block_size))
        arguments, others = (
            b.combine_args()
            if kernel == "combine"
            else b.slot_mapping_args() + (split if kernel == "dcp" else ())
            for b in (batch, other)
        )
        function = caller(kernel, variant)
        indices, lens = function(*arguments)
        zone = RedZone(*indices.shape, gap)
        got = function(*others, out=zone.outputs)
        assert got[0] is zone.outputs[0]
        assert got[1] is zone.outputs[1]
        free = batch.is_valid_token if kernel == "slot_mapping" else None
        assert_same(got, (indices, lens), free)
        zone.assert_kept()

    holds()


@examples(12)
@given(batches(), COMBINES, st.integers(-(2**31), 2**31 - 40))
def test_the_first_query_start_changes_nothing(batch, combining, first):
    starts = (batch.query_start_loc - batch.query_start_loc[0]) + first
    other = changed(batch, query_start_loc=starts.int())
    assert_same(combined(combining, other), combined(combining, batch))


@examples(12)
@given(batches(), MAPPINGS, st.integers(1, 1 << 26), st.data())
def test_later_blocks_are_later_slots(batch, mapping, later, data):
    other = changed(batch, block_table=batch.block_table + later)
    slots, lens = mapped(mapping, batch)
    moved = added(slots, later * batch.preset.block_size)
    assert_same(mapped(mapping, other), (moved, lens), batch.is_valid_token)
    split = data.draw(splits(batch.preset.block_size))
    slots, lens = caller("dcp", "own")(*batch.dcp_args(*split))
    moved = added(slots, later * batch.preset.block_size)
    assert_same(caller("dcp", "own")(*other.dcp_args(*split)), (moved, lens))
