"""The task of combine: the whole kernel, and once more with its stores aligned."""

import torch

from .. import presets, reference, runtime
from .tasks import (
    SMALL,
    UNWRITTEN,
    Case,
    Mistake,
    Task,
    always,
    only,
    poisoned,
    row_words,
    stores_outside,
)


def _combine_cases(seed):
    small = SMALL.replace(row_width=7)
    batches = {
        "two requests after a context": (small, [2, 2], [40, 21], {}),
        "a fresh request": (small, [9], [9], {}),
        "requests without tokens among others": (small, [0, 2, 0, 1], [9, 30, 0, 17], {}),
        "a query_start_loc that begins at 7": (small, [2, 1], [30, 8], {"first_query_start": 7}),
        "two rows that belong to no request": (small, [2, 1], [30, 8], {"padding": 2}),
        "a warm-up, seq_len below query_len": (small, [5], [3], {}),
        "a layer with topk = 0": (
            small.replace(topk=0, compress_ratio=0), [2, 1], [30, 8], {}
        ),
        "rows of 384 columns": (small.replace(window_size=300), [2], [320], {}),
    }  # fmt: skip
    for words, (preset, query_lens, seq_lens, options) in batches.items():
        batch = presets.batch(preset, query_lens, seq_lens, row_stride=11, seed=seed,
                              device="cpu", **options)  # fmt: skip
        expected = reference.combine_topk_swa_indices(*batch.combine_args())
        width = expected[0].shape[1]
        tile = runtime.power_of_2(width)  # wider than a row of 384
        indices, lens = poisoned(batch.tokens, width, tile + 16), poisoned(batch.tokens)
        values = {
            "indices": indices,
            "lens": lens,
            "topk_indices": batch.topk_indices,
            "query_start_loc": batch.query_start_loc,
            "seq_lens": batch.seq_lens,
            "gather_lens": batch.gather_lens,
            "indices_stride": indices.stride(0),
            "topk_stride": batch.topk_indices.stride(0),
            "requests": batch.requests,
            "M": batch.M,
            "N": batch.N,
            "topk": preset.topk,
            "window_size": preset.window_size,
            "compress_ratio": preset.compress_ratio,
            "width": width,
            "REQUESTS": 8,
            "TILE": tile,
        }
        expected = dict(zip(("indices", "lens"), expected, strict=True))
        # One warp: each of its 32 threads has four of the 128 columns.
        yield Case(words, values, expected, batch.tokens, row_words(batch), batch, warps=1)


