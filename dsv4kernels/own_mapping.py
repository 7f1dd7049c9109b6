"""The project's own slot mapping.

Each output element is written once, by a program that owns it, and whatever the values on the
device, no address outside a tensor's shape is touched. Nothing that changes from batch to batch
(tokens, requests, strides, the table's reach) is folded into the code, so serving never waits for
a compiler; the model's geometry is.

The functions take checked arguments and allocated outputs and return the `Launch`; `slot_mapping`
is the way in. Which kernel runs, and how, follows from the shape alone by the rules below; lesson
06 shows the sweep behind them.
"""

import math
from typing import NamedTuple

import triton.language as tl

from . import runtime

# A narrow row fits one tile. With few entries in all rows together a program takes one, on many
# warps, which ends soonest but asks for more of the GPU. With more rows it takes two short ones,
# 128 columns to a warp, or 256 while they are many but not very many.
NARROW, SHORT = 1024, 512
FEW_ENTRIES, MOST_WARPS, SOME_SHORT, SOME_ROWS = 1 << 18, 8, 1024, 4096
# For narrow rows that are not short, what is quickest changes to and fro until each multiprocessor
# has some thirty of them. As swept: up to so many tokens, one row or two a program, and warps.
LONGER = (64, "row", 8), (192, "two rows", 8), (288, "row", 4), (384, "two rows", 8)
LONGER += (896, "two rows", 4), (4096, "two rows", 8), (math.inf, "two rows", 4)
# A wide row is one program's loop over tiles. With so few tokens that most of the GPU would idle, a
# program takes a part of it, longer where tokens are not so very few, and one more program counts
# it, with all of it at once. With some more tokens a program takes a row in one tile, if it is not
# too long to be held.
VERY_FEW_WIDE, FEW_WIDE, PART_TILE, PART_WARPS, WIDEST_COUNTED = 16, 32, 2048, 8, 1 << 16
SOME_WIDE, WIDEST_TILE, WIDE_TILE, WIDE_WARPS = 128, 8192, 4096, 16


KERNELS = "row", "two rows", "parts"


class Choice(NamedTuple):
    """How rows are mapped: one of `KERNELS`, what a program takes; columns; warps."""

    kernel: str
    tile: int
    warps: int


