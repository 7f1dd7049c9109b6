"""A wrong argument is named, with what came and what is needed, and nothing is written."""

import pytest
import torch
from conftest import POISON, int32, poisoned

from dsv4kernels import combine, presets, slot_mapping

SMALL = presets.FLASH_C4A.replace(name="small", topk=8, row_width=8, window_size=8)
BATCH = presets.mixed(SMALL, 6)
TOKENS = BATCH.tokens

MAPPING = ("topk_indices", "token_to_req_indices", "block_table", "block_size", "is_valid_token")
DCP = (*MAPPING, "dcp_world_size", "dcp_rank", "cp_kv_cache_interleave_size")
COMBINE = (
    *("topk_indices", "query_start_loc", "seq_lens", "gather_lens"),
    *("window_size", "compress_ratio", "topk", "M", "N"),
)
GOOD = {
    "mapping": dict(zip(MAPPING, BATCH.slot_mapping_args(), strict=True)),
    "dcp": dict(zip(DCP, BATCH.dcp_args(2, 1, 2), strict=True)),
    "combine": dict(zip(COMBINE, BATCH.combine_args(), strict=True)),
}
WIDTH = {"mapping": 8, "dcp": 8, "combine": 128}
FUNCTIONS = {
    "mapping": slot_mapping.compute_global_topk_indices_and_lens,
    "dcp": slot_mapping.compute_dcp_global_topk_indices_and_lens,
    "combine": combine.combine_topk_swa_indices,
}


def refused(kernel, error, *words, **wrong):
    """The call raises `error` with every word in its message, and leaves the outputs alone."""
    out = wrong.pop("out", None) or poisoned(TOKENS, WIDTH[kernel])
    options = {key: wrong.pop(key) for key in ("variant", "num_workers") if key in wrong}
    with pytest.raises(error) as caught:
        FUNCTIONS[kernel](*(GOOD[kernel] | wrong).values(), out=out, **options)
    for word in words:
        assert str(word) in str(caught.value)
    if isinstance(out, tuple):
        assert all((tensor == POISON).all() for tensor in out if tensor.device.type == "cpu")


TENSORS = [
    (kernel, name)
    for kernel, arguments in GOOD.items()
    for name, value in arguments.items()
    if isinstance(value, torch.Tensor)
]


@pytest.mark.parametrize(("kernel", "name"), TENSORS)
class TestATensor:
    def test_of_another_type(self, kernel, name):
        refused(kernel, TypeError, name, "torch.Tensor", "list", **{name: [1, 2]})

    def test_of_another_dtype(self, kernel, name):
        wrong = GOOD[kernel][name].to(torch.int64)
        refused(kernel, TypeError, name, GOOD[kernel][name].dtype, "int64", **{name: wrong})

    def test_of_another_rank(self, kernel, name):
        wrong = GOOD[kernel][name][None]
        refused(kernel, ValueError, name, list(wrong.shape), **{name: wrong})

    def test_on_another_device(self, kernel, name):
        wrong = GOOD[kernel][name].to("meta")
        words = () if name == "topk_indices" else (name, "meta", "cpu")
        refused(kernel, ValueError, *words, **{name: wrong})

    def test_not_contiguous(self, kernel, name):
        value = GOOD[kernel][name]
        wrong = torch.repeat_interleave(value, 2, dim=-1)[..., ::2]
        refused(kernel, ValueError, name, "contiguous", list(wrong.stride()), **{name: wrong})


@pytest.mark.parametrize("kernel", ["mapping", "dcp"])
def test_lengths_that_do_not_agree_with_the_rows(kernel):
    valid, requests = BATCH.is_valid_token, BATCH.token_to_req_indices
    words = ("is_valid_token", f"[{TOKENS}]", f"[{TOKENS + 1}]")
    refused(kernel, ValueError, *words, is_valid_token=torch.cat([valid, valid[:1]]))
    words = ("token_to_req_indices", TOKENS, TOKENS - 1)
    refused(kernel, ValueError, *words, token_to_req_indices=requests[1:])


