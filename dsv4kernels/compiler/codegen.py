"""Machine code without a GPU: compile a `Launch` for a target, read the artefacts, compare two.

Triton compiles for a GPU that is not there as it does for one that is: the same arguments lead to
the same specialisation (which pointers and integers are multiples of 16, which are 1), the same
PTX, and, by NVIDIA's own assembler that Triton ships, the same instructions. Everything counted
here is read from those artefacts.
"""

import itertools
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
import triton
from triton import knobs
from triton.compiler import ASTSource, make_backend

from .. import runtime, slot_mapping
from . import jit, listing

TARGETS = jit.TARGETS
STAGES = ("ttir", "ttgir", "llir", "ptx", "sass")


class Compiled(NamedTuple):
    """A kernel compiled for a target: the text of every stage, and what the compiler reports.

    Attributes:
        kernel: the kernel's name.
        target: one of `TARGETS`.
        ttir, ttgir, llir, ptx, sass: the stages; SASS (the GPU's own instructions) with labels in
            place of addresses, without scheduling codes and without the padding after its end.
        cubin: the binary.
        key: names the compilation in Triton's cache.
        code_bytes: instructions in the binary, padding included.
        registers: 32-bit registers of a thread.
        stack_bytes: local memory of a thread.
        shared_bytes: shared memory of a program.
        seconds: what Triton took from Python to cubin; NaN where its cache answered.
    """

    kernel: str
    target: str
    ttir: str
    ttgir: str
    llir: str
    ptx: str
    sass: str
    cubin: bytes
    key: str
    code_bytes: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    seconds: float


def compile(launch: runtime.Launch, target: str) -> Compiled:
    """Compile one launch for a target; nothing runs and no GPU is needed.

    Raises:
        ValueError: no such target.
        RuntimeError: TRITON_INTERPRET is set, so that this process cannot compile.
    """
    return compile_all([launch], target)[0]


def compile_all(launches: Sequence[runtime.Launch], target: str) -> list[Compiled]:
    """Compile several launches; as `compile`, but the disassembler starts once only."""
    gpu = jit.gpu(target)
    kernels, seconds = [], []

    def listen(*, times, cache_hit, **_):
        seconds.append(float("nan") if cache_hit else times.total / 1e6)

    runtime.require_compiler()
    with runtime.language_lock, knobs.compilation.scope():
        knobs.compilation.listener = listen
        for launch in launches:
            bound, specialised, options = jit.bind(launch, gpu)
            options, signature, constants, attributes = launch.kernel._pack_args(
                make_backend(gpu), dict(launch.options), bound, specialised, options
            )
            source = ASTSource(launch.kernel, signature, constants, attributes)
            kernels.append(triton.compile(source, target=gpu, options=options.__dict__))
    codes = [_code(kernel.asm["cubin"]) for kernel in kernels]
    return [
        Compiled(
            kernel.name,
            target,
            *(kernel.asm[stage] for stage in STAGES[:-1]),
            sass,
            kernel.asm["cubin"],
            kernel.hash,
            len(code),
            *_resources(kernel),
            kernel.metadata.shared,
            taken,
        )
        for kernel, code, sass, taken in zip(
            kernels, codes, _disassemble(codes, gpu), seconds, strict=True
        )
    ]


def _code(cubin):
    """The instructions of a cubin, an ELF file with one kernel: its section `.text.kernel`."""
    [start] = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    for name, _, _, _, offset, length in sections:
        if cubin.startswith(b".text.", sections[names][4] + name):
            return cubin[offset : offset + length]
    raise ValueError("no code in this cubin")


