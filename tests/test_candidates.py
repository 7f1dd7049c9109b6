"""Checking anyone's kernel: right ones pass every trial, and each mistake is told in its words."""

import contextlib
import re
import signal
from pathlib import Path

import pandas as pd
import pytest
import torch

from dsv4kernels import runtime, variants
from dsv4kernels.__main__ import main
from dsv4kernels.lessons import DOCS
from dsv4kernels.measure import bench, suites
from dsv4kernels.parameters import LessonError
from dsv4kernels.variants import candidates, differences, trials

FILE = str(Path(__file__).with_name("wrong_candidates.py"))
DEVICE = runtime.default_device().type  # where a candidate that is loaded here runs
no_gpu = pytest.mark.skipif(runtime.has_gpu(), reason="a GPU is here")


def trial(kernel, name):
    (found,) = [each for each in trials.of(kernel) if each.name == name]
    return found


def fault(function, kernel, name):
    loaded = variants.load(f"{FILE}:{function}")
    return candidates.fault_of(loaded, kernel, trial(kernel, name).arguments(), DEVICE)


@pytest.mark.parametrize("kernel", variants.REFERENCE)
def test_a_right_candidate_passes_every_trial(kernel):
    function = variants.load(f"{FILE}:{kernel}")
    for each in trials.of(kernel):
        if kernel == "combine" and each.group == "safety":
            continue  # a program a row that trusts query_start_loc is right, not safe
        assert candidates.fault_of(function, kernel, each.arguments(), DEVICE) is None, each.name


@pytest.mark.parametrize("kernel", variants.REFERENCE)
def test_the_own_kernels_pass_every_trial_and_are_safe(kernel):
    function = variants.caller(kernel, "own")
    for each in trials.of(kernel):
        assert candidates.fault_of(function, kernel, each.arguments(), DEVICE) is None, each.name


@pytest.mark.parametrize(
    ("kernel", "variant"),
    [
        ("slot_mapping", "runtime"),
        ("slot_mapping", "constexpr"),
        ("slot_mapping", "row=512/1"),
        ("combine", "workers=3"),
        ("combine", "one pass"),
        ("combine", "by rows"),
        ("combine", "by columns"),
        ("combine", "tile=8x512/1"),
    ],
)
def test_other_variants_pass_every_trial_within_the_definition(kernel, variant):
    function = variants.caller(kernel, variant)
    for each in trials.of(kernel):
        if variant == "one pass" and each.name.startswith(("more requests than", "Pro", "C128A")):
            continue  # it interprets 256 programs for each request
        if each.group != "safety":
            assert candidates.fault_of(function, kernel, each.arguments(), DEVICE) is None, (
                each.name
            )


