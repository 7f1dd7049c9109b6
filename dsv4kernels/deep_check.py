"""The deep check: read a batch's values and list every one that the kernels must not be given.

The kernels' own checks look at types and shapes, since looking at values would wait for the GPU.
When a served model goes wrong and its addresses are suspected, wait once and look at all of them.
"""

from collections.abc import Sequence

import torch

from .presets import Batch

COLUMNS = ("argument", "request", "token", "column", "got", "needed")
KERNELS = ("slot_mapping", "combine")


def check_batch(
    batch: Batch,
    *,
    kernels: Sequence[str] = KERNELS,
    cache_blocks: int | None = None,
    dcp_world_size: int = 1,
):
    """List what is wrong with a batch's values; waits for the GPU, for debugging only.

    Tensors of a serving engine become a `presets.Batch` by its constructor.

    Args:
        batch: of right types and shapes, on any device.
        kernels: which are to take it, `slot_mapping` (its DCP form too), `combine`, or both.
        cache_blocks: blocks of the KV cache; None to leave the largest block number unchecked.
        dcp_world_size: ranks the cache is split over; each block then holds as many positions more.

    Returns:
        pandas.DataFrame: one row a faulty value, empty if there is none. `argument` is its tensor
        or number; `request`, `token` and `column` say where it stands (a block's column in the
        block table), as far as each applies; `got` is the value, `needed` what it has to be.
        Block-table entries count only where a position of a valid token leads there. A sequence
        shorter than its query is a legal warm-up batch.

    Definition: the docstrings of `slot_mapping` and `combine`.
    """
    import pandas as pd

    faults: list[dict] = []
    on_host = {
        name: value.cpu().long() if isinstance(value, torch.Tensor) else value
        for name, value in vars(batch).items()
    }
    batch = Batch(**on_host)
    if "slot_mapping" in kernels:
        _slot_mapping(faults, batch, cache_blocks, dcp_world_size)
    if "combine" in kernels:
        _combine(faults, batch)
    if set(kernels) >= set(KERNELS):
        _both(faults, batch)
    integers = dict.fromkeys(("request", "token", "column", "got"), "Int64")
    return pd.DataFrame(faults, columns=list(COLUMNS)).astype(integers)


def _note(faults, argument, where, needed, got, **place):
    """A row for each True of `where`; `got` and the places are tensors of its shape, or numbers."""
    for index in where.nonzero().tolist():
        at = {
            name: int(value[tuple(index)]) if isinstance(value, torch.Tensor) else value
            for name, value in {"got": got, **place}.items()
        }
        faults.append({"argument": argument, "needed": needed, **at})


def _slot_mapping(faults, batch, cache_blocks, world):
    tokens, requests = batch.tokens, batch.requests
    blocks, span = batch.block_table.shape[1], batch.preset.block_size * world
    token = torch.arange(tokens)
    request = batch.token_to_req_indices[:tokens]
    valid = batch.is_valid_token.bool()
    known = valid & (request >= 0) & (request < requests)
    _note(
        faults, "token_to_req_indices", valid & ~known, f"from 0 to {requests - 1}", request,
        request=request, token=token,
    )  # fmt: skip

    position = batch.topk_indices
    column = torch.arange(position.shape[1]).expand_as(position)
    whose = {"request": request[:, None].expand_as(position), "token": token[:, None]}
    whose["token"] = whose["token"].expand_as(position)
    has_key = known[:, None] & (position >= 0)
    past = has_key & (position >= blocks * span)
    needed = f"below {blocks * span}, the table's reach"
    _note(faults, "topk_indices", past, needed, position, column=column, **whose)

    reached = torch.zeros(batch.block_table.shape, dtype=torch.bool)
    inside = has_key & ~past
    reached[whose["request"][inside], position[inside] // span] = True
    number = batch.block_table
    place = {
        "request": torch.arange(requests)[:, None].expand_as(number),
        "column": torch.arange(blocks).expand_as(number),
    }
    _note(faults, "block_table", reached & (number < 0), "at least 0", number, **place)
    if cache_blocks is not None:
        past = reached & (number >= cache_blocks)
        _note(faults, "block_table", past, f"below {cache_blocks} blocks", number, **place)


def _combine(faults, batch):
    preset, requests = batch.preset, len(batch.seq_lens)
    request = torch.arange(requests)
    start = batch.query_start_loc
    query_len = start[1:] - start[:-1]
    seq_len, gather_len = batch.seq_lens, batch.gather_lens
    _note(
        faults, "query_start_loc", query_len < 0, "no less than the one before", start[1:],
        request=request,
    )  # fmt: skip
    used = start[-1:] - start[:1]
    needed = f"at most {batch.tokens} tokens in all"
    _note(faults, "query_start_loc", used > batch.tokens, needed, used)
    _note(faults, "seq_lens", seq_len < 0, "at least 0", seq_len, request=request)

    longest = seq_len.clamp(min=0)
    _note(
        faults, "gather_lens", gather_len > longest, "at most its seq_len", gather_len,
        request=request,
    )  # fmt: skip
    # The first query token's window reaches window_size - 1 tokens before it.
    reach = (query_len + preset.window_size - 1).minimum(longest)
    short = (query_len > 0) & (gather_len < reach)
    needed = f"query_len + {preset.window_size - 1}, or its whole sequence"
    _note(faults, "gather_lens", short, needed, gather_len, request=request)
    past = batch.N + gather_len > batch.M
    _note(faults, "M", past, "at least N + gather_len", batch.M, request=request)
    if not preset.topk:
        return
    keys = longest // preset.compress_ratio
    needed = "at least the compressed keys of a sequence"
    _note(faults, "N", keys > batch.N, needed, batch.N, request=request)

    owner = _owner(batch)
    owned = owner >= 0
    mine = owner.clamp(min=0)
    token = torch.arange(batch.tokens)
    if not requests:
        return
    position = longest[mine] - (start[1:][mine] - start[0]) + token
    topk_len = ((position + 1).clamp(min=0) // preset.compress_ratio).clamp(max=preset.topk)
    column = torch.arange(batch.topk_indices.shape[1])
    key = batch.topk_indices
    read = owned[:, None] & (column < topk_len[:, None])
    wrong = read & ((key < 0) | (key >= keys[mine][:, None]))
    _note(
        faults, "topk_indices", wrong, "a compressed key of its sequence", key,
        request=owner[:, None].expand_as(key), token=token[:, None].expand_as(key),
        column=column.expand_as(key),
    )  # fmt: skip


def _owner(batch):
    """The request of each token by query_start_loc; -1 for none."""
    ends = (batch.query_start_loc[1:] - batch.query_start_loc[0]).contiguous()
    token = torch.arange(batch.tokens)
    if not len(ends):
        return torch.full_like(token, -1)
    owner = torch.searchsorted(ends, token, right=True)
    return torch.where(owner < len(ends), owner, -1)


def _both(faults, batch):
    """What the two kernels are told of a token's request has to agree."""
    request, valid = batch.token_to_req_indices[: batch.tokens], batch.is_valid_token.bool()
    owner = _owner(batch)
    token = torch.arange(batch.tokens)
    known = valid & (request >= 0) & (request < batch.requests)
    needed = "the request that query_start_loc gives the token"
    _note(
        faults, "token_to_req_indices", known & (request != owner), needed, request,
        request=request, token=token,
    )  # fmt: skip
