"""Differences in words: the first row of a kernel's outputs that is not as the reference has it.

A reader wants to know which token, of which request, at which column, in which part of the row, and
what stands there in place of what; and whether one row differs or all of them do.
"""

import torch

UNWRITTEN = torch.iinfo(torch.int32).max  # what torch can be told to fill new tensors with
POISON = 777_777  # what a caller's outputs hold beforehand


def poisoned(wanted) -> tuple[torch.Tensor, ...]:
    """Outputs like those wanted, as a caller hands them over: full of something else."""
    return tuple(torch.full_like(tensor, POISON) for tensor in wanted)


def first(kernel: str, arguments: tuple, got, wanted) -> str | None:
    """Where outputs differ from those wanted: the first row in words, and how many rows there are.

    Args:
        kernel: `slot_mapping`, `combine` or `dcp`.
        arguments: of the call.
        got: what a candidate returned.
        wanted: the pair (indices, lens) of the reference.
    """
    if not isinstance(got, tuple | list) or len(got) != 2:
        return f"returned {type(got).__name__}; a pair (indices, lens) is needed"
    for name, tensor, right in zip(("indices", "lens"), got, wanted, strict=True):
        if not isinstance(tensor, torch.Tensor):
            return f"returned {type(tensor).__name__} as {name}; a tensor is needed"
        for fact in ("dtype", "shape", "device"):
            if getattr(tensor, fact) != getattr(right, fact):
                was, needed = (
                    list(f) if fact == "shape" else f
                    for f in (getattr(tensor, fact), getattr(right, fact))
                )
                return f"{name} has {fact} {was}, needed {needed}"
    columns, lens = got[0] != wanted[0], got[1] != wanted[1]
    if kernel == "slot_mapping":  # a padding row's slots are unspecified
        columns &= arguments[4].to(columns.device)[:, None]
    wrong = columns.any(1) | lens if columns.shape[1] else lens
    if not wrong.any():
        return None
    token = int(wrong.nonzero()[0])
    whose = _whose(kernel, arguments, token)
    words = []
    if columns[token].any():
        column = int(columns[token].nonzero()[0])
        found, right = int(got[0][token, column]), int(wanted[0][token, column])
        unwritten = " (never written)" if found == UNWRITTEN else ""
        part = _part(kernel, arguments, token, right)
        words.append(f"column {column}{part}: got {found}{unwritten}, expected {right}")
    if lens[token]:
        words.append(f"length: got {int(got[1][token])}, expected {int(wanted[1][token])}")
    rows = f"{int(wrong.sum())} of {len(wrong)} rows differ"
    return f"token {token} {whose}, {'; '.join(words)} ({rows})"


def _request(kernel, arguments, token):
    """The request of a token; None on a padding row."""
    if kernel != "combine":
        return int(arguments[1][token]) if arguments[4][token] else None
    start = arguments[1].tolist()
    ends = [end - start[0] for end in start[1:]]
    return next((request for request, end in enumerate(ends) if token < end), None)


def _whose(kernel, arguments, token):
    request = _request(kernel, arguments, token)
    return "on a padding row" if request is None else f"of request {request}"


def _part(kernel, arguments, token, right):
    """Which part of a row an expected value belongs to, in brackets."""
    if right < 0:
        return " (empty)"
    if kernel != "combine":
        return ""
    M, N = arguments[7:9]
    window = right - M * (_request(kernel, arguments, token) or 0) >= N
    return " (window part)" if window else " (top-k part)"
