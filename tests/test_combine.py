"""Combine against the reference: the project's own kernel and the published one."""

import json
from pathlib import Path

import pytest
import torch
from helpers import POISON, assert_same, far_apart, int32, poisoned
from test_reference import assert_case

from dsv4kernels import combine, presets, reference
from dsv4kernels.launches.trace import OUTSIDE, trace
from dsv4kernels.presets import C128A, FLASH_C4A, PRO_C4A, SWA_ONLY

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
SMALL = FLASH_C4A.replace(name="small", topk=8, row_width=8, window_size=8)
VARIANTS = (None, 1, 3)  # None is the project's own kernel; 128 and 256 workers where it matters


def run(args, num_workers, out=None):
    return combine.combine_topk_swa_indices(*args, num_workers=num_workers, out=out)


def check(batch, num_workers):
    args = batch.combine_args()
    expected = reference.combine_topk_swa_indices(*args)
    out = poisoned(*expected[0].shape)
    assert_same(run(args, num_workers, out), expected)
    return out


BATCHES = {
    "decode": lambda: presets.decode(SMALL, 5, 90),
    "prefill": lambda: presets.prefill(SMALL, 70),
    "chunk of a longer prompt": lambda: presets.chunked_prefill(SMALL, 9, 100),
    "mixed lengths": lambda: presets.mixed(SMALL, 40),
    "tokens that belong to no request": lambda: presets.mixed(SMALL, 9, padding=7),
    "rows that are views of wider ones": lambda: presets.mixed(SMALL, 9, row_stride=13),
    "requests without tokens": lambda: presets.batch(SMALL, [0, 3, 0, 0, 2, 0], [4, 9, 0, 7, 2, 5]),
    "warm-up: sequences shorter than queries": lambda: presets.batch(SMALL, [6, 3], [2, 1]),
    "one token a request": lambda: presets.batch(SMALL, [1] * 9, range(1, 10)),
    "window of one": lambda: presets.prefill(SMALL.replace(window_size=1), 12),
    "window wider than 128": lambda: presets.batch(SMALL.replace(window_size=200), [5], [300]),
    "window not a power of two": lambda: presets.prefill(SMALL.replace(window_size=5), 12),
    "topk smaller than the row": lambda: presets.prefill(SMALL.replace(topk=5), 30),
    "topk not a multiple of four": lambda: presets.prefill(SMALL.replace(topk=7, row_width=7), 40),
    "sliding window only": lambda: presets.batch(SWA_ONLY, [5, 0, 9], [5, 3, 200]),
    "ratio 1": lambda: presets.prefill(SMALL.replace(compress_ratio=1), 12),
    "the whole width of C4A": lambda: presets.batch(FLASH_C4A, [3, 2], [9000, 400]),
    "the whole width of Pro C4A": lambda: presets.batch(PRO_C4A, [3], [9000]),
    "the whole width of C128A": lambda: presets.batch(C128A, [2], [1_048_576]),
}


@pytest.mark.parametrize("num_workers", VARIANTS)
@pytest.mark.parametrize("kind", BATCHES)
def test_equals_the_reference(kind, num_workers):
    check(BATCHES[kind](), num_workers)


@pytest.mark.parametrize("num_workers", [128, 256])
def test_most_workers_have_no_row(num_workers):
    check(presets.batch(SMALL, [3, 2], [9, 40], padding=2, first_query_start=5), num_workers)


@pytest.mark.parametrize("num_workers", VARIANTS)
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["kernel"] == "combine_topk_swa_indices"],
    ids=lambda case: case["why"],
)
def test_case(case, num_workers):
    args = [int32(v) if isinstance(v, list) else v for v in case["args"].values()]
    out = poisoned(args[0].shape[0], case["expect"]["width"])
    assert_case(*run(args, num_workers, out), case["expect"])


@pytest.mark.parametrize("num_workers", [None, 128, 256])
def test_rows_across_worker_tiles(num_workers):
    check(presets.batch(SMALL, [129, 171]), num_workers)


def test_a_second_and_third_pass_of_256_workers():
    check(presets.batch(SMALL, [129, 600], [500, 600]), 256)


def test_more_requests_than_are_looked_through_at_a_time():
    # 128 at a time: a third look for the last rows, and empty requests by the hundred in between.
    lens = [i % 3 for i in range(30)] + [0] * 200 + [1, 2, 0, 1] + [0] * 60
    seq_lens = [n + 40 + i for i, n in enumerate(lens)]
    check(presets.batch(SMALL, lens, seq_lens, padding=3, first_query_start=7), None)


@pytest.mark.parametrize("num_workers", VARIANTS)
@pytest.mark.parametrize("query_lens", [[], [0, 0]])
def test_nothing_to_combine(query_lens, num_workers):
    indices, lens = run(presets.batch(SMALL, query_lens).combine_args(), num_workers)
    assert indices.shape == (0, 128)
    assert lens.shape == (0,)


@pytest.mark.parametrize("num_workers", VARIANTS)
def test_only_requests_without_tokens_before_the_padding(num_workers):
    out = check(presets.batch(SMALL, [0, 0], [5, 9], padding=5), num_workers)
    assert (out[0] == -1).all()
    assert out[1].tolist() == [0] * 5


