"""Which shapes are measured: suites of cases, each a batch and the variants compared on it."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .. import presets
from ..presets import C128A, FLASH_C4A, PRESETS, PRO_C4A, Batch
from ..variants import steps

SLOT_MAPPING = ("runtime", "constexpr", "own")
COMBINE = ("workers=128", "workers=256", "own")
STEPWISE = (*COMBINE[:-1], *steps.STEPS, "own")  # from the published combine to the own one
# Tiles of the own combine to hold beside its rule's: rows, columns, warps.
TILES = ((1, 1024, 1), (1, 1024, 2), (2, 1024, 1), (2, 1024, 2), (2, 1024, 4), (4, 1024, 4))
TILES += ((4, 512, 2), (8, 512, 4), (4, 128, 1), (16, 128, 2))
NARROW_TOKENS = (1, 64, 128, 256, 512, 768, 1024, 2048, 4096, 8192)  # of narrow rows, in that sweep
MANY_TOKENS = (512, 2048, 8192)  # of them, those that are also spread over many requests
DEVICE = (("graph", "warm"), ("graph", "cold"))  # what a shape is measured under, unless told
WARM = (("graph", "warm"), ("event", "warm"), ("host", "warm"))
EVERY = (*WARM, ("graph", "cold"))


class Case(NamedTuple):
    """A batch and the variants to compare on it, the comparator first."""

    suite: str
    kernel: str
    mix: str
    make: Callable[[], Batch]
    variants: tuple[str, ...]
    protocols: tuple[tuple[str, str], ...] = DEVICE


def requests_of(requests: int, tokens: int, preset=FLASH_C4A) -> Callable[[], Batch]:
    """`tokens` spread evenly: one fresh request, or several that each stand at 8,192 tokens.

    Some requests are empty where there are more of them than tokens.
    """
    share = presets.even(tokens, requests)
    context = None if requests == 1 else [max(8192, length) for length in share]
    return lambda: presets.batch(preset, share, context)


def mapping_of(preset, tokens: int, requests: int = 1) -> Callable[[], Batch]:
    """A batch for slot mapping alone; as `presets.mapping` draws it."""
    return lambda: presets.mapping(preset, tokens, requests)


def mix_of(requests: int, each: int) -> str:
    """How a table calls so many requests of `each` tokens."""
    return "one request" if requests == 1 else f"{requests} requests of {each:,}"


def _published() -> Iterator[Case]:
    for tokens in (1, 32, 512, 4096, 8192):
        make = mapping_of(FLASH_C4A, tokens)
        yield Case("published", "slot_mapping", "one request", make, SLOT_MAPPING, EVERY)
    for tokens in (1024, 4096, 8192, 16384):
        make = requests_of(1, tokens)
        yield Case("published", "combine", "one request", make, COMBINE, EVERY)


def _presets() -> Iterator[Case]:
    kinds = {
        "decode, 64 requests at 8,192": lambda p: presets.decode(p, 64, 8192),
        "prefill, 2,048 tokens": lambda p: presets.prefill(p, 2048),
        "chunk of 2,048 at 65,536": lambda p: presets.chunked_prefill(p, 2048, 65_536),
        "mixed lengths, 2,048 tokens": lambda p: presets.mixed(p, 2048),
    }
    for preset, (mix, make) in itertools.product(PRESETS.values(), kinds.items()):
        batch = _bind(make, preset)
        yield Case("presets", "combine", mix, batch, COMBINE)
        if preset.topk:
            yield Case("presets", "slot_mapping", mix, batch, SLOT_MAPPING)
            yield Case("presets", "dcp", f"{mix}, rank 1 of 4", batch, ("own",))
    full_context = _bind(lambda p: presets.batch(p, [8192], [1_048_576]), C128A)
    yield Case("presets", "combine", "chunk of 8,192 at 1,048,576", full_context, COMBINE)


def _mixes() -> Iterator[Case]:
    for requests in (1, 4, 64, 256):
        make = requests_of(requests, 8192)
        mix = mix_of(requests, 8192 // requests)
        yield Case("mixes", "combine", mix, make, COMBINE, EVERY)
        spread = mapping_of(FLASH_C4A, 8192, requests)
        yield Case("mixes", "slot_mapping", mix, spread, SLOT_MAPPING, EVERY)


def _workers() -> Iterator[Case]:
    sweep = tuple(f"workers={2**n}" for n in range(11) if 2**n != 128)
    for requests, each in ((1, 1024), (1, 4096), (1, 16_384), (4, 2048), (64, 128), (256, 32)):
        mix = mix_of(requests, each)
        make = requests_of(requests, requests * each)
        yield Case("workers", "combine", mix, make, ("workers=128", *sweep), DEVICE[:1])


def _tokens() -> Iterator[Case]:
    for tokens in (2**n for n in range(17)):
        make = requests_of(1, tokens)
        yield Case("tokens", "combine", "one request", make, COMBINE)
        make = mapping_of(FLASH_C4A, tokens)
        yield Case("tokens", "slot_mapping", "one request", make, SLOT_MAPPING)


def _wide() -> Iterator[Case]:
    for tokens in (1, 2, 4, 8, 16, 32, 33, 64, 128, 256, 512, 1024, 2048):
        make = mapping_of(C128A, tokens)
        yield Case("wide", "slot_mapping", "one request", make, SLOT_MAPPING)


def _grid() -> Iterator[Case]:
    sizes = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
    for requests, tokens in itertools.product((1, 4, 16, 64, 256), sizes):
        mix = "one request" if requests == 1 else f"{requests} requests"
        make = requests_of(requests, tokens)
        yield Case("grid", "combine", mix, make, COMBINE, DEVICE[:1])


def _steps() -> Iterator[Case]:
    for requests, each in ((1, 1024), (1, 4096), (1, 8192), (1, 16_384), (64, 128)):
        make = requests_of(requests, requests * each)
        yield Case("steps", "combine", mix_of(requests, each), make, STEPWISE)


def _rule() -> Iterator[Case]:
    tiles = [f"tile={rows}x{columns}/{warps}" for rows, columns, warps in TILES]
    for preset, requests, each in (
        (FLASH_C4A, 1, 1024),
        (FLASH_C4A, 1, 4096),
        (FLASH_C4A, 1, 16_384),
        (FLASH_C4A, 64, 128),
        (PRO_C4A, 1, 4096),
        (C128A, 1, 1024),
    ):
        make = requests_of(requests, requests * each, preset)
        variants = ("workers=128", *tiles, "own")
        yield Case("rule", "combine", mix_of(requests, each), make, variants, DEVICE[:1])
    for preset, tokens in itertools.product((FLASH_C4A, PRO_C4A), NARROW_TOKENS):
        tile = preset.row_width
        full = mapping_of(preset, tokens)
        filling = functools.partial(presets.prefill, preset, tokens)
        names = [f"{name}={tile}/{warps}" for name in ("row", "two rows") for warps in (2, 4, 8)]
        variants = ("runtime", "constexpr", *names, "own")
        yield Case("rule", "slot_mapping", "full rows", full, variants)
        yield Case("rule", "slot_mapping", "rows of a prefill", filling, variants)
        if tokens in MANY_TOKENS:
            spread = mapping_of(preset, tokens, 64)
            yield Case("rule", "slot_mapping", "full rows, 64 requests", spread, variants)
    parts = [f"parts={tile}/{warps}" for tile, warps in ((1024, 4), (2048, 8), (4096, 8))]
    rows = [f"row={tile}/{warps}" for tile, warps in ((1024, 4), (4096, 8), (4096, 16), (8192, 16))]
    for tokens in (1, 8, 32, 64, 128, 256, 512, 2048):
        variants = ("runtime", *parts, *rows, "own")
        make = mapping_of(C128A, tokens)
        yield Case("rule", "slot_mapping", "one request", make, variants, DEVICE[:1])


def _host() -> Iterator[Case]:
    own = ("own", "own, prepared", "own, plan only")
    protocols = (("host", "warm"),)
    for tokens in (1, 64, 512):
        make = mapping_of(FLASH_C4A, tokens)
        variants = (*SLOT_MAPPING[:-1], *own)
        yield Case("host", "slot_mapping", "one request", make, variants, protocols)
    for tokens in (64, 1024):
        variants = (*COMBINE[:-1], *own)
        yield Case("host", "combine", "one request", requests_of(1, tokens), variants, protocols)


SUITES: dict[str, Callable[[], Iterator[Case]]] = {
    "published": _published,
    "presets": _presets,
    "mixes": _mixes,
    "workers": _workers,
    "tokens": _tokens,
    "wide": _wide,
    "grid": _grid,
    "steps": _steps,
    "rule": _rule,
    "host": _host,
}


def _bind(make, preset):
    return lambda: make(preset)
