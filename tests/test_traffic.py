"""Bytes counted by hand, and against what a run really reads and writes."""

from dsv4kernels import combine, presets
from dsv4kernels.launches import traffic
from dsv4kernels.presets import FLASH_C4A

SMALL = FLASH_C4A.replace(name="small", topk=2, row_width=3, window_size=2)


def test_slot_mapping_by_hand():
    batch = presets.decode(SMALL, 2, 100)  # 25 keys: one block a request
    # in: 2 rows of 3, 2 table entries, 2 requests and 2 bools; out: 2 rows of 3, 2 lengths
    assert traffic.slot_mapping(batch) == (2 * 3 * 4 + 2 * 4 + 2 * 4 + 2, 2 * 3 * 4 + 2 * 4)


def test_combine_by_hand():
    batch = presets.batch(SMALL, [3], [8])
    # positions 5, 6, 7: 1, 1, 2 compressed keys, 2 in the window; rows of 128 and a length
    assert traffic.combine_entries(batch) == (4, 6)
    required = traffic.combine(batch)
    assert required == ((4 + 3 + 2) * 4 - 4, 3 * 129 * 4)
    published = traffic.combine_published(batch)
    assert traffic.fill(batch) == 3 * 128 * 4
    assert published.written == 3 * 128 * 4 + (4 + 6 + 3) * 4
    assert published.total - required.total == (4 + 6) * 4


def test_warm_up_positions_are_negative():
    assert traffic.combine_entries(presets.batch(SMALL, [4], [2])) == (0, 1 + 2)


def test_entries_are_what_a_run_writes():
    for batch in (
        presets.mixed(SMALL, 15),
        presets.prefill(FLASH_C4A, 9),
        presets.chunked_prefill(SMALL, 5, 40),
        presets.decode(presets.SWA_ONLY, 3, 77),
    ):
        _, lens = combine.combine_topk_swa_indices(*batch.combine_args())
        assert sum(traffic.combine_entries(batch)) == int(lens.sum())
