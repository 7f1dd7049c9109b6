"""Triton's just-in-time compiler (JIT), without a GPU: what it takes from a call, what it compiles.

A launch is compiled again when its specialisation is new: the values of folded arguments, and of
the others their types, whether they are 1 and whether they are multiples of 16. Nothing of that is
guessed here; Triton's own code decides.
"""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction, create_function_from_signature

from .. import runtime

TARGETS = ("sm_90", "sm_100", "sm_103", "sm_120", "sm_121")


def specialisation(launch: runtime.Launch, target: str) -> dict[str, str]:
    """What the JIT takes from each argument of a launch: launches that agree share one kernel.

    A folded argument, or an integer 1, reads `= value`; `16 |` marks a number, or a pointer's
    address, known to be a multiple of 16.
    """
    _, specialised, _ = bind(launch, gpu(target))
    return {
        name: f"= {key}" if kind == "constexpr" else f"{'16 | ' if key == 'D' else ''}{kind}"
        for name, (kind, key) in zip(launch.kernel.arg_names, specialised, strict=True)
    }


def gpu(target: str) -> GPUTarget:
    """Triton's name of a target.

    Raises:
        ValueError: no such target.
    """
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    return GPUTarget("cuda", int(target.removeprefix("sm_")), 32)


def bind(launch: runtime.Launch, target: GPUTarget):
    """The arguments bound, their specialisation, and the options, as Triton has them."""
    kernel = launch.kernel
    binder = create_function_from_signature(kernel.signature, kernel.params, make_backend(target))
    return binder(*launch.args, **launch.options)


@contextlib.contextmanager
def fresh_cache() -> Iterator[str]:
    """An empty cache directory for Triton, so that a compilation's time is a compilation's."""
    with tempfile.TemporaryDirectory(prefix="triton-") as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        yield folder


class _AbsentGPU:
    """As much of a Triton driver as its JIT needs in order to compile and not to launch."""

    def __init__(self, target):
        self.get_current_target = lambda: target
        # The JIT keeps its kernels by device: a new one starts with none, as a new process does.
        device = object()
        self.get_current_device = lambda: device
        self.get_current_stream = lambda _device: 0


@contextlib.contextmanager
def pretended(target: str) -> Iterator[list[dict]]:
    """Let Triton's JIT believe in a GPU: kernels can be warmed up (compiled), not launched.

    Yields:
        what the JIT says of each compilation it makes, appended as it happens.
    """
    compilations: list[dict] = []
    before, absent = driver._active, _AbsentGPU(gpu(target))
    runtime.require_compiler()
    with runtime.language_lock, knobs.runtime.scope():
        knobs.runtime.jit_post_compile_hook = lambda **facts: compilations.append(facts)
        driver.set_active(absent)
        try:
            yield compilations
        finally:
            driver.set_active(before)


def warm_up(launch: runtime.Launch):
    """Have the JIT compile a launch, or find that it already has; inside `pretended`."""
    return JITFunction.run(
        launch.kernel, *launch.args, grid=launch.grid, warmup=True, **launch.options
    )


def compilations(launches: Iterable[runtime.Launch], target: str) -> list[int]:
    """How many kernels Triton's JIT has compiled after each launch, in a process with no cache."""
    counts = []
    with fresh_cache(), pretended(target) as made:
        for launch in launches:
            warm_up(launch)
            counts.append(len(made))
    return counts
