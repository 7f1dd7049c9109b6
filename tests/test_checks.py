"""A wrong argument is named, with what came and what is needed, and nothing is written."""

from unittest import mock

import pytest
import torch
from helpers import POISON, int32, poisoned

from dsv4kernels import combine, presets, runtime, slot_mapping

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
    """The call raises `error` with every word in its message; nothing is launched or written."""
    out = wrong.pop("out") if "out" in wrong else poisoned(TOKENS, WIDTH[kernel])
    options = {key: wrong.pop(key) for key in ("variant", "num_workers") if key in wrong}
    launched = mock.patch.object(runtime.Launch, "run", side_effect=AssertionError("launched"))
    with launched, pytest.raises(error) as caught:
        FUNCTIONS[kernel](*(GOOD[kernel] | wrong).values(), out=out, **options)
    for word in words:
        assert str(word) in str(caught.value)
    for tensor in out if isinstance(out, tuple) else ():
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            assert (tensor == torch.tensor(POISON).to(tensor.dtype)).all()


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
    requests = BATCH.requests
    for name, needed in (("query_start_loc", requests + 1), ("gather_lens", requests)):
        wrong = getattr(BATCH, name)[1:]
        refused("combine", ValueError, name, f"[{needed}]", f"[{needed - 1}]", **{name: wrong})
    nothing = dict.fromkeys(("query_start_loc", "seq_lens", "gather_lens"), int32([]).int())
    refused("combine", ValueError, "query_start_loc", "[1]", "[0]", **nothing)


MATRICES = [(kernel, name) for kernel, name in TENSORS if GOOD[kernel][name].dim() == 2]


@pytest.mark.parametrize(("kernel", "name"), MATRICES)
def test_rows_that_overlap(kernel, name):
    value = GOOD[kernel][name]
    for stride in (value.shape[1] - 1, 0):
        wrong = torch.as_strided(value, value.shape, (stride, 1))
        refused(kernel, ValueError, name, "overlap", [stride, 1], **{name: wrong})


NUMBERS = [
    ("mapping", "block_size", 0, "at least 1"),
    ("mapping", "block_size", -64, "at least 1"),
    ("dcp", "block_size", 0, "at least 1"),
    ("dcp", "dcp_world_size", 0, "at least 1"),
    ("dcp", "dcp_rank", -1, "at least 0"),
    ("dcp", "dcp_rank", 2, "below dcp_world_size 2"),
    ("dcp", "cp_kv_cache_interleave_size", 0, "at least 1"),
    ("dcp", "cp_kv_cache_interleave_size", 3, "divide block_size 64"),
    ("combine", "window_size", 0, "at least 1"),
    ("combine", "window_size", -1, "at least 1"),
    ("combine", "compress_ratio", 0, "at least 1"),
    ("combine", "compress_ratio", -4, "at least 1"),
    ("combine", "topk", -1, "at least 0"),
    ("combine", "topk", 9, "at most the 8 columns"),
    ("combine", "M", -1, "at least 0"),
    ("combine", "N", -1, "at least 0"),
    ("combine", "M", 2**31 - 1, "int32"),
    ("combine", "N", 2**31 - 1, "int32"),
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
    for wrong in ("fastest", None, 3):
        needed = "own, runtime, constexpr"
        refused("mapping", ValueError, "variant", needed, repr(wrong), variant=wrong)


def test_a_negative_ratio_is_wrong_where_it_is_not_read_either():
    refused("combine", ValueError, "compress_ratio", "at least 0", -1, topk=0, compress_ratio=-1)


@pytest.mark.parametrize("kernel", FUNCTIONS)
def test_outputs_are_checked_like_inputs(kernel):
    width = WIDTH[kernel]
    indices, lens = poisoned(TOKENS, width)
    refused(kernel, TypeError, "out", "pair", "dict", out={"indices": indices})
    refused(kernel, TypeError, "out[0]", "int64", out=(indices.long(), lens))
    refused(kernel, ValueError, "out[0]", [TOKENS, width - 1], out=(indices[:, 1:], lens))
    refused(kernel, ValueError, "out[0]", [TOKENS - 1, width], out=(indices[1:], lens))
    refused(kernel, ValueError, "out[0]", "contiguous", out=(indices.repeat(1, 2)[:, ::2], lens))
    refused(kernel, TypeError, "out[1]", "bool", out=(indices, lens.bool()))
    refused(kernel, ValueError, "out[1]", [TOKENS - 1], out=(indices, lens[1:]))
    refused(kernel, ValueError, "out[1]", [TOKENS, 1], out=(indices, lens[:, None]))
    refused(kernel, ValueError, "out[1]", "meta", out=(indices, lens.to("meta")))
    refused(kernel, ValueError, "out[1]", "contiguous", out=(indices, lens.repeat(2)[::2]))
    refused(kernel, TypeError, "out[1]", "NoneType", out=(indices, None))
    refused(kernel, TypeError, "out", "pair", "Tensor", out=indices)
    refused(kernel, TypeError, "out", "pair", "tuple", out=(indices, lens, lens))
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