# The definition in pieces, so that a mistake is one piece changed; `first` is M * request and
# `gathered_from` the position of the first gathered token.
_PIECES = {
    "position": lambda seq_len, query_len, row: seq_len - query_len + row,
    "topk_len": lambda seen, ratio, topk: min(seen // ratio, topk),
    "swa_len": lambda seen, window: min(seen, window),
    "key": lambda key, first: key + first,
    "begin": lambda seen, swa_len, topk_len, window: seen - swa_len,
    "window": lambda first, N, begin, gathered_from: first + N + begin - gathered_from,
    "column": lambda topk_len, topk: topk_len,
    "tail": lambda: -1,
    "length": lambda topk_len, swa_len: topk_len + swa_len,
}


def _combined(case, **changed):
    """The outputs with pieces of the definition changed."""
    pieces, batch, values = _PIECES | changed, case.batch, case.values
    topk, ratio = values["topk"], values["compress_ratio"]
    start = batch.query_start_loc - batch.query_start_loc[0]
    indices = torch.full_like(case.expected["indices"], pieces["tail"]())
    lens = torch.zeros_like(case.expected["lens"])
    for token in torch.nonzero(batch.is_valid_token).flatten().tolist():
        request = int(batch.token_to_req_indices[token])
        seq_len, first = int(batch.seq_lens[request]), batch.M * request
        query_len = int(start[request + 1] - start[request])
        seen = max(pieces["position"](seq_len, query_len, token - int(start[request])) + 1, 0)
        topk_len = pieces["topk_len"](seen, ratio, topk) if topk else 0
        swa_len = pieces["swa_len"](seen, values["window_size"])
        gathered_from = seq_len - int(batch.gather_lens[request])
        begin = pieces["begin"](seen, swa_len, topk_len, values["window_size"])
        window = pieces["window"](first, batch.N, begin, gathered_from)
        column = pieces["column"](topk_len, topk)
        keys = batch.topk_indices[token, :topk_len]
        indices[token, : len(keys)] = pieces["key"](keys, first)
        indices[token, column : column + swa_len] = torch.arange(window, window + swa_len)
        lens[token] = pieces["length"](topk_len, swa_len)
    return {"indices": indices, "lens": lens}


def _piece(hint, output=None, **changed):
    """The mistake of one piece changed; of one output only where the other cannot be told."""

    def model(case):
        outputs = _combined(case, **changed)
        return outputs if output is None else {output: outputs[output]}

    return Mistake(hint, always(model))


def _window_first(attempt):
    """Whether the window begins at column 0 of every row, whatever the rest holds."""
    told = _combined(attempt.case, column=lambda *_: 0, length=lambda topk_len, swa_len: swa_len)
    in_window = torch.arange(attempt.case.values["width"]) < told["lens"][:, None]
    return torch.equal(attempt.got["indices"][in_window], told["indices"][in_window])


_COMBINE_MISTAKES = (
    Mistake(
        "All is right but where `query_start_loc` does not begin at 0: subtract its first entry "
        "from every start and end.",
        only("begins at 7"),
    ),
    Mistake(
        "Only rows of no request are wrong: they follow the last request. Their whole row is -1, "
        "their length 0, and there is no request to load numbers of.",
        only("no request"),
    ),
    Mistake(
        "Only the warm-up is wrong: with `seq_len` below `query_len` a position is negative, and "
        "both lengths must stop at 0.",
        only("warm-up"),
    ),
    Mistake(
        "The tile may be wider than the row: a store to its end needs `column < width`.",
        stores_outside(lambda case: case.values["TILE"] - case.values["width"]),
    ),
    Mistake(
        "Only the layer without top-k is wrong: there `compress_ratio` may be 0, so nothing may "
        "be divided by it, and `topk_indices` is not read.",
        only("topk = 0"),
    ),
    Mistake(
        "A request without tokens is taken for the owner of a row: look for the request that ends "
        "after the row.",
        only("without tokens"),
    ),
    _piece(
        "The tail is never written: columns after the window must hold -1.",
        tail=lambda: UNWRITTEN,
    ),
    _piece(
        "The window is one row early: its last entry is the token itself, so it begins at "
        "`position - swa_len + 1`.",
        begin=lambda seen, swa_len, *_: seen - swa_len - 1,
    ),
    _piece(
        "The window begins at `position - swa_len + 1`: `window_size` in place of `swa_len` takes "
        "early tokens to positions before the first.",
        begin=lambda seen, swa_len, topk_len, window: seen - window,
    ),
    _piece(
        "`token - start` counts a request's rows; their positions come after what it had before: "
        "add `seq_len - query_len`.",
        position=lambda seq_len, query_len, row: row,
    ),
    _piece(
        "The window counts from the request's first token, but only its newest `gather_len` "
        "tokens were gathered: subtract `seq_len - gather_len`.",
        window=lambda first, N, begin, gathered_from: first + N + begin,
    ),
    _piece(
        "The window's keys begin at row `N` of a request's workspace: add it.",
        window=lambda first, N, begin, gathered_from: first + begin - gathered_from,
    ),
    _piece(
        "The top-k entries miss their request's place in the workspace: add `M * request`.",
        key=lambda key, first: key,
    ),
    _piece(
        "The window entries miss their request's place in the workspace: add `M * request`.",
        window=lambda first, N, begin, gathered_from: N + begin - gathered_from,
    ),
    _piece(
        "A compressed key exists once its group of tokens is full: divide and round down, not up.",
        output="lens",
        topk_len=lambda seen, ratio, topk: min(-(-seen // ratio), topk),
    ),
    _piece(
        "The token itself has been seen too: `position + 1` tokens, divided by `compress_ratio`.",
        topk_len=lambda seen, ratio, topk: min(max(seen - 1, 0) // ratio, topk),
    ),
    _piece(
        "There are more compressed keys than a token may attend to: at most `topk`.",
        output="lens",
        topk_len=lambda seen, ratio, topk: seen // ratio,
    ),
    _piece(
        "Early tokens have no full window behind them: at most `position + 1` entries.",
        output="lens",
        swa_len=lambda seen, window: window if seen else 0,
    ),
    _piece(
        "A token attends to its newest `window_size` tokens, no more: that is the limit of "
        "`swa_len`.",
        output="lens",
        swa_len=lambda seen, window: seen,
    ),
    Mistake(
        "The window stands in the first columns, where the top-k entries belong: it begins at "
        "column `topk_len`.",
        lambda attempts: all(map(_window_first, attempts)),
    ),
    _piece(
        "The window's first entry belongs to column `topk_len`, so count from there: "
        "`column - topk_len`.",
        begin=lambda seen, swa_len, topk_len, window: seen - swa_len + topk_len,
    ),
    _piece(
        "The window follows the top-k entries without a gap: it begins at column `topk_len`, which "
        "is less than `topk` for early tokens.",
        column=lambda topk_len, topk: topk,
    ),
    _piece(
        "The length counts one part only: it is `topk_len + swa_len`.",
        output="lens",
        length=lambda topk_len, swa_len: topk_len,
    ),
    _piece(
        "The length counts one part only: it is `topk_len + swa_len`.",
        output="lens",
        length=lambda topk_len, swa_len: swa_len,
    ),
)

COMBINE = Task(_combine_cases, _COMBINE_MISTAKES, tells_stores=True)
ALIGNED = Task(_combine_cases, _COMBINE_MISTAKES, tells_stores=True, aligned=True)
