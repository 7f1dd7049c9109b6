"""Persistent buffers, dispatch keys and padding, replayed under changing batches."""

import pandas as pd
import pytest
import torch
from helpers import assert_same

from dsv4kernels import combine, presets, runtime, slot_mapping
from dsv4kernels.launches.graphs import MetadataGraphs
from dsv4kernels.measure import records
from dsv4kernels.plots import graphs as pictures

SMALL = presets.FLASH_C4A.replace(name="small", topk=8, row_width=8, window_size=8, block_size=4)
ROOM = {"max_requests": 6, "max_blocks": 50, "M": 200, "N": 64}
BATCHES = {
    "mixed": lambda: presets.mixed(SMALL, 11),
    "decode": lambda: presets.decode(SMALL, 3, 90),
    "as many as the key": lambda: presets.prefill(SMALL, 8),
    "chunk": lambda: presets.chunked_prefill(SMALL, 5, 70),
    "one": lambda: presets.decode(SMALL, 1, 20),
    "padded already": lambda: presets.decode(SMALL, 3, 40, padding=2),
    "the largest": lambda: presets.prefill(SMALL, 16),
    "one again": lambda: presets.decode(SMALL, 1, 20),
}


def fitted(batch, **changes):
    """The batch with the engine's workspace geometry."""
    return type(batch)(**(vars(batch) | {"M": ROOM["M"], "N": ROOM["N"]} | changes))


def graphs(preset=SMALL, keys=(4, 8, 16)):
    return MetadataGraphs(preset, keys, **ROOM)


def direct(batch):
    return (
        slot_mapping.compute_global_topk_indices_and_lens(*batch.slot_mapping_args()),
        combine.combine_topk_swa_indices(*batch.combine_args()),
    )


def check(owner, batch):
    mapped, combined = owner.replay(batch)
    wanted_slots, wanted_rows = direct(batch)
    assert_same(mapped, wanted_slots, batch.is_valid_token)
    assert_same(combined, wanted_rows)


def test_changing_batches_equal_direct_calls():
    owner = graphs()
    for make in [*BATCHES.values(), *reversed(BATCHES.values())]:
        check(owner, fitted(make()))


def test_padding_rows_have_length_0_whatever_they_hold():
    owner = graphs()
    owner.replay(fitted(BATCHES["the largest"]()))
    owner.inputs.token_to_req_indices[3:] = 0  # looks real, and so do the rows left behind
    owner.replay(fitted(presets.decode(SMALL, 3, 90)))
    assert owner.slot_lens[3:4].tolist() == [0]
    assert owner.index_lens[3:4].tolist() == [0]
    assert (owner.indices[3:4] == -1).all()


def test_an_earlier_larger_batch_is_not_seen_through_the_table():
    owner = graphs()
    for larger in ("mixed", "the largest", "decode"):  # more requests, or more blocks
        owner.replay(fitted(BATCHES[larger]()))
        batch = fitted(presets.decode(SMALL, 2, 20))
        batch.topk_indices[0, :2] = torch.tensor([150, 21])  # past this batch's table
        batch.token_to_req_indices[1] = 2  # a request that only the larger one had
        check(owner, batch)
        assert (owner.inputs.block_table[2:] == -1).all()
        assert (owner.inputs.block_table[:, batch.block_table.shape[1] :] == -1).all()


def test_inputs_written_in_place_are_run_without_a_copy():
    owner, batch = graphs(), fitted(BATCHES["decode"]())
    owner.replay(batch)
    owner.inputs.topk_indices[:3] += 1
    batch.topk_indices.add_(1)
    mapped, combined = owner.run(3)
    assert_same(mapped, direct(batch)[0])
    assert_same(combined, direct(batch)[1])


def test_a_batch_takes_the_smallest_key_that_holds_it():
    owner = graphs()
    assert [owner.key(n) for n in (1, 4, 5, 8, 9, 16)] == [4, 4, 8, 8, 16, 16]
    with pytest.raises(ValueError, match="17 tokens exceed the largest captured size, 16"):
        owner.replay(fitted(presets.prefill(SMALL, 17)))