def rule(tokens: int, width: int) -> Choice:
    """Which kernel takes a batch, from the width of its rows and how few they are."""
    if width <= NARROW:
        tile = runtime.power_of_2(max(width, 128))
        if tile > SHORT:
            for most, kernel, warps in LONGER:  # a generator would cost a call half a microsecond
                if tokens <= most:
                    return Choice(kernel, tile, warps)
        if tokens * width <= FEW_ENTRIES:
            return Choice("row", tile, min(tile // 64, MOST_WARPS))
        columns = 256 if SOME_SHORT < tokens <= SOME_ROWS else 128
        return Choice("two rows", tile, max(tile // columns, 1))
    if tokens <= FEW_WIDE and width <= WIDEST_COUNTED:
        tile = PART_TILE if tokens <= VERY_FEW_WIDE else 2 * PART_TILE
        return Choice("parts", min(tile, runtime.power_of_2(width)), PART_WARPS)
    if tokens <= SOME_WIDE and width <= WIDEST_TILE:
        return Choice("row", runtime.power_of_2(width), WIDE_WARPS)
    return Choice("row", WIDE_TILE, WIDE_WARPS)


def choices(width: int) -> set[Choice]:
    """All that the rule can choose for rows of a width, whatever the number of tokens."""
    several = [1, FEW_WIDE, SOME_WIDE, FEW_ENTRIES // max(width, 1) + 1, SOME_ROWS, FEW_ENTRIES + 1]
    several += [most for most, *_ in LONGER]
    return {rule(tokens, width) for tokens in several}


def slot_mapping(
    outputs,
    topk_indices,
    token_to_req_indices,
    block_table,
    block_size,
    is_valid_token,
    choice: Choice | None = None,
) -> runtime.Launch:
    """The launch that fills `outputs`, a pair (slots, lens); see `slot_mapping` for the shapes.

    `choice` is another than the rule's, to be measured beside it.
    """
    slots, lens = outputs
    tokens, width = topk_indices.shape
    strides = topk_indices.stride(0), block_table.stride(0), slots.stride(0)
    args = (
        topk_indices,
        token_to_req_indices,
        is_valid_token,
        block_table,
        slots,
        lens,
        *strides,
        block_table.size(0),
        reachable_blocks(block_table, block_size),
        tokens,
        width,
        block_size,
    )
    if choice is not None:
        return _launch(args, tokens, width, choice)
    choice = rule(tokens, width)
    launch = _launch(args, tokens, width, choice)
    if slots.is_cuda:
        # The others of this geometry too: a batch that grows must not meet the compiler.
        geometry = slots.get_device(), width, block_size, strides
        if geometry not in _compiled:
            for other in choices(width) - {choice}:
                _launch(args, tokens, width, other).compile_ahead()
            _compiled.add(geometry)
    return launch


_compiled = set()  # geometries whose kernels are all compiled


def _launch(args, tokens, width, choice):
    kernel, tile, warps = choice
    options = {"num_warps": warps}
    if kernel == "row":
        return runtime.Launch(_map_row, (tokens,), (*args, tile), options)
    if kernel == "two rows":
        return runtime.Launch(_map_two_rows, (-(-tokens // 2),), (*args, tile), options)
    grid = (tokens, -(-width // tile) + 1)
    whole = runtime.power_of_2(width)
    return runtime.Launch(_map_part_of_row, grid, (*args, tile, whole), options)


def reachable_blocks(block_table, block_size) -> int:
    """Columns of the table that a 32-bit position can reach.

    With so many at most, a negative position read as unsigned lies past the table: one comparison
    tells empty entries and positions past the table.
    """
    return min(block_table.size(1), (2**31 - 1) // block_size + 1)


@runtime.kernel
def row_at(rows, token, stride):
    """Where a token's row begins.

    Told that a stride is not negative, the compiler multiplies once where it would three times, and
    leaves the outputs' addresses until the loads are under way.
    """
    tl.assume(stride >= 0)
    return rows + token * stride


@runtime.kernel
def row_of_table(request, valid, block_table, block_table_stride, requests, blocks):
    """A token's row of the block table, and how many of its blocks exist (0 if it has none)."""
    known = valid & (request.to(tl.uint32, bitcast=True) < requests.to(tl.uint32, bitcast=True))
    table_row = block_table + request.to(tl.int64) * block_table_stride
    return table_row, tl.where(known, blocks, 0).to(tl.uint32)


@runtime.kernel
def _block_number(position, table_row, reach, block_size: tl.constexpr):
    """Numbers of the blocks that positions lie in; below 0 where there is none."""
    block = position.to(tl.uint32, bitcast=True) // block_size  # -1 lies past every table
    return tl.load(table_row + block.to(tl.int32), mask=block < reach, other=-1)


@runtime.kernel
def _slot(position, number, block_size: tl.constexpr):
    """Slots of positions in blocks of these numbers; -1 where there is no block."""
    offset = (position.to(tl.uint32, bitcast=True) % block_size).to(tl.int32)
    return tl.where(number >= 0, number * block_size + offset, -1)


@runtime.kernel(do_not_specialize=("tokens", "requests", "blocks"), tensors=6)
def _map_row(
    topk_indices,
    token_to_req_indices,
    is_valid_token,
    block_table,
    slots,
    lens,
    topk_stride,
    block_table_stride,
    slots_stride,
    requests,
    blocks,
    tokens,
    width: tl.constexpr,
    block_size: tl.constexpr,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    request = tl.load(token_to_req_indices + token)
    valid = tl.load(is_valid_token + token)
    table_row, reach = row_of_table(
        request, valid, block_table, block_table_stride, requests, blocks
    )
    length = 0
    for first in range(0, width, TILE):
        column = first + tl.arange(0, TILE)
        in_row = column < width
        position = tl.load(row_at(topk_indices, token, topk_stride) + column, mask=in_row, other=-1)
        number = _block_number(position, table_row, reach, block_size)
        slot = _slot(position, number, block_size)
        tl.store(row_at(slots, token, slots_stride) + column, slot, mask=in_row)
        length += tl.sum((number >= 0).to(tl.int32))
    tl.store(lens + token, length)


@runtime.kernel(do_not_specialize=("tokens", "requests", "blocks"), tensors=6)
def _map_two_rows(
    topk_indices,
    token_to_req_indices,
    is_valid_token,
    block_table,
    slots,
    lens,
    topk_stride,
    block_table_stride,
    slots_stride,
    requests,
    blocks,
    tokens,
    width: tl.constexpr,
    block_size: tl.constexpr,
    TILE: tl.constexpr,
):
    """Two rows a program: twice the loads in flight, and one reduction counts both."""
    first = tl.program_id(0).to(tl.int64) * 2
    second = tl.minimum(first + 1, tokens - 1)  # read again, not written, where there is none
    column = tl.arange(0, TILE)
    in_row = column < width

    # All that does not depend on another load is asked for first; a padding row's request is
    # loaded, but only ever used as an address on a valid row.
    request1 = tl.load(token_to_req_indices + first)
    request2 = tl.load(token_to_req_indices + second)
    valid1 = tl.load(is_valid_token + first)
    valid2 = tl.load(is_valid_token + second)
    position1 = tl.load(row_at(topk_indices, first, topk_stride) + column, mask=in_row, other=-1)
    position2 = tl.load(row_at(topk_indices, second, topk_stride) + column, mask=in_row, other=-1)

    row1, reach1 = row_of_table(request1, valid1, block_table, block_table_stride, requests, blocks)
    row2, reach2 = row_of_table(request2, valid2, block_table, block_table_stride, requests, blocks)
    number1 = _block_number(position1, row1, reach1, block_size)
    number2 = _block_number(position2, row2, reach2, block_size)
    slot1 = _slot(position1, number1, block_size)
    slot2 = _slot(position2, number2, block_size)
    has_second = first < second
    tl.store(row_at(slots, first, slots_stride) + column, slot1, mask=in_row)
    tl.store(row_at(slots, second, slots_stride) + column, slot2, mask=in_row & has_second)

    both = tl.sum((number1 >= 0).to(tl.int32) + ((number2 >= 0).to(tl.int32) << 16))
    tl.store(lens + first, both & 0xFFFF)
    tl.store(lens + second, both >> 16, mask=has_second)


@runtime.kernel(do_not_specialize=("tokens", "requests", "blocks"), tensors=6)
def _map_part_of_row(
    topk_indices,
    token_to_req_indices,
    is_valid_token,
    block_table,
    slots,
    lens,
    topk_stride,
    block_table_stride,
    slots_stride,
    requests,
    blocks,
    tokens,
    width: tl.constexpr,
    block_size: tl.constexpr,
    TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
):
    """One tile of one row a program; part 0 counts the row, so that no length is added up."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    request = tl.load(token_to_req_indices + token)
    valid = tl.load(is_valid_token + token)
    table_row, reach = row_of_table(
        request, valid, block_table, block_table_stride, requests, blocks
    )
    row = row_at(topk_indices, token, topk_stride)
    if part > 0:
        column = (part - 1) * TILE + tl.arange(0, TILE)
        in_row = column < width
        position = tl.load(row + column, mask=in_row, other=-1)
        number = _block_number(position, table_row, reach, block_size)
        slot = _slot(position, number, block_size)
        tl.store(row_at(slots, token, slots_stride) + column, slot, mask=in_row)
    else:
        # An entry counts if its block exists. One look through the table row for null blocks
        # stands in for a look-up of every entry, unless there is one.
        lane = tl.arange(0, TILE)
        columns = tl.arange(0, ROW_TILE // TILE)[:, None] * TILE + lane[None, :]
        positions = tl.load(row + columns, mask=columns < width, other=-1)
        counted = positions.to(tl.uint32, bitcast=True) // block_size < reach
        least = tl.load(table_row + lane, mask=lane.to(tl.uint32) < reach, other=0)
        for first in range(TILE, blocks, TILE):
            in_table = (first + lane).to(tl.uint32) < reach
            least = tl.minimum(least, tl.load(table_row + first + lane, mask=in_table, other=0))
        # Both sums in one reduction: a row has at most 2^20 - 1 columns.
        sums = tl.sum(tl.sum(counted.to(tl.int32), 0) + ((least < 0).to(tl.int32) << 20))
        length = sums & 0xFFFFF
        if sums >= 1 << 20:
            numbers = _block_number(positions, table_row, reach, block_size)
            length = tl.sum(tl.sum((numbers >= 0).to(tl.int32), 0))
        tl.store(lens + token, length)
