"""The project's own slot mapping under decode context parallelism: one program a token.

The entries a rank owns move to the front of the row, so a program walks its row in order. As in
`own_mapping`, each output element is written once, no address outside a tensor's shape is touched,
and nothing that changes from batch to batch is folded into the code.
"""

import triton.language as tl

from . import runtime
from .own_mapping import NARROW, reachable_blocks, row_at, row_of_table


def dcp(
    outputs,
    topk_indices,
    token_to_req_indices,
    block_table,
    block_size,
    is_valid_token,
    dcp_world_size,
    dcp_rank,
    interleave,
) -> runtime.Launch:
    """The launch that fills `outputs` with the entries one DCP rank owns."""
    tokens, width = topk_indices.shape
    tile = min(NARROW, runtime.power_of_2(max(width, 128)))
    args = (
        *outputs,
        topk_indices,
        token_to_req_indices,
        block_table,
        is_valid_token,
        outputs[0].stride(0),
        topk_indices.stride(0),
        block_table.stride(0),
        block_table.size(0),
        reachable_blocks(block_table, block_size * dcp_world_size),
        width,
        block_size,
        dcp_world_size,
        dcp_rank,
        interleave,
        tile,
    )
    return runtime.Launch(_map_owned, (tokens,), args)


@runtime.kernel(do_not_specialize=("requests", "blocks"), tensors=6)
def _map_owned(
    slots,
    lens,
    topk_indices,
    token_to_req_indices,
    block_table,
    is_valid_token,
    slots_stride,
    topk_stride,
    block_table_stride,
    requests,
    blocks,
    width: tl.constexpr,
    block_size: tl.constexpr,
    dcp_world_size: tl.constexpr,
    dcp_rank: tl.constexpr,
    interleave: tl.constexpr,
    TILE: tl.constexpr,
):
    # Positions that a block number stands for, and those that pass over all ranks once. Positions
    # have 31 bits: what is longer divides them no otherwise than 2^31 does.
    LONGEST: tl.constexpr = 1 << 31
    span: tl.constexpr = block_size * dcp_world_size
    stripe: tl.constexpr = dcp_world_size * interleave
    SPAN: tl.constexpr = span if span < LONGEST else LONGEST
    STRIPE: tl.constexpr = stripe if stripe < LONGEST else LONGEST
    token = tl.program_id(0).to(tl.int64)
    request = tl.load(token_to_req_indices + token)
    valid = tl.load(is_valid_token + token)
    table_row, reach = row_of_table(
        request, valid, block_table, block_table_stride, requests, blocks
    )
    row = row_at(topk_indices, token, topk_stride)
    slots_row = row_at(slots, token, slots_stride)

    length = 0
    for first in range(0, width, TILE):
        column = first + tl.arange(0, TILE)
        position = tl.load(row + column, mask=column < width, other=-1)
        unsigned = position.to(tl.uint32, bitcast=True)
        block = unsigned // SPAN
        inside = unsigned % SPAN
        owned = (inside // interleave % dcp_world_size == dcp_rank) & (block < reach)
        offset = inside // STRIPE * interleave + inside % interleave
        number = tl.load(table_row + block.to(tl.int32), mask=owned, other=-1)
        kept = number >= 0
        # A kept entry's column is its rank among the kept ones.
        target = length + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(slots_row + target, number * block_size + offset.to(tl.int32), mask=kept)
        length += tl.sum(kept.to(tl.int32))
    tl.store(lens + token, length)

    # The rest of the row: columns that no kept entry owns, so no order between stores matters.
    for first in range(0, width, TILE):
        column = first + tl.arange(0, TILE)
        tl.store(slots_row + column, -1, mask=(column >= length) & (column < width))
