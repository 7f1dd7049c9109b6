"""Model geometry, and deterministic batches drawn from it: what the kernels are fed.

A `Preset` is the geometry of one kind of layer. A `Batch` is one step of a serving engine: every
tensor the metadata kernels take, on one device, with the same values on every device.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import torch

from . import runtime

STALE_REQUEST = 1 << 29  # what padding rows carry as their request: far outside any block table


@dataclasses.dataclass(frozen=True)
class Preset:
    """Geometry of one kind of DeepSeek V4 layer, from public serving configurations.

    Attributes:
        name: as in `PRESETS`.
        topk: compressed keys a token attends to; 0 in a layer with a sliding window only.
        row_width: columns of the top-k buffer; may exceed `topk`.
        compress_ratio: tokens for each compressed key.
        window_size: newest tokens a token attends to (sliding window attention, SWA).
        block_size: compressed keys in a block of the paged KV cache.
    """

    name: str
    topk: int
    row_width: int
    compress_ratio: int
    window_size: int
    block_size: int = 64

    def keys(self, tokens: int) -> int:
        """Compressed keys that the first `tokens` tokens of a sequence have."""
        return max(tokens, 0) // self.compress_ratio if self.topk else 0

    def replace(self, **changes) -> "Preset":
        """The same preset with some attributes changed, named as a variation."""
        return dataclasses.replace(self, **{"name": f"{self.name} (changed)"} | changes)


FLASH_C4A = Preset("Flash C4A", 512, 512, compress_ratio=4, window_size=128)
PRO_C4A = Preset("Pro C4A", 1024, 1024, compress_ratio=4, window_size=128)
C128A = Preset("C128A", 8192, 8192, compress_ratio=128, window_size=128)
SWA_ONLY = Preset("SWA only", 0, 512, compress_ratio=1, window_size=128)

PRESETS = {preset.name: preset for preset in (FLASH_C4A, PRO_C4A, C128A, SWA_ONLY)}


@dataclasses.dataclass(frozen=True)
class Batch:
    """The tensors of one step; names, shapes and dtypes are those of the kernels' arguments.

    T tokens, R requests, K = `preset.row_width` columns, B blocks a request; int32 but for the
    bool `is_valid_token`.
    """

    preset: Preset
    topk_indices: torch.Tensor  # [T, K]
    token_to_req_indices: torch.Tensor  # [T]
    is_valid_token: torch.Tensor  # [T]
    block_table: torch.Tensor  # [R, B]
    query_start_loc: torch.Tensor  # [R + 1]
    seq_lens: torch.Tensor  # [R]
    gather_lens: torch.Tensor  # [R]
    M: int  # workspace rows a request
    N: int  # first workspace row of the sliding-window keys

    @property
    def tokens(self) -> int:
        """T, padding rows included."""
        return self.topk_indices.shape[0]

    @property
    def requests(self) -> int:
        """R."""
        return self.block_table.shape[0]

    def slot_mapping_args(self) -> tuple:
        """Arguments of `compute_global_topk_indices_and_lens`, in order."""
        return (
            self.topk_indices,
            self.token_to_req_indices,
            self.block_table,
            self.preset.block_size,
            self.is_valid_token,
        )

    def dcp_args(self, dcp_world_size: int, dcp_rank: int, interleave: int = 1) -> tuple:
        """Arguments of `compute_dcp_global_topk_indices_and_lens`, in order."""
        return (*self.slot_mapping_args(), dcp_world_size, dcp_rank, interleave)

    def combine_args(self) -> tuple:
        """Arguments of `combine_topk_swa_indices`, in order."""
        return (
            self.topk_indices,
            self.query_start_loc,
            self.seq_lens,
            self.gather_lens,
            self.preset.window_size,
            self.preset.compress_ratio,
            self.preset.topk,
            self.M,
            self.N,
        )

    def to(self, device) -> "Batch":
        """The same batch on another device; a strided view becomes its own buffer's view."""
        changes = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor) and value.device != torch.device(device):
                moved = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device=device
                )
                changes[field.name] = moved.copy_(value)
        return dataclasses.replace(self, **changes)


