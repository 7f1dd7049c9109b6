"""Figures of lesson 01: from top-k and sliding window to slots and workspace rows.

What they draw comes from running the kernels: outputs, or a trace of a launch.
"""

import itertools

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.patches import ConnectionPatch, Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from ..presets import Batch
from . import EMPTY, PADDING, TOPK, WINDOW, new, source, styled

INK = "#333333"
MOST_CELLS = 48  # across, with an edge and a number each
RANKS = (TOPK, WINDOW, "#009E73", "#CC79A7")  # told apart by colour-blind readers
# What an entry of a row of indices can be, as numbered by `parts`.
NO_ENTRY, FROM_TOPK, FROM_WINDOW, PADDING_ROW = range(4)
PARTS = {
    NO_ENTRY: ("no entry (-1)", EMPTY),
    FROM_TOPK: ("top-k", TOPK),
    FROM_WINDOW: ("sliding window", WINDOW),
    PADDING_ROW: ("padding row", PADDING),
}
_HATCHED = {"facecolor": "none", "edgecolor": "white", "hatch": "////", "linewidth": 0}
# Workspace rows that hold a key of this kind which the token in question does not name.
TINTS = {NO_ENTRY: "white", FROM_TOPK: "#CFE3F1", FROM_WINDOW: "#FBE7C0"}


def parts(batch: Batch, indices) -> np.ndarray:
    """What each entry of the combined rows is, [T, width]: the keys of `PARTS`.

    Told from the workspace row alone: below `N` of its request a compressed key, else the window.

    Args:
        batch: what the rows were combined from.
        indices: int32 [T, width], as `combine_topk_swa_indices` returns them.
    """
    indices = indices.numpy()
    kind = np.where(indices % max(batch.M, 1) < batch.N, FROM_TOPK, FROM_WINDOW)
    kind[indices < 0] = NO_ENTRY
    kind[int(batch.query_start_loc[-1] - batch.query_start_loc[0]) :] = PADDING_ROW
    return kind


