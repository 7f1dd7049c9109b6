"""Nsight Compute's CSV becomes rows that say which launch they are of."""

import pytest

from dsv4kernels import counters, runtime
from dsv4kernels.__main__ import main

NAMES = ["ID", "Kernel Name", *counters.METRICS]


def csv(*rows):
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)


PRINTED = (
    "variant:combine|workers=128|Flash C4A|one request|1|4096|fill+values\n"
    "==PROF== Connected to process 1\n"
    "variant:combine|own|Flash C4A|one request|1|4096|kernel\n"
    + csv(
        NAMES,
        ["", "", "inst", "Mbyte", "byte", "%", "%", "register/thread", "", "us"],
        ["0", "fill", "1,000", "0.5", "10", "1.5", "50", "16", "320", "2"],
        ["1", "_combine", "2,000,000", "1.5", "20", "2.5", "60", "32", "128", "8"],
        ["2", "_combine_tile", "3,000", "2.5", "30", "3.5", "70", "48", "2,048", "4.5"],
    )
    + "\n==PROF== Disconnected from process 1\n"
)


def test_rows_are_named_and_in_base_units():
    table = counters.tidy(PRINTED)
    assert table.variant.tolist() == ["workers=128", "workers=128", "own"]
    assert table.launch.tolist() == ["fill", "values", "kernel"]
    assert table.warp_instructions.tolist() == [1000, 2_000_000, 3000]
    assert table.dram_read_bytes.tolist() == [500_000, 1_500_000, 2_500_000]
    assert table.duration_ns.tolist() == [2000, 8000, 4500]
    assert table.tokens.astype(int).tolist() == [4096] * 3


def test_a_launch_that_was_not_seen_is_an_error():
    short = "\n".join(line for line in PRINTED.splitlines() if "_combine_tile" not in line)
    with pytest.raises(counters.NoCountersError, match="3 launches were made, ncu saw 2"):
        counters.tidy(short)


@pytest.mark.skipif(runtime.has_gpu(), reason="a GPU is here")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["counters"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_what_is_recorded_has_every_column():
    table = counters.load_counters()
    assert set(counters.COLUMNS) == set(table.columns)
    assert table[list(counters.SHAPES)].notna().all(axis=None)
