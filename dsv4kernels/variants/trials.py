"""Trials: the calls that a candidate is checked with, from every preset and every known corner.

Each trial is one call with arguments of its own, drawn on the CPU. Groups: `batch`, the batches of
the presets; `corner`, what broke kernels like these elsewhere; `safety`, device values outside the
definition, which a kernel survives only if it checks every index it uses.
"""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import NamedTuple

import torch

from .. import presets
from ..presets import C128A, FLASH_C4A, PRESETS, SWA_ONLY, Batch

SPLITS = ((1, 0, 1), (4, 1, 1), (3, 2, 2), (8, 7, 4))  # DCP ranks: world size, rank, interleave
SMALL = FLASH_C4A.replace(topk=72, row_width=88, window_size=24, block_size=16)
WIDE = SMALL.replace(topk=1500, row_width=1500)  # beyond a tile of 1,024, and no multiple of it
TINY = SMALL.replace(topk=4, row_width=4, window_size=3)

Make = Callable[[], Batch | tuple]


class Trial(NamedTuple):
    """One call: its group, what is special about it, and a function that draws its arguments."""

    group: str
    name: str
    arguments: Callable[[], tuple]


def of(kernel: str, tokens: int = 24) -> list[Trial]:
    """Every trial of a kernel.

    Args:
        kernel: `slot_mapping`, `combine` or `dcp`.
        tokens: of the presets' larger batches.
    """
    own = _COMBINE if kernel == "combine" else _MAPPING
    drawn = [
        # The small ones first: what they catch is told in words, where a large one may crash.
        *(("corner", name, make) for name, make in (_CORNERS | own["corner"]).items()),
        *(("batch", name, make) for name, make in _batches(tokens)),
        *(("safety", name, make) for name, make in own["safety"].items()),
    ]
    if kernel == "combine":
        return [Trial(group, name, _bind(make, Batch.combine_args)) for group, name, make in drawn]
    if kernel == "slot_mapping":
        return [
            Trial(group, name, _bind(make, Batch.slot_mapping_args)) for group, name, make in drawn
        ]
    turn = cycle(SPLITS)
    return [
        Trial(
            group,
            f"{name}; rank {rank} of {world}, {interleave} at a time",
            _bind_dcp(make, world, rank, interleave),
        )
        for group, name, make in drawn
        # The corners with every split, the others with each in turn.
        for world, rank, interleave in (SPLITS if group == "corner" else [next(turn)])
    ]


def _batches(tokens: int) -> Iterator[tuple[str, Make]]:
    for preset in PRESETS.values():
        context = 1_048_576 if preset is C128A else 65_536
        kinds = {
            "decode": lambda p=preset: presets.decode(p, 5, 8192, device="cpu"),
            "decode, padded": lambda p=preset: presets.decode(p, 5, 777, padding=3, device="cpu"),
            "fresh prefill": lambda p=preset: presets.prefill(p, tokens + 1, device="cpu"),
            "chunk of a long prompt": lambda p=preset, c=context: presets.chunked_prefill(
                p, tokens, c, device="cpu"
            ),
            "mixed lengths": lambda p=preset: presets.mixed(p, tokens, device="cpu"),
        }
        for kind, make in kinds.items():
            yield f"{preset.name}, {kind}", make


def _draw(preset, *args, **options) -> Make:
    return lambda: presets.batch(preset, *args, **options, device="cpu")


def _unaligned(*args):
    """A batch whose tensors begin an element into their storage, with rows an odd stride apart."""
    batch = presets.batch(*args, row_stride=91, table_stride=31, device="cpu")
    return Batch(**{name: _moved(value) for name, value in vars(batch).items()})


