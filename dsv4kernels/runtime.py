"""Where a kernel runs: in Triton's interpreter for CPU tensors, compiled for CUDA tensors.

First module of the data flow, and the only one that knows about interpreters, machines and
versions. A `Kernel` serves both worlds in one process, so a laptop can run a kernel on the CPU and
compile the same kernel for a GPU it does not have.

Triton decides at import, by TRITON_INTERPRET, whether its own library functions (`tl.sum`,
`tl.cumsum`, ...) are jitted or interpreted. Here they are imported jitted, which the compiler
needs; an interpreted launch borrows their plain Python for as long as it lasts.
"""

import contextlib
import functools
import platform
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        "dsv4kernels needs Triton, which is published for Linux on x86-64 and arm64 "
        f"(this is {platform.system()} on {platform.machine()}). On another system use a Linux "
        "container or WSL 2; on Linux `make test` installs it (pip install triton==3.7.1 goes "
        "with torch==2.13.0)."
    ) from error

from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

# The interpreter patches `triton.language` in place while it runs: one launch at a time, and no
# compilation meanwhile.
language_lock = threading.RLock()


if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
    # Triton 3.6 makes an index of a one-element array, which NumPy 2.4 no longer does.
    _patch_lang_tensor = interpreter._patch_lang_tensor

    def _patch_lang_tensor_with_index(tensor, scope):
        _patch_lang_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_lang_tensor_with_index


_DIVISIONS = ("create_sdiv", "create_udiv", "create_srem", "create_urem")


def _defined(divide):
    """A division of integers, by the interpreter's builder, that takes no 0 in any lane."""

    def division(lhs, rhs):
        if not rhs.data.all():
            raise ZeroDivisionError("divides by 0, which is undefined on a GPU")
        return divide(lhs, rhs)

    return division


@contextlib.contextmanager
def interpreting():
    """A while in which kernels are interpreted: those defined in it, too, by `triton.jit`.

    Lends them the plain Python of Triton's jitted library functions, and puts everything back. A
    division of integers by 0 is an error meanwhile: NumPy makes it 0, which hides the mistake.
    """
    with language_lock, triton.knobs.runtime.scope(), contextlib.ExitStack() as stack:
        triton.knobs.runtime.interpret = True
        # The interpreter patches those language modules that a kernel's file can see; the library
        # functions see `triton.language.core`.
        sees_both = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
        stack.callback(interpreter._patch_lang(sees_both).restore)
        for owner in (tl, tl.tensor):
            for name, function in list(vars(owner).items()):
                if isinstance(function, JITFunction):
                    setattr(owner, name, function.fn)
                    stack.callback(setattr, owner, name, function)
        builder = interpreter.interpreter_builder
        for name in _DIVISIONS:
            if name not in vars(builder):  # else within another such while
                setattr(builder, name, _defined(getattr(builder, name)))
                stack.callback(delattr, builder, name)
        yield


def raised(error: BaseException) -> BaseException:
    """What a kernel raised itself: the interpreter wraps it, once for each function called."""
    while isinstance(error, InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


class Kernel(JITFunction):
    """A Triton kernel that runs where its first argument lives; make one with `kernel`."""

    def __init__(self, fn, constexpr=(), do_not_specialize=(), tensors=0):
        unknown = set(constexpr) - set(fn.__annotations__ | dict.fromkeys(_parameters(fn)))
        if unknown:
            raise ValueError(f"{fn.__name__} has no argument {sorted(unknown)} to fold")
        self.plain = fn
        self.folded = tuple(constexpr)
        if constexpr:
            fn = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__)
            fn.__module__, fn.__qualname__ = self.plain.__module__, self.plain.__qualname__
            fn.__annotations__ = self.plain.__annotations__ | dict.fromkeys(constexpr, tl.constexpr)
        do_not_specialize = [name for name in do_not_specialize if name not in constexpr]
        super().__init__(fn, do_not_specialize=do_not_specialize)
        self.tensors = tensors
        numbers = range(tensors, len(self.params))
        self._sizes = [i for i in numbers if self.params[i].do_not_specialize]
        self._settled = [i for i in numbers if not self.params[i].do_not_specialize]
        self._met = {}  # compiled kernels by `code_key`

    @functools.cached_property
    def interpreted(self) -> InterpretedFunction:
        """The same function for Triton's interpreter."""
        twin = InterpretedFunction(self.fn)
        # The interpreter rebuilds the function from its source text, which does not show the
        # arguments folded on top of it.
        twin.rewrite().__annotations__.update(self.fn.__annotations__)
        return twin

    def run(self, *args, grid, warmup, **options):
        """Launch as Triton does, or in its interpreter if the first argument is on the CPU."""
        if args[0].is_cuda and not triton.knobs.runtime.interpret:
            return super().run(*args, grid=grid, warmup=warmup, **options)
        with interpreting():
            return self.interpreted.run(*args, grid=grid, warmup=warmup, **options)

    def launch(self, args, grid, options):
        """Launch on the device of the first argument, past Triton's lookup where that is known.

        Triton looks its code up by every argument of every call, which costs the host more than
        the launch. A kernel made with `tensors` keeps its code by the few of them that decide.
        Triton's debugging knobs are heeded when a code is first met.
        """
        device = args[0].get_device()
        if device < 0 or triton.knobs.runtime.interpret:  # below 0: the CPU
            self.run(*args, grid=grid, warmup=False, **options)
            return
        if device != torch.cuda.current_device():  # where Triton would launch
            with torch.cuda.device(device):
                self.launch(args, grid, options)
            return
        key = self.code_key(args, options) if self.tensors else None
        code = self._met.get((device, key))
        if code is not None:
            code[(*grid, 1, 1)[:3]](*args)
            return
        code = self.run(*args, grid=grid, warmup=False, **options)
        if key is not None:
            self._met[device, key] = code

    def code_key(self, args, options):
        """All of a launch's arguments that decide its code on a device, or None if others do.

        Triton also looks at the alignment of addresses and at the size of integers that it does
        not specialise for. There is a key where all are as usual: multiples of 16, and 32 bits.
        """
        addresses = 0
        for tensor in args[: self.tensors]:
            addresses |= tensor.data_ptr()
        if addresses % 16 or any(args[size] >> 31 for size in self._sizes):
            return None
        return *[args[number] for number in self._settled], *options.items()

    def __call__(self, *args, **kwargs):
        """Called by an interpreted kernel as its helper; a compiled one inlines it instead."""
        return self.interpreted.rewrite()(*args, **kwargs)