@pytest.mark.parametrize("num_workers", VARIANTS)
def test_tokens_without_requests(num_workers):
    out = check(presets.batch(SMALL, [], padding=3), num_workers)
    assert (out[0] == -1).all()
    assert out[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("num_workers", VARIANTS)
def test_topk_indices_are_not_read_where_topk_is_0(num_workers):
    batch = presets.batch(SWA_ONLY.replace(compress_ratio=0), [4], [9])
    batch.topk_indices.fill_(123_456)
    indices, _ = check(batch, num_workers)
    assert (indices != 123_456).all()


@pytest.mark.parametrize("num_workers", VARIANTS)
def test_out_is_written_in_place_and_nothing_beside_it(num_workers):
    batch = presets.mixed(SMALL, 12, padding=2)
    indices, lens = poisoned(batch.tokens, 128, stride=131)
    got = run(batch.combine_args(), num_workers, (indices, lens))
    assert got[0] is indices
    assert got[1] is lens
    assert_same(got, reference.combine_topk_swa_indices(*batch.combine_args()))
    beside = torch.as_strided(indices, (batch.tokens, 3), (131, 1), 128)
    assert (beside == POISON).all()


@pytest.mark.parametrize("num_workers", VARIANTS)
def test_new_outputs_are_wholly_written(num_workers):
    torch.use_deterministic_algorithms(True)  # fills what is allocated with 2147483647
    try:
        batch = presets.mixed(SMALL, 12, padding=2)
        assert_same(
            run(batch.combine_args(), num_workers),
            reference.combine_topk_swa_indices(*batch.combine_args()),
        )
    finally:
        torch.use_deterministic_algorithms(False)


def test_own_touches_nothing_outside_whatever_the_values():
    batch = presets.batch(SMALL, [5, 4, 3], padding=2)
    for starts in (
        [0, 9, 2, 12],
        [0, -5, 700, 3],
        [0, 100, 200, 300],
        [7, 7, 7, 7],
        [-1, 5, 9, 12],
        [-(2**31), 5, 9, 12],
        [2**31 - 1, 5, 9, 12],
        [0, 3, 1, 4],
    ):
        batch.query_start_loc.copy_(int32(starts))
        out = indices, lens = poisoned(batch.tokens, 128)
        _, launch = combine.plan(*batch.combine_args(), out=out)
        accesses = trace(launch)
        assert OUTSIDE not in set(accesses.tensor), starts
        stored = accesses[accesses.op == "store"]
        assert not stored.duplicated(["tensor", "row", "column"]).any(), starts
        assert (lens != POISON).all()
        assert (indices != POISON).all()


@pytest.mark.parametrize("first", [-(2**31), -3, 2**31 - 1 - 9])
def test_the_first_start_may_be_any_int32(first):
    batch = presets.batch(SMALL, [5, 4], [60, 30], padding=4)
    expected = reference.combine_topk_swa_indices(*batch.combine_args())
    batch.query_start_loc.add_(first)
    outputs, launch = combine.plan(*batch.combine_args())
    assert OUTSIDE not in set(trace(launch).tensor)
    assert_same(outputs, expected)


@pytest.mark.parametrize("num_workers", [None, 3])
def test_no_column_past_the_row_is_read(num_workers):
    # The own kernel loads four columns at a time; the seventh is the last there is.
    small = SMALL.replace(topk=7, row_width=7)
    batch = presets.batch(small, [5, 2], [60, 30], row_stride=13, padding=1)
    _, launch = combine.plan(*batch.combine_args(), num_workers=num_workers)
    assert OUTSIDE not in set(trace(launch).tensor)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_element_has_one_writer(workers):
    # Of the published kernel, whose second writer would go unseen where programs run in order.
    batch = presets.batch(SMALL, [3, 0, 4], [30, 5, 4], padding=4)
    _, launch = combine.plan(*batch.combine_args(), num_workers=workers)
    accesses = trace(launch)
    assert OUTSIDE not in set(accesses.tensor)
    stored = accesses[accesses.op == "store"]
    assert not stored.duplicated(["tensor", "row", "column"]).any()
    assert sorted(stored[stored.tensor == "lens"].row) == list(range(batch.tokens))


@pytest.mark.parametrize("num_workers", VARIANTS)
@pytest.mark.parametrize("topk", [0, 8])
def test_addresses_take_64_bits(topk, num_workers):
    args = list(presets.batch(SMALL.replace(topk=topk), [1, 2], [60, 90]).combine_args())
    expected = reference.combine_topk_swa_indices(*args)
    args[0] = far_apart(args[0])
    indices, lens = far_apart(torch.full((3, 128), POISON)), poisoned(3, 1)[1]
    assert_same(run(args, num_workers, (indices, lens)), expected)


@pytest.mark.parametrize("num_workers", VARIANTS)
def test_rows_may_start_at_any_column(num_workers):
    args = list(presets.mixed(SMALL, 9, padding=2).combine_args())
    expected = reference.combine_topk_swa_indices(*args)
    args[0] = torch.nn.functional.pad(args[0], (1, 2), value=999)[:, 1:-2]
    indices, lens = poisoned(11, 131)
    assert_same(run(args, num_workers, (indices[:, 3:], lens)), expected)
    assert (indices[:, :3] == POISON).all()


@pytest.mark.parametrize("num_workers", VARIANTS)
def test_a_layer_without_a_topk_buffer(num_workers):
    empty = torch.empty(2, 0, dtype=torch.int32)
    # positions 3 and 4 of 5 gathered tokens, window 3: rows 4 + 1..3 and 4 + 2..4
    args = (empty, int32([0, 2]), int32([5]), int32([5]), 3, 0, 0, 9, 4)
    indices, lens = run(args, num_workers)
    assert [row[:4] for row in indices.tolist()] == [[5, 6, 7, -1], [6, 7, 8, -1]]
    assert lens.tolist() == [3, 3]


def test_published_width():
    assert combine.output_width(512, 128) == 640
    assert combine.output_width(8192, 128) == 8320
    assert combine.output_width(0, 1) == 128
