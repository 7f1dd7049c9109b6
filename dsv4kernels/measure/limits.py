"""Latency against bytes: a line through few points, the bandwidth limit, and a prediction.

Times are in microseconds, bandwidths in GB/s (1e9 bytes a second), so bytes over bandwidth need a
factor of a thousand, which is applied here and nowhere else.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from .. import presets
from ..launches import traffic
from ..presets import Preset
from . import records


class Line(NamedTuple):
    """`fixed + each * tokens` by least squares; `worst` is the largest residual, relative."""

    fixed: float
    each: float
    worst: float

    def at(self, tokens):
        """The line's value."""
        return self.fixed + self.each * np.asarray(tokens)


def line(tokens: Sequence[float], values: Sequence[float]) -> Line:
    """Fit a fixed part and a part for each token.

    Raises:
        ValueError: fewer than two different token counts, through which any line goes.
    """
    tokens, values = np.asarray(tokens, dtype=float), np.asarray(values, dtype=float)
    if len(np.unique(tokens)) < 2:
        raise ValueError(f"a line needs two token counts at least, got {sorted(set(tokens))}")
    each, fixed = np.polyfit(tokens, values, 1)
    residuals = (fixed + each * tokens) / values - 1
    return Line(float(fixed), float(each), float(np.abs(residuals).max()))


def long(published: pd.DataFrame) -> pd.DataFrame:
    """Published comparisons as rows like measured ones, two for each: comparator and optimised.

    Args:
        published: from `records.load_published`.

    Returns:
        Columns `kernel`, `variant`, `tokens`, `median_us`, `device`, `source`.
    """
    kept = ["kernel", "device", "source", "tokens"]
    sides = [
        published[[*kept, side, f"{side}_us"]].set_axis([*kept, "variant", "median_us"], axis=1)
        for side in ("comparator", "optimized")
    ]
    return pd.concat(sides, ignore_index=True)


def published_floor(rows: pd.DataFrame) -> float:
    """What a published call takes that has next to nothing to do: the fastest with one token.

    Args:
        rows: from `long`, of one device.

    Raises:
        records.DataError: several devices, or no call with a single token.
    """
    records.one_source(rows)
    return float(records.select(rows, tokens=1)["median_us"].min())


def lines(table: pd.DataFrame, by: Sequence[str] = ("device", "kernel", "variant")) -> pd.DataFrame:
    """Fixed cost and cost a token of each curve in a table of `records.COLUMNS`.

    Returns:
        Indexed by `by`: `points`, `fixed_us`, `ns_per_token`, `worst` residual (relative).
    """
    found = {}
    for key, curve in table.groupby(list(by), sort=False):
        fit = line(curve["tokens"], curve["median_us"])
        found[key] = (len(curve), fit.fixed, fit.each * 1e3, fit.worst)
    fits = pd.DataFrame.from_dict(
        found, orient="index", columns=["points", "fixed_us", "ns_per_token", "worst"]
    )
    fits.index = pd.MultiIndex.from_tuples(found, names=list(by))
    return fits


def counted(kernel: str, variant: str, preset: Preset, tokens: Iterable[int]) -> pd.DataFrame:
    """Bytes of a variant, counted from the definition, for one request of each length.

    Combine is given a fresh request; slot mapping one with 16,384 compressed keys in reach.

    Args:
        kernel: `combine` or `slot_mapping`.
        variant: as in `records.COLUMNS`; a published combine fills its output first.
        preset: the layer.
        tokens: lengths.

    Returns:
        Indexed by `tokens`: `required` (inputs in use once, outputs once), `filled` (by the
        separate pass that writes -1) and `moved`, all that the variant moves.
    """
    rows = {}
    for count in sorted(set(tokens)):
        if kernel == "slot_mapping":
            required = traffic.slot_mapping(presets.mapping(preset, count, device="meta")).total
            rows[count] = {"required": required, "filled": 0, "moved": required}
            continue
        # Lengths decide the bytes: the wide tensors need a shape only.
        batch = dataclasses.replace(
            presets.prefill(preset, count, device="meta"),
            query_start_loc=torch.tensor([0, count]),
            seq_lens=torch.tensor([count]),
        )
        required, published = traffic.combine(batch).total, traffic.combine_published(batch).total
        rows[count] = {"required": required, "filled": 0, "moved": required}
        if variant != "own":
            rows[count] |= {"filled": traffic.fill(batch), "moved": published}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("tokens")


