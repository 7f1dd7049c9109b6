"""Figure of lesson 01's explorer: one token of a long request, its row and its slots."""

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from ..presets import Batch
from . import EMPTY, PADDING, TOPK, WINDOW, new, plain_numbers, source, styled
from .metadata import FROM_TOPK, FROM_WINDOW, PARTS, TINTS, parts


@styled
def step(batch: Batch, row: int, indices, slots, position: int, length: int):
    """Where a token stands in its request, its combined row, and its slots in the paged cache.

    Args:
        batch: one token, maybe with padding rows, of a request whose keys are gathered from the
            first on (`N` of them compressed).
        row: of the batch; a padding row has neither keys nor slots.
        indices: int32 [T, width], as `combine_topk_swa_indices` returns them.
        slots: int32 [T, K], as `compute_global_topk_indices_and_lens` returns them.
        position: of the token in its request; a padding row has none, and any number will do.
        length: tokens of the request.
    """
    figure, (top, middle, bottom) = new(3, size=(8, 5), height_ratios=(1, 1, 2))
    kind, real = parts(batch, indices)[row], bool(batch.is_valid_token[row])
    _request(top, batch, indices[row].numpy(), kind, position if real else None, length)
    edges = np.flatnonzero(np.diff(kind)) + 1
    for start, end in zip([0, *edges], [*edges, len(kind)], strict=True):
        padding = {"hatch": "////", "edgecolor": "white"} if not real else {"linewidth": 0}
        colour = PARTS[kind[start]][1]
        middle.add_patch(Rectangle((start, 0), end - start, 1, facecolor=colour, **padding))
    middle.set(xlim=(0, len(kind)), ylim=(0, 1), yticks=[], xlabel="column of its row of indices")
    ticks = [0]
    for edge in sorted({*edges.tolist(), len(kind)}):
        ticks += [edge] if edge - ticks[-1] > 0.06 * len(kind) else []
    middle.set_xticks(ticks)
    found = slots[row].numpy() if real else np.array([], dtype=int)
    _cache(bottom, batch, found[found >= 0])
    for axes, name in ((top, "request"), (middle, "row"), (bottom, "paged\nKV cache")):
        axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        axes.grid(visible=False)
        axes.spines[:].set(visible=True, color="#999999", linewidth=0.4)
        plain_numbers(axes.xaxis)
    for axes in (top, bottom):
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    chosen, window = (int((kind == part).sum()) for part in (FROM_TOPK, FROM_WINDOW))
    top.set_title(
        f"Position {position:,}: {chosen:,} top-k entries, {window} of the window, "
        f"{len(kind) - chosen - window:,} times -1"
        if real
        else f"A padding row: {len(kind):,} times -1, whatever its positions say"
    )
    legend = {"top-k": TOPK, "sliding window": WINDOW, "no entry (-1)": EMPTY}
    legend |= {"the request's other slots, or keys": TINTS[FROM_TOPK], "padding row": PADDING}
    handles = [Patch(facecolor=c, edgecolor="#999999", label=label) for label, c in legend.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=5, fontsize=8)
    source(figure, "Output of both kernels for this token, run in Triton's interpreter")
    return figure


def _request(axes, batch, row, kind, position, length):
    """The request as a bar: what has been seen, the chosen compressed keys, the window."""
    axes.set(xlim=(0, length), ylim=(0, 1), yticks=[], xlabel="position in the request")
    if position is None:
        return
    ratio = batch.preset.compress_ratio
    seen = batch.preset.keys(position + 1) * ratio
    axes.add_patch(Rectangle((0, 0), seen, 1, facecolor=TINTS[FROM_TOPK], linewidth=0))
    # A key stands for `ratio` positions, too few to be seen in a long request.
    wide = max(ratio, length / 700)
    chosen = [(key * ratio, wide) for key in row[kind == FROM_TOPK]]
    axes.broken_barh(chosen, (0, 1), facecolor=TOPK, linewidth=0)
    window = row[kind == FROM_WINDOW] - batch.N
    if len(window):  # half as high: keys of its tokens can be chosen as well
        span = {"facecolor": WINDOW, "edgecolor": WINDOW, "linewidth": 0.8, "zorder": 3}
        axes.add_patch(Rectangle((window[0], 0), len(window), 0.5, **span))


def _cache(axes, batch, found):
    """The cache, a column a block; the request's blocks pale, this token's slots marked."""
    size, table = batch.preset.block_size, batch.block_table[0].numpy()
    blocks = int(batch.block_table.max()) + 1
    if batch.preset.topk:
        columns = [(block, 1) for block in table]
        axes.broken_barh(columns, (0, size), facecolor=TINTS[FROM_TOPK], linewidth=0)
    wide, high = max(1, blocks / 250), max(1, size / 40)  # a slot that can still be seen
    left, upper = found // size, found % size
    corners = np.array([(0, 0), (wide, 0), (wide, high), (0, high)])
    cells = np.stack([left, upper], axis=1)[:, None, :] + corners
    axes.add_collection(PolyCollection(cells, facecolors=TOPK, linewidths=0, zorder=3))
    axes.set(xlim=(0, blocks), ylim=(size, 0), yticks=[])
    axes.set_xlabel(f"block of the cache, {size} slots each; white: other requests' blocks")
