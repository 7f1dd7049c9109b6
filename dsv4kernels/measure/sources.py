"""Measured figures for a lesson: recorded ones, and live ones beside them where a GPU is present.

Each table is of one device and carries a label that says whether it was recorded or is live; no
table takes the place of another.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from .. import runtime
from . import bench, records
from .suites import STEPWISE, Case


def recorded(suite: str, **wanted) -> dict[str, pd.DataFrame]:
    """What is recorded of a suite, by a label such as `recorded, NVIDIA H200`; maybe nothing.

    Args:
        suite: as in the column `suite`.
        **wanted: values of other columns, as in `records.select`.
    """
    return _recorded(suite=suite, **wanted)


def _recorded(**wanted):
    try:
        table = records.select(records.load_measured(), **wanted)
    except records.DataError:
        return {}  # no device has such figures
    return {f"recorded, {device}": rows for device, rows in table.groupby("device")}


def live(cases: Iterable[Case]) -> dict[str, pd.DataFrame]:
    """Measure cases on the GPU that is here, by a label such as `live, NVIDIA H200`.

    Nothing without a GPU. Every variant is checked against the reference before it is timed.
    """
    if not runtime.has_gpu():
        return {}
    table = pd.DataFrame(bench.live(cases), columns=list(records.COLUMNS))
    table = table[table["median_us"].notna()]  # a skipped measurement has no time
    return {f"live, {runtime.describe()['device']}": table} if len(table) else {}


def repeated(kernel: str, tokens: int) -> dict[str, pd.DataFrame]:
    """One call that several suites recorded: warm device time of one request of Flash C4A.

    Args:
        kernel: `slot_mapping` or `combine`.
        tokens: of the batch.

    Returns:
        By a label as of `recorded`: microseconds, a row for each suite and a column for each
        variant that several suites have.
    """
    call = {"kernel": kernel, "tokens": tokens, "protocol": "graph", "cache": "warm"}
    call |= {"preset": "Flash C4A", "mix": "one request"}
    found = {}
    for label, rows in _recorded(**call).items():
        times = rows.pivot(index="suite", columns="variant", values="median_us")
        found[label] = times.loc[:, times.count() > 1]
    return found


def stepwise(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Times of the suite `steps`, and what each step leaves of the time before it.

    Args:
        table: its rows, of one device, protocol and cache.

    Returns:
        Both indexed by mix and tokens, with a column for each variant: microseconds, and ratios
        with `gains most`, the project's own step with the least of them.
    """
    records.one_source(table)
    order = list(dict.fromkeys([*STEPWISE, *table["variant"]]))
    times = table.pivot_table(
        index=["mix", "tokens"], columns="variant", values="median_us", sort=False
    )[order]
    left = (times / times.shift(1, axis=1))[list(STEPWISE[1:])]
    return times, left.assign(**{"gains most": left.drop(columns="workers=256").idxmin(axis=1)})


def relative(table: pd.DataFrame, to: str = "own") -> pd.DataFrame:
    """Times of all variants over one variant's, a row for each batch and a column for each variant.

    Indexed by what tells the batches apart, in the order of the table; one device, protocol and
    cache only.

    Raises:
        records.DataError: that variant is not there, or the table mixes sources.
    """
    records.one_source(table)
    records.select(table, variant=to)
    order = list(dict.fromkeys(table["variant"]))
    times = table.pivot_table(
        index=["preset", "mix", "requests", "tokens"], columns="variant", values="median_us",
        sort=False,
    )  # fmt: skip
    return times[order].div(times[to], axis=0)


def swept(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """One kernel's rows of the suite `rule`: other shapes over the rule's choice, by preset.

    Returns:
        For each preset a table of ratios, a row for each mix and token count, a column for each
        shape.

    Raises:
        records.DataError: as `relative`.
    """
    found = {}
    for preset, rows in table.groupby("preset", sort=False):
        cells = relative(rows).droplevel(["preset", "requests"])
        found[preset] = cells[[shape for shape in cells if "/" in shape]]
    return found


def nearest(
    table: pd.DataFrame, requests: int, tokens: int, workers: int
) -> tuple[pd.Series, float]:
    """The measured combine call of the published kernel that is most like one of this shape.

    Args:
        table: columns `requests`, `tokens` and `variant`, and what else is wanted of the row.
        requests: of the batch, at least 1.
        tokens: of all requests together, at least 1.
        workers: programs a request.

    Returns:
        its row with `workers`, and how far it is off: doublings of requests, of tokens and of
        workers, summed up; 0 where the shape was measured.

    Raises:
        records.DataError: no row of the published kernel is in the table.
    """
    table = table[table["variant"].str.fullmatch(r"workers=\d+")]
    if table.empty:
        raise records.DataError("no call of the published combine kernel is recorded")
    count = table["variant"].str.removeprefix("workers=").astype(int)
    table = table.assign(workers=count).reset_index(drop=True)
    wanted = {"requests": requests, "tokens": tokens, "workers": workers}
    off = sum(abs(np.log2(table[name] / number)) for name, number in wanted.items())
    return table.loc[off.idxmin()], float(off.min())


def ratios(table: pd.DataFrame, candidate: str, comparator: str) -> pd.DataFrame:
    """A candidate's latency over the comparator's, shape by shape.

    Returns:
        Columns `mix`, `requests`, `tokens`, `comparator_us`, `candidate_us`, `ratio`, `noise` (of
        the comparator measured twice; a change smaller than it is noise), and the source's.

    Raises:
        records.DataError: one of the two is not there, or the table mixes sources.
    """
    records.one_source(table)
    shape = ["preset", "mix", "requests", "tokens", *records.SOURCE]
    before, after = (
        records.select(table, variant=variant).set_index(shape)
        for variant in (comparator, candidate)
    )
    both = pd.DataFrame({"comparator_us": before["median_us"], "candidate_us": after["median_us"]})
    both["ratio"] = both["candidate_us"] / both["comparator_us"]
    both["noise"] = before["noise"]
    return both.dropna(subset="ratio").reset_index()
