"""Code generation without a GPU: what is counted against the artefacts, what is chosen against
Triton's own JIT."""

import math
import re
import subprocess

import pytest
import torch
from triton import knobs

from dsv4kernels import combine, presets, reference, runtime, slot_mapping
from dsv4kernels.compiler import codegen, jit, listing
from dsv4kernels.plots import folding

GEOMETRY = slot_mapping.GEOMETRY


def plan(variant="runtime", width=512, block_size=64, **options):
    preset = presets.FLASH_C4A.replace(row_width=width, topk=width, block_size=block_size)
    batch = presets.mapping(preset, 3, device="cpu", **options)
    return slot_mapping.plan(*batch.slot_mapping_args(), variant=variant)[1]


def every_kernel():
    batch = presets.mapping(presets.FLASH_C4A, 3, device="cpu")
    prefill = presets.prefill(presets.FLASH_C4A, 5, device="cpu")
    return {
        "runtime": plan("runtime"),
        "constexpr": plan("constexpr"),
        "own": plan("own"),
        "own, wide": plan("own", width=8192),
        "dcp": slot_mapping.plan_dcp(*batch.dcp_args(2, 0))[1],
        "combine": combine.plan(*prefill.combine_args(), num_workers=128)[1],
        "combine, own": combine.plan(*prefill.combine_args())[1],
    }


@pytest.fixture(scope="module")
def two():
    return codegen.compile_all([plan("runtime"), plan("constexpr")], "sm_120")


@pytest.fixture(scope="module")
def every_subset():
    with jit.fresh_cache():
        return codegen.subsets(plan(), "sm_120")


# Folding, on the artefacts


def test_the_run_time_kernel_divides_and_loops_and_the_folded_one_does_neither(two):
    run_time, folded = map(codegen.report, two)
    assert run_time["ptx_divides"] > 0 and run_time["loops"] == 1
    assert (folded["ptx_divides"], folded["ptx_remainders"]) == (0, 0)
    assert (folded["loops"], folded["branches"], folded["reciprocal"]) == (0, 0, 0)
    assert run_time["reciprocal"] > 0
    assert run_time["parameters"] == folded["parameters"] + len(GEOMETRY)
    assert folded["instructions"] < run_time["instructions"]


def test_counts_agree_with_greps_of_the_text(two):
    for kernel in two:
        report = codegen.report(kernel)
        lines = [line for line in kernel.sass.splitlines() if line.startswith("    ")]
        assert report["instructions"] == len(lines)
        assert report["ptx_divides"] == kernel.ptx.count("\tdiv.s32")
        assert report["ptx_remainders"] == kernel.ptx.count("\trem.")
        assert report["loads"] == kernel.sass.count(" LDG.")
        assert report["stores"] == kernel.sass.count(" STG.")
        assert report["widest_load"] == 128 and " LDG.E.128 " in kernel.sass
        assert report["branches"] == len(re.findall(r" BRA\b", kernel.sass))
        assert report["parameters"] == kernel.ptx.split(")")[0].count(".param")
        classes = ("arithmetic", "reciprocal", "move", "uniform", "global", "local", "exchange")
        assert report["instructions"] == sum(report[c] for c in (*classes, "control"))


@pytest.mark.parametrize("target", ["sm_90", "sm_120"])
def test_the_listing_is_what_cuobjdump_prints(target, tmp_path):
    # Listings are made from raw instructions; here the whole cubin goes through the other tool.
    kernels = every_kernel()
    # The second listing of a batch is cut out from behind the first.
    for kernel in codegen.compile_all([kernels["runtime"], kernels["combine"]], target):
        (tmp_path / "cubin").write_bytes(kernel.cubin)
        tool = [knobs.nvidia.cuobjdump.path, "-sass", tmp_path / "cubin"]
        printed = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
        theirs = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/ +(.*?) *(?: [&?].*)?;", printed, re.MULTILINE)
        ours = [line.strip() for line in kernel.sass.splitlines() if line.startswith(" ")]
        padding = theirs[len(ours) :]
        assert padding[0].startswith("BRA 0x") and set(padding[1:]) <= {"NOP"}
        theirs = [re.sub(r"\b0x[0-9a-f]+$", "L", t) if "BRA" in t else t for t in theirs]
        ours = [re.sub(r"\bL\d+$", "L", t) for t in ours]
        jumps = ("BSSY", "CALL", "WARPSYNC")
        pairs = zip(ours, theirs, strict=False)
        assert all(us == them for us, them in pairs if not us.startswith(jumps))


