"""Tasks of slot mapping: the mask, the stale index, the count, the owner of a position."""

import torch

from .. import presets, reference, runtime
from .tasks import (
    ANY,
    SMALL,
    TILE,
    UNWRITTEN,
    Case,
    Mistake,
    Task,
    always,
    poisoned,
    row_words,
    stores_outside,
)

# Slot mapping, in one tile


def _mapping(words, batch):
    width = batch.preset.row_width
    slots, lens = poisoned(batch.tokens, width, TILE + 3), poisoned(batch.tokens)
    expected = reference.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
    expected[0][~batch.is_valid_token] = ANY
    values = {
        "slots": slots,
        "lens": lens,
        "topk_indices": batch.topk_indices,
        "token_to_req_indices": batch.token_to_req_indices,
        "block_table": batch.block_table,
        "is_valid_token": batch.is_valid_token,
        "slots_stride": slots.stride(0),
        "topk_stride": batch.topk_indices.stride(0),
        "block_table_stride": batch.block_table.stride(0),
        "width": width,
        "block_size": batch.preset.block_size,
        "TILE": TILE,
    }
    expected = dict(zip(("slots", "lens"), expected, strict=True))
    return Case(words, values, expected, batch.tokens, row_words(batch), batch)


def _mask_cases(seed):
    for width in (5, 12, TILE):
        preset = SMALL.replace(topk=width, row_width=width)
        batch = presets.decode(preset, 3, 90, row_stride=TILE + 5, table_stride=40,
                               holes=0.2, seed=seed, device="cpu")  # fmt: skip
        case = _mapping(f"three requests, rows of {width} columns", batch)
        yield case._replace(expected={"slots": case.expected["slots"]})


MASK = Task(
    _mask_cases,
    (
        Mistake(
            "The tile has a power of two of lanes, the row as many columns as it has. A lane whose "
            "column is past the row must do nothing: compare `column` with `width`.",
            stores_outside(lambda case: TILE - case.values["width"]),
        ),
        Mistake(
            "One column too many: columns are counted from 0, so the last one is `width - 1`.",
            stores_outside(lambda case: case.values["width"] < TILE),
        ),
        Mistake(
            "One column too few: nothing is written to the last one. Columns 0 to `width - 1` are "
            "in the row.",
            lambda attempts: all(
                (a.got["slots"][:, -1] == UNWRITTEN).all() and not a.wrong("slots")[:, :-1].any()
                for a in attempts
            ),
        ),
    ),
)


def _stale_cases(seed):
    # As given, the kernel looks up outside the table for the first two, inside for the third.
    kinds = {"far too large": [presets.STALE_REQUEST] * 3, "below 0": [-7] * 3,
             "that of a real request": [0, 1, 0]}  # fmt: skip
    for kind, stale in kinds.items():
        batch = presets.decode(SMALL, 2, 90, holes=0.2, padding=3, row_stride=TILE + 5,
                               seed=seed, device="cpu")  # fmt: skip
        batch.token_to_req_indices[-3:] = torch.tensor(stale, dtype=torch.int32)
        yield _mapping(f"padding rows whose stale index is {kind}", batch)


def _entries(case):
    return (case.values["topk_indices"] >= 0).sum(1)


def _counted_padding(attempts):
    return all(torch.equal(a.got["lens"], _entries(a.case).int()) for a in attempts)


def _looks_up(attempts):
    return any(len(a.outside("load")) for a in attempts)


STALE = Task(
    _stale_cases,
    (
        Mistake(
            "`valid` has no effect yet: on a padding row the kernel goes to the block table with "
            "whatever request index was left there. (`position >= 0 & valid` changes nothing: `&` "
            "binds before `>=`, so put the comparison in brackets.)",
            lambda attempts: (
                _counted_padding(attempts)
                and [_looks_up([a]) for a in attempts] == [True, True, False]
            ),
            given=True,
        ),
        Mistake(
            "Padding rows still go to the block table, if with another request index: -1 is an "
            "address too, one row before the table. Mask the load from the table by `valid`.",
            lambda attempts: _counted_padding(attempts) and _looks_up(attempts),
        ),
        Mistake(
            "The stale index is no longer used, yet the entries of padding rows are counted: they "
            "look real. An entry counts where its token is valid and its position is not -1.",
            lambda attempts: _counted_padding(attempts) and not _looks_up(attempts),
        ),
        Mistake(
            "The lengths are right, but the block table is still read with the stale index. A "
            "compiled kernel may crash there: mask the load itself.",
            lambda attempts: all(a.right for a in attempts) and _looks_up(attempts),
        ),
        Mistake(
            "The index itself decides here whether it is stale. It can be any number, also that of "
            "a real request: only `is_valid_token` tells.",
            lambda attempts: attempts[0].right and not attempts[2].right,
        ),
        Mistake(
            "The wrong way round: `is_valid_token` is True where there is a token.",
            lambda attempts: all(
                (a.case.batch.is_valid_token ^ (a.got["lens"] > 0)).all() for a in attempts
            ),
        ),
    ),
)


# Counting


