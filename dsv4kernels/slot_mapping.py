"""Slot mapping: from a token's local top-k positions to slots of the paged KV cache.

For position `p >= 0` of a token of request `r`

    slot = block_table[r, p // block_size] * block_size + p % block_size

and -1 for an empty entry (`p < 0`), which may stand anywhere in a row. A padding row (its token not
valid) may carry any request index; it is never used, and the row's length is 0.

Under decode context parallelism (DCP) the cache is split over W ranks, `interleave` neighbouring
positions at a time, so that a block number stands for `block_size * W` positions; a rank keeps the
entries it owns, moved to the front of the row.

Three variants of the plain map are held side by side. `own` is the project's (see `own_mapping`)
and the default. `runtime`, the comparator, takes its geometry as numbers at run time; `constexpr`
is the same function with the five of them folded into the code. These two are the published ones,
and promise memory safety for padding rows only: a valid token's request and positions must lie
inside the block table, and its blocks must not be negative. `own`, and the DCP map, are safe
whatever the values.
"""

import functools

import torch
import triton.language as tl

from . import checks, own_dcp, own_mapping, runtime

GEOMETRY = ("slots_stride", "topk_stride", "block_table_stride", "width", "block_size")
TILE = 1024  # columns the published kernel maps at a time


def compute_global_topk_indices_and_lens(
    topk_indices,
    token_to_req_indices,
    block_table,
    block_size,
    is_valid_token,
    *,
    variant="own",
    out=None,
):
    """Map each token's top-k positions to KV-cache slots and count them.

    Args:
        topk_indices: int32 [T, K], local positions, -1 where empty; rows may be strided.
        token_to_req_indices: int32 [T] or longer, the request of each token.
        block_table: int32 [R, B], block numbers; rows may be strided.
        block_size: positions in a block.
        is_valid_token: bool [T], False on padding rows.
        variant: one of `VARIANTS`.
        out: caller's (slots int32 [T, K], lens int32 [T]) to write into.

    Returns:
        (slots int32 [T, K], lens int32 [T]): slots keep their column; a padding row's slots are
        unspecified and its length is 0. With `own`, an entry that points outside the block table
        or to a block below 0 has slot -1 and is not counted.

    Raises:
        TypeError, ValueError: an argument of the wrong type, dtype, shape, device, stride or
            size, named; nothing is launched then.

    Definition: this module's docstring.
    """
    outputs, launch = plan(
        topk_indices,
        token_to_req_indices,
        block_table,
        block_size,
        is_valid_token,
        variant=variant,
        out=out,
    )
    if launch is not None:
        launch.run()
    return outputs


