"""Nsight Compute's CSV becomes rows that say which launch they are of."""

from types import SimpleNamespace

import pytest

from dsv4kernels import runtime
from dsv4kernels.__main__ import main
from dsv4kernels.measure import counters

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


def test_a_unit_that_is_not_known_is_an_error():
    odd = PRINTED.replace('"us"', '"fortnight"')
    with pytest.raises(counters.NoCountersError, match="not known here: fortnight"):
        counters.tidy(odd)
    assert counters.tidy(PRINTED.replace('"us"', '"ms"')).duration_ns.tolist() == [2e6, 8e6, 4.5e6]


def test_a_counter_that_a_gpu_lacks_is_left_empty():
    table = counters.tidy(PRINTED.replace('"2.5","60"', '"n/a","60"'))
    assert table.dram_percent.isna().tolist() == [False, True, False]


@pytest.fixture
def profiler(tmp_path, monkeypatch):
    """A stand-in for `ncu` on a machine with a GPU, which prints what it is told to."""
    monkeypatch.setattr(runtime, "has_gpu", lambda: True)
    monkeypatch.setattr(counters.shutil, "which", lambda _: "ncu")
    origin = dict.fromkeys(counters.bench.ORIGIN, "x") | {"device": "A GPU"}
    monkeypatch.setattr(counters.bench, "provenance", lambda: origin)
    monkeypatch.setattr(counters.records, "DATA", tmp_path)

    def prints(stdout, status=0):
        done = SimpleNamespace(returncode=status, stdout=stdout, stderr="")
        monkeypatch.setattr(counters.subprocess, "run", lambda *_, **__: done)

    return prints


def test_rows_are_appended_and_the_last_of_a_launch_counts(profiler):
    profiler(PRINTED)
    counters.run()
    profiler(PRINTED.replace('"8"', '"9"'))
    file = counters.run()
    assert len(file.read_text().splitlines()) == 1 + 3 + 3
    table = counters.load_counters()
    assert list(table.columns) == list(counters.COLUMNS)
    assert sorted(table.duration_ns) == [2000, 4500, 9000]


def test_what_ncu_complains_of_is_told(profiler):
    profiler("==ERROR== ERR_NVGPUCTRPERM - no permission\n" + "variant:a|b\n" * 5, 1)
    with pytest.raises(counters.NoCountersError, match="ERR_NVGPUCTRPERM - no permission"):
        counters.run()


@pytest.mark.skipif(runtime.has_gpu(), reason="a GPU is here")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["counters"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_what_is_recorded_has_every_column():
    table = counters.load_counters()
    assert set(counters.COLUMNS) == set(table.columns)
    assert table[list(counters.SHAPES)].notna().all(axis=None)


def test_tables_are_indexed_by_what_differs_and_hold_no_fill_against_a_kernel():
    rows = counters.tidy(PRINTED).assign(device="A GPU")
    [(key, table)] = counters.tables(rows).items()
    assert key == ("A GPU", "combine")
    assert table.index.names == ["variant", "launch"]
    own = counters.relative(rows, "own", "workers=128")
    assert own["warp_instructions"].tolist() == [3000 / 2_000_000]
    assert own["dram_read_bytes"].tolist() == [2.5 / 1.5]
    assert counters.relative(rows, "own", "constexpr").empty
    assert counters.relative(rows[:0], "own", "constexpr").empty