@pytest.mark.parametrize(
    ("function", "kernel", "name", "words"),
    [
        (
            "combine_window", "combine", "Flash C4A, decode",
            r"token 0 of request 0, column 512 \(window part\): got 2049, expected 2048 "
            r"\(5 of 5 rows differ\)",
        ),
        (
            "combine_tail", "combine", "a batch that just begins: few keys, short windows",
            r"token 0 of request 0, column 1 \(empty\): got 2147483647 \(never written\), "
            r"expected -1 \(7 of 7 rows differ\)",
        ),
        (
            "combine_first_start", "combine", "first query_start_loc not 0",
            r"token 0 of request 0, column \d+ \(.*\): got -?\d+, expected \d+",
        ),
        (
            "combine_ratio", "combine", "a batch that just begins: few keys, short windows",
            r"token 3 of request 0, column 0 \(top-k part\): .*; length: got 4, expected 5 ",
        ),
        (
            "combine_warm_up", "combine", "warm-up: a sequence shorter than its query",
            r"token 0 of request 0, length: got -3, expected 0 \(3 of 10 rows differ\)",
        ),
        (
            "slot_mapping_stale", "slot_mapping", "padding rows, request just past the table",
            r"token 2 on a padding row, length: got 72, expected 0 \(2 of 6 rows differ\)",
        ),
        (
            "slot_mapping_holes", "slot_mapping", "holes anywhere in a row",
            r"token 0 of request 0, length: got 88, expected \d+ \(14 of 14 rows differ\)",
        ),
        (
            "slot_mapping_reach", "slot_mapping", "positions just past the table",
            r"token 0 of request 0, column \d+ \(empty\): got -?\d+, expected -1; length: got",
        ),
        (
            "slot_mapping_null_block", "slot_mapping", "null blocks",
            r"token 0 of request 0, column 1 \(empty\): got -12, expected -1; length: got",
        ),
        (
            "dcp_owner", "dcp", "block size no power of two; rank 7 of 8, 4 at a time",
            r"token 0 of request 0, column \d+: got \d+, expected \d+",
        ),
        (
            "dcp_scattered", "dcp", "holes anywhere in a row; rank 7 of 8, 4 at a time",
            r"token 0 of request 0, column 0: got -1, expected \d+",
        ),
        (
            "returns_int64", "slot_mapping", "Flash C4A, decode",
            "indices has dtype torch.int64, needed torch.int32",
        ),
        (
            "returns_indices_only", "slot_mapping", "Flash C4A, decode",
            r"returned Tensor; a pair \(indices, lens\) is needed",
        ),
        (
            "sorts_its_input", "slot_mapping", "Flash C4A, decode",
            "wrote to its input topk_indices, or beside it",
        ),
        (
            "raises", "slot_mapping", "Flash C4A, decode",
            r"raised RuntimeError: no such \(wrong_candidates.py, line \d+\)$",
        ),
        (
            "exits", "slot_mapping", "Flash C4A, decode",
            r"raised SystemExit: 0 \(wrong_candidates.py, line \d+\)$",
        ),
        (
            "combine_keeps_tail", "combine", "a batch that just begins: few keys, short windows",
            r"called with out=, token 0 of request 0, column 1 \(empty\): got 777777, expected -1 ",
        ),
        (
            "combine_end_unsubtracted", "combine",
            "first query_start_loc not 0, a request without a token, padding",
            r"token 9 on a padding row, length: got 1, expected 0 \(3 of 12 rows differ\)",
        ),
        (
            "combine_shifts", "combine", "compress_ratio no power of two",
            r"token 0 of request 0, column 64 \(window part\): .*; length: got 96, expected 88 ",
        ),
        (
            "combine_packs", "combine", "M and N larger than they need be",
            r"token 0 of request 0, column \d+ \(window part\): got \d+, expected 301 ",
        ),
        (
            "combine_one_round", "combine", "more tokens of a request than it has workers",
            r"token 130 of request 1, column 0 .*; length: got 0, expected 7 \(43 of 173 rows",
        ),
        (
            "combine_aligned", "combine", "nothing aligned to 16 bytes",
            "raised RuntimeError: misaligned address",
        ),
        (
            "slot_mapping_one_tile", "slot_mapping", "rows wider than a tile",
            r"token 0 of request 0, column 1024: .*; length: got 1024, expected 1500 ",
        ),
        (
            "slot_mapping_counts_wide", "slot_mapping", "rows wider than a tile, null blocks",
            r"token 0 of request 0, length: got 1500, expected \d+ ",
        ),
        (
            "slot_mapping_counts_wide", "slot_mapping",
            "rows wider than a tile, positions past the table",
            r"token 0 of request 0, length: got 1500, expected 1497 ",
        ),
        (
            "dcp_of_one_rank", "dcp", "holes anywhere in a row; rank 0 of 1, 1 at a time",
            r"token 0 of request 0, column \d+: got -1, expected \d+",
        ),
    ],
)  # fmt: skip
def test_each_mistake_is_told_in_words(function, kernel, name, words, deterministic):
    found = fault(function, kernel, name)
    assert found is not None
    assert re.match(words, found), found