def plan(
    topk_indices,
    token_to_req_indices,
    block_table,
    block_size,
    is_valid_token,
    *,
    variant="own",
    out=None,
):
    """Check and allocate: the outputs, and the `Launch` that fills them.

    The launch is None where there is nothing to launch. Arguments as in
    `compute_global_topk_indices_and_lens`.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    outputs = slots, lens = _check(
        topk_indices, token_to_req_indices, block_table, block_size, is_valid_token, out
    )
    tokens, width = topk_indices.shape
    if not tokens or not block_table.shape[0]:
        return _empty(outputs), None
    if variant == "own":
        return outputs, own_mapping.slot_mapping(
            outputs, topk_indices, token_to_req_indices, block_table, block_size, is_valid_token
        )
    args = (
        slots,
        lens,
        topk_indices,
        token_to_req_indices,
        block_table,
        is_valid_token,
        slots.stride(0),
        topk_indices.stride(0),
        block_table.stride(0),
        width,
        block_size,
        TILE,
    )
    return outputs, runtime.Launch(PUBLISHED[variant], (tokens,), args)


def _map_positions(
    slots,
    lens,
    topk_indices,
    token_to_req_indices,
    block_table,
    is_valid_token,
    slots_stride,
    topk_stride,
    block_table_stride,
    width,
    block_size,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    valid = tl.load(is_valid_token + token)
    # A padding row's request may be stale: it is not even loaded.
    request = tl.load(token_to_req_indices + token, mask=valid, other=0).to(tl.int64)
    table_row = block_table + request * block_table_stride

    length = 0
    for first in range(0, width, TILE):
        column = first + tl.arange(0, TILE)
        in_row = column < width
        position = tl.load(topk_indices + token * topk_stride + column, mask=in_row, other=-1)
        has_key = valid & (position >= 0)
        block = tl.load(table_row + position // block_size, mask=has_key, other=0)
        slot = block * block_size + position % block_size
        tl.store(slots + token * slots_stride + column, tl.where(has_key, slot, -1), mask=in_row)
        length += tl.sum(has_key.to(tl.int32))
    tl.store(lens + token, length)


@functools.cache
def folded(*names):
    """The kernel with the named arguments of `GEOMETRY` folded in as compile-time constants."""
    return runtime.kernel(_map_positions, constexpr=names)


PUBLISHED = {"runtime": folded(), "constexpr": folded(*GEOMETRY)}
VARIANTS = ("own", *PUBLISHED)


def compute_dcp_global_topk_indices_and_lens(
    topk_indices,
    token_to_req_indices,
    block_table,
    block_size,
    is_valid_token,
    dcp_world_size,
    dcp_rank,
    cp_kv_cache_interleave_size,
    *,
    out=None,
):
    """Map the top-k positions that one DCP rank owns to its slots, moved to the front of the row.

    For `p >= 0`, with `W = dcp_world_size` and `I = cp_kv_cache_interleave_size`: the block is
    `b = p // (block_size * W)`, and inside it `o = p % (block_size * W)` belongs to rank
    `(o // I) % W`, at offset `o // (W * I) * I + o % I` of that rank's block.

    Args:
        topk_indices, token_to_req_indices, block_table, block_size, is_valid_token: as in
            `compute_global_topk_indices_and_lens`.
        dcp_world_size: ranks the cache is split over.
        dcp_rank: this rank.
        cp_kv_cache_interleave_size: neighbouring positions that stay on one rank; divides
            `block_size`.
        out: caller's (slots int32 [T, K], lens int32 [T]) to write into.

    Returns:
        (slots int32 [T, K], lens int32 [T]): a row's owned slots in their old order, then -1; how
        many there are. An entry that points outside the block table, or to a block below 0, is
        not kept.

    Raises:
        TypeError, ValueError: as in `compute_global_topk_indices_and_lens`.

    Definition: above, and this module's docstring.
    """
    outputs, launch = plan_dcp(
        topk_indices,
        token_to_req_indices,
        block_table,
        block_size,
        is_valid_token,
        dcp_world_size,
        dcp_rank,
        cp_kv_cache_interleave_size,
        out=out,
    )
    if launch is not None:
        launch.run()
    return outputs


def plan_dcp(
    topk_indices,
    token_to_req_indices,
    block_table,
    block_size,
    is_valid_token,
    dcp_world_size,
    dcp_rank,
    cp_kv_cache_interleave_size,
    *,
    out=None,
):
    """Like `plan`, for `compute_dcp_global_topk_indices_and_lens`."""
    checks.at_least("dcp_world_size", dcp_world_size, 1)
    if dcp_world_size > checks.INT32_MAX:
        raise ValueError(f"dcp_world_size must be an int32, got {dcp_world_size}")
    checks.at_least("dcp_rank", dcp_rank, 0)
    if dcp_rank >= dcp_world_size:
        raise ValueError(f"dcp_rank must be below dcp_world_size {dcp_world_size}, got {dcp_rank}")
    interleave = cp_kv_cache_interleave_size
    checks.at_least("cp_kv_cache_interleave_size", interleave, 1)
    outputs = _check(
        topk_indices, token_to_req_indices, block_table, block_size, is_valid_token, out
    )
    if block_size % interleave:
        raise ValueError(
            f"cp_kv_cache_interleave_size must divide block_size {block_size}, got {interleave}"
        )
    if not topk_indices.shape[0] or not block_table.shape[0]:
        return _empty(outputs), None
    return outputs, own_dcp.dcp(
        outputs,
        topk_indices,
        token_to_req_indices,
        block_table,
        block_size,
        is_valid_token,
        dcp_world_size,
        dcp_rank,
        interleave,
    )


def _check(topk_indices, token_to_req_indices, block_table, block_size, is_valid_token, out):
    """Host checks that both maps share; the outputs."""
    checks.matrix("topk_indices", topk_indices, (None, None))
    tokens, width = topk_indices.shape
    checks.vector("token_to_req_indices", token_to_req_indices, torch.int32, None, topk_indices)
    if token_to_req_indices.size(0) < tokens:
        raise ValueError(
            f"token_to_req_indices must have at least {tokens} entries, one a row of "
            f"topk_indices, got {token_to_req_indices.size(0)}"
        )
    checks.matrix("block_table", block_table, (None, None), topk_indices)
    checks.at_least("block_size", block_size, 1)
    if block_size > checks.INT32_MAX:
        raise ValueError(f"block_size must be an int32, as slots are, got {block_size}")
    checks.vector("is_valid_token", is_valid_token, torch.bool, tokens, topk_indices)
    return checks.output(out, tokens, width, topk_indices)


def _empty(outputs):
    """Outputs of a batch without requests: no slot anywhere."""
    slots, lens = outputs
    slots.fill_(-1)
    lens.zero_()
    return outputs
