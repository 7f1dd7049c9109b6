"""Measure: variants checked, timed beside their comparator and floors, and recorded.

Measuring a `Case` checks every variant against the reference before anything is timed, then times
comparator, candidates and comparator again under each protocol, beside an empty kernel and a plain
copy of the bytes that the definition requires.
"""

import datetime
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from .. import combine, runtime, slot_mapping, variants
from ..launches import traffic
from ..presets import Batch
from ..variants import differences
from . import records, timing
from .suites import SUITES, Case

PLACEMENTS = 3  # sets of buffers that a warm device time is taken on
ORIGIN = ("device", "compute_capability", "sm_count", "driver", "cuda", "torch", "triton")
ORIGIN += ("commit", "date")


def required(kernel: str, batch: Batch) -> traffic.Traffic:
    """Bytes the kernel has to move for a batch."""
    return traffic.combine(batch) if kernel == "combine" else traffic.slot_mapping(batch)


def checksum(outputs) -> int:
    """63 bits of the outputs, order included."""
    total = 0
    for tensor in outputs:
        flat = tensor.reshape(-1).long()
        place = torch.arange(1, flat.numel() + 1, device=flat.device)
        total = (total * 31 + int((flat * place).sum())) % (1 << 63)
    return total


def measure(case: Case) -> Iterator[dict]:
    """Check a case's variants, then time them: one row of `records.COLUMNS` for each variant.

    A case that cannot be measured (no GPU, out of memory, too small to be cold) yields rows that
    say why in `skipped`.

    Raises:
        AssertionError: a variant differs from the reference; nothing of the case is timed.
    """
    facts = {"suite": case.suite, "kernel": case.kernel, "mix": case.mix}
    try:
        batch = case.make()
        moved, wanted = required(case.kernel, batch), variants.expected(case.kernel, batch)
        _verify(case, batch, wanted)
        facts |= {
            "preset": batch.preset.name,
            "requests": batch.requests,
            "tokens": batch.tokens,
            "required_bytes": moved.total,
            "checksum": checksum(wanted),
        }
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        yield from ({**facts, "variant": v, "skipped": "out of GPU memory"} for v in case.variants)
        return
    for protocol, cache in case.protocols:
        under = facts | {"protocol": protocol, "cache": cache}
        try:
            rows = _timed(case, batch, moved, wanted, protocol, cache)
            yield from (under | row for row in rows)
        except timing.SkippedError as reason:
            yield from (under | {"variant": v, "skipped": str(reason)} for v in case.variants)
    _verify(case, batch, wanted)  # what was timed still computes the same


def _verify(case, batch, wanted):
    """Raise unless every variant gives the wanted outputs."""
    args = variants.arguments(case.kernel, batch)
    for variant in dict.fromkeys(variant.split(", ")[0] for variant in case.variants):
        out = differences.poisoned(wanted)
        got = variants.caller(case.kernel, variant)(*args, out=out)
        where = differences.first(case.kernel, args, got, wanted)
        if where:
            raise AssertionError(
                f"{case.kernel} {variant} differs from the reference, so nothing is timed: {where}"
            )
        del out, got


def _timed(case, batch, moved, wanted, protocol, cache):
    sets = 1 if cache == "warm" else timing.rotation(moved.total)
    # Where buffers lie moves a warm device time by some percent: several places, all kept alive.
    places = PLACEMENTS if (protocol, cache) == ("graph", "warm") else 1
    placed = [_placed(case, batch, wanted, sets) for _ in range(places)]
    comparator, *candidates = case.variants
    befores, timings, noises = zip(
        *(
            timing.a_b_a(calls[comparator], {name: calls[name] for name in candidates}, protocol)
            for calls in placed
        ),
        strict=True,
    )
    medians = [before.median_us for before in befores]
    floor = [timing.traffic_floor(*moved) for _ in range(sets)]
    shared = {
        "noise": round(max(*noises, max(medians) / min(medians) - 1), 4),
        "launch_floor_us": round(timing.measure([timing.launch_floor()], protocol).median_us, 3),
        "traffic_floor_us": round(timing.measure(floor, protocol).median_us, 3),
    }
    for variant in case.variants:
        each = befores if variant == comparator else [taken[variant] for taken in timings]
        pooled = timing.pool(each)
        yield shared | {
            "variant": variant,
            "median_us": round(pooled.median_us, 3),
            "p20_us": round(pooled.p20_us, 3),
            "p80_us": round(pooled.p80_us, 3),
            "count": pooled.count,
        }


