"""Combine: the workspace rows a prefill token attends to, top-k and sliding window in one list.

Prefill gathers each request's keys into one dense workspace of `M` rows a request: compressed keys
from row 0, the newest `gather_len` tokens (sliding-window keys) from row `N`. Token `t` of request
`r` stands at position `pos = seq_len - query_len + (t - start)`; it has

    topk_len = min((pos + 1) // compress_ratio, topk)      swa_len = min(pos + 1, window_size)

both 0 where `pos` is negative (a warm-up batch). Its row of indices reads

    [0, topk_len)                    topk_indices[t, column] + M * r
    [topk_len, topk_len + swa_len)   M * r + N + (pos - swa_len + 1 + j) - (seq_len - gather_len)
    every other column               -1

The project's own kernel (see `own_combine`) is the default. The published one has a grid of
(requests, workers): each worker strides over the rows of its request, and writes values into an
output that a separate pass has filled with -1. It is held with any worker count; 128 is the
comparator and 256 the optimised one.
"""

import torch
import triton.language as tl

from . import checks, own_combine, runtime

COMPARATOR_WORKERS, OPTIMISED_WORKERS = 128, 256


def combine_topk_swa_indices(
    topk_indices,
    query_start_loc,
    seq_lens,
    gather_lens,
    window_size,
    compress_ratio,
    topk,
    M,
    N,
    *,
    num_workers=None,
    out=None,
):
    """List, for each token, the workspace rows of its top-k and sliding-window keys.

    Args:
        topk_indices: int32 [T, K], positions among the compressed keys; rows may be strided.
        query_start_loc: int32 [R + 1], cumulative query lengths; the first may be non-zero.
        seq_lens: int32 [R], tokens of each request, new ones included.
        gather_lens: int32 [R], how many of the newest tokens were gathered.
        window_size: tokens in the sliding window, at least 1.
        compress_ratio: tokens for each compressed key; at least 1 unless `topk` is 0.
        topk: compressed keys a token may attend to, at most K; 0 leaves `topk_indices` unread.
        M: workspace rows a request.
        N: first workspace row of the sliding-window keys.
        num_workers: programs a request in the published kernel, each striding over its rows;
            None for the project's own kernel.
        out: caller's (indices int32 [T, width], lens int32 [T]) to write into.

    Returns:
        (indices int32 [T, width], lens int32 [T]); the width is `output_width(topk, window_size)`.
        Tokens after the last request have a row of -1 and length 0.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device, stride or
            size, named; nothing is launched then.

    Definition: this module's docstring.
    """
    outputs, launch = plan(
        topk_indices,
        query_start_loc,
        seq_lens,
        gather_lens,
        window_size,
        compress_ratio,
        topk,
        M,
        N,
        num_workers=num_workers,
        out=out,
    )
    indices, lens = outputs
    if launch is None:
        indices.fill_(-1)
        lens.zero_()
        return outputs
    if num_workers is not None:  # the published kernel writes values only
        indices.fill_(-1)
    launch.run()
    return outputs


