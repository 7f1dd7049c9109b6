"""The three functions in plain PyTorch, written from their definition and not from the kernels.

Slow and short: whole-tensor operations in 64-bit integers, one line for each sentence of the
definition. Everything else in this repository is judged by it. Inputs outside the definition that
a safe kernel must survive (a block past the table, a request that does not exist, a null block)
give -1 here too.
"""

import torch


def compute_global_topk_indices_and_lens(
    topk_indices, token_to_req_indices, block_table, block_size, is_valid_token
):
    """Slots [T, K] and lengths [T] of local top-k positions; see `slot_mapping`."""
    position = topk_indices.long()
    slots = _slots(
        position,
        position // block_size,
        position % block_size,
        token_to_req_indices,
        block_table,
        block_size,
        is_valid_token,
    )
    return slots.int(), (slots >= 0).sum(1).int()


def compute_dcp_global_topk_indices_and_lens(
    topk_indices,
    token_to_req_indices,
    block_table,
    block_size,
    is_valid_token,
    dcp_world_size,
    dcp_rank,
    cp_kv_cache_interleave_size,
):
    """Slots [T, K] this rank owns, moved to the front, and how many [T]; see `slot_mapping`."""
    world, interleave = dcp_world_size, cp_kv_cache_interleave_size
    position = topk_indices.long()
    inside = position % (block_size * world)
    slots = _slots(
        position,
        position // (block_size * world),
        inside // (world * interleave) * interleave + inside % interleave,
        token_to_req_indices,
        block_table,
        block_size,
        is_valid_token,
    )
    kept = (slots >= 0) & (inside // interleave % world == dcp_rank)
    front = torch.argsort(~kept, dim=1, stable=True)  # kept entries first, in their old order
    slots = torch.where(kept, slots, -1).gather(1, front)
    return slots.int(), kept.sum(1).int()


def _slots(position, block, offset, token_to_req_indices, block_table, block_size, is_valid_token):
    """block_table[request, block] * block_size + offset, -1 where there is no such entry."""
    tokens = position.shape[0]
    requests, blocks = block_table.shape
    request = token_to_req_indices[:tokens].long()
    row_exists = is_valid_token & (request >= 0) & (request < requests)
    has_key = row_exists[:, None] & (position >= 0) & (block < blocks)
    if not has_key.any():
        return torch.full_like(position, -1)
    row = block_table.long()[torch.where(row_exists, request, 0)]
    number = row.gather(1, torch.where(has_key, block, 0))
    return torch.where(has_key & (number >= 0), number * block_size + offset, -1)


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
):
    """Workspace rows [T, width] each token attends to, and how many [T]; see `combine`."""
    device = topk_indices.device
    tokens, requests = topk_indices.shape[0], seq_lens.shape[0]
    width = -(-(topk + window_size) // 128) * 128
    if not tokens or not requests:
        return (
            torch.full((tokens, width), -1, dtype=torch.int32, device=device),
            torch.zeros(tokens, dtype=torch.int32, device=device),
        )
    start = query_start_loc.long() - query_start_loc[0]
    token = torch.arange(tokens, device=device)
    # The request of a token is the last one that starts at or before it and is not empty.
    request = torch.searchsorted(start[1:], token, right=True)
    belongs = request < requests
    request = request.clamp(max=requests - 1)
    seq_len, gather_len = seq_lens.long()[request], gather_lens.long()[request]
    query_len = (start[1:] - start[:-1])[request]

    position = seq_len - query_len + token - start[request]
    seen = torch.where(belongs, position + 1, 0).clamp(min=0)
    topk_len = (seen // compress_ratio).clamp(max=topk) if topk else torch.zeros_like(seen)
    swa_len = seen.clamp(max=window_size)

    column = torch.arange(width, device=device)
    in_topk = column < topk_len[:, None]
    in_window = ~in_topk & (column < (topk_len + swa_len)[:, None])
    first = M * request + N + position - swa_len + 1 - (seq_len - gather_len)
    window = (first - topk_len)[:, None] + column
    compressed = torch.full_like(window, -1)
    compressed[:, :topk] = topk_indices[:, :topk].long() + M * request[:, None]
    indices = torch.where(in_topk, compressed, torch.where(in_window, window, -1))
    return indices.int(), (topk_len + swa_len).int()
