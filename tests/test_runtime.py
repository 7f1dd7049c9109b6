"""One process interprets CPU tensors and compiles for GPUs, and leaves Triton as it was."""

import os
import subprocess
import sys
import threading

import pytest
import torch
import triton
import triton.language as tl
from helpers import direct_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import interpreter
from triton.runtime.jit import create_function_from_signature

from dsv4kernels import combine, presets, runtime, slot_mapping
from dsv4kernels.compiler import jit


@runtime.kernel
def _helper(value, factor):
    return value * factor


@runtime.kernel
def _library(out, values, count, TILE: tl.constexpr):
    column = tl.arange(0, TILE)
    value = tl.load(values + column, mask=column < count, other=0)
    largest = value.max()  # the library's functions are methods too
    running = tl.cumsum(value, 0)
    zeros = tl.zeros((TILE,), tl.int32)
    tl.store(out, tl.sum(value) + 1000 * largest)
    tl.store(out + 1 + column, _helper(running, 2) + zeros, mask=column < count)


def launch_library():
    values = torch.tensor([3, 1, 4, 1, 5], dtype=torch.int32)
    out = torch.zeros(6, dtype=torch.int32)
    runtime.Launch(_library, (1,), (out, values, 5, 8)).run()
    return out.tolist()


RIGHT = [14 + 5000, 6, 8, 16, 18, 28]


def compile_library():
    """Compiled anew: what an earlier run left in Triton's cache would prove nothing."""
    signature = {"out": "*i32", "values": "*i32", "count": "i32", "TILE": "constexpr"}
    source = ASTSource(_library, signature, {(3,): 8})
    with jit.fresh_cache():
        return triton.compile(source, target=GPUTarget("cuda", 120, 32)).asm["ptx"]


def test_interprets_and_compiles_in_one_process():
    assert "sm_120" in compile_library()
    assert launch_library() == RIGHT
    assert "sm_120" in compile_library()
    assert launch_library() == RIGHT
    assert "sm_120" in compile_library()


def language():
    """What the language's modules and tensor hold of their own.

    Without what Python writes into a class that is looked at, and without what every object has:
    the interpreter puts that back where it was only inherited.
    """
    return {
        (module, name): value
        for module in (tl, tl.core, tl.tensor)
        for name, value in vars(module).items()
        if name != "__annotations__" and value is not getattr(object, name, None)
    }


@runtime.kernel
def _fails(out):
    tl.store(out, tl.sum(tl.arange(0, 4)))
    tl.static_assert(False)


def test_triton_is_left_as_it_was():
    before = language()
    launch_library()
    assert language() == before
    with pytest.raises(Exception, match="AssertionError"):
        runtime.Launch(_fails, (1,), (torch.zeros(1, dtype=torch.int32),)).run()
    assert language() == before
    assert not triton.knobs.runtime.interpret


def _scale(out, values, stride, width, TILE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, TILE)
    in_row = column < width
    value = tl.load(values + row * stride + column, mask=in_row, other=0)
    tl.store(out + row * stride + column, value * 2, mask=in_row)


_scaled = runtime.kernel(_scale)


@pytest.mark.parametrize("names", [(), ("stride",), ("stride", "width")])
def test_a_folded_kernel_computes_the_same(names):
    kernel = runtime.kernel(_scale, constexpr=names)
    values = torch.arange(12, dtype=torch.int32).view(3, 4)
    out = torch.zeros_like(values)
    runtime.Launch(kernel, (3,), (out, values, 4, 4, 8)).run()
    assert torch.equal(out, values * 2)
    folded = {p.name for p in kernel.params if p.is_constexpr}
    assert folded == {*names, "TILE"}