def output_width(topk: int, window_size: int) -> int:
    """Columns of the output: the attention kernels downstream take 128 indices at a time."""
    return -(-(topk + window_size) // 128) * 128


def plan(
    topk_indices,
    query_start_loc,
    seq_lens,
    gather_lens,
    window_size,
    compress_ratio,
    topk,
    M,
    N,
    *,
    num_workers=None,
    out=None,
):
    """Check and allocate: the outputs, and the `Launch` that fills them.

    That of a published kernel (`num_workers` given) expects the indices to be -1 already. The
    launch is None where there is nothing to launch. Arguments as in `combine_topk_swa_indices`.
    """
    checks.matrix("topk_indices", topk_indices, (None, None))
    tokens, columns = topk_indices.shape
    checks.vector("seq_lens", seq_lens, torch.int32, None, topk_indices)
    requests = seq_lens.size(0)
    checks.vector("query_start_loc", query_start_loc, torch.int32, requests + 1, topk_indices)
    checks.vector("gather_lens", gather_lens, torch.int32, requests, topk_indices)
    checks.at_least("window_size", window_size, 1)
    checks.at_least("topk", topk, 0)
    if topk > columns:
        raise ValueError(f"topk must be at most the {columns} columns of topk_indices, got {topk}")
    checks.at_least("compress_ratio", compress_ratio, 1 if topk else 0)
    checks.at_least("M", M, 0)
    checks.at_least("N", N, 0)
    if M * requests + N > checks.INT32_MAX:
        raise ValueError(
            f"M times the number of requests must leave workspace rows within int32, "
            f"got M = {M}, N = {N} and {requests} requests"
        )
    if num_workers is not None:
        checks.at_least("num_workers", num_workers, 1)
        if num_workers > 65_535:
            raise ValueError(f"num_workers must be at most 65,535 (a grid axis), got {num_workers}")
    outputs = indices, lens = checks.output(
        out, tokens, output_width(topk, window_size), topk_indices
    )
    if not tokens or not requests:
        return outputs, None
    if num_workers is None:
        return outputs, own_combine.combine(
            outputs,
            topk_indices,
            query_start_loc,
            seq_lens,
            gather_lens,
            window_size,
            compress_ratio,
            topk,
            M,
            N,
        )
    args = (
        indices,
        lens,
        topk_indices,
        query_start_loc,
        seq_lens,
        gather_lens,
        indices.stride(0),
        topk_indices.stride(0),
        tokens,
        M,
        N,
        topk,
        window_size,
        max(compress_ratio, 1),  # unread where topk is 0, and not to be divided by
        runtime.power_of_2(max(topk, 1)),
        runtime.power_of_2(window_size),
    )
    return outputs, runtime.Launch(_combine, (requests, num_workers), args)


@runtime.kernel(do_not_specialize=("tokens",))
def _combine(
    indices,
    lens,
    topk_indices,
    query_start_loc,
    seq_lens,
    gather_lens,
    indices_stride,
    topk_stride,
    tokens,
    M,
    N,
    topk: tl.constexpr,
    window_size: tl.constexpr,
    compress_ratio: tl.constexpr,
    TOPK_TILE: tl.constexpr,
    WINDOW_TILE: tl.constexpr,
):
    request, worker = tl.program_id(0), tl.program_id(1)
    requests, workers = tl.num_programs(0), tl.num_programs(1)
    first_start = tl.load(query_start_loc)
    start = tl.load(query_start_loc + request) - first_start
    end = tl.load(query_start_loc + request + 1) - first_start
    seq_len = tl.load(seq_lens + request)
    gather_len = tl.load(gather_lens + request)
    workspace = M * request  # the request's first workspace row
    gathered_from = seq_len - gather_len  # position of the first gathered token

    for token in range(start + worker, end, workers):
        position = seq_len - (end - start) + token - start
        seen = tl.maximum(position + 1, 0)
        swa_len = tl.minimum(seen, window_size)
        token64 = tl.cast(token, tl.int64)  # a row's address passes 2^31 elements
        row = indices + token64 * indices_stride
        topk_len = 0
        if topk > 0:
            topk_len = tl.minimum(seen // compress_ratio, topk)
            column = tl.arange(0, TOPK_TILE)
            in_topk = column < topk_len
            key = tl.load(topk_indices + token64 * topk_stride + column, mask=in_topk, other=0)
            tl.store(row + column, key + workspace, mask=in_topk)
        offset = tl.arange(0, WINDOW_TILE)
        newest = position - swa_len + 1 - gathered_from
        tl.store(row + topk_len + offset, workspace + N + newest + offset, mask=offset < swa_len)
        tl.store(lens + token, topk_len + swa_len)

    if request == requests - 1:  # tokens after the last request belong to none
        for token in range(end + worker, tokens, workers):
            tl.store(lens + token, 0)