@pytest.fixture
def deterministic():
    """New tensors are filled, as in the process that checks."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize(
    ("mistaken", "kernel", "name"),
    [
        ("combine_end_unsubtracted", "combine", "first query_start_loc not 0, a request"),
        ("combine_shifts", "combine", "compress_ratio no power"),
        ("combine_packs", "combine", "M and N larger"),
        ("combine_one_round", "combine", "more tokens of a request"),
        ("combine_aligned", "combine", "nothing aligned"),
        ("slot_mapping_one_tile", "slot_mapping", "rows wider than a tile"),
        ("dcp_of_one_rank", "dcp", "holes anywhere in a row; rank 0 of 1"),
    ],
)
def test_a_mistake_that_one_corner_alone_shows(mistaken, kernel, name):
    """Were the corner left out, the mistake would pass."""
    function = variants.load(f"{FILE}:{mistaken}")
    told = [
        each.name
        for each in trials.of(kernel)
        if each.group == "corner" and candidates.fault_of(function, kernel, each.arguments())
    ]
    assert len(told) == 1
    assert told[0].startswith(name)


@pytest.mark.parametrize(
    ("kernel", "variant"),
    [
        ("dcp", "owm"), ("dcp", "runtime"), ("combine", "my_kernels.py"), ("combine", "workers=x"),
        ("combine", "own=3"), ("slot_mapping", "runtim"), ("slot_mapping", "rows=8/2"),
        ("slot_mapping", "row=8"),
    ],
)  # fmt: skip
def test_a_name_of_no_variant_is_no_other_variant(kernel, variant):
    words = f"'{variant}' is neither a variant of {kernel} (own"
    with pytest.raises(LessonError, match=re.escape(words)):
        variants.caller(kernel, variant)


def test_a_misspelt_variant_is_not_checked():
    with pytest.raises(LessonError, match=re.escape("'owm' is neither a variant of dcp (own)")):
        next(candidates.check("owm", "dcp", device="cpu"))


def test_other_shapes_are_told():
    arguments = trial("combine", "Flash C4A, decode").arguments()
    indices, lens = variants.REFERENCE["combine"](*arguments)
    for got, words in (
        ((indices[:, :128], lens), "indices has shape [5, 128], needed [5, 640]"),
        ((indices, lens.tolist()), "returned list as lens; a tensor is needed"),
        ((indices.to("meta"), lens), "indices has device meta, needed cpu"),
        (None, "returned NoneType; a pair (indices, lens) is needed"),
    ):
        assert differences.first("combine", arguments, got, (indices, lens)) == words


def test_slots_of_padding_rows_are_free_and_lengths_are_not():
    arguments = trial("slot_mapping", "padding rows, request below 0").arguments()
    slots, lens = variants.REFERENCE["slot_mapping"](*arguments)
    free = slots.clone()
    free[2] = 77
    assert differences.first("slot_mapping", arguments, (free, lens), (slots, lens)) is None
    free[1, 3] += 1
    words = differences.first("slot_mapping", arguments, (free, lens), (slots, lens))
    assert words.startswith("token 1 of request 1, column 3: got")
    counted = lens.clone()
    counted[2] = 1
    words = differences.first("slot_mapping", arguments, (slots, counted), (slots, lens))
    assert words.startswith("token 2 on a padding row, length: got 1, expected 0")


@no_gpu
def test_a_process_lost_to_a_wrong_address_is_told_and_the_rest_goes_on():
    verdicts = list(candidates.check(f"{FILE}:slot_mapping_stale", "slot_mapping"))
    assert [verdict.name for verdict in verdicts] == [
        each.name for each in trials.of("slot_mapping") if each.group != "safety"
    ]
    by_name = {verdict.name: verdict.fault for verdict in verdicts}
    near = by_name["padding rows, request just past the table"]
    assert near.startswith("token 2 on a padding row")
    assert by_name["padding rows, request far past the table"].startswith("died (SIG")
    assert verdicts[-1].fault == candidates.NOT_TRIED
    assert by_name["edges of blocks"] is None


def test_a_candidate_that_hangs_is_ended():
    first = next(candidates.check(f"{FILE}:hangs", "combine", device="cpu", seconds=0.5))
    assert first.fault.startswith("did not end within 0.5 s")


def test_one_that_takes_for_ever_to_load_is_told(monkeypatch):
    monkeypatch.setattr(candidates, "LOADING", 0.0)
    with pytest.raises(LessonError, match="own is still loading after 0 s"):
        next(candidates.check("own", "combine", device="cpu"))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-signal.SIGSEGV, "died (SIGSEGV); an address outside every tensor does this"),
        (-signal.SIGKILL, "was killed (SIGKILL); the system does this when memory runs out"),
        (-signal.SIGTERM, "died (SIGTERM)"),
        (3, "ended its process (exit status 3)"),
    ],
)
def test_how_a_process_ended_in_words(status, words):
    assert candidates._death(status) == words


@pytest.mark.parametrize("forgets", ["once called", "without out="])
def test_a_second_call_has_to_give_the_same(forgets):
    arguments = trial("combine", "Flash C4A, decode").arguments()
    called = []

    def combine(*given, out=None):
        indices, lens = variants.REFERENCE["combine"](*given)
        called.append(out)
        if called[:-1] if forgets == "once called" else out is None:
            lens += 1
        for mine, whole in zip(out or (), (indices, lens), strict=out is not None):
            mine.copy_(whole)
        return out or (indices, lens)

    words = "called again, token 0 of request 0, length: got 641, expected 640 (5 of 5 rows differ)"
    assert candidates.fault_of(combine, "combine", arguments, again=True) == words
    called.clear()
    assert candidates.fault_of(combine, "combine", arguments) is None
    assert len(called) == 1
    assert all(len(out) == 2 for out in called)


def test_inputs_lie_between_borders_of_likely_values():
    def reads_beside(topk_indices, *others):
        wider = topk_indices.as_strided((5, 513), (512, 1))  # one column more than there is
        slots, lens = variants.REFERENCE["slot_mapping"](topk_indices, *others)
        lens[-1] = (wider[-1] >= 0).sum()
        return slots, lens

    arguments = trial("slot_mapping", "Flash C4A, decode").arguments()
    found = candidates.fault_of(reads_beside, "slot_mapping", arguments)
    assert found.startswith("token 4 of request 4, length: got 513, expected 512")


@pytest.mark.parametrize(
    ("specification", "words"),
    [
        ("no_such_module_here:f", "no_such_module_here cannot be imported: ModuleNotFoundError"),
        ("no/such.py:f", f"no file no/such.py, neither in {Path.cwd()} nor in the repository"),
        (
            f"{Path(__file__).with_name('exits_when_imported.py')}:f",
            "cannot be imported: SystemExit: 3",
        ),
        (f"{FILE}:combin", "has no function 'combin'; did you mean combine?"),
        ("nonsense:", "neither module:function nor file.py:function"),
    ],
)
def test_what_cannot_be_loaded_is_named(specification, words):
    with pytest.raises(LessonError, match=re.escape(words)):
        variants.load(specification)
    with pytest.raises(LessonError, match=re.escape(words)):
        next(candidates.check(specification, "combine", device="cpu"))


@pytest.fixture
def empty_registry(monkeypatch):
    monkeypatch.setattr(variants, "_registered", {kernel: [] for kernel in variants.REFERENCE})
    monkeypatch.delenv(variants.ENVIRONMENT, raising=False)


def test_a_registered_candidate_is_a_variant_like_others(empty_registry, monkeypatch):
    assert variants.registered("combine") == ()
    variants.register("combine", f"{FILE}:combine")
    variants.register("combine", f"{FILE}:combine")
    monkeypatch.setenv(variants.ENVIRONMENT, f"slot_mapping={FILE}:slot_mapping, ")
    assert variants.registered("combine") == (f"{FILE}:combine",)
    assert variants.registered("slot_mapping") == (f"{FILE}:slot_mapping",)

    seen = []
    monkeypatch.setattr(bench, "measure", lambda case: seen.append(case) or [])
    monkeypatch.setattr(bench.timing, "wake", lambda seconds: None)
    bench.live(suites.SUITES["published"]())
    assert {case.variants[-1] for case in seen} == {f"{FILE}:combine", f"{FILE}:slot_mapping"}


def test_a_wrong_candidate_is_never_timed(empty_registry):
    variants.register("combine", f"{FILE}:combine_window")
    small = next(case for case in suites.SUITES["host"]() if case.kernel == "combine")
    case = small._replace(variants=("own", f"{FILE}:combine_window"))
    interpreting = contextlib.nullcontext() if runtime.has_gpu() else runtime.interpreting()
    with interpreting, pytest.raises(AssertionError, match="nothing is timed: token 0"):
        list(bench.measure(case))


@pytest.mark.parametrize(
    ("value", "words"),
    [("combine", "is not kernel=module:function"), ("combin=a:b", "did you mean combine?")],
)
def test_a_wrong_registration_is_named(empty_registry, monkeypatch, value, words):
    monkeypatch.setenv(variants.ENVIRONMENT, value)
    with pytest.raises(LessonError, match=re.escape(words)):
        variants.registered("combine")


@no_gpu
def test_one_that_ends_the_process_is_tried_three_times(capsys):
    assert main(["check", f"{FILE}:dies", "--kernel", "dcp"]) == 1
    said = capsys.readouterr().out
    assert said.count("died (SIGSEGV); an address outside every tensor does this") == 3
    last = said.splitlines()[-2]
    assert re.fullmatch(r"0 of \d+ trials right, \d+ not tried: the process was lost 3 times", last)


@no_gpu
def test_the_page_shows_what_the_command_prints(capsys):
    """Two mistakes: a length below 0, and a division by 0 that the interpreter would hide."""
    assert main(["check", f"{FILE}:combine_two", "--kernel", "combine"]) == 1
    printed = capsys.readouterr().out.partition("\n")[2]
    printed = printed.replace(Path(FILE).name, "my_kernels.py")
    assert f"```\n{printed}```\n" in (DOCS / "bring_your_own_kernel.md").read_text()


def test_the_command_lists_trials_and_names_misuse(capsys):
    assert main(["check", "own", "--kernel", "dcp", "--list"]) == 0
    assert "holes anywhere in a row; rank 7 of 8, 4 at a time" in capsys.readouterr().out
    assert main(["check", "own", "--kernel", "combined"]) == 2
    assert "did you mean combine?" in capsys.readouterr().err


def test_ratios_in_words_are_of_each_variant_to_the_candidate():
    shape = {"preset": "p", "mix": "m", "tokens": 8, "cache": "warm", "device": "a card"}
    table = pd.DataFrame(
        shape | {"variant": variant, "median_us": us, "noise": 0.01}
        for variant, us in (("workers=128", 4.0), ("own", 1.0), ("x:f", 2.0))
    )
    said = candidates.in_words(table)
    assert "a card" in said
    row = said.splitlines()[-1].split()
    assert row[-3:] == ["2.0", "0.5", "1.0%"]
