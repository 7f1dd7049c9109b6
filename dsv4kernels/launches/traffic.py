"""Bytes that a batch must move, and that each variant does move, counted from the definition.

A kernel that only moves integers is judged by these: time is at least bytes over bandwidth. Every
input element that decides an output is read once and every output element written once; what a
variant moves beyond that (the separate fill with -1) is counted apart.
"""

from typing import NamedTuple

from ..combine import output_width
from ..presets import Batch

INT = 4  # bytes of an int32


class Traffic(NamedTuple):
    """Bytes read and written once each, in the best case."""

    read: int
    written: int

    @property
    def total(self) -> int:
        return self.read + self.written


def slot_mapping(batch: Batch) -> Traffic:
    """Bytes the slot mapping requires: rows in, rows and lengths out, block table once.

    The block table counts no further than the entries that can be looked up.
    """
    tokens, width = batch.topk_indices.shape
    table = min(batch.block_table.numel(), tokens * width)
    per_token = tokens * (INT + 1)  # the request index and the bool
    return Traffic(
        read=tokens * width * INT + table * INT + per_token,
        written=tokens * width * INT + tokens * INT,
    )


def combine(batch: Batch) -> Traffic:
    """Bytes combine requires: the top-k entries in use, and every output element once."""
    preset, tokens = batch.preset, batch.tokens
    width = output_width(preset.topk, preset.window_size)
    topk_entries, _ = combine_entries(batch)
    return Traffic(
        read=(topk_entries + 3 * batch.requests + 1) * INT,
        written=tokens * (width + 1) * INT,
    )


def combine_published(batch: Batch) -> Traffic:
    """Bytes of the published combine: its fill writes the whole output before the values do."""
    required = combine(batch)
    topk_entries, window_entries = combine_entries(batch)
    values = (topk_entries + window_entries + batch.tokens) * INT
    return Traffic(read=required.read, written=fill(batch) + values)


def fill(batch: Batch) -> int:
    """Bytes of the separate pass that fills combine's output with -1."""
    return batch.tokens * output_width(batch.preset.topk, batch.preset.window_size) * INT


def combine_entries(batch: Batch) -> tuple[int, int]:
    """Top-k and window entries of all rows together."""
    preset = batch.preset
    start = batch.query_start_loc.tolist()
    topk_entries = window_entries = 0
    for request, seq_len in enumerate(batch.seq_lens.tolist()):
        query_len = start[request + 1] - start[request]
        seen = range(max(seq_len - query_len, 0) + 1, seq_len + 1)  # pos + 1, where positive
        window_entries += sum(min(count, preset.window_size) for count in seen)
        if preset.topk:
            ratio = preset.compress_ratio
            topk_entries += sum(min(count // ratio, preset.topk) for count in seen)
    return topk_entries, window_entries