def test_outputs_are_views_that_stay_where_they_are():
    owner = graphs()
    first = owner.replay(fitted(BATCHES["decode"]()))
    again = owner.replay(fitted(BATCHES["one"]()))
    for (one, lens), (other, other_lens) in zip(first, again, strict=True):
        assert one.data_ptr() == other.data_ptr()
        assert lens.data_ptr() == other_lens.data_ptr()
    assert again[0][0].shape == (1, 8)


def test_what_does_not_fit_is_refused():
    owner = graphs()
    with pytest.raises(ValueError, match="7 requests exceed the 6"):
        owner.replay(fitted(presets.decode(SMALL, 7, 20)))
    with pytest.raises(ValueError, match="blocks exceed the 50"):
        owner.replay(fitted(presets.decode(SMALL, 1, 4000)))
    with pytest.raises(ValueError, match="M = 200, N = 64, got 500"):
        owner.replay(fitted(presets.decode(SMALL, 1, 20), M=500))
    wide = presets.decode(SMALL.replace(row_width=9), 1, 20)
    with pytest.raises(ValueError, match="8 columns, got 9"):
        owner.replay(fitted(wide))
    with pytest.raises(ValueError, match="block_size=2"):
        owner.replay(fitted(presets.decode(SMALL.replace(block_size=2), 1, 20)))
    batch = fitted(presets.decode(SMALL, 1, 20))
    with pytest.raises(TypeError, match=r"topk_indices must be torch.int32 on .*, got torch.int64"):
        owner.replay(fitted(batch, topk_indices=batch.topk_indices.long()))
    with pytest.raises(ValueError, match="5 is not one of the keys"):
        owner.capture(5)
    with pytest.raises(ValueError, match="at least 1"):
        MetadataGraphs(SMALL, [0], **ROOM)


def test_a_layer_with_a_window_only():
    swa = presets.SWA_ONLY.replace(name="swa", row_width=8, window_size=8)
    owner = graphs(swa)
    batch = fitted(presets.batch(swa, [3, 2], [5, 30]))
    _, combined = owner.replay(batch)
    assert_same(combined, combine.combine_topk_swa_indices(*batch.combine_args()))


def recorded(**changes):
    times = {"protocol": ["host", "graph", "host"], "median_us": [20.0, 2.0, 30.0]}
    times |= {
        f"{p}_us": [us * f for us in times["median_us"]] for p, f in (("p20", 0.9), ("p80", 1.1))
    }
    same = {"kernel": "combine", "variant": "own", "cache": "warm", "device": "A GPU"}
    return pd.DataFrame(times | same | changes)


def test_each_recording_of_a_call_is_drawn_and_none_averaged():
    axes = pictures.dispatch(recorded(), "made up").axes[0]
    assert axes.get_title(loc="left") == "Asking takes 10 to 15 times as long as doing"
    assert [text.get_text() for text in axes.texts] == ["20, 30", "2"]
    for changes in ({"device": ["A", "A", "B"]}, {"cache": ["warm", "cold", "warm"]}):
        with pytest.raises(records.DataError, match="must not mix"):
            pictures.dispatch(recorded(**changes), "made up")
    with pytest.raises(records.DataError, match="no row with protocol = 'graph'"):
        pictures.dispatch(recorded(protocol="host"), "made up")


@pytest.mark.skipif(not runtime.has_gpu(), reason="no GPU here: nothing is captured")
def test_ten_thousand_replays_of_a_captured_graph():
    owner = graphs()
    batches = [fitted(make()) for make in BATCHES.values()]
    wanted = [direct(batch) for batch in batches]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for step in range(10_000):
        batch, (slots, rows) = batches[step % len(batches)], wanted[step % len(batches)]
        mapped, combined = owner.replay(batch)
        valid = batch.is_valid_token[:, None]
        wrong += ((mapped[0] != slots[0]) & valid).sum() + (mapped[1] != slots[1]).sum()
        wrong += (combined[0] != rows[0]).sum() + (combined[1] != rows[1]).sum()
    assert wrong.item() == 0


@pytest.mark.skipif(not runtime.has_gpu(), reason="no GPU here: nothing is captured")
def test_a_replay_neither_allocates_nor_waits():
    owner, batches = graphs(), [fitted(make()) for make in BATCHES.values()]
    for batch in batches:
        owner.replay(batch)  # every key captured, every kernel of the copies loaded

    def allocations():
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    before = allocations()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches:
            owner.replay(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert allocations() == before
