"""Batches for hypothesis to draw, and outputs between red zones: for properties of the kernels."""

import pytest
import torch
from helpers import POISON
from hypothesis import Phase, settings
from hypothesis import strategies as st

from dsv4kernels import combine, presets, runtime, variants
from dsv4kernels.presets import Preset
from dsv4kernels.variants import steps

BORDER = 160  # elements of red zone before and after an output: more than a row of any test here
GARBAGE = (-(2**31), -(2**31) + 1, -700, -2, -1, 0, 1, 2, 3, 7, 12, 700, 1 << 29, 2**31 - 1)

# Legal for the widths drawn: `parts` needs tiles no wider than a row, `two rows` one as wide.
OWN = {
    "slot_mapping": ("own", "row=16/1", "two rows=64/1", "parts=8/1"),
    "dcp": ("own",),
    "combine": ("own", "tile=2x64/1", "tile=8x32/1"),
}
OTHERS = {
    "slot_mapping": ("runtime", "constexpr"),
    "dcp": (),
    "combine": ("workers=1", "workers=3", *steps.STEPS),
}
EVERY = [(kernel, variant) for kernel in OWN for variant in OWN[kernel] + OTHERS[kernel]]
SAFE = [(kernel, variant) for kernel in OWN for variant in OWN[kernel]]


def examples(most):
    """Settings of a property: the same examples in every run, no limit of time for one."""
    return settings(
        max_examples=most,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),  # explaining a failure takes minutes here
    )


@st.composite
def geometries(draw) -> Preset:
    """A layer of a few columns; powers of two only by chance."""
    width = draw(st.integers(5, 40))
    topk = draw(st.integers(0, width))
    return Preset(
        "drawn",
        topk=topk,
        row_width=width,
        compress_ratio=draw(st.integers(0 if not topk else 1, 9)),
        window_size=draw(st.one_of(st.integers(1, 30), st.integers(80, 150))),
        block_size=draw(st.integers(1, 12)),
    )


@st.composite
def batches(draw, least_requests=0, paddings=3, preset=None) -> presets.Batch:
    """A step of few tokens within the definition.

    Requests may be empty, or warming up (a sequence shorter than its query); the first entry of
    `query_start_loc` may be anything that leaves the last an int32.
    """
    preset = preset or draw(geometries())
    query_lens = draw(st.lists(st.integers(0, 4), min_size=least_requests, max_size=3))
    context = st.one_of(st.integers(-4, -1), st.integers(0, 6), st.integers(0, 300))
    seq_lens = [max(query + draw(context), 0) for query in query_lens]
    needed = [min(s, q + preset.window_size - 1) for q, s in zip(query_lens, seq_lens, strict=True)]
    gather_lens = [draw(st.integers(n, s)) for n, s in zip(needed, seq_lens, strict=True)]
    last_start = 2**31 - 1 - sum(query_lens)
    # A layer without a compressed key has nothing to map; others see what their position allows.
    keys = draw(st.one_of(st.none(), st.integers(0, 90))) if preset.compress_ratio else 50
    padding = draw(st.integers(0, paddings))
    batch = presets.batch(
        preset,
        query_lens,
        seq_lens,
        gather_lens=gather_lens,
        keys=keys,
        holes=draw(st.sampled_from((0.0, 0.3))),
        padding=padding,
        first_query_start=draw(st.sampled_from((0, 1, 700, last_start))),
        row_stride=preset.row_width + draw(st.integers(0, 9)),
        table_stride=draw(st.sampled_from((None, 331))),
        seed=draw(st.integers(0, 99)),
        device="cpu",
    )
    batch.block_table.sub_(draw(st.integers(0, 1)))  # block 0 is as good as others
    for token in range(batch.tokens - padding, batch.tokens):  # stale, or of a request that lives
        batch.token_to_req_indices[token] = draw(st.sampled_from(GARBAGE))
    return batch


@st.composite
def splits(draw, block_size) -> tuple[int, int, int]:
    """DCP world size, rank, and an interleave that divides the block size."""
    world = draw(st.integers(1, 7))
    interleave = draw(st.sampled_from([i for i in range(1, block_size + 1) if not block_size % i]))
    return world, draw(st.integers(0, world - 1)), interleave


@st.composite
def calls(draw, kernel) -> tuple:
    """Arguments of a kernel, within the definition."""
    batch = draw(batches())
    if kernel == "dcp":
        return batch.dcp_args(*draw(splits(batch.preset.block_size)))
    return batch.slot_mapping_args() if kernel == "slot_mapping" else batch.combine_args()


@st.composite
def garbage(draw, kernel) -> tuple:
    """Arguments of a kernel whose device values are anything that an int32 can hold."""
    arguments = draw(calls(kernel))
    random = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    for value in arguments:
        if isinstance(value, torch.Tensor) and value.dtype is torch.int32:
            # All kinds at once, or the null block alone, which the others would hide.
            likely = torch.tensor(draw(st.sampled_from((GARBAGE, (-1,)))), dtype=torch.int32)
            part = draw(st.sampled_from((0.0, 0.2, 1.0)))
            chosen = torch.rand(value.shape, generator=random) < part
            picked = torch.randint(len(likely), value.shape, generator=random)
            value[chosen] = likely[picked][chosen]
    return arguments


def caller(kernel, variant):
    """The function of a variant; `one pass` with three workers, of which 256 take seconds here."""
    if variant != "one pass":
        return variants.caller(kernel, variant)

    def one_pass(*args, out=None):
        outputs, launch = steps.plan("one pass", *args, out=out)
        if launch is None:
            return combine.combine_topk_swa_indices(*args, out=outputs)
        launch._replace(grid=(launch.grid[0], 3)).run()
        return outputs

    return one_pass


def launched(function, arguments, out=None):
    """The launch that a call makes, caught before it runs; None where there is none."""
    caught = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.Launch, "run", lambda launch: caught.append(launch))
        function(*arguments, out=out)
    assert len(caught) <= 1
    return caught[0] if caught else None


class RedZone:
    """Outputs (indices [T, width], lens [T]) inside larger buffers that hold `POISON`.

    `gap` elements lie between two rows of the indices, `BORDER` before and after both outputs.
    """

    def __init__(self, tokens, width, gap=0):
        stride = width + gap
        self.buffers = [
            torch.full((size + 2 * BORDER,), POISON, dtype=torch.int32)
            for size in (tokens * stride, tokens)
        ]
        indices, lens = self.buffers
        self.outputs = (
            indices.as_strided((tokens, width), (stride, 1), BORDER),
            lens[BORDER : BORDER + tokens],
        )

    @classmethod
    def of(cls, kernel, arguments, gap=0):
        """For the outputs of a call."""
        tokens, width = variants.REFERENCE[kernel](*arguments)[0].shape
        return cls(tokens, width, gap)

    def assert_kept(self):
        """All inside is written and nothing outside is; the inside is lost."""
        for output, buffer in zip(self.outputs, self.buffers, strict=True):
            assert (output != POISON).all(), "not wholly written"
            output.fill_(POISON)
            assert (buffer == POISON).all(), "written outside the output"
