"""Measuring: what is wrong is never timed, and what cannot be measured says why."""

import pytest
import torch

from dsv4kernels import presets, runtime, variants
from dsv4kernels.__main__ import main
from dsv4kernels.measure import bench, records, suites, timing

SMALL = presets.FLASH_C4A.replace(name="small", topk=8, row_width=8, window_size=8)
no_gpu = pytest.mark.skipif(runtime.has_gpu(), reason="a GPU is here")
needs_gpu = pytest.mark.skipif(not runtime.has_gpu(), reason="no GPU here")


def case(kernel="combine", variants=("workers=3", "own")):
    return suites.Case("tokens", kernel, "one request", lambda: presets.prefill(SMALL, 5), variants)


@pytest.mark.parametrize("suite", suites.SUITES)
def test_suites_compare_with_the_published_comparator(suite):
    cases = list(suites.SUITES[suite]())
    assert cases
    assert {each.suite for each in cases} == {suite}
    comparators = {"slot_mapping": "runtime", "combine": "workers=128", "dcp": "own"}
    assert all(each.variants[0] == comparators[each.kernel] for each in cases)


def test_every_variant_is_checked_before_anything_is_timed(monkeypatch):
    right = variants.caller

    def caller(kernel, variant):
        function = right(kernel, variant)
        if variant != "own":
            return function

        def off_by_one(*args, out=None):
            indices, lens = function(*args, out=out)
            lens[-1] += 1
            return indices, lens

        return off_by_one

    monkeypatch.setattr(variants, "caller", caller)
    monkeypatch.setattr(timing, "measure", lambda *_: pytest.fail("a wrong kernel was timed"))
    with pytest.raises(AssertionError, match="combine own differs from the reference"):
        list(bench.measure(case()))


@no_gpu
def test_without_a_gpu_every_row_is_skipped_with_the_reason():
    rows = list(bench.measure(case()))
    assert {row["variant"] for row in rows} == {"workers=3", "own"}
    assert all("no GPU" in row["skipped"] for row in rows)
    assert all(set(row) <= set(records.COLUMNS) for row in rows)
    assert len({row["checksum"] for row in rows}) == 1


@no_gpu
def test_the_command_says_that_there_is_no_gpu(capsys):
    assert main(["bench", "--suite", "tokens"]) == 2
    assert "no GPU" in capsys.readouterr().err
    assert main(["bench", "--suite", "tokns"]) == 2
    assert "did you mean tokens" in capsys.readouterr().err
    assert main(["bench", "--list"]) == 0
    assert "tokens: 34 shapes" in capsys.readouterr().out


def test_running_out_of_memory_is_a_recorded_skip():
    def make():
        raise torch.cuda.OutOfMemoryError("too much")

    rows = list(bench.measure(case()._replace(make=make)))
    assert [row["skipped"] for row in rows] == ["out of GPU memory"] * 2


def test_checksums_tell_order_and_values_apart():
    one = torch.tensor([[1, 2], [3, 4]]), torch.tensor([2, 2])
    assert bench.checksum(one) == bench.checksum([t.clone() for t in one])
    for changed in ([[2, 1], [3, 4]], [[1, 2], [3, 5]], [[3, 4], [1, 2]]):
        assert bench.checksum((torch.tensor(changed), one[1])) != bench.checksum(one)


def test_rotation_needs_enough_sets_to_leave_the_cache(monkeypatch):
    monkeypatch.setattr(runtime, "describe", lambda: {"l2_bytes": 1000})
    assert timing.rotation(300) == 7  # 2 x 1000 / 300
    assert timing.rotation(5000) == 2
    assert timing.rotation(1, most=1500) == 1500
    with pytest.raises(timing.SkippedError, match="too small to be cold"):
        timing.rotation(1, most=999)


@needs_gpu
@pytest.mark.parametrize("protocol", timing.PROTOCOLS)
def test_protocols_on_a_gpu(protocol):
    taken = timing.measure([timing.launch_floor()], protocol)
    assert 0 < taken.p20_us <= taken.median_us <= taken.p80_us


@needs_gpu
@pytest.mark.parametrize("kernel", ["slot_mapping", "combine", "dcp"])
def test_a_case_on_a_gpu(kernel):
    variants = {"combine": suites.COMBINE, "slot_mapping": suites.SLOT_MAPPING, "dcp": ("own",)}
    rows = list(bench.measure(case(kernel, variants[kernel])))
    timed = [row for row in rows if "median_us" in row]
    assert {row["variant"] for row in timed} == set(variants[kernel])
    assert all(row["median_us"] > 0 and row["launch_floor_us"] > 0 for row in timed)


def test_a_warm_device_time_is_pooled_over_placements(monkeypatch):
    times = iter(range(100, 200))

    def measure(calls, protocol):
        calls[0]()
        now = float(next(times))
        return timing.Timing(now, now - 1, now + 1, 30)

    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(timing, "launch_floor", lambda: lambda: None)
    monkeypatch.setattr(timing, "traffic_floor", lambda read, written: lambda: None)
    one = case()._replace(protocols=(("graph", "warm"),))
    comparator, own = bench.measure(one)
    # comparator, own, comparator on each of three sets of buffers: 100 101 102, 103 104 105, ...
    assert (comparator["median_us"], own["median_us"]) == (103, 104)
    assert (own["p20_us"], own["p80_us"], own["count"]) == (100, 108, 90)
    assert own["noise"] == round(106 / 100 - 1, 4)