def _parameters(fn):
    return fn.__code__.co_varnames[: fn.__code__.co_argcount]


def kernel(fn=None, *, constexpr=(), do_not_specialize=(), tensors=0):
    """Make a `Kernel` of a Triton function; usable as a decorator.

    Args:
        fn: a Python function in Triton's language whose first argument is a tensor.
        constexpr: names of arguments to fold into the code as `tl.constexpr`, beside those that
            the function itself annotates so.
        do_not_specialize: names of integers whose value (1, or a multiple of 16) must not lead
            to a compilation of its own.
        tensors: how many arguments, the first ones, are tensors, all others being integers. If it
            is given, launches on a GPU whose code has been met go past Triton's lookup.

    Raises:
        ValueError: a name in `constexpr` is not an argument of `fn`.
    """
    if fn is None:
        return functools.partial(
            kernel, constexpr=constexpr, do_not_specialize=do_not_specialize, tensors=tensors
        )
    return Kernel(fn, constexpr, do_not_specialize, tensors)


class Launch(NamedTuple):
    """One kernel launch, ready to `run` here or to be compiled for another device.

    Attributes:
        kernel: the `Kernel`.
        grid: programs on each axis.
        args: every argument of the kernel, in its order.
        options: Triton's launch options, such as `num_warps`.
    """

    kernel: Kernel
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = types.MappingProxyType({})

    def run(self):
        """Launch; asynchronous on a GPU, done on return on the CPU."""
        self.kernel.launch(self.args, self.grid, self.options)

    def compile_ahead(self):
        """Compile for the GPU that holds the arguments, without launching; the compiled kernel."""
        return self.kernel.run(*self.args, grid=self.grid, warmup=True, **self.options)

    def prepared(self) -> Callable[[], None]:
        """A call that launches on the same tensors again, without the JIT's work in between.

        Nothing is checked or looked up any more: for a caller that keeps its buffers and geometry,
        as a serving engine does. On the CPU it is `run`.
        """
        if not self.args[0].is_cuda:
            return self.run
        launcher = self.compile_ahead()[(*self.grid, 1, 1)[:3]]
        return functools.partial(launcher, *self.args)

    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        return dict(zip(self.kernel.arg_names, self.args, strict=True))


def power_of_2(number: int) -> int:
    """The least power of two that is no less, for a tile (Triton's own takes microseconds)."""
    return 1 << (number - 1).bit_length()


def has_gpu() -> bool:
    """Whether a CUDA device is present."""
    return torch.cuda.is_available()


def default_device() -> torch.device:
    """The GPU where there is one, else the CPU."""
    return torch.device("cuda" if has_gpu() else "cpu")


def describe() -> dict[str, str | int]:
    """This machine as a flat dictionary: device, capability, driver and versions.

    `device` names the GPU, or the interpreter on a machine without one.
    """
    facts: dict[str, str | int] = {}
    if has_gpu():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "sm_count": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "driver": _driver_version(),
        }
    else:
        facts["device"] = f"Triton interpreter on {platform.machine()} CPU"
    return facts | {
        "cuda": torch.version.cuda or "none",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }


def _driver_version() -> str:
    # The kernel module's own words: torch does not tell, and NVML would be one more dependency.
    with contextlib.suppress(OSError), open("/proc/driver/nvidia/version") as file:
        words = file.readline().split()
        return next((w for w in words if w[0].isdigit() and "." in w), "unknown")
    return "unknown"


def require_compiler():
    """Raise RuntimeError where this process can interpret but not compile."""
    if triton.knobs.runtime.interpret:
        raise RuntimeError(
            "TRITON_INTERPRET is set, so Triton was imported for its interpreter only and cannot "
            "compile here. Unset it: dsv4kernels interprets CPU tensors without it."
        )
