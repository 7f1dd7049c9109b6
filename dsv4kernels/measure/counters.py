"""Hardware counters: what a kernel executed and moved, read by Nsight Compute.

Times say that one variant is quicker; counters say why: instructions issued, bytes that crossed to
device memory, how busy the multiprocessors were. Nsight Compute (`ncu`) runs this module as a child
that launches every variant once, each in its own profiled range, and the CSV it prints becomes
tidy rows. It empties the caches before each launch (its default): bytes are a cold call's.
"""

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import torch

from .. import runtime, variants
from ..presets import C128A, FLASH_C4A
from . import bench, records, suites

# Nsight Compute's metric, and what it is called here.
METRICS = {
    "smsp__inst_executed.sum": "warp_instructions",
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "programs",
    "gpu__time_duration.sum": "duration_ns",
}
SHAPES = ("kernel", "variant", "preset", "mix", "requests", "tokens")
COLUMNS = (*SHAPES, "launch", *METRICS.values(), *bench.ORIGIN)
# What a unit that `ncu` prints is worth in bytes or nanoseconds; the others are plain counts.
_UNITS = dict.fromkeys(("", "inst", "%", "register/thread", "byte", "ns", "nsecond"), 1)
_UNITS |= {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
_UNITS |= {"us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}


class NoCountersError(Exception):
    """Counters cannot be read here; the message says why."""


def cases() -> list[suites.Case]:
    """The few shapes whose counters explain the measured times."""
    mapped = [(FLASH_C4A, 4096), (C128A, 32), (C128A, 512)]
    combined = [(1, 4096), (1, 16_384), (64, 8192)]
    return [
        *(
            suites.Case(
                "",
                "slot_mapping",
                suites.mix_of(1, shape[1]),
                suites.mapping_of(*shape),
                suites.SLOT_MAPPING,
            )
            for shape in mapped
        ),
        *(
            suites.Case(
                "",
                "combine",
                suites.mix_of(requests, tokens // requests),
                suites.requests_of(requests, tokens),
                suites.COMBINE,
            )
            for requests, tokens in combined
        ),
    ]


def load_counters() -> pd.DataFrame:
    """The recorded rows of all devices, the last of a launch read twice; perhaps none."""
    table = records.recorded("counters")
    if table.empty:
        return pd.DataFrame(columns=COLUMNS)
    return table.drop_duplicates(["device", *SHAPES, "launch"], keep="last", ignore_index=True)


def tables(counted: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """Rows of `load_counters` to be shown: by device and kernel, indexed by what differs."""
    shown = ["warp_instructions", "occupancy_percent", "dram_read_bytes", "dram_write_bytes"]
    found = {}
    for key, rows in counted.groupby(["device", "kernel"], sort=False):
        shape = ["mix", "preset", "tokens", "variant", "launch"]
        index = [name for name in shape if rows[name].nunique() > 1] or ["variant"]
        found[key] = rows.set_index(index)[shown]
    return found


def relative(counted: pd.DataFrame, variant: str, to: str) -> pd.DataFrame:
    """What a variant counts over what another does, fills left out; perhaps nothing.

    Args:
        counted: rows of `load_counters`.
        variant, to: as in its column `variant`.

    Returns:
        Indexed by device, kernel, preset, requests and tokens: instructions, occupancy, bytes read.
    """
    shape = ["device", "kernel", "preset", "requests", "tokens"]
    columns = ["warp_instructions", "occupancy_percent", "dram_read_bytes"]
    values = counted[counted["launch"] != "fill"].set_index(shape)
    one, other = (values.loc[values["variant"] == name, columns] for name in (variant, to))
    return (one.astype(float) / other.astype(float)).dropna()


def run(folder: Path | None = None) -> Path:
    """Read the counters of every case here, and append them to a CSV file.

    Args:
        folder: default the device's own under `data/counters/`.

    Returns:
        The file.

    Raises:
        NoCountersError: no GPU, no `ncu`, or it may not read the counters.
    """
    if not runtime.has_gpu():
        raise NoCountersError("no GPU here")
    ncu = shutil.which("ncu")
    if ncu is None:
        raise NoCountersError("Nsight Compute (ncu) is not installed")
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--profile-from-start", "off"]
    command += ["--clock-control", "none", "--metrics", ",".join(METRICS)]
    command += [sys.executable, "-m", __spec__.name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=records.DATA.parent)
    if done.returncode or '"ID"' not in done.stdout:
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        errors = [line for line in lines if line.startswith("==ERROR==")]
        raise NoCountersError("ncu failed: " + " / ".join((errors or lines)[-3:]))
    table = tidy(done.stdout).assign(**bench.provenance())
    folder = folder or records.device_folder(table.device[0], "counters")
    file = folder / "counters.csv"
    rows = table.astype(object).where(table.notna(), "").to_dict("records")
    records.append(rows, file, COLUMNS)
    return file


def tidy(printed: str) -> pd.DataFrame:
    """What `ncu --csv --page raw` and the child print, as one row a kernel launch.

    The child names each variant before it launches it, on a line of its own that begins with
    `variant:`; how many launches follow is the child's to say.
    """
    lines = printed.splitlines()
    named = [line.removeprefix("variant:").split("|") for line in lines if line[:8] == "variant:"]
    printed = "\n".join(line for line in lines if line.startswith('"'))
    raw = pd.read_csv(io.StringIO(printed), dtype=str)
    units, rows = raw.iloc[0], raw.iloc[1:].reset_index(drop=True)
    launches = [(*shape, launch) for *shape, names in named for launch in names.split("+")]
    if len(launches) != len(rows):
        raise NoCountersError(f"{len(launches)} launches were made, ncu saw {len(rows)}")
    table = pd.DataFrame(launches, columns=[*SHAPES, "launch"])
    for metric, name in METRICS.items():
        unit = "" if pd.isna(units[metric]) else units[metric]
        if unit not in _UNITS:
            raise NoCountersError(f"ncu gave {metric} in a unit that is not known here: {unit}")
        numbers = rows[metric].str.replace(",", "")  # n/a where a GPU lacks the counter
        table[name] = pd.to_numeric(numbers, errors="coerce") * _UNITS[unit]
    return table


def _child():
    """Launch every variant once, profiled; a published combine is preceded by its fill."""
    for case in cases():
        batch = case.make()
        args = variants.arguments(case.kernel, batch)
        for variant in case.variants:
            function = variants.caller(case.kernel, variant)
            out = function(*args)
            torch.cuda.synchronize()
            names = "fill+values" if variant.startswith("workers") else "kernel"
            facts = (case.kernel, variant, batch.preset.name, case.mix)
            print("variant:" + "|".join(map(str, (*facts, batch.requests, batch.tokens, names))))
            sys.stdout.flush()
            torch.cuda.profiler.start()
            function(*args, out=out)
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


if __name__ == "__main__":
    _child()