def _count_cases(seed):
    width = 2 * TILE + 5
    preset = SMALL.replace(topk=width, row_width=width)
    batches = {
        "full rows": presets.decode(preset, 3, 400, seed=seed, device="cpu"),
        "rows with holes": presets.decode(preset, 3, 400, holes=0.4, seed=seed, device="cpu"),
        "short rows and two padding rows": presets.decode(preset, 2, 90, padding=2, seed=seed,
                                                          device="cpu"),
    }  # fmt: skip
    for words, batch in batches.items():
        batch.topk_indices[0, 3] = 0  # a position like any other
        case = _mapping(words, batch)
        lens = poisoned(batch.tokens)
        yield case._replace(
            values=case.values | {"lens": lens}, expected={"lens": case.expected["lens"]}
        )


def _count(case, entry=lambda position: position >= 0, valid=True, columns=slice(None)):
    """Lengths counted another way: which entries, of which rows, in which columns."""
    counted = entry(case.values["topk_indices"][:, columns]).sum(1)
    return {"lens": torch.where(case.values["is_valid_token"] | (not valid), counted, 0)}


def _lanes(case):
    passes = -(-case.values["width"] // TILE)
    return {"lens": case.values["is_valid_token"] * passes * TILE}


COUNT = Task(
    _count_cases,
    (
        Mistake(
            "Padding rows are counted too: their positions look real. The length of a padding row "
            "is 0.",
            always(lambda case: _count(case, valid=False)),
        ),
        Mistake(
            "Every column is counted, the empty ones too. An empty entry is -1 and may stand "
            "anywhere in a row.",
            always(lambda case: _count(case, lambda position: position >= -1)),
        ),
        Mistake(
            "Every lane of every tile is counted, past the end of the row and on empty entries.",
            always(_lanes),
        ),
        Mistake(
            "Position 0 is not counted: it is a position like any other, only -1 is empty.",
            always(lambda case: _count(case, lambda position: position > 0)),
        ),
        Mistake(
            "Only the last tile is counted: each pass of the loop must add to `length`.",
            always(lambda case: _count(case, columns=slice(2 * TILE, None))),
        ),
        Mistake(
            "The positions themselves are added up. Count where they are `>= 0`: add up ones.",
            always(lambda case: _count(case, lambda position: position.clamp(min=0))),
        ),
    ),
)


# Decode context parallelism


def _owner_cases(seed):
    for block_size, ranks, interleave in ((4, 2, 1), (4, 3, 1), (8, 3, 2), (8, 2, 8)):
        count = 2 * block_size * ranks + 3
        positions = torch.arange(count, dtype=torch.int32)
        blocks = torch.arange(3, dtype=torch.int32)[None]
        owners, offsets = poisoned(count), poisoned(count)
        args = positions[:, None], torch.zeros_like(positions), blocks, block_size
        args = (*args, torch.ones(count, dtype=torch.bool), ranks)
        expected = {name: torch.full((count,), ANY, dtype=torch.int32) for name in
                    ("owners", "offsets")}  # fmt: skip
        for rank in range(ranks):
            slots, kept = reference.compute_dcp_global_topk_indices_and_lens(
                *args, rank, interleave
            )
            mine = kept > 0
            expected["owners"][mine] = rank
            expected["offsets"][mine] = slots[mine, 0] % block_size
        values = {
            "owners": owners,
            "offsets": offsets,
            "positions": positions,
            "count": count,
            "block_size": block_size,
            "ranks": ranks,
            "interleave": interleave,
            "TILE": runtime.power_of_2(count),
        }
        words = f"{ranks} ranks, {interleave} at a time, blocks of {block_size}"
        yield Case(words, values, expected, 1, [f"position {p}" for p in range(count)])


def _split(name, formula):
    """One of the outputs comes from another formula, of inside, block_size, ranks, interleave."""

    def model(case):
        size, ranks, interleave = (case.values[n] for n in ("block_size", "ranks", "interleave"))
        inside = case.values["positions"] % (size * ranks)
        return {name: formula(inside, size, ranks, interleave)}

    return always(model)


OWNER = Task(
    _owner_cases,
    (
        Mistake(
            "The turns are not dealt round: `inside // interleave` counts pieces, and the ranks "
            "take them in turn, so its remainder by the number of ranks is the owner.",
            _split("owners", lambda o, size, ranks, i: o // i),
        ),
        Mistake(
            "Single positions are dealt out: `interleave` neighbours stay on one rank, so divide "
            "by it first.",
            _split("owners", lambda o, size, ranks, i: o % ranks),
        ),
        Mistake(
            "Whole blocks are dealt out: each rank gets `block_size` neighbours here. The pieces "
            "have `interleave` positions.",
            _split("owners", lambda o, size, ranks, i: o // size),
        ),
        Mistake(
            "A factor is forgotten: of every round the rank has `interleave` positions, so the "
            "rounds before this one fill `rounds * interleave` of its places, not `rounds`.",
            _split("offsets", lambda o, size, ranks, i: o // (ranks * i) + o % i),
        ),
        Mistake(
            "The place inside the piece is forgotten: add `inside % interleave`.",
            _split("offsets", lambda o, size, ranks, i: o // (ranks * i) * i),
        ),
        Mistake(
            "This is right where one position is dealt out at a time, and where it is not, two "
            "positions get one place. A round deals out `ranks * interleave` positions.",
            _split("offsets", lambda o, size, ranks, i: o // ranks),
        ),
    ),
)