def batch(
    preset: Preset,
    query_lens: Sequence[int],
    seq_lens: Sequence[int] | None = None,
    *,
    gather_lens: Sequence[int] | None = None,
    keys: int | None = None,
    holes: float = 0.0,
    padding: int = 0,
    first_query_start: int = 0,
    row_stride: int | None = None,
    table_stride: int | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Batch:
    """Draw a batch; every other function here names a common kind of it.

    Each token's row holds distinct positions in no order, as many as it has compressed keys or
    `topk`, then -1. Values depend on the arguments alone, not on the device.

    Args:
        preset: the layer's geometry.
        query_lens: new tokens of each request; 0 is legal.
        seq_lens: tokens of each request, the new ones included; default `query_lens`, a fresh
            prefill.
        gather_lens: newest tokens gathered for each request; default what its windows need.
        keys: compressed keys every token sees; default what its position allows.
        holes: part of each row's entries emptied (-1), anywhere in the row.
        padding: rows after the last request, as CUDA-graph capture pads: invalid, with a stale
            request index and positions that look real.
        first_query_start: first entry of `query_start_loc`, non-zero for a chunk of a larger batch.
        row_stride: elements between rows of `topk_indices`, a view of a wider buffer if more
            than its width.
        table_stride: the same for `block_table`.
        seed: another seed, other positions and blocks.
        device: default the GPU where there is one.

    Raises:
        ValueError: lengths that do not agree, or a stride below the width.
    """
    device = torch.device(device) if device is not None else runtime.default_device()
    query_lens = list(query_lens)
    seq_lens = query_lens if seq_lens is None else list(seq_lens)
    requests = len(query_lens)
    for name, lens in (("seq_lens", seq_lens), ("gather_lens", gather_lens)):
        if lens is not None and len(lens) != requests:
            raise ValueError(f"{name} must have {requests} entries, like query_lens: {len(lens)}")
    steps = list(zip(query_lens, seq_lens, strict=True))
    if gather_lens is None:
        window = preset.window_size - 1
        gather_lens = [min(seq, query + window) if query else 0 for query, seq in steps]
    tokens = sum(query_lens) + padding
    reach = max(map(preset.keys, seq_lens), default=0) if keys is None else keys

    def ints(values):
        return torch.tensor(list(values), dtype=torch.int32, device=device)

    query_start_loc = itertools.accumulate(query_lens, initial=first_query_start)
    token_request = torch.repeat_interleave(
        torch.arange(requests, dtype=torch.int32), torch.tensor(query_lens, dtype=torch.int64)
    )
    token_request = torch.cat([token_request, torch.full((padding,), STALE_REQUEST)]).int()
    visible = [
        preset.keys(position + 1) if keys is None else keys
        for query, seq in steps
        for position in range(seq - query, seq)
    ] + [0] * padding

    topk_indices = _rows(tokens, preset.row_width, row_stride, device, "row_stride")
    _draw_positions(topk_indices, ints(visible), preset.topk, holes, seed)
    topk_indices[tokens - padding :] = 0

    blocks = max(1, -(-reach // preset.block_size))
    block_table = _rows(requests, blocks, table_stride, device, "table_stride")
    shuffled = torch.randperm(requests * blocks, generator=torch.Generator().manual_seed(seed))
    block_table.copy_(shuffled.view(requests, blocks) + 1)  # block 0 is the null block

    compressed_rows = max([preset.keys(s) for s in seq_lens], default=0)
    return Batch(
        preset=preset,
        topk_indices=topk_indices,
        token_to_req_indices=token_request.to(device),
        is_valid_token=(token_request != STALE_REQUEST).to(device),
        block_table=block_table,
        query_start_loc=ints(query_start_loc),
        seq_lens=ints(seq_lens),
        gather_lens=ints(gather_lens),
        M=compressed_rows + max(gather_lens, default=0),
        N=compressed_rows,
    )


def decode(preset: Preset, requests: int, context: int, **options) -> Batch:
    """One new token for each of `requests` requests that stand at `context` tokens."""
    return batch(preset, [1] * requests, [context] * requests, **options)


def prefill(preset: Preset, tokens: int, **options) -> Batch:
    """One fresh request of `tokens` tokens: no context before it."""
    return batch(preset, [tokens], **options)


def chunked_prefill(preset: Preset, chunk: int, context: int, **options) -> Batch:
    """A chunk of one long prompt that ends at `context`, cut from a larger batch.

    Its first `query_start_loc` is not zero.
    """
    return batch(preset, [chunk], [context], **{"first_query_start": 700} | options)


def mixed(preset: Preset, tokens: int, **options) -> Batch:
    """Requests of odd and very different lengths and contexts, one of them empty, `tokens` in all.

    Half of the tokens belong to one request, then each has half of what is left.
    """
    query_lens = []
    while tokens:
        query_lens.append(-(-tokens // 2))
        tokens -= query_lens[-1]
    query_lens.insert(1, 0)
    seq_lens = [q + 173 * i for i, q in enumerate(query_lens)]
    return batch(preset, query_lens, seq_lens, **options)


def mapping(preset: Preset, tokens: int, requests: int = 1, **options) -> Batch:
    """A batch for slot mapping alone: `tokens` spread over `requests`, 16,384 keys in reach.

    An eighth of each row is empty, anywhere in the row.
    """
    options = {"keys": 16_384, "holes": 1 / 8} | options
    return batch(preset, even(tokens, requests), **options)


def even(tokens: int, requests: int) -> list[int]:
    """Query lengths of `tokens` spread over `requests` as evenly as whole tokens allow."""
    return [tokens // requests + (r < tokens % requests) for r in range(requests)]


def _rows(rows, width, stride, device, name):
    """An empty (-1) [rows, width] view of a buffer whose rows are `stride` apart."""
    stride = width if stride is None else stride
    if stride < width:
        raise ValueError(f"{name} must be at least the width {width}, got {stride}")
    return torch.full((rows, stride), -1, dtype=torch.int32, device=device)[:, :width]


def _draw_positions(topk_indices, visible, topk, holes, seed):
    """Write distinct positions below `visible[token]` into each row, chunk by chunk of rows.

    The visible range is cut into as many equal pieces as there are entries, one position taken
    from each by a counter-based hash; walking the pieces by a large prime leaves no order.
    """
    tokens, width = topk_indices.shape
    if not topk:
        return
    rows = max(1, (1 << 24) // width)
    column = torch.arange(width, device=topk_indices.device)
    for first in range(0, tokens, rows):
        out = topk_indices[first : first + rows]
        token = torch.arange(first, first + out.shape[0], device=out.device)[:, None]
        keys = visible[first : first + rows, None].long()
        entries = keys.clamp(max=topk)
        some = entries.clamp(min=1)
        piece = (column * 1_000_003 + token * 7_919 + seed * 104_729) % some
        noise = _hash(token * 16_411 + column * 40_503 + seed * 69_061)
        position = piece * keys // some + noise % (keys // some).clamp(min=1)
        taken = column < entries
        if holes:
            taken &= _hash(noise + 1) >= int(holes * (1 << 31))
        out.copy_(torch.where(taken, position, -1))


def _hash(value):
    """31 well-mixed bits of non-negative int64 values below 2^62, the same on every device."""
    value = value & 0x7FFFFFFF
    for shift, factor in ((16, 0x45D9F3B), (15, 0x2C1B3C6D)):
        value = (value ^ (value >> shift)) * factor & 0x7FFFFFFF
    return value ^ (value >> 16)