def test_lengths_that_do_not_agree_with_the_requests():
    refused("combine", ValueError, "query_start_loc", query_start_loc=BATCH.query_start_loc[1:])
    refused("combine", ValueError, "gather_lens", gather_lens=BATCH.gather_lens[1:])


@pytest.mark.parametrize(("kernel", "name"), [("mapping", "topk_indices"), ("dcp", "block_table")])
def test_rows_that_overlap(kernel, name):
    value = GOOD[kernel][name]
    wrong = torch.as_strided(value, value.shape, (value.shape[1] - 1, 1))
    refused(kernel, ValueError, name, "overlap", **{name: wrong})


NUMBERS = [
    ("mapping", "block_size", 0, "at least 1"),
    ("dcp", "dcp_world_size", 0, "at least 1"),
    ("dcp", "dcp_rank", -1, "at least 0"),
    ("dcp", "dcp_rank", 2, "below dcp_world_size 2"),
    ("dcp", "cp_kv_cache_interleave_size", 0, "at least 1"),
    ("dcp", "cp_kv_cache_interleave_size", 3, "divide block_size 64"),
    ("combine", "window_size", 0, "at least 1"),
    ("combine", "compress_ratio", 0, "at least 1"),
    ("combine", "topk", -1, "at least 0"),
    ("combine", "topk", 9, "at most the 8 columns"),
    ("combine", "M", -1, "at least 0"),
    ("combine", "N", -1, "at least 0"),
    ("combine", "M", 2**31 - 1, "int32"),
    ("combine", "num_workers", 0, "at least 1"),
    ("combine", "num_workers", 65_536, "65,535"),
]


@pytest.mark.parametrize(("kernel", "name", "value", "needed"), NUMBERS)
def test_a_number_out_of_range(kernel, name, value, needed):
    refused(kernel, ValueError, name, value, needed, **{name: value})


@pytest.mark.parametrize(("kernel", "name"), sorted({(k, n) for k, n, *_ in NUMBERS}))
def test_a_number_of_another_type(kernel, name):
    refused(kernel, TypeError, name, "int", "float", **{name: 2.0})
    refused(kernel, TypeError, name, "int", "bool", **{name: True})


def test_an_unknown_variant():
    refused("mapping", ValueError, "variant", "own, runtime, constexpr", variant="fastest")


@pytest.mark.parametrize("kernel", FUNCTIONS)
def test_outputs_are_checked_like_inputs(kernel):
    width = WIDTH[kernel]
    indices, lens = poisoned(TOKENS, width)
    refused(kernel, TypeError, "out", "pair", "dict", out={"indices": indices})
    refused(kernel, TypeError, "out[0]", "int64", out=(indices.long(), lens))
    refused(kernel, ValueError, "out[0]", [TOKENS, width - 1], out=(indices[:, 1:], lens))
    refused(kernel, ValueError, "out[1]", [TOKENS - 1], out=(indices, lens[1:]))
    refused(kernel, ValueError, "out[0]", "meta", out=(indices.to("meta"), lens))
    overlapping = torch.as_strided(indices, (TOKENS, width), (width - 1, 1))
    refused(kernel, ValueError, "out[0]", "overlap", out=(overlapping, lens))


def test_what_is_right_is_let_through():
    for kernel, function in FUNCTIONS.items():
        function(*GOOD[kernel].values(), out=poisoned(TOKENS, WIDTH[kernel], stride=200))
    # A single row may have any stride, and an argument that is not read may be out of range.
    one = torch.as_strided(int32([3, 4, 5]), (1, 3), (1, 1))
    args = (one, int32([0]), int32([[7]]), 64, torch.tensor([True]))
    slots, lens = slot_mapping.compute_global_topk_indices_and_lens(*args)
    assert (slots.tolist(), lens.tolist()) == ([[451, 452, 453]], [3])
