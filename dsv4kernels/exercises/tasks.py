"""Tasks of lesson 07: what an answer is run on, what is right, what typically goes wrong.

A `Task` draws its cases, small batches that each tell something; a `Case` is one launch and what it
must write, from `reference` wherever the definition has it. Each `Mistake` knows a typical wrong
answer by what it did. After `trace` in the data flow; `exercises` runs and judges.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch

from .. import presets, runtime
from ..launches import trace
from ..variants.differences import UNWRITTEN

ANY = -(2**31)  # an expected value that the definition leaves open

SMALL = presets.FLASH_C4A.replace(name="small", topk=5, row_width=5, window_size=6, block_size=4)
TILE = 16


class Case(NamedTuple):
    """One launch to try a kernel with.

    Attributes:
        words: which batch it is, for a sentence.
        values: arguments by the kernel's names for them, outputs among them.
        expected: by the output's name what it must hold, `ANY` where anything will do.
        programs: on the only axis of the grid.
        rows: what each row of the outputs is, for a sentence; each begins with what it counts.
        batch: what the values were drawn from.
        warps: of a program, on a GPU.
    """

    words: str
    values: dict[str, Any]
    expected: dict[str, torch.Tensor]
    programs: int
    rows: Sequence[str]
    batch: Any = None
    warps: int = 4

    def launch(self, kernel, device="cpu") -> tuple[runtime.Launch, dict[str, torch.Tensor]]:
        """The launch on a device, and its outputs.

        Raises:
            ValueError: the kernel has an argument that the case does not give.
        """
        unknown = [name for name in kernel.arg_names if name not in self.values]
        if unknown:
            raise ValueError(
                f"the kernel has an argument {unknown[0]}, which is not given; given are "
                f"{', '.join(self.values)}"
            )
        values = {name: _to(value, device) for name, value in self.values.items()}
        args = tuple(values[name] for name in kernel.arg_names)
        outputs = {name: values[name] for name in self.expected}
        options = {"num_warps": self.warps}
        return runtime.Launch(kernel, (self.programs,), args, options), outputs


class Attempt(NamedTuple):
    """What a kernel did with a case: its outputs by name, and every access (see `trace`)."""

    case: Case
    got: dict[str, torch.Tensor]
    accesses: pd.DataFrame

    def wrong(self, output) -> torch.Tensor:
        """Which elements of an output are not as expected."""
        expected = self.case.expected[output]
        return (self.got[output] != expected) & (expected != ANY)

    def outside(self, op=None) -> pd.DataFrame:
        """Accesses outside every tensor, of one kind ("load", "store") or both."""
        found = self.accesses[self.accesses["tensor"] == trace.OUTSIDE]
        return found if op is None else found[found["op"] == op]

    @property
    def right(self) -> bool:
        """Whether every output holds what it must; accesses are another matter."""
        return not any(self.wrong(output).any() for output in self.case.expected)


class Mistake(NamedTuple):
    """A typical wrong answer: whether attempts show it, and what to say.

    `given` marks what the kernel does as the lesson gives it.
    """

    hint: str
    seen: Callable[[list[Attempt]], bool]
    given: bool = False


class Task(NamedTuple):
    """A kernel to be written.

    Attributes:
        cases: draws the cases from a seed.
        mistakes: typical ones, the first that is seen is told.
        aligned: whether each store must begin at a multiple of four columns.
        tells_stores: whether a right answer is told what its compiled stores are like.
    """

    cases: Callable[[int], list[Case]]
    mistakes: tuple[Mistake, ...] = ()
    aligned: bool = False
    tells_stores: bool = False


def attempt(kernel, case: Case) -> Attempt:
    """Run a kernel on a case in the interpreter, every access watched and none outside done."""
    launch, outputs = case.launch(kernel)
    return Attempt(case, outputs, trace.trace(launch))


def _to(value, device):
    if not isinstance(value, torch.Tensor):
        return value
    moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return moved.copy_(value)


def poisoned(tokens, width=None, stride=None):
    """An output not written yet: int32 [tokens] or [tokens, width], its rows `stride` apart."""
    shape = (tokens,) if width is None else (tokens, stride or width)
    buffer = torch.full(shape, UNWRITTEN, dtype=torch.int32)
    return buffer if width is None else buffer[:, :width]


def row_words(batch: presets.Batch) -> list[str]:
    """Each row and its request, in words."""
    requests, valid = batch.token_to_req_indices.tolist(), batch.is_valid_token.tolist()
    return [
        f"row {row} " + (f"of request {request}" if real else "(of no request)")
        for row, (request, real) in enumerate(zip(requests, valid, strict=True))
    ]


def always(model) -> Callable[[list[Attempt]], bool]:
    """In every case, each output that a model of the mistake speaks of is as the model says."""

    def seen(attempts):
        return all(
            torch.equal(a.got[name], value.to(torch.int32))
            for a in attempts
            for name, value in model(a.case).items()
        )

    return seen


def only(word) -> Callable[[list[Attempt]], bool]:
    """Only cases that have this word in their description are wrong."""

    def seen(attempts):
        wrong = [a.case.words for a in attempts if not a.right or len(a.outside())]
        return bool(wrong) and all(word in words for words in wrong)

    return seen


def stores_outside(lanes) -> Callable[[list[Attempt]], bool]:
    """Every program stores that many elements outside, a function of the case."""

    def seen(attempts):
        counts = [(len(a.outside("store")), lanes(a.case) * a.case.programs) for a in attempts]
        return all(found == told for found, told in counts) and any(told for _, told in counts)

    return seen