def _placed(case, batch, wanted, sets):
    """Calls of each variant on new copies of the batch and new outputs.

    All variants read the same copies and write the same outputs, so that none is better placed.
    """
    copies = [_copy(batch) for _ in range(sets)]
    placed = [
        (variants.arguments(case.kernel, each), tuple(map(torch.empty_like, wanted)))
        for each in copies
    ]
    return {
        variant: [_call(case.kernel, variant, args, out) for args, out in placed]
        for variant in case.variants
    }


def _copy(batch):
    tensors = {n: v.clone() for n, v in vars(batch).items() if isinstance(v, torch.Tensor)}
    return Batch(**(vars(batch) | tensors))


def _call(kernel, variant, args, out):
    """A call of a variant that writes to `out`.

    After a comma a variant says which part of the call: `prepared`, the launch alone without the
    JIT's work, or `plan only`, the checks and arguments without the launch.
    """
    name, _, part = variant.partition(", ")
    if not part:
        function = variants.caller(kernel, name)
        return lambda: function(*args, out=out)
    plan = combine.plan if kernel == "combine" else slot_mapping.plan
    if part == "prepared":
        return plan(*args, out=out)[1].prepared()
    return lambda: plan(*args, out=out)


def live(cases: Iterable[Case]) -> list[dict]:
    """Measure cases for a lesson, on the GPU that is here: whole rows, nothing written.

    Registered candidates are measured beside the variants that a case names.
    """
    origin = provenance()
    timing.wake(0.5)  # someone is waiting
    cases = [
        case._replace(variants=(*case.variants, *variants.registered(case.kernel)))
        for case in cases
    ]
    return [row | origin for case in cases for row in measure(case)]


def provenance() -> dict[str, str | int]:
    """What every row says of where it comes from."""
    facts = runtime.describe()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {k: facts.get(k, "") for k in ORIGIN[:-2]} | {"commit": _commit(), "date": today}


def _commit() -> str:
    """The commit measured, marked if the tree has changed; DSV4KERNELS_COMMIT without git."""
    given = os.environ.get("DSV4KERNELS_COMMIT")
    if given:
        return given
    command = ["git", "-C", str(records.DATA.parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def run(suites: Sequence[str], folder: Path | None = None, say: Callable = print) -> Path:
    """Measure suites and append their rows to `folder`, case by case.

    Args:
        suites: keys of `SUITES`.
        folder: default the device's own under `data/measured/`.
        say: called with each line of progress.

    Returns:
        The folder.

    Raises:
        timing.SkippedError: no GPU.
    """
    if not runtime.has_gpu():
        raise timing.SkippedError("no GPU here: nothing can be measured")
    origin = provenance()
    folder = folder or records.device_folder(origin["device"])
    cases = [case for suite in suites for case in SUITES[suite]()]
    timing.wake()
    began = time.monotonic()
    for number, case in enumerate(cases, 1):
        rows = [row | origin for row in measure(case)]
        records.append(rows, folder / f"{case.suite}.csv")
        say(f"[{number}/{len(cases)} {time.monotonic() - began:5.0f} s] {summary(rows)}")
    return folder


def summary(rows: Sequence[Mapping]) -> str:
    """A case in a line: each variant's warm device time and its ratio to the comparator."""
    first = rows[0]
    words = [f"{first['suite']} {first['kernel']} {first.get('preset', '')}, {first['mix']}"]
    if first.get("tokens"):
        words.append(f"{first['tokens']:,} tokens:")
    if first.get("skipped"):
        return " ".join([*words, f"skipped, {first['skipped']}"])
    same = [r for r in rows if r["protocol"] == first["protocol"] and r["cache"] == first["cache"]]
    words += [f"{r['variant']} {r['median_us']:.2f} us" for r in same]
    ratios = [f"{r['median_us'] / same[0]['median_us']:.2f}" for r in same[1:]]
    return " ".join(words) + f" (x {', '.join(ratios)}; noise {first['noise']:.1%})"