def test_every_kernel_compiles_for_every_target():
    kernels = every_kernel()
    for target in codegen.TARGETS:
        for name, kernel in zip(
            kernels, codegen.compile_all(list(kernels.values()), target), strict=True
        ):
            report = codegen.report(kernel)
            assert f".target {target}" in kernel.ptx
            assert report["target"] == target and kernel.sass.rstrip().count("EXIT") > 0
            if name in ("runtime", "constexpr", "combine"):
                assert report["loops"] == {"runtime": 1, "constexpr": 0, "combine": 2}[name]
            assert report["spills"] == report["stack_bytes"] == 0
            assert 0 < report["registers"] < 256
            assert report["code_bytes"] >= 16 * report["instructions"]
            for stage in codegen.STAGES:
                assert getattr(kernel, stage)


@pytest.mark.parametrize("width", [512, 1000, 1024, 1025, 8192])
def test_a_folded_width_removes_the_loop_where_one_tile_covers_it(width):
    kernel = codegen.compile(plan("constexpr", width), "sm_120")
    one_tile = width <= slot_mapping.TILE
    assert (codegen.report(kernel)["loops"] == 0) == one_tile
    assert ("scf.for" not in kernel.ttir) == one_tile


@pytest.mark.parametrize("block_size", [2, 48, 64, 1000])
def test_no_folded_block_size_needs_a_division(block_size):
    report = codegen.report(codegen.compile(plan("constexpr", block_size=block_size), "sm_90"))
    assert report["ptx_divides"] == report["ptx_remainders"] == report["reciprocal"] == 0


def test_spills_are_seen():
    launch = plan()._replace(options={"maxnreg": 24})
    report = codegen.report(codegen.compile(launch, "sm_120"))
    assert report["registers"] <= 24 and report["spills"] > 0 and report["stack_bytes"] > 0


# Specialisation, as the JIT would choose


@pytest.mark.parametrize("target", ["sm_90", "sm_120"])
def test_the_kernel_compiled_is_the_one_that_the_jit_compiles(target):
    launches = [*every_kernel().values(), plan(row_stride=513), plan(block_size=1)]
    launches.append(launches[0]._replace(options={"num_warps": 8}))
    compiled = codegen.compile_all(launches, target)
    with jit.pretended(target):
        assert [jit.warm_up(launch).hash for launch in launches] == [k.key for k in compiled]


def test_divisibility_alignment_and_one_are_seen():
    def chosen(launch):
        return jit.specialisation(launch, "sm_120")

    assert chosen(plan())["topk_stride"] == "16 | i32"
    assert chosen(plan(row_stride=513))["topk_stride"] == "i32"
    assert chosen(plan(block_size=1))["block_size"] == "= 1"
    assert chosen(plan("constexpr"))["width"] == "= 512"

    batch = presets.mapping(presets.FLASH_C4A, 3, row_stride=528, device="cpu")
    args = batch.slot_mapping_args()[1:]
    wide = torch.zeros(3, 528, dtype=torch.int32)
    for first, seen in ((0, "16 | *i32"), (1, "*i32"), (4, "16 | *i32")):
        topk_indices = wide[:, first : first + 512]
        _, launch = slot_mapping.plan(topk_indices, *args, variant="constexpr")
        assert chosen(launch)["topk_indices"] == seen
        report = codegen.report(codegen.compile(launch, "sm_120"))
        assert report["widest_load"] == (128 if seen.startswith("16") else 32)


