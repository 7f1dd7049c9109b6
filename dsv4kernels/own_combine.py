"""The project's own combine: tiles of rows, each element of a row written once.

A program takes a tile of rows and finds their request on the device, so that a long request is
spread over the whole GPU and a short one wastes no program. It writes each row from its first
column to its last, top-k, window and -1 chosen by column: there is no pass that fills the output
first, and every access is aligned. It touches no address outside a tensor's shape, whatever the
values on the device, and folds nothing into the code that changes from batch to batch.

The function takes checked arguments and allocated outputs and returns the `Launch`; `combine` is
the way in.
"""

from typing import NamedTuple

import triton.language as tl

from . import runtime

REQUESTS = 128  # requests looked through at a time for the one that owns a tile's first row


class Tile(NamedTuple):
    """What a program writes: rows, columns (powers of two), and its warps."""

    rows: int
    columns: int
    warps: int


def rule(width: int) -> Tile:
    """The tile for rows of so many columns: the batch does not matter."""
    columns = min(1024, runtime.power_of_2(width))
    return Tile(2, columns, 2) if columns == 1024 else Tile(4, columns, 1)


def combine(
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
    tile: Tile | None = None,
) -> runtime.Launch:
    """The launch that fills `outputs`, a pair (indices, lens); see `combine` for the shapes.

    `tile` is another than the rule's, to be measured beside it.
    """
    indices, lens = outputs
    tokens, width = indices.shape
    rows, columns, warps = tile or rule(width)
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
        seq_lens.size(0),
        M,
        N,
        topk,
        window_size,
        max(compress_ratio, 1),  # unread where topk is 0, and not to be divided by
        width,
        rows,
        columns,
        REQUESTS,
    )
    grid = (-(-tokens // rows) * -(-width // columns),)
    return runtime.Launch(_combine_tile, grid, args, {"num_warps": warps})


@runtime.kernel
def _write_request(
    request,
    start,
    last_token,
    origin,
    token,
    column,
    chunk,
    indices,
    lens,
    topk_indices,
    query_start_loc,
    seq_lens,
    gather_lens,
    indices_stride,
    topk_stride,
    M,
    N,
    topk: tl.constexpr,
    window_size: tl.constexpr,
    compress_ratio: tl.constexpr,
    width: tl.constexpr,
):
    """Write those of a tile's rows, from `start` on, that belong to a request; where they end."""
    query_end = tl.load(query_start_loc + request + 1) - origin
    seq_len = tl.load(seq_lens + request)
    gather_len = tl.load(gather_lens + request)
    end = tl.minimum(query_end, last_token)
    in_request = (token >= start) & (token < end)
    row = token.to(tl.int64)[:, None]  # a row's address passes 2^31 elements

    seen = tl.maximum(seq_len - query_end + 1 + token, 0)  # position + 1
    swa_len = tl.minimum(seen, window_size)
    topk_len = seen * 0
    if topk > 0:
        topk_len = tl.minimum(seen // compress_ratio, topk)
    length = topk_len + swa_len
    # Row of the workspace that column 0 would name if the window began there.
    window = (M * request + N + gather_len - seq_len) + seen - length
    index = tl.where(column < length[:, None], window[:, None] + column, -1)
    if topk > 0:
        # Loaded in whole groups of four columns, one 16-byte access each.
        needed = in_request[:, None] & (column // 4 * 4 < topk_len[:, None]) & (column < topk)
        key = tl.load(topk_indices + row * topk_stride + column, mask=needed, other=0)
        index = tl.where(column < topk_len[:, None], key + M * request, index)
    address = indices + row * indices_stride + column
    written = in_request[:, None] & (column < width)
    tl.store(address, index, mask=written, cache_modifier=".cs")  # not read again here
    if chunk == 0:
        tl.store(lens + token, length, mask=in_request)
    return tl.maximum(start, end)  # a request that ends before it starts gives no row back


@runtime.kernel(do_not_specialize=("tokens", "requests", "M", "N"), tensors=6)
def _combine_tile(
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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    """A tile of rows and aligned columns a program, request by request down the tile."""
    CHUNKS: tl.constexpr = (width + COLUMNS - 1) // COLUMNS
    chunk = tl.program_id(0) % CHUNKS
    first_token = tl.program_id(0) // CHUNKS * ROWS
    last_token = tl.minimum(first_token + ROWS, tokens)
    token = first_token + tl.arange(0, ROWS)
    column = (chunk * COLUMNS + tl.arange(0, COLUMNS))[None, :]

    # The first row's request: as many come before it as end at or before it. The last request
    # need not be looked at, so a single one costs no search.
    origin = tl.load(query_start_loc)
    request = 0
    for first in range(0, requests - 1, REQUESTS):
        other = first + tl.arange(0, REQUESTS)
        in_search = other < requests - 1
        other_end = tl.load(query_start_loc + 1 + other, mask=in_search, other=0)
        # No value stands for "no request": less a negative or a large origin, each would count.
        before = in_search & (other_end - origin <= first_token)
        request += tl.sum(before.to(tl.int32))

    # Most tiles lie within one request: written once before the loop over the others, the code
    # that all run is straight, which saves a twentieth of the time.
    start = _write_request(
        request, first_token, last_token, origin, token, column, chunk, indices, lens,
        topk_indices, query_start_loc, seq_lens, gather_lens, indices_stride, topk_stride, M, N,
        topk, window_size, compress_ratio, width,
    )  # fmt: skip
    request += 1
    more = (request < requests) & (start < last_token)
    if more:  # padding's empty requests may follow by hundreds: they own no row
        more = start < tl.load(query_start_loc + requests) - origin
    while more:
        start = _write_request(
            request, start, last_token, origin, token, column, chunk, indices, lens,
            topk_indices, query_start_loc, seq_lens, gather_lens, indices_stride, topk_stride, M,
            N, topk, window_size, compress_ratio, width,
        )  # fmt: skip
        request += 1
        more = (request < requests) & (start < last_token)
        if more:
            more = start < tl.load(query_start_loc + requests) - origin

    if start < last_token:  # rows that belong to no request
        stray = (token >= start) & (token < tokens)
        address = indices + token.to(tl.int64)[:, None] * indices_stride + column
        tl.store(address, -1, mask=stray[:, None] & (column < width))
        if chunk == 0:
            tl.store(lens + token, 0, mask=stray)
