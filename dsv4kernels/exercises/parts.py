"""Tasks on the way to combine: the tail of a row, the request of a row."""

import torch

from .. import presets, reference
from .tasks import (
    SMALL,
    TILE,
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

# The tail


def _tail_cases(seed):
    window = presets.SWA_ONLY.replace(window_size=TILE + 3)  # ends in the second tile
    batches = {
        "a fresh request": presets.batch(window, [9], device="cpu"),
        "two requests after a context, and two rows of no request": presets.batch(
            window, [2, 3], [40, 3], padding=2, device="cpu"
        ),
    }
    for words, batch in batches.items():
        width = 2 * TILE + 5
        rows, lens = reference.combine_topk_swa_indices(*batch.combine_args())
        indices = poisoned(batch.tokens, width, 3 * TILE + 3)
        values = {
            "indices": indices,
            "first_rows": rows[:, 0].clone(),
            "window_lens": lens,
            "indices_stride": indices.stride(0),
            "width": width,
            "TILE": TILE,
        }
        expected = {"indices": rows[:, :width].clone()}
        yield Case(words, values, expected, batch.tokens, row_words(batch), batch)


def _tail(case, end=0, beyond=None, again=False):
    """The rows with another end or other values of the window, or something else beyond it."""
    values = case.values
    column = torch.arange(values["width"])
    written = values["first_rows"][:, None] + (column % TILE if again else column)
    in_window = column < values["window_lens"][:, None] + end
    beyond = written if beyond is None else torch.tensor(beyond)
    return {"indices": torch.where(in_window, written, beyond)}


TAIL = Task(
    _tail_cases,
    (
        Mistake(
            "The tail is never written: the columns after the window must hold -1, so all columns "
            "of the row are stored, and only the value depends on the window.",
            always(lambda case: _tail(case, beyond=UNWRITTEN)),
        ),
        Mistake(
            "The window runs on to the end of the row. Choose the value by column: `tl.where` "
            "gives one value inside the window and another, -1, after it.",
            always(_tail),
        ),
        Mistake(
            "The second tile begins again at `first_row`: use `column`, which goes on.",
            always(lambda case: _tail(case, beyond=-1, again=True)),
        ),
        Mistake(
            "The window is one column too long: with a length of n it fills columns 0 to n - 1.",
            always(lambda case: _tail(case, end=1, beyond=-1)),
        ),
        Mistake(
            "The last tile reaches past the row: the store needs `column < width`.",
            stores_outside(lambda case: -case.values["width"] % TILE),
        ),
    ),
)


# The request of a row


def _request_cases(seed):
    batches = {
        "three requests": ([3, 2, 4], 0, 0),
        "requests without tokens among others": ([0, 3, 0, 0, 2, 0], 0, 0),
        "a query_start_loc that begins at 7": ([3, 2, 4], 0, 7),
        "two rows that belong to no request": ([3, 2], 2, 0),
    }
    for words, (query_lens, padding, start) in batches.items():
        batch = presets.batch(SMALL, query_lens, padding=padding, first_query_start=start,
                              device="cpu")  # fmt: skip
        values = {
            "found": poisoned(batch.tokens),
            "query_start_loc": batch.query_start_loc,
            "requests": batch.requests,
            "TILE": 8,
        }
        expected = {"found": torch.where(batch.is_valid_token, batch.token_to_req_indices, -1)}
        yield Case(words, values, expected, batch.tokens, row_words(batch), batch)


def _found(case, ended=torch.le, origin=True, start=0, lanes=None, stray=-1):
    """The request of each row, found another way: by which ends, from where, over which lanes."""
    bounds = case.values["query_start_loc"]
    ends = bounds[start : start + case.batch.requests] - bounds[0] * origin
    if lanes:
        ends = torch.cat([ends, torch.zeros(lanes - len(ends), dtype=torch.int32)])
    request = ended(ends, torch.arange(case.programs)[:, None]).sum(1)
    stray = request if stray is None else torch.tensor(stray)
    return {"found": torch.where(request < case.batch.requests, request, stray)}


REQUEST = Task(
    _request_cases,
    (
        Mistake(
            "`<` should be `<=`: `end` is the row after a request's last one, so a row that equals "
            "it belongs to the next request already.",
            always(lambda case: _found(case, torch.lt, start=1)),
        ),
        Mistake(
            "The rows of no request get the number of requests. Give -1 where the count has "
            "reached `requests`.",
            always(lambda case: _found(case, start=1, stray=None)),
        ),
        Mistake(
            "The first entry of `query_start_loc` is not subtracted. In a chunk of a larger batch "
            "it is not 0, while rows are counted from 0.",
            always(lambda case: _found(case, start=1, origin=False)),
        ),
        Mistake(
            "Two things are missing: the first entry of `query_start_loc` is to be subtracted, and "
            "the rows of no request, which get the number of requests, are to get -1.",
            always(lambda case: _found(case, start=1, origin=False, stray=None)),
        ),
        Mistake(
            "Lanes past the last request are counted too: they hold 0, which every row has passed. "
            "Mask them off in the count, not in the load alone.",
            lambda attempts: any(
                always(lambda case, stray=stray: _found(case, start=1, lanes=8, stray=stray))(
                    [a for a in attempts if not a.case.values["query_start_loc"][0]]
                )
                for stray in (-1, None)
            ),
        ),
        Mistake(
            "One request too far: as many requests *end* at or before a row as come before its "
            "own; one more has *begun*.",
            always(lambda case: _found(case)),
        ),
        Mistake(
            "A request without tokens is taken for the owner of a row. It begins and ends at the "
            "same row: look for a request that ends after the row.",
            only("without tokens"),
        ),
    ),
)