def test_a_stride_divisible_by_16_gives_the_run_time_kernel_wide_loads():
    strides = {512: (128, 128), 513: (32, 32), 514: (32, 64), 516: (32, 128)}
    launches = [plan(v, row_stride=s) for s in strides for v in slot_mapping.PUBLISHED]
    widest = [codegen.report(k)["widest_load"] for k in codegen.compile_all(launches, "sm_120")]
    assert list(zip(widest[::2], widest[1::2], strict=True)) == list(strides.values())


def test_compilations_follow_what_varies():
    preset = presets.FLASH_C4A

    def calls(variant, **options):
        for blocks in (15, 16, 17, 17):
            context = blocks * preset.block_size * preset.compress_ratio
            batch = presets.decode(preset, 2, context, device="cpu", **options)
            yield slot_mapping.plan(*batch.slot_mapping_args(), variant=variant)[1]

    assert jit.compilations(calls("runtime"), "sm_120") == [1, 2, 2, 2]
    assert jit.compilations(calls("constexpr"), "sm_120") == [1, 2, 3, 3]
    assert jit.compilations(calls("constexpr", table_stride=17), "sm_120") == [1, 1, 1, 1]


# All subsets


def test_the_subsets(every_subset):
    table = every_subset
    assert len(table) == 32 and len(table[list(GEOMETRY)].drop_duplicates()) == 32
    assert not table.loc[0, list(GEOMETRY)].any() and table.loc[31, list(GEOMETRY)].all()
    assert ((table.ptx_divides > 0) == ~table.block_size).all()
    assert ((table.loops > 0) == ~table.width).all()
    assert table.compile_ms.gt(0).all()
    saved = codegen.savings(table)
    assert saved.loc["width", "alone"] == table.instructions[0] - table.instructions[4]
    assert saved.loc["block_size", "last"] == table.instructions[26] - table.instructions[31]


def test_the_figures_say_what_the_table_says(every_subset):
    title = folding.subsets(every_subset).axes[0].get_title(loc="left")
    assert title.startswith("width and block_size save")
    first, last = every_subset.iloc[0], every_subset.iloc[31]
    reports = codegen.table({"none": first, "all five": last})
    title = folding.composition(reports).axes[0].get_title(loc="left")
    assert f"{first.instructions - last.instructions:,} instructions" in title


# Cache, and the two worlds in one process


def test_a_cached_compilation_has_no_time():
    with jit.fresh_cache() as folder:
        assert knobs.cache.dir == folder
        assert codegen.compile(plan(), "sm_120").seconds > 0
        assert math.isnan(codegen.compile(plan(), "sm_120").seconds)
    assert knobs.cache.dir != folder


def test_interpretation_and_compilation_share_a_process():
    batch = presets.mapping(presets.FLASH_C4A, 3, device="cpu")
    wanted = reference.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
    for variant in slot_mapping.PUBLISHED:
        (slots, lens), launch = slot_mapping.plan(*batch.slot_mapping_args(), variant=variant)
        before = codegen.compile(launch, "sm_120")
        launch.run()
        with jit.pretended("sm_120"):
            assert jit.warm_up(launch).hash == before.key
        launch.run()
        with jit.fresh_cache():
            assert codegen.compile(launch, "sm_120").sass == before.sass
        valid = batch.is_valid_token
        assert torch.equal(slots[valid], wanted[0][valid]) and torch.equal(lens, wanted[1])


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_a_gpu_before_hopper_can_be_added(monkeypatch, target):
    monkeypatch.setattr(jit, "TARGETS", (*jit.TARGETS, target))
    report = codegen.report(codegen.compile(plan(), target))
    assert report["instructions"] > 100 and report["loops"] == 1


def test_wrong_names_are_named():
    with pytest.raises(ValueError, match=r"target must be one of .*sm_90.*got 'sm_7'"):
        codegen.compile(plan(), "sm_7")
    with pytest.raises(ValueError, match=r"stage must be one of ttir.*got 'asm'"):
        codegen.diff(None, None, "asm")