def _disassemble(codes, gpu):
    # Raw instructions rather than ELF files, whose layout changes with the version of the tools.
    # One encoding serves a family (100 and 103, 120 and 121), and an older disassembler knows the
    # first of it only. GPUs before Hopper have one each, and no `a` in its name.
    encoding = f"SM{gpu.arch // 10 * 10}a" if gpu.arch >= 90 else f"SM{gpu.arch}"
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        printed = subprocess.run(
            [knobs.nvidia.nvdisasm.path, "-b", encoding, file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    start = 0
    for code in codes:
        yield listing.sass(printed, start, start + len(code))
        start += len(code)


def _resources(kernel):
    cubin = next(path for name, path in kernel.metadata_group.items() if name.endswith(".cubin"))
    tool = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin]
    printed = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    usage = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", printed))
    return int(usage["REG"]), int(usage["STACK"]) + int(usage["LOCAL"])


def report(compiled: Compiled) -> dict[str, Any]:
    """Count a compiled kernel.

    Returns:
        target; instructions (SASS) and their classes: arithmetic (integers, comparison,
        selection), reciprocal (the floating-point start of a division), move (registers,
        constants, parameters), uniform (computed once for a warp), global, local, exchange
        (shared memory, shuffles, barriers), control; ptx_divides, ptx_remainders (integer);
        branches, loops (SASS); loads, stores (of global memory), widest_load and load_bits,
        store_bits (bits that one instruction moves for a thread, times how many); registers,
        shared_bytes, stack_bytes; spills (loads and stores of local memory); parameters,
        parameter_bytes (Triton adds two pointers of its own); code_bytes; compile_ms (NaN where
        the cache answered).
    """
    code = listing.instructions(compiled.sass)
    classes = Counter(map(listing.classify, code))
    divisions = re.findall(r"^\s*(?:@!?%p\d+\s+)?(div|rem)\.[us]\d+", compiled.ptx, re.MULTILINE)
    loads = [listing.bits(i) for i in code if i.opcode.startswith("LDG")]
    stores = [listing.bits(i) for i in code if i.opcode.startswith("STG")]
    header = re.search(r"\.entry[^(]*\((.*?)\)", compiled.ptx, re.DOTALL)[1]
    sizes = [int(bits) // 8 for bits in re.findall(r"\.param\s+\.[usbf](\d+)", header)]
    return {
        "target": compiled.target,
        "instructions": len(code),
        **{name: classes[name] for name in ("arithmetic", "reciprocal", "move", "uniform")},
        **{name: classes[name] for name in ("global", "local", "exchange", "control")},
        "ptx_divides": divisions.count("div"),
        "ptx_remainders": divisions.count("rem"),
        "branches": sum(i.opcode.split(".")[0] == "BRA" for i in code),
        "loops": listing.loops(code),
        "loads": len(loads),
        "stores": len(stores),
        "widest_load": max(loads, default=0),
        "load_bits": _widths(loads),
        "store_bits": _widths(stores),
        "registers": compiled.registers,
        "shared_bytes": compiled.shared_bytes,
        "stack_bytes": compiled.stack_bytes,
        "spills": classes["local"],
        "parameters": len(sizes),
        "parameter_bytes": _packed(sizes),
        "code_bytes": compiled.code_bytes,
        "compile_ms": compiled.seconds * 1e3,
    }


def table(reports: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Named reports as a table: a row for each count, a column for each name."""
    return pd.DataFrame(reports)


def _widths(bits):
    return ", ".join(f"{width} x {n}" for width, n in sorted(Counter(bits).items(), reverse=True))


def _packed(sizes):
    """Bytes of parameters laid out one after another, each at a multiple of its size."""
    end = 0
    for size in sizes:
        end = -(-end // size) * size + size
    return end


def diff(
    left: Compiled, right: Compiled, stage: str = "sass", names: tuple[str, str] | None = None
) -> listing.Diff:
    """Two compiled kernels side by side at one of `STAGES`; a page shows it in colour.

    Raises:
        ValueError: no such stage.
    """
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}")
    names = names or tuple(f"{c.kernel} for {c.target}" for c in (left, right))
    return listing.side_by_side(stage, getattr(left, stage), getattr(right, stage), names)


def subsets(launch: runtime.Launch, target: str) -> pd.DataFrame:
    """Compile slot mapping with every subset of its geometry folded: 32 rows.

    Returns:
        a bool column for each name in `slot_mapping.GEOMETRY`, then the columns of `report`; the
        run-time kernel first, all five folded last.
    """
    geometry = slot_mapping.GEOMETRY
    chosen = [c for n in range(len(geometry) + 1) for c in itertools.combinations(geometry, n)]
    launches = [launch._replace(kernel=slot_mapping.folded(*names)) for names in chosen]
    return pd.DataFrame(
        {name: name in names for name in geometry} | report(compiled)
        for names, compiled in zip(chosen, compile_all(launches, target), strict=True)
    )


def savings(table: pd.DataFrame) -> pd.DataFrame:
    """Instructions that each argument saves: alone, and last, on top of the other four.

    Args:
        table: what `subsets` returns.
    """
    geometry = slot_mapping.GEOMETRY

    def count(*names):
        row = (table[list(geometry)] == [name in names for name in geometry]).all(axis=1)
        return table.instructions[row].item()

    others = {name: [other for other in geometry if other != name] for name in geometry}
    return pd.DataFrame(
        {
            "alone": {name: count() - count(name) for name in geometry},
            "last": {name: count(*others[name]) - count(*geometry) for name in geometry},
        }
    )
