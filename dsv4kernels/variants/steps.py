"""The way from the published combine to the project's own, one change at a time, to be measured.

    workers=256   a fill with -1, then values: a program for each request and worker
    one pass      the same programs, but each row ends with its own -1: no fill
    by rows       a program for each row, which finds its request on the device
    by columns    one store a row: each column chooses between top-k, window and -1
    own           two rows a program, 16-byte accesses, stores that do not stay in the cache

These are for lesson 06: right within the definition, and as safe as the published kernels. What
they share with `combine` they say once more in its words, so that each reads alone.
"""

import triton.language as tl

from .. import combine, runtime

STEPS = ("one pass", "by rows", "by columns")


def plan(step: str, *args, out=None):
    """Check and allocate as `combine.plan` does: the outputs, and the `Launch` of a step.

    Args:
        step: one of `STEPS`.
        *args: of `combine.combine_topk_swa_indices`.
        out: the caller's outputs.
    """
    workers = combine.OPTIMISED_WORKERS
    outputs, launch = combine.plan(*args, num_workers=workers, out=out)
    if launch is None:
        return outputs, None
    indices, lens, *tensors, indices_stride, topk_stride, tokens, M, N, topk, window, ratio = (
        launch.args[:-2]
    )
    requests, width = tensors[2].size(0), indices.size(1)
    args = (indices, lens, *tensors, indices_stride, topk_stride, tokens, requests, M, N)
    args += (topk, window, ratio, width, runtime.power_of_2(width))
    if step == "one pass":
        return outputs, runtime.Launch(_one_pass, (requests, workers), args)
    by_columns = step == "by columns"
    return outputs, runtime.Launch(_by_rows, (tokens,), (*args, by_columns, 128))


@runtime.kernel
def _lengths(position, topk: tl.constexpr, window_size: tl.constexpr, compress_ratio: tl.constexpr):
    """Top-k and window entries of a token at a position."""
    seen = tl.maximum(position + 1, 0)
    topk_len = seen * 0
    if topk > 0:
        topk_len = tl.minimum(seen // compress_ratio, topk)
    return topk_len, tl.minimum(seen, window_size)


@runtime.kernel
def _three_stores(
    row,
    key_row,
    topk_len,
    swa_len,
    workspace,
    window,
    topk: tl.constexpr,
    width,
    TILE: tl.constexpr,
):
    """A row in three stores, two of which begin where the part before them happens to end."""
    column = tl.arange(0, TILE)
    if topk > 0:
        in_topk = column < topk_len
        key = tl.load(key_row + column, mask=in_topk, other=0)
        tl.store(row + column, key + workspace, mask=in_topk)
    tl.store(row + topk_len + column, window + column, mask=column < swa_len)
    length = topk_len + swa_len
    tl.store(row + length + column, -1, mask=length + column < width)


@runtime.kernel
def _one_store(
    row,
    key_row,
    topk_len,
    swa_len,
    workspace,
    window,
    topk: tl.constexpr,
    width,
    TILE: tl.constexpr,
):
    """A row in one store: what a column holds is chosen by its number."""
    column = tl.arange(0, TILE)
    index = tl.where(column < topk_len + swa_len, window - topk_len + column, -1)
    if topk > 0:
        in_topk = column < topk_len
        key = tl.load(key_row + column, mask=in_topk, other=0)
        index = tl.where(in_topk, key + workspace, index)
    tl.store(row + column, index, mask=column < width)


@runtime.kernel(do_not_specialize=("tokens", "requests", "M", "N"))
def _one_pass(
    indices,
    lens,
    topk_indices,
    query_start_loc,
    seq_lens,
    gather_lens,
    indices_stride,
    topk_stride,
    tokens,
    requests,
    M,
    N,
    topk: tl.constexpr,
    window_size: tl.constexpr,
    compress_ratio: tl.constexpr,
    width: tl.constexpr,
    TILE: tl.constexpr,
):
    request, worker, workers = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    origin = tl.load(query_start_loc)
    start = tl.load(query_start_loc + request) - origin
    end = tl.load(query_start_loc + request + 1) - origin
    seq_len = tl.load(seq_lens + request)
    gathered_from = seq_len - tl.load(gather_lens + request)
    for token in range(start + worker, end, workers):
        position = seq_len - end + token
        topk_len, swa_len = _lengths(position, topk, window_size, compress_ratio)
        window = M * request + N + position - swa_len + 1 - gathered_from
        token64 = tl.cast(token, tl.int64)
        row, key_row = indices + token64 * indices_stride, topk_indices + token64 * topk_stride
        _three_stores(row, key_row, topk_len, swa_len, M * request, window, topk, width, TILE)
        tl.store(lens + token, topk_len + swa_len)
    if request == requests - 1:  # tokens after the last request belong to none
        for token in range(end + worker, tokens, workers):
            row = indices + tl.cast(token, tl.int64) * indices_stride
            column = tl.arange(0, TILE)
            tl.store(row + column, -1, mask=column < width)
            tl.store(lens + token, 0)


@runtime.kernel(do_not_specialize=("tokens", "requests", "M", "N"))
def _by_rows(
    indices,
    lens,
    topk_indices,
    query_start_loc,
    seq_lens,
    gather_lens,
    indices_stride,
    topk_stride,
    tokens,
    requests,
    M,
    N,
    topk: tl.constexpr,
    window_size: tl.constexpr,
    compress_ratio: tl.constexpr,
    width: tl.constexpr,
    TILE: tl.constexpr,
    BY_COLUMNS: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    token = tl.program_id(0)
    origin = tl.load(query_start_loc)
    # As many requests come before the token's as end at or before it.
    request = 0
    for first in range(0, requests, REQUESTS):
        other = first + tl.arange(0, REQUESTS)
        known = other < requests
        end = tl.load(query_start_loc + 1 + other, mask=known, other=0)
        request += tl.sum((known & (end - origin <= token)).to(tl.int32))
    topk_len, swa_len, window = 0, 0, 0
    if request < requests:
        seq_len = tl.load(seq_lens + request)
        position = seq_len - (tl.load(query_start_loc + request + 1) - origin) + token
        topk_len, swa_len = _lengths(position, topk, window_size, compress_ratio)
        gathered_from = seq_len - tl.load(gather_lens + request)
        window = M * request + N + position - swa_len + 1 - gathered_from
    token64 = tl.cast(token, tl.int64)
    row, key_row = indices + token64 * indices_stride, topk_indices + token64 * topk_stride
    if BY_COLUMNS:
        _one_store(row, key_row, topk_len, swa_len, M * request, window, topk, width, TILE)
    else:
        _three_stores(row, key_row, topk_len, swa_len, M * request, window, topk, width, TILE)
    tl.store(lens + token, topk_len + swa_len)