@styled
def lookup(accesses: pd.DataFrame, batch: Batch, token: int):
    """One token's positions, the blocks of its block table, and their slots in the paged cache.

    Args:
        accesses: a trace of a slot mapping of `batch` with one program a token.
        batch: what was mapped.
        token: a valid token.
    """
    mine = accesses[accesses.program == token]
    positions = _values(mine, "topk_indices", "load")
    slots = _values(mine, "slots", "store")
    numbers = _values(mine, "block_table", "load")  # by block of the sequence, those looked up
    request = int(batch.token_to_req_indices[token])
    table, size = batch.block_table[request].tolist(), batch.preset.block_size
    blocks = int(batch.block_table.max()) + 1

    figure, (top, middle, bottom) = new(3, size=(7.6, 4.4), height_ratios=(1, 1, 2.2))
    figure.get_layout_engine().set(hspace=0.14)
    cells(top, positions, [EMPTY if position < 0 else TOPK for position in positions])
    top.set_title(
        f"{(positions >= 0).sum()} positions of token {token} lie in {len(numbers)} "
        f"block{'s' if len(numbers) != 1 else ''} of request {request}"
    )
    entries = [f"{block} → {number}" for block, number in enumerate(table)]
    colours = [TOPK if block in numbers.index else TINTS[FROM_TOPK] for block in range(len(table))]
    cells(middle, entries, colours)

    found = slots[slots >= 0].to_numpy()
    cache = np.zeros((blocks, size), dtype=int)
    cache[table] = 1
    cache.reshape(-1)[found] = 2
    bottom.pcolormesh(
        cache.T, cmap=ListedColormap(["white", TINTS[FROM_TOPK], TOPK]), vmin=0, vmax=2,
        edgecolors="#999999" if blocks <= MOST_CELLS else "none", linewidth=0.4,
    )  # fmt: skip
    if blocks <= 20 and size <= 8:
        for slot in found:
            _write(bottom, slot // size, slot % size, slot, TOPK, 7.5)
    ticks = np.arange(0, blocks, max(1, blocks // 24))
    bottom.set_xticks(ticks + 0.5, ticks)
    bottom.set(ylim=(size, 0), yticks=[], xlabel=f"block of the cache, {size} slots each")
    bottom.tick_params(length=0, labelsize=8)
    bottom.grid(visible=False)
    bottom.spines[:].set(visible=True, color="#999999", linewidth=0.4)
    name_strip(top, "top-k\npositions")
    name_strip(middle, "block table")
    name_strip(bottom, "paged\nKV cache")
    for column, position in positions[positions >= 0].items():
        _join(figure, top, (column + 0.5, 1), middle, (position // size + 0.5, 0))
    for block, number in numbers.items():
        _join(figure, middle, (block + 0.5, 1), bottom, (number + 0.5, 0))
    source(
        figure,
        "Traced in Triton's interpreter: what the kernel loads and stores for this token; pale: "
        "the request's other slots",
    )
    return figure


@styled
def shares(positions, rank_slots, rank_lens, interleave: int):
    """One row of positions, and what each DCP rank keeps of it.

    Args:
        positions: int32 [K], the token's row.
        rank_slots: for each rank, its int32 [K] row of slots.
        rank_lens: for each rank, how many it keeps.
        interleave: neighbouring positions that stay on one rank.
    """
    ranks, positions = len(rank_lens), positions.tolist()
    figure, panels = new(ranks + 1, size=(7.6, 1.0 + 0.5 * (ranks + 1)))
    owner = [position // interleave % ranks if position >= 0 else -1 for position in positions]
    colours = [_rank(rank, ranks) for rank in range(ranks)]
    cells(panels[0], positions, [colours[rank] if rank >= 0 else EMPTY for rank in owner])
    name_strip(panels[0], "top-k\npositions")
    panels[0].set_title(f"{ranks} ranks share one row of positions")
    for rank, (axes, slots) in enumerate(zip(panels[1:], rank_slots, strict=True)):
        slots = slots.tolist()
        cells(axes, slots, [colours[rank] if slot >= 0 else EMPTY for slot in slots])
        name_strip(axes, f"rank {rank}\nkeeps {int(rank_lens[rank])}")
    source(figure, "Output of the DCP kernel, run once for each rank; a colour for each rank")
    return figure


@styled
def combined_row(batch: Batch, indices, lens, token: int):
    """One token's combined row, and the rows of its request's workspace that it names.

    Args:
        batch: what the row was combined from.
        indices: int32 [T, width].
        lens: int32 [T].
        token: a token of a request.
    """
    request, length = int(batch.token_to_req_indices[token]), int(lens[token])
    kind, row = parts(batch, indices)[token], indices[token].tolist()
    first, shown = batch.M * request, min(len(row), length + 3)

    figure, (top, bottom) = new(2, size=(7.6, 2.7))
    figure.get_layout_engine().set(hspace=0.2)
    cells(top, row[:shown], [PARTS[part][1] for part in kind[:shown]])
    top.set_title(
        f"{(kind == FROM_TOPK).sum()} top-k entries, {(kind == FROM_WINDOW).sum()} of the window, "
        f"then -1 in columns {length} to {len(row) - 1}"
    )
    named, regions = set(row), _regions(batch)[request]
    colours = [
        PARTS[region][1] if first + at in named else TINTS[region]
        for at, region in enumerate(regions)
    ]
    cells(bottom, list(range(first, first + batch.M)), colours)
    name_strip(top, f"row of\ntoken {token}")
    name_strip(bottom, f"workspace of\nrequest {request}")
    for column, workspace_row in enumerate(row[:length]):
        colour, end = PARTS[kind[column]][1], workspace_row - first + 0.5
        _join(figure, top, (column + 0.5, 1), bottom, (end, 0), colour)
    source(
        figure,
        f"Output of the combine kernel; M = {batch.M} rows a request, newest keys from its row "
        f"N = {batch.N}; pale: gathered, not for this token",
    )
    return figure


@styled
def rows(batch: Batch, indices):
    """All rows of a batch as an image, coloured by what each entry is.

    Args:
        batch: what the rows were combined from.
        indices: int32 [T, width]; columns that are -1 in all rows are left out but for a few.
    """
    kind = parts(batch, indices)
    tokens, width = kind.shape
    used = int((indices >= 0).sum(1).max()) if tokens else 0
    shown = min(width, used + max(4, used // 4))
    figure, axes = new(size=(7.6, min(7.0, 1.9 + 0.11 * tokens)))
    _image(axes, kind[:, :shown], [colour for _, colour in PARTS.values()])
    _requests(axes, batch, shown)
    axes.set(xlabel="column", ylabel="row (token)")
    if shown < width:
        axes.set_xlabel(f"column (from {shown} to {width - 1} every entry is -1, not drawn)")
    axes.set_title("Each row: top-k, then the window, then -1")
    _legend(figure, {PARTS[part][0]: PARTS[part][1] for part in np.unique(kind)})
    source(figure, "Output of the combine kernel")
    return figure


@styled
def workspace(batch: Batch, indices):
    """Which workspace rows each token names, with the rows of each request (M) and its window (N).

    Args:
        batch: what the rows were combined from.
        indices: int32 [T, width].
    """
    kind = parts(batch, indices)
    tokens, reach = len(kind), batch.M * batch.requests
    image = np.tile(np.concatenate(_regions(batch)), (tokens, 1)) + len(PARTS)
    request = batch.token_to_req_indices.numpy()
    image[request[:, None] != np.arange(reach)[None, :] // batch.M] = NO_ENTRY
    row, column = np.nonzero((kind == FROM_TOPK) | (kind == FROM_WINDOW))
    image[row, indices.numpy()[row, column]] = kind[row, column]
    image[kind[:, 0] == PADDING_ROW] = PADDING_ROW

    figure, axes = new(size=(7.6, min(7.0, 2.2 + 0.11 * tokens)))
    _image(axes, image, [colour for _, colour in PARTS.values()] + list(TINTS.values()))
    _requests(axes, batch, reach)
    starts = [(batch.M * r, batch.M * r + batch.N) for r in range(batch.requests)]
    for start, window in starts:
        axes.axvline(start, color=INK, linewidth=1)
        axes.axvline(window, color=INK, linewidth=0.8, linestyle=":")
    ticks = sorted({at for pair in starts for at in pair})
    axes.set_xticks(ticks, ticks, rotation=0 if len(ticks) <= 10 else 90)
    axes.set(ylabel="token", xlabel="workspace row (lines at M x request, dotted N rows further)")
    axes.set_title("Each token names rows of its own request only")
    colours = {PARTS[part][0]: PARTS[part][1] for part in (FROM_TOPK, FROM_WINDOW)}
    colours |= {"compressed key, not named": TINTS[FROM_TOPK]}
    colours |= {"newest key, not named": TINTS[FROM_WINDOW]}
    colours |= {"unused": TINTS[NO_ENTRY], "another request's": EMPTY}
    if (kind == PADDING_ROW).any():
        colours |= dict([PARTS[PADDING_ROW]])
    _legend(figure, colours)
    source(
        figure,
        f"Output of the combine kernel; M = {batch.M} rows each, newest keys from N = {batch.N}",
    )
    return figure


def _regions(batch):
    """What each row of each request's workspace holds, [R, M]: one of `TINTS`."""
    regions = np.full((batch.requests, batch.M), NO_ENTRY)
    for request, (seq_len, gather_len) in enumerate(
        zip(batch.seq_lens.tolist(), batch.gather_lens.tolist(), strict=True)
    ):
        regions[request, : batch.preset.keys(seq_len)] = FROM_TOPK
        regions[request, batch.N : batch.N + gather_len] = FROM_WINDOW
    return regions


def _values(accesses, tensor, op):
    """What was loaded from or stored to a tensor, by column; of a tensor by element once."""
    found = accesses[(accesses.tensor == tensor) & (accesses.op == op)]
    return found.drop_duplicates("column").set_index("column")["value"].sort_index()


def _rank(rank, ranks):
    return RANKS[rank % len(RANKS)] if ranks <= len(RANKS) else colormaps["viridis"](rank / ranks)


def cells(axes, values, colours):
    """A strip of squares with numbers in them, where they are few enough to read."""
    values = list(values)
    longest = max((len(str(value)) for value in values), default=1)
    size = min(9, 640 / (max(len(values), 1) * longest))  # points; a strip is some 470 wide
    axes.set(xlim=(0, max(len(values), 1)), ylim=(1, 0), xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    for column, (value, colour) in enumerate(zip(values, colours, strict=True)):
        _cell(axes, column, colour, edge=len(values) <= MOST_CELLS)
        if len(values) <= MOST_CELLS:
            _write(axes, column, 0, value, colour, size)


def name_strip(axes, text):
    """What a strip is, on its left: above it run the lines."""
    axes.set_ylabel(text, rotation=0, ha="right", va="center", fontsize=9)


def _cell(axes, column, colour, edge):
    edge = {"edgecolor": "#999999", "linewidth": 0.5} if edge else {"linewidth": 0}
    axes.add_patch(Rectangle((column, 0), 1, 1, facecolor=colour, **edge))


def _write(axes, column, row, text, colour, size):
    dark = sum(to_rgb(colour)) < 1.5
    axes.text(
        column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=size,
        color="white" if dark else INK,
    )  # fmt: skip


def _join(figure, upper, start, lower, end, colour=TOPK):
    """A line from a cell of one strip to a cell of the strip below, over the figure."""
    line = ConnectionPatch(
        start, end, "data", "data", axesA=upper, axesB=lower, color=colour, alpha=0.6, linewidth=1
    )
    line.set_in_layout(False)
    figure.add_artist(line)


def _image(axes, numbers, colours):
    """A matrix of small numbers as coloured cells, element (0, 0) at the top left corner."""
    height, width = numbers.shape
    axes.imshow(
        numbers, ListedColormap(colours), vmin=-0.5, vmax=len(colours) - 0.5, aspect="auto",
        interpolation="nearest", extent=(0, width, height, 0),
    )  # fmt: skip
    axes.grid(visible=False)


def _requests(axes, batch, width):
    """Lines between the rows of different requests, their names on the right, padding hatched."""
    bounds = (batch.query_start_loc - batch.query_start_loc[0]).tolist()
    names = [f"request {request}" for request in range(batch.requests)]
    if batch.tokens > bounds[-1]:
        padding = Rectangle((0, bounds[-1]), width, batch.tokens - bounds[-1], **_HATCHED)
        axes.add_patch(padding)
        bounds, names = [*bounds, batch.tokens], [*names, "padding"]
    for name, (start, end) in zip(names, itertools.pairwise(bounds), strict=True):
        axes.axhline(start, color="white", linewidth=2)
        if end > start:
            axes.annotate(
                name, (1, (start + end) / 2), xycoords=axes.get_yaxis_transform(), va="center",
                xytext=(5, 0), textcoords="offset points", fontsize=8.5,
            )  # fmt: skip
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend(figure, colours, columns=4):
    handles = [
        Patch(facecolor=colour, edgecolor="#999999", label=label,
              hatch=_HATCHED["hatch"] if label == PARTS[PADDING_ROW][0] else None)
        for label, colour in colours.items()
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, fontsize=8.5)