def test_an_interpreter_process_says_that_it_cannot_compile(monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"):
        codegen.compile(plan(), "sm_120")


# Listings


PRINTED = """
        /*0000*/                   S2R R0, SR_TID.X ;       /* 0x0000000000007919 */
        /*0010*/              @!P0 BRA 0x50 ;
        /*0020*/                   IADD3 R0, R0, 0x1, RZ    &req={1} ?WAIT5_END_GROUP;
        /*0030*/               @P1 BRA 0x20 ;
        /*0040*/                   EXIT ;
        /*0050*/                   MOV R0, R1 ;
        /*0060*/                   BRA 0x40 ;
        /*0070*/                   BRA 0x70;
        /*0080*/                   NOP;
        /*0090*/                   EXIT ;
"""


def test_a_listing_has_labels_and_neither_codes_nor_padding():
    text = listing.sass(PRINTED, 0, 0x90)
    assert text == (
        "    S2R R0, SR_TID.X\n    @!P0 BRA L3\nL1:\n    IADD3 R0, R0, 0x1, RZ\n    @P1 BRA L1\n"
        "L2:\n    EXIT\nL3:\n    MOV R0, R1\n    BRA L2\n"
    )
    code = listing.instructions(text)
    assert code[1] == ("", "@!P0", "BRA", "L3") and code[2].label == "L1"
    assert listing.loops(code) == 1, "a branch back from after the end is no loop"


def test_classes():
    def classes(*lines):
        return [
            listing.classify(i) for i in listing.instructions("\n".join("  " + x for x in lines))
        ]

    assert classes("IADD3 R0, R0, 0x1, RZ", "IMAD R1, R2, R3, RZ") == ["arithmetic"] * 2
    assert classes("IMAD.MOV.U32 R0, RZ, RZ, R4", "HFMA2 R3, -RZ, RZ, 0, 0") == ["move"] * 2
    assert classes("IMAD.MOV R0, RZ, RZ, -R4") == ["arithmetic"], "a negation"
    assert classes("UIADD3 UR4, UR4, 0x1, URZ", "ULDC UR4, c[0x0][0x28]") == ["uniform", "move"]
    assert classes("@P0 LDG.E R0, desc[UR4][R2.64]", "STL [R1], R0") == ["global", "local"]


def test_a_diff_marks_what_differs_and_nothing_else(two):
    same = codegen.diff(two[0], two[0])
    assert {sign for sign, _, _ in same.rows} == {""}
    for stage in codegen.STAGES:
        rows = codegen.diff(*two, stage, ("a", "b")).rows
        assert {"-", "+"} <= {sign for sign, _, _ in rows} <= {"", "-", "+", "~"}
        assert all(bool(left) != bool(right) for sign, left, right in rows if sign in ("-", "+"))
    divides = [sign for sign, left, _ in codegen.diff(*two, "ptx").rows if "div.s32" in left]
    assert divides == ["-"] * 8


def test_a_diff_shows_text_and_a_page():
    left = "    MOV R0, R1\n    IADD R0, R0, 0x1\n    EXIT\n"
    right = "    MOV R7, R9\n    IADD R7, R7, 0x2\n    NOP\n    EXIT\n"
    difference = listing.side_by_side("sass", left, right, ("<left>", "right"))
    assert [sign for sign, _, _ in difference.rows] == ["", "~", "+", ""]
    assert "~     IADD R0, R0, 0x1 |     IADD R7, R7, 0x2" in str(difference)
    page = difference._repr_html_()
    assert "&lt;left&gt;" in page and "overflow:auto" in page
    assert page.count("background:rgba") == 2 and ">~<" in page and ">+<" in page


# What a kernel must not do: lean on a constant that is no argument


def test_kernels_take_their_constants_as_arguments():
    for launch in every_kernel().values():
        assert launch.kernel.cache_key and not launch.kernel.used_global_vals
        assert isinstance(launch.kernel, runtime.Kernel)
