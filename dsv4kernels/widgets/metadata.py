"""Explorer of lesson 01: step a token through a request, and watch its row and its slots."""

import dataclasses
from collections.abc import Iterable

import ipywidgets

from .. import combine, plots, presets, slot_mapping
from ..plots import token as figures
from ..presets import Batch, Preset
from . import Explorer, dropdown, paragraph, steps

LENGTHS = (16, 64, 256, 1024, 2048, 8192, 65_536, 1_048_576)
NEIGHBOURS = 2  # other requests, whose blocks lie between


def one_token(preset: Preset, length: int, position: int) -> tuple[Batch, int]:
    """One token of a fresh prefill request, as it stands in the request's step, and its row.

    The batch holds this token and a padding row, so that any position of any layer is quickly
    run; the token's row of indices is what it is among all tokens of the request.

    Args:
        preset: the layer.
        length: tokens of the request.
        position: of the token; `length` for the padding row after the last.

    Raises:
        ValueError: a position past that.
    """
    if not 0 <= position <= length:
        raise ValueError(f"position must be 0 to {length}, got {position}")
    seen = min(position + 1, length)
    batch = presets.batch(
        preset, [1], [seen], gather_lens=[seen], padding=1, seed=position, device="cpu"
    )
    # The request keeps its blocks, wherever the token stands; the neighbours' are not shown.
    tables = presets.batch(
        preset.replace(row_width=preset.topk),
        [0] * (1 + NEIGHBOURS),
        [length] * (1 + NEIGHBOURS),
        device="cpu",
    ).block_table
    keys = preset.keys(length)
    batch = dataclasses.replace(batch, block_table=tables[1:2], M=keys + length, N=keys)
    return batch, int(position == length)


def picture(preset: Preset, length: int, position: int) -> str:
    """A token's place, row and slots as HTML.

    Args:
        preset: the layer.
        length: tokens of the request.
        position: of the token; `length` for the padding row after the last.

    Raises:
        ValueError: a position past that.
    """
    batch, row = one_token(preset, length, position)
    slots, slot_lens = slot_mapping.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
    indices, lens = combine.combine_topk_swa_indices(*batch.combine_args())
    figure = figures.step(batch, row, indices, slots, position, length)
    width, entries = indices.shape[1], int(lens[row])
    if row:
        words = f"The row after the last token: length 0, and {width:,} columns of -1."
    else:
        words = _explained(batch, indices[0].tolist(), slots[0].tolist(), position)
    return plots.page(
        figure,
        alt=f"A request of {length:,} tokens, the row of one of them ({entries:,} of {width:,} "
        f"columns have an entry) and its {int(slot_lens[row]):,} slots in the paged cache.",
        caption="Choose the position with the slider or its arrow keys; the last step is a padding "
        "row.",
    ) + paragraph(words)


def _explained(batch, indices, slots, position):
    """How a token's first and last entry come about, in words."""
    preset, seen = batch.preset, position + 1
    window = min(seen, preset.window_size)
    words = f"Window: min({seen:,}, {preset.window_size}) = {window} entries, the last one row "
    chosen = min(preset.keys(seen), preset.topk)
    words += f"{batch.N:,} + {position:,} = {indices[chosen + window - 1]:,} of the workspace."
    if not preset.topk:
        return "No compressed keys in this layer. " + words
    words = (
        f"Top-k: min({seen:,} // {preset.compress_ratio}, {preset.topk:,}) = {chosen:,}. {words}"
    )
    if chosen:
        first, size = int(batch.topk_indices[0, 0]), preset.block_size
        block = int(batch.block_table[0, first // size])
        words += (
            f" Its first choice, key {first:,}, lies in block {block:,} at {first % size}: "
            f"slot {block:,} × {size} + {first % size} = {slots[0]:,}."
        )
    return words


def explore(
    layers: Iterable[Preset] = (),
    preset: str = "Flash C4A",
    length: int = 1024,
    position: int = 300,
) -> Explorer:
    """The controls over `picture`, which start at these values.

    Args:
        layers: to choose from beside `presets.PRESETS`.
        preset, length, position: where to start; as for `picture`, the preset by its name.
    """
    known = {layer.name: layer for layer in layers} | presets.PRESETS
    controls = {
        "preset": dropdown("layer", known, preset),
        "length": steps("tokens of the request", LENGTHS, length),
        "position": ipywidgets.IntSlider(
            value=position,
            max=length,
            description="position",
            continuous_update=False,
            readout_format="d",
            layout=ipywidgets.Layout(width="560px"),
        ),
    }

    def adjust(controls):
        controls["position"].max = controls["length"].value

    def draw(preset, length, position):
        return picture(known[preset], length, position)

    return Explorer(draw, controls, adjust)