@runtime.kernel
def _quotient(out, divisors, KIND: tl.constexpr):
    lane = tl.arange(0, 4)
    divisor = tl.load(divisors + lane)
    if KIND == "//":
        tl.store(out + lane, 7 // divisor)
    elif KIND == "%":
        tl.store(out + lane, 7 % divisor)
    else:
        tl.store(out + lane, tl.minimum(7 / divisor, 9.0).to(tl.int32))


@pytest.mark.filterwarnings("ignore:divide by zero")  # of "/", which is defined
@pytest.mark.parametrize(
    ("kind", "right"), [("//", [7, 3, -7, -3]), ("%", [0, 1, 0, 1]), ("/", [7, 3, -7, -3])]
)
def test_the_interpreter_hides_no_division_of_integers_by_0(kind, right):
    before = dict(vars(interpreter.interpreter_builder))
    out = torch.zeros(4, dtype=torch.int32)
    divisors = torch.tensor([1, 2, -1, -2], dtype=torch.int32)
    runtime.Launch(_quotient, (1,), (out, divisors, kind)).run()
    assert out.tolist() == right
    divisors[3] = 0  # one lane is enough
    launch = runtime.Launch(_quotient, (1,), (out, divisors, kind))
    if kind == "/":
        launch.run()
        assert out.tolist() == [7, 3, -7, 9]
    else:
        with runtime.interpreting(), pytest.raises(Exception) as caught:
            launch.run()
        assert str(runtime.raised(caught.value)).startswith("divides by 0")
    assert vars(interpreter.interpreter_builder).keys() == before.keys()


def _count(out, width):
    tl.store(out + tl.arange(0, width), tl.arange(0, width))


def test_a_folded_argument_is_a_constant_to_the_interpreter_too():
    out = torch.zeros(8, dtype=torch.int32)
    runtime.Launch(runtime.kernel(_count, constexpr=("width",)), (1,), (out, 8)).run()
    assert out.tolist() == list(range(8))
    with pytest.raises(Exception, match="constexpr"):
        runtime.Launch(runtime.kernel(_count), (1,), (out, 8)).run()


def test_an_unknown_name_cannot_be_folded():
    with pytest.raises(ValueError, match=r"no argument .*strides"):
        runtime.kernel(_scale, constexpr=("strides",))


def test_threads_at_once():
    values = torch.arange(96, dtype=torch.int32).view(32, 3)
    barrier, results = threading.Barrier(4), []

    def launch():
        barrier.wait()
        for _ in range(3):
            out = torch.zeros_like(values)
            runtime.Launch(_scaled, (32,), (out, values, 3, 3, 4)).run()
            results.append((launch_library(), torch.equal(out, values * 2)))

    before, interval = language(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=launch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert results == [(RIGHT, True)] * 12
    assert language() == before


def test_a_launch_names_its_arguments():
    batch = presets.decode(presets.FLASH_C4A, 2, 50)
    (slots, _), launch = slot_mapping.plan(*batch.slot_mapping_args(), variant="runtime")
    assert launch.named()["slots"] is slots
    assert launch.named()["width"] == 512
    launch.prepared()()
    expected, _ = slot_mapping.compute_global_topk_indices_and_lens(*batch.slot_mapping_args())
    assert torch.equal(slots, expected)


DIRECT = direct_kernels()


def test_every_own_kernel_goes_past_tritons_lookup():
    assert DIRECT.keys() == {
        "_map_row",
        "_map_two_rows",
        "_map_part_of_row",
        "_map_owned",
        "_combine_tile",
    }


NUMBERS = [0, 1, 2, 15, 16, 17, 32, 2**31 - 1, 2**31, 2**31 + 16, 2**33]


@pytest.mark.parametrize("name", DIRECT)
def test_launches_of_one_key_are_the_same_to_triton(name):
    kernel = DIRECT[name]
    backend = make_backend(GPUTarget("cuda", 90, 32))
    look_up = create_function_from_signature(kernel.signature, kernel.params, backend)
    memory = torch.zeros(64, dtype=torch.int32)
    aligned = -memory.data_ptr() // 4 % 4  # a tensor of the CPU may start at any address
    there, elsewhere, unaligned = (memory[aligned + shift :] for shift in (0, 4, 1))

    def launch(args, warps=4):
        """Our key, and all that Triton tells codes apart by."""
        options = {"num_warps": warps}
        _, found, chosen = look_up(*args, **options, debug=False, instrumentation_mode="")
        folded = [arg for arg, p in zip(args, kernel.params, strict=True) if p.is_constexpr]
        return kernel.code_key(args, options), (found, folded, chosen)

    numbers = len(kernel.params) - kernel.tensors
    for number in NUMBERS:
        args = [there] * kernel.tensors + [number] * numbers
        key, facts = launch(args)
        assert (key is None) == (number >= 2**31)
        changed = [launch(args, warps=8)]
        for place in range(len(args)):
            for value in [elsewhere, unaligned] if place < kernel.tensors else NUMBERS:
                changed.append(launch([*args[:place], value, *args[place + 1 :]]))
        assert all(facts == others for other, others in changed if key is not None and other == key)
        assert any(other == key for other, _ in changed)


def test_a_batch_that_grows_keeps_its_key_and_a_new_geometry_does_not():
    def key(tokens, preset=presets.FLASH_C4A, shift=0, **changes):
        batch = presets.decode(preset, tokens, 900)
        args = list(batch.combine_args())
        rows, columns = args[0].shape
        args[0] = args[0].new_empty(rows * columns + shift)[shift:].view(rows, -1)
        launch = combine.plan(*args)[1]
        return launch.kernel.code_key(launch.args, dict(launch.options) | changes)

    assert key(5) == key(90) is not None
    assert key(5) != key(5, presets.PRO_C4A)
    assert key(5) != key(5, num_warps=8)
    assert key(5, shift=1) is None


def test_describe():
    facts = runtime.describe()
    assert facts["torch"] == torch.__version__
    assert facts["triton"] == triton.__version__
    assert facts["device"]
    assert ("sm_count" in facts) == runtime.has_gpu()


def test_the_interpreters_variable_does_no_harm():
    program = """
import torch
from dsv4kernels import compute_global_topk_indices_and_lens as mapped, runtime
table = torch.tensor([[10, 11]], dtype=torch.int32)
args = torch.tensor([[0, 3]], dtype=torch.int32), table[0, :1] * 0, table, 2, torch.tensor([True])
print(mapped(*args)[0].tolist())
try:
    runtime.require_compiler()
except RuntimeError as error:
    print(error)
"""
    env = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert printed.startswith("[[20, 23]]")
    assert "TRITON_INTERPRET" in printed