def _moved(value):
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.new_zeros(value.untyped_storage().nbytes() // value.element_size() + 1)
    return storage.as_strided(value.shape, value.stride(), 1).copy_(value)


_CORNERS: dict[str, Make] = {
    "topk below the row's width, no power of two": _draw(SMALL, [9, 5], [400, 70]),
    "one column, window of one": _draw(
        SMALL.replace(topk=1, row_width=1, window_size=1), [3, 2], [9, 5]
    ),
    "block size no power of two": _draw(SMALL.replace(block_size=12), [9, 5], [400, 70]),
    "rows and table of wider buffers": _draw(
        SMALL, [9, 5], [400, 70], row_stride=128, table_stride=31
    ),
    "top-k and window fill 128 columns exactly": _draw(
        SMALL.replace(topk=104, row_width=104), [6, 3], [900, 431]
    ),
    "requests without a token: first, between, last": _draw(
        SMALL, [0, 4, 0, 0, 3, 0], [50, 90, 8, 8, 300, 7]
    ),
    "more requests than a program looks through at once": _draw(
        TINY, [0] * 125 + [1] * 6, [30] * 131
    ),
    "more tokens of a request than it has workers": _draw(TINY, [2, 171], [30, 300]),
    "rows wider than a tile": _draw(WIDE, [2, 1], [6400, 900]),
    "nothing aligned to 16 bytes": lambda: _unaligned(SMALL, [9, 5], [400, 70]),
    "a batch that just begins: few keys, short windows": _draw(SMALL, [7], [7]),
    "no tokens": _draw(SMALL, [0, 0], [40, 9]),
    "tokens, but no request": _draw(SMALL, [], padding=3),
    "tokens after the last request": _draw(SMALL, [4, 3], [80, 90], padding=5),
}


def _combine_with(**changes) -> Make:
    """A small batch of which some arguments of combine are replaced, by their names."""

    def make():
        batch = presets.batch(SMALL, [5, 4], [120, 60], device="cpu")
        changed = {
            name: torch.tensor(value, dtype=torch.int32) if isinstance(value, list) else value
            for name, value in changes.items()
        }
        return Batch(**(vars(batch) | changed))

    return make


_COMBINE = {
    "corner": {
        "first query_start_loc not 0": _draw(SMALL, [5, 4], [120, 60], first_query_start=700),
        "first query_start_loc not 0, a request without a token, padding": _draw(
            SMALL, [5, 0, 4], [120, 9, 60], first_query_start=700, padding=3
        ),
        "compress_ratio no power of two": _draw(SMALL.replace(compress_ratio=3), [9, 5], [200, 70]),
        "M and N larger than they need be": _combine_with(M=1000, N=301),
        "holes anywhere in a row": _draw(SMALL, [9, 5], [400, 400], holes=0.3),
        "warm-up: a sequence shorter than its query": _draw(SMALL, [6, 4], [2, 30]),
        "sliding window only, compress_ratio 0": _draw(
            SWA_ONLY.replace(compress_ratio=0, window_size=24), [5, 4], [120, 60]
        ),
        "more gathered than the windows need": _draw(
            SMALL, [5, 4], [120, 60], gather_lens=[120, 60]
        ),
        "window longer than most sequences": _draw(
            SMALL.replace(window_size=200), [9, 3], [40, 230]
        ),
    },
    "safety": {
        "query_start_loc past the last token": _combine_with(query_start_loc=[0, 5, 1000]),
        "sequence lengths below 0": _combine_with(seq_lens=[-5, 60]),
    },
}


def _mapping_with(
    positions=None, requests=None, table=None, valid=None, preset=SMALL, context=400
) -> Make:
    """A small slot mapping of two requests; what is given takes the place of what is drawn."""

    def make():
        batch = presets.batch(preset, [3, 3], [context, context], device="cpu")
        if positions is not None:
            batch.topk_indices[:, : len(positions)] = torch.tensor(positions, dtype=torch.int32)
        if requests is not None:
            chosen = torch.tensor(requests, dtype=torch.int32)
            batch = Batch(**(vars(batch) | {"token_to_req_indices": chosen}))
        if table is not None:
            batch.block_table[:, : len(table)] = torch.tensor(table, dtype=torch.int32)
        if valid is not None:
            batch.is_valid_token.copy_(torch.tensor(valid))
        return batch

    return make


_PADDED = [True, True, False, True, True, False]
_MAPPING = {
    "corner": {
        "holes anywhere in a row": _draw(SMALL, [9, 5], [400, 400], holes=0.3),
        "no position at all": _draw(SMALL, [4], [3]),
        "edges of blocks": _mapping_with(positions=[0, 15, 16, 31, 32, 95]),
        "slots up to the last int32": _mapping_with(
            positions=[0, 15, 31], table=[(1 << 27) - 1, (1 << 27) - 2]
        ),
        "more request indices than tokens": _mapping_with(requests=[0, 1, 1, 0, 0, 1, 1, 0, 77]),
        "padding rows, request just past the table": _mapping_with(
            requests=[0, 1, 2, 1, 0, 3], valid=_PADDED
        ),
        "padding rows, request far past the table": _mapping_with(
            requests=[0, 1, 1 << 29, 1, 0, 2**31 - 1], valid=_PADDED
        ),
        "padding rows, request below 0": _mapping_with(
            requests=[0, 1, -1, 1, 0, -(2**31)], valid=_PADDED
        ),
    },
    "safety": {
        "a valid token's request just past the table": _mapping_with(requests=[0, 1, 2, 1, 0, -1]),
        "a valid token's request far past the table": _mapping_with(
            requests=[0, 1, 1 << 29, 1, 0, -(2**31)]
        ),
        "positions just past the table": _mapping_with(positions=[5, 111, 112, 99]),
        "positions far past the table": _mapping_with(positions=[5, 1 << 20, 2**31 - 1]),
        "null blocks": _mapping_with(positions=[0, 20, 40, 60], table=[3, -1, -(2**31), 4]),
        "rows wider than a tile, null blocks": _mapping_with(
            table=[3, -1, -(2**31), 4], preset=WIDE, context=6400
        ),
        "rows wider than a tile, positions past the table": _mapping_with(
            positions=[5, 1600, 1 << 20, 2**31 - 1], preset=WIDE, context=6400
        ),
    },
}


def _bind(make, arguments):
    return lambda: arguments(make())


def _bind_dcp(make, *split):
    return lambda: make().dcp_args(*split)