def reached(table: pd.DataFrame, preset: Preset) -> pd.DataFrame:
    """Bandwidth behind each latency: bytes over time, counted in two ways.

    Args:
        table: columns `kernel`, `variant`, `tokens`, `median_us`.
        preset: the layer they are taken to be of.

    Returns:
        The table with `moved`, `required` (bytes), `moved_gb_s` and `required_gb_s`.
    """
    table = table.reset_index(drop=True)
    for (kernel, variant), curve in table.groupby(["kernel", "variant"]):
        of = counted(kernel, variant, preset, curve["tokens"]).loc[curve["tokens"]]
        for column in ("moved", "required"):
            table.loc[curve.index, column] = of[column].to_numpy(dtype=float)
    for column in ("moved", "required"):
        table[f"{column}_gb_s"] = table[column] / table["median_us"] / 1e3
    return table


def slopes(table: pd.DataFrame, preset: Preset, bandwidth_gb_s: float) -> pd.DataFrame:
    """Bytes a token over time a token: the bandwidth that is left when the fixed cost drops out.

    Args:
        table: as for `reached`, two token counts at least for each kernel and variant.
        preset: the layer they are taken to be of.
        bandwidth_gb_s: the limit.

    Returns:
        Indexed by kernel and variant: `ns_per_token`, `moved_bytes` and `required_bytes` a token,
        `moved_gb_s`, and the limit's fractions `moved_fraction` and `required_fraction`.
    """
    rows = {}
    for key, curve in reached(table, preset).groupby(["kernel", "variant"], sort=False):
        us, moved, required = (
            line(curve["tokens"], curve[column]).each
            for column in ("median_us", "moved", "required")
        )
        rows[key] = {
            "ns_per_token": us * 1e3,
            "moved_bytes": moved,
            "required_bytes": required,
            "moved_gb_s": moved / us / 1e3,
            "moved_fraction": moved / us / 1e3 / bandwidth_gb_s,
            "required_fraction": required / us / 1e3 / bandwidth_gb_s,
        }
    found = pd.DataFrame.from_dict(rows, orient="index")
    found.index = pd.MultiIndex.from_tuples(rows, names=["kernel", "variant"])
    return found


def rule(
    table: pd.DataFrame, preset: Preset, bandwidth_gb_s: float, floor_us: float | None = None
) -> pd.DataFrame:
    """The simplest rule, a launch's floor plus bytes over bandwidth, beside what was measured.

    Args:
        table: as for `reached`; without `median_us` the rule predicts.
        preset: the layer.
        bandwidth_gb_s: the card's, by its datasheet.
        floor_us: default each row's `launch_floor_us`.

    Returns:
        The table with `rule_us`, and `error`, measured over rule less one, where it was measured.
    """
    known = table if "median_us" in table else table.assign(median_us=np.nan)
    floor = known["launch_floor_us"].to_numpy() if floor_us is None else floor_us
    known = reached(known, preset)
    known["rule_us"] = floor + known["moved"] / bandwidth_gb_s / 1e3
    known["error"] = known["median_us"] / known["rule_us"] - 1
    return known


def predicted(
    tokens: Iterable[int],
    preset: Preset,
    bandwidth_gb_s: float,
    floor_us: float,
    errors: Sequence[float | pd.Series],
) -> pd.DataFrame:
    """Combine by the rule, with the published kernel's two passes over its output and with one.

    Args:
        tokens: lengths of one fresh request.
        preset, bandwidth_gb_s, floor_us: as for `rule`.
        errors: the rule's smallest and largest where it was checked, each one number or one for
            each length, indexed by `tokens`.

    Returns:
        Indexed by `tokens`, microseconds: `two passes`, `one pass`, and the latter with each of
        the errors, `from` and `to`.
    """
    lengths = sorted(set(tokens))
    found = pd.DataFrame(index=pd.Index(lengths, name="tokens"))
    for words, variant in (("two passes", "workers=256"), ("one pass", "own")):
        asked = pd.DataFrame({"kernel": "combine", "variant": variant, "tokens": lengths})
        found[words] = rule(asked, preset, bandwidth_gb_s, floor_us)["rule_us"].to_numpy()
    found["from"], found["to"] = (found["one pass"] * (1 + error) for error in errors)
    return found
