"""Tables of figures: what was published, and what was measured, each row with its source.

Figures live as CSV under `data/`, described column by column in `data/README.md`. Loading never
guesses: an empty selection is an error, and `one_source` refuses rows of several devices,
protocols or cache states in what is meant to be one curve.
"""

import contextlib
import csv
import fcntl
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

DATA = Path(__file__).resolve().parents[2] / "data"

# One measurement a row, in this order.
COLUMNS = (
    "suite",  # what it was measured for
    "kernel",  # slot_mapping, dcp or combine
    "variant",
    "preset",
    "mix",  # how tokens are spread over requests, in words
    "requests",
    "tokens",
    "protocol",  # graph, event or host
    "cache",  # warm or cold
    "median_us",
    "p20_us",
    "p80_us",
    "count",  # samples behind the median
    "noise",  # relative difference of the two comparator runs around this one
    "launch_floor_us",  # an empty kernel in the same protocol
    "traffic_floor_us",  # a copy of the bytes the definition requires
    "required_bytes",
    "checksum",  # of the outputs, equal to the reference's
    "skipped",  # why there is no time
    "device",
    "compute_capability",
    "sm_count",
    "driver",
    "cuda",
    "torch",
    "triton",
    "commit",
    "date",
)
KEY = (
    *("device", "suite", "kernel", "variant", "preset", "mix", "requests", "tokens"),
    *("protocol", "cache"),
)
SOURCE = ("device", "protocol", "cache")  # what one curve must not mix


class DataError(ValueError):
    """A selection of figures that is empty, or mixes what must not be mixed."""


def load_published(kernel: str | None = None) -> pd.DataFrame:
    """Latencies others have published, one comparison a row, with their source.

    Args:
        kernel: `slot_mapping` or `combine`; both if None.

    Returns:
        The columns of `data/published/published_latency.csv` and `change`, recomputed here:
        optimised over comparator, less one.
    """
    table = pd.read_csv(DATA / "published" / "published_latency.csv")
    table["change"] = table["optimized_us"] / table["comparator_us"] - 1
    return table if kernel is None else select(table, kernel=kernel)


def load_serving() -> pd.DataFrame:
    """Serving-level effects others have published, with their source."""
    return pd.read_csv(DATA / "published" / "published_serving.csv")


def load_devices() -> pd.DataFrame:
    """Datasheet facts of GPUs, indexed by device name."""
    return pd.read_csv(DATA / "published" / "devices.csv").set_index("device")


def load_measured(device: str | None = None) -> pd.DataFrame:
    """Every figure measured by this package, or those of one device.

    Where a measurement was repeated, the last one counts; rows without a time are left out.

    Returns:
        `COLUMNS`, and `over_launch` and `over_traffic`: the median over each of its row's floors.

    Raises:
        DataError: nothing is recorded (for that device).
    """
    table = recorded("measured")
    if table.empty:
        raise DataError("nothing measured is recorded under data/measured")
    table = table[table["median_us"].notna()].drop_duplicates(list(KEY), keep="last")
    table = table.assign(
        over_launch=table["median_us"] / table["launch_floor_us"],
        over_traffic=table["median_us"] / table["traffic_floor_us"],
    )
    return table if device is None else select(table, device=device)


def recorded_devices() -> list[str]:
    """Devices with measured figures under `data/`."""
    try:
        return sorted(load_measured()["device"].unique())
    except DataError:
        return []


def select(table: pd.DataFrame, **wanted) -> pd.DataFrame:
    """Rows that have the wanted values; a list stands for any of its values.

    Raises:
        DataError: no such column, or no such row; the message names what there is.
    """
    chosen = table
    for column, value in wanted.items():
        if column not in table:
            raise DataError(f"no column {column!r}; there are {', '.join(table)}")
        values = value if isinstance(value, list | tuple | set) else [value]
        rows = chosen[chosen[column].isin(values)]
        if rows.empty:
            there = ", ".join(map(str, chosen[column].unique()[:12]))
            raise DataError(f"no row with {column} = {value!r}; there are: {there}")
        chosen = rows
    return chosen


def one_source(table: pd.DataFrame) -> dict[str, str]:
    """The device, protocol and cache state that all rows share.

    Raises:
        DataError: the rows mix two of them, or there is none.
    """
    if table.empty:
        raise DataError("no rows to plot")
    for column in SOURCE:
        if column in table and table[column].nunique() > 1:
            mixed = ", ".join(map(str, table[column].unique()))
            raise DataError(f"one curve must not mix {column}s: {mixed}")
    return {column: str(table[column].iloc[0]) for column in SOURCE if column in table}


def recorded(kind: str = "measured") -> pd.DataFrame:
    """The rows of every device's files, `measured` or `counters`; perhaps none.

    A last line that was cut short is left out: it may end in the middle of a number.
    """
    texts = [
        _whole_lines(file.read_text(encoding="utf-8"))
        for file in sorted((DATA / kind).glob("*/*.csv"))
    ]
    tables = [pd.read_csv(io.StringIO(text), dtype={"skipped": "string"}) for text in texts if text]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _whole_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def append(rows: Iterable[Mapping], file: Path, columns: Sequence[str] = COLUMNS) -> None:
    """Append rows to a CSV file; a row is written whole or not at all.

    A file whose last line was cut short by an interrupted append loses that line first. Who appends
    at the same time waits.

    Raises:
        DataError: a row has a column that `columns` does not know, or the file another header.
    """
    rows = list(rows)
    unknown = {column for row in rows for column in row} - set(columns)
    if unknown:
        raise DataError(f"unknown columns {sorted(unknown)}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a+", newline="", encoding="utf-8") as out:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(out, fcntl.LOCK_EX)
        out.seek(0)
        text, header = out.read(), ",".join(columns)
        if text.partition("\n")[0] != header and not header.startswith(text):
            raise DataError(f"{file.name} has other columns than this version writes")
        if text != _whole_lines(text):
            text = _whole_lines(text)
            out.truncate(len(text.encode()))
        writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
        if not text:
            writer.writeheader()
        writer.writerows(rows)
        out.flush()
        os.fsync(out.fileno())


def device_folder(device: str, kind: str = "measured") -> Path:
    """Folder of a device's figures, `measured` or `counters`."""
    return DATA / kind / re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
