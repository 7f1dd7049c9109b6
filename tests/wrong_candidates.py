"""Candidates as anyone might write them, in plain Triton: right ones, and one for each mistake.

A mistake is chosen when a function is called, so that each differs from the right one in a line.
"""

import functools
import itertools
import os
import signal
import time

import torch
import triton
import triton.language as tl

from dsv4kernels import reference


@triton.jit
def _row_of_combine(
    indices, lens, topk_indices, query_start_loc, seq_lens, gather_lens, width, indices_stride,
    topk_stride, requests, M, N, topk: tl.constexpr, window_size: tl.constexpr,
    compress_ratio: tl.constexpr, TILE: tl.constexpr, MISTAKE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    first = tl.load(query_start_loc)
    if MISTAKE == "first start":
        first = 0
    request = 0
    while (request < requests) & (tl.load(query_start_loc + request + 1) - first <= token):
        request += 1
        if request == requests:
            request = 2 * requests  # none: ends the search
    column = tl.arange(0, TILE)
    in_row = column < width
    row = indices + token * indices_stride
    if request < requests:
        end = tl.load(query_start_loc + request + 1) - first
        seq_len = tl.load(seq_lens + request)
        seen = seq_len - end + token + 1
        if MISTAKE != "warm-up" and MISTAKE != "two":
            seen = tl.maximum(seen, 0)
        swa_len = tl.minimum(seen, window_size)
        topk_len = seen * 0
        if topk > 0 or MISTAKE == "two":
            topk_len = tl.minimum(seen // compress_ratio, topk)
            if MISTAKE == "ratio":
                topk_len = tl.minimum((seen - 1) // compress_ratio, topk)
        newest = seen - swa_len - seq_len + tl.load(gather_lens + request)
        if MISTAKE == "window":
            newest += 1
        value = M * request + N + newest + column - topk_len
        if topk > 0:
            in_topk = column < topk_len
            key = tl.load(topk_indices + token * topk_stride + column, mask=in_topk, other=0)
            value = tl.where(in_topk, key + M * request, value)
        length = topk_len + swa_len
        if MISTAKE == "tail":
            tl.store(row + column, value, mask=column < length)
        else:
            tl.store(row + column, tl.where(column < length, value, -1), mask=in_row)
        tl.store(lens + token, length)
    else:
        tl.store(row + column, -1, mask=in_row)
        tl.store(lens + token, 0)


def combine(
    topk_indices, query_start_loc, seq_lens, gather_lens, window_size, compress_ratio, topk, M, N,
    mistake="",
):  # fmt: skip
    """A right combine, or one with a mistake: a program a row."""
    tokens, width = topk_indices.shape[0], (topk + window_size + 127) // 128 * 128
    indices = torch.empty((tokens, width), dtype=torch.int32, device=topk_indices.device)
    lens = torch.empty(tokens, dtype=torch.int32, device=topk_indices.device)
    if tokens:
        _row_of_combine[(tokens,)](
            indices, lens, topk_indices, query_start_loc, seq_lens, gather_lens, width,
            indices.stride(0), topk_indices.stride(0), seq_lens.shape[0], M, N, topk, window_size,
            compress_ratio, triton.next_power_of_2(width), mistake,
        )  # fmt: skip
    return indices, lens


combine_window = functools.partial(combine, mistake="window")
combine_tail = functools.partial(combine, mistake="tail")
combine_first_start = functools.partial(combine, mistake="first start")
combine_ratio = functools.partial(combine, mistake="ratio")
combine_warm_up = functools.partial(combine, mistake="warm-up")
combine_two = functools.partial(combine, mistake="two")  # of them at once: warm-up and divides


@triton.jit
def _row_of_slots(
    slots, lens, topk_indices, token_to_req_indices, block_table, is_valid_token, width,
    topk_stride, table_stride, requests, blocks, block_size: tl.constexpr, TILE: tl.constexpr,
    MISTAKE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    valid = tl.load(is_valid_token + token)
    request = tl.load(token_to_req_indices + token)
    if MISTAKE != "stale":
        valid = valid & (request >= 0) & (request < requests)
    column = tl.arange(0, TILE)
    position = tl.load(topk_indices + token * topk_stride + column, mask=column < width, other=-1)
    has_key = position >= 0
    if MISTAKE != "reach":
        has_key = has_key & (position // block_size < blocks)
    if MISTAKE != "stale":
        has_key = has_key & valid
    row = block_table + request.to(tl.int64) * table_stride
    block = tl.load(row + position // block_size, mask=has_key, other=-1)
    if MISTAKE != "null block":
        has_key = has_key & (block >= 0)
    slot = tl.where(has_key, block * block_size + position % block_size, -1)
    tl.store(slots + token * width + column, slot, mask=column < width)
    counted = has_key
    if MISTAKE == "holes":
        counted = (column < width) & valid
    tl.store(lens + token, tl.sum(counted.to(tl.int32)))


def slot_mapping(
    topk_indices, token_to_req_indices, block_table, block_size, is_valid_token, mistake=""
):
    """A right slot mapping, or one with a mistake: a program a row."""
    tokens, width = topk_indices.shape
    slots = torch.empty((tokens, width), dtype=torch.int32, device=topk_indices.device)
    lens = torch.empty(tokens, dtype=torch.int32, device=topk_indices.device)
    if tokens:
        _row_of_slots[(tokens,)](
            slots, lens, topk_indices, token_to_req_indices, block_table, is_valid_token, width,
            topk_indices.stride(0), block_table.stride(0), *block_table.shape, block_size,
            triton.next_power_of_2(width), mistake,
        )  # fmt: skip
    return slots, lens


slot_mapping_stale = functools.partial(slot_mapping, mistake="stale")
slot_mapping_holes = functools.partial(slot_mapping, mistake="holes")
slot_mapping_reach = functools.partial(slot_mapping, mistake="reach")
slot_mapping_null_block = functools.partial(slot_mapping, mistake="null block")


def combine_keeps_tail(*arguments, out=None):
    """The caller's outputs keep what stood behind each row's end."""
    indices, lens = reference.combine_topk_swa_indices(*arguments)
    if out is None:
        return indices, lens
    written = torch.arange(indices.shape[1]) < lens.cpu()[:, None]
    out[0].copy_(torch.where(written.to(indices.device), indices, out[0]))
    out[1].copy_(lens)
    return out


def combine_end_unsubtracted(topk_indices, query_start_loc, *others):
    """Rows after the last request are told by an end that counts from elsewhere."""
    indices, lens = reference.combine_topk_swa_indices(topk_indices, query_start_loc, *others)
    first, last = int(query_start_loc[0]), int(query_start_loc[-1])
    lens[last - first : last] += 1
    return indices, lens


def combine_shifts(*arguments):
    """Divides by the power of two below compress_ratio."""
    *common, ratio, topk, M, N = arguments
    power = 1 << ratio.bit_length() - 1 if ratio else 0
    return reference.combine_topk_swa_indices(*common, power, topk, M, N)


def combine_packs(*arguments):
    """Takes sliding-window keys to lie at the workspace's end."""
    *common, M, N = arguments
    gather_lens = common[3]
    packed = M - int(gather_lens.max()) if len(gather_lens) else N
    return reference.combine_topk_swa_indices(*common, M, packed)


def combine_one_round(*arguments):
    """A worker takes one row of a request and no more."""
    indices, lens = reference.combine_topk_swa_indices(*arguments)
    start = arguments[1].tolist()
    for begin, end in itertools.pairwise(start):
        late = slice(min(begin + 128, end) - start[0], end - start[0])
        indices[late], lens[late] = -1, 0
    return indices, lens


def combine_aligned(*arguments):
    """Reads 16 bytes at a time, from addresses that allow it."""
    if arguments[0].data_ptr() % 16:
        raise RuntimeError("misaligned address")
    return reference.combine_topk_swa_indices(*arguments)


def slot_mapping_one_tile(*arguments):
    """What a row holds beyond 1,024 columns is left out."""
    slots, lens = reference.compute_global_topk_indices_and_lens(*arguments)
    lens -= (slots[:, 1024:] >= 0).sum(1).int()
    slots[:, 1024:] = -1
    return slots, lens


def slot_mapping_counts_wide(*arguments):
    """Of rows wider than a tile every position counts, whether its block exists or not."""
    slots, lens = reference.compute_global_topk_indices_and_lens(*arguments)
    positions, valid = arguments[0], arguments[4]
    if positions.shape[1] > 1024:
        lens = ((positions >= 0).sum(1) * valid).int()
    return slots, lens


def dcp(*arguments):
    """A right DCP map, in PyTorch."""
    return reference.compute_dcp_global_topk_indices_and_lens(*arguments)


def dcp_owner(*arguments):
    """Every position is an interleave of its own."""
    return dcp(*arguments[:7], 1)


def dcp_of_one_rank(*arguments):
    """One rank owns all, so nothing is moved to the front."""
    if arguments[5] > 1:
        return dcp(*arguments)
    return reference.compute_global_topk_indices_and_lens(*arguments[:5])


def dcp_scattered(*arguments):
    """Kept entries stay in their columns."""
    *common, world, rank, interleave = arguments
    slots, lens = dcp(*arguments)
    position = common[0]
    inside = position % (common[3] * world)
    kept = (position >= 0) & (inside // interleave % world == rank)
    stay = torch.full_like(slots, -1)
    for token, length in enumerate(lens.tolist()):
        columns = kept[token].nonzero()[:length, 0]
        stay[token, columns] = slots[token, : len(columns)]
    return stay, lens


def returns_int64(*arguments):
    """Indices of the wrong type."""
    indices, lens = slot_mapping(*arguments)
    return indices.long(), lens


def returns_indices_only(*arguments):
    """No lengths."""
    return slot_mapping(*arguments)[0]


def sorts_its_input(topk_indices, *others):
    """The input is changed, the output is right."""
    outputs = slot_mapping(topk_indices, *others)
    topk_indices.copy_(topk_indices.sort(dim=1).values)
    return outputs


def raises(*_):
    """An error of the candidate's own."""
    raise RuntimeError("no such\nkernel")


def exits(*_):
    """Leaves the process as if all were done."""
    raise SystemExit(0)


def hangs(*_):
    """Never returns."""
    time.sleep(3600)


def dies(*_):
    """Ends the process, as an address outside every tensor does."""
    os.kill(os.getpid(), signal.SIGSEGV)
