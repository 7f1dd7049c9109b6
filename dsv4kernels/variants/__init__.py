"""Every variant of a kernel by its name: the built-in ones, and candidates that anyone registers.

A candidate is a callable with the positional signature of the kernel it stands for. It is named by
a specification, `package.module:function` or `file.py:function`, so that another process can load
it too, and registered by `register` or by the environment variable DSV4KERNELS_CANDIDATES:

    DSV4KERNELS_CANDIDATES="combine=my_kernels.py:combine,slot_mapping=engine.ops:map_slots"

What is registered is measured beside the built-in variants wherever a lesson measures.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from .. import combine, own_combine, own_mapping, reference, runtime, slot_mapping
from ..parameters import LessonError, closest
from ..presets import Batch
from . import steps

ENVIRONMENT = "DSV4KERNELS_CANDIDATES"
# The function that each kernel's name stands for, in the reference.
REFERENCE = {
    "slot_mapping": reference.compute_global_topk_indices_and_lens,
    "combine": reference.combine_topk_swa_indices,
    "dcp": reference.compute_dcp_global_topk_indices_and_lens,
}

# The built-in variants that are no other shape of another.
BUILT_IN = {
    "slot_mapping": slot_mapping.VARIANTS,
    "combine": ("own", "workers=128", "workers=256", *steps.STEPS),
    "dcp": ("own",),
}

_registered: dict[str, list[str]] = {kernel: [] for kernel in REFERENCE}


def arguments(kernel: str, batch: Batch) -> tuple:
    """A batch's arguments for a kernel; a DCP rank is the second of four."""
    if kernel == "slot_mapping":
        return batch.slot_mapping_args()
    return batch.dcp_args(4, 1) if kernel == "dcp" else batch.combine_args()


def expected(kernel: str, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """What the reference says."""
    return REFERENCE[kernel](*arguments(kernel, batch))


def caller(kernel: str, variant: str) -> Callable[..., tuple]:
    """The function that runs a variant; call it with a batch's arguments and `out=`.

    Beside those of `slot_mapping.VARIANTS` and combine's `own` and `workers=256`: the `steps`; and
    the project's own kernel in another shape than its rule's, as `tile=2x1024/2` (rows, columns,
    warps) for combine, and `row=1024/8`, `two rows=512/4` or `parts=2048/8` (columns, warps) for
    slot mapping.

    A candidate without an argument `out` allocates its outputs in every call, measured or not.

    Raises:
        LessonError: no such variant, or a candidate that cannot be loaded.
    """
    if variant in _registered[kernel]:
        return _with_out(load(variant))
    try:
        return _built_in(kernel, variant)
    except (ValueError, TypeError):
        named = ", ".join(BUILT_IN[kernel])
        raise LessonError(
            f"{variant!r} is neither a variant of {kernel} ({named}) nor module:function"
        ) from None


def _built_in(kernel, variant):
    """The call of a built-in variant; ValueError or TypeError if its name says none."""
    name, _, shape = variant.partition("=")
    if kernel == "dcp":
        if variant != "own":
            raise ValueError(variant)
        return slot_mapping.compute_dcp_global_topk_indices_and_lens
    if kernel == "slot_mapping" and variant in slot_mapping.VARIANTS:
        mapped = slot_mapping.compute_global_topk_indices_and_lens
        return lambda *args, out=None: mapped(*args, variant=name, out=out)
    if kernel == "slot_mapping":
        if name not in own_mapping.KERNELS:
            raise ValueError(variant)
        choice = own_mapping.Choice(name, *map(int, shape.split("/")))
        own, planned = own_mapping.slot_mapping, slot_mapping.plan
        return _launching(planned, lambda outputs, *args: own(outputs, *args, choice))
    if variant in steps.STEPS:
        return lambda *args, out=None: _run(*steps.plan(name, *args, out=out))
    if name == "tile":
        tile = own_combine.Tile(*map(int, shape.replace("x", "/").split("/")))
        own, planned = own_combine.combine, combine.plan
        return _launching(planned, lambda outputs, *args: own(outputs, *args, tile))
    if variant != "own" and name != "workers":
        raise ValueError(variant)
    workers = None if variant == "own" else int(shape)
    combined = combine.combine_topk_swa_indices
    return lambda *args, out=None: combined(*args, num_workers=workers, out=out)


def _launching(plan, make):
    """A call that runs another launch than the rule's on the outputs that `plan` gives."""

    def call(*args, out=None):
        outputs, launch = plan(*args, out=out)
        return _run(outputs, None if launch is None else make(outputs, *args))

    return call


def _run(outputs, launch):
    if launch is None:  # no token or no request
        outputs[0].fill_(-1)
        outputs[1].zero_()
    else:
        launch.run()
    return outputs


def chosen(kernel: str, tokens: int, width: int) -> str:
    """The variant name of what the rule of the project's own kernel chooses.

    Args:
        kernel: `slot_mapping` or `combine`.
        tokens: of the batch.
        width: columns of the top-k buffer, or of combine's output.
    """
    if kernel == "combine":
        rows, columns, warps = own_combine.rule(width)
        return f"tile={rows}x{columns}/{warps}"
    name, tile, warps = own_mapping.rule(tokens, width)
    return f"{name}={tile}/{warps}"


def register(kernel: str, specification: str) -> None:
    """Hold a candidate beside the built-in variants of a kernel; once is enough.

    Args:
        kernel: `slot_mapping`, `combine` or `dcp`.
        specification: `package.module:function` or `file.py:function`.

    Raises:
        LessonError: no such kernel, module, file or function; the message says which.
    """
    if kernel not in REFERENCE:
        raise LessonError(f"no kernel {kernel!r}{closest(kernel, REFERENCE)}")
    load(specification)
    if specification not in _registered[kernel]:
        _registered[kernel].append(specification)


def registered(kernel: str) -> tuple[str, ...]:
    """Specifications of a kernel's candidates, those of the environment included.

    Raises:
        LessonError: the environment variable names something that is not there.
    """
    for entry in filter(None, map(str.strip, os.environ.get(ENVIRONMENT, "").split(","))):
        name, equals, specification = entry.partition("=")
        if not equals:
            raise LessonError(f"{ENVIRONMENT}: {entry!r} is not kernel=module:function")
        register(name.strip(), specification.strip())
    return tuple(_registered[kernel])


@functools.cache
def load(specification: str) -> Callable:
    """The callable that a specification names.

    Without a GPU, Triton kernels of a module that is imported here for the first time are defined
    for the interpreter; run them within `runtime.interpreting()`.

    Raises:
        LessonError: no such module, file or function, or the import failed; the message says why.
    """
    where, colon, name = specification.rpartition(":")
    if not colon or not where or not name:
        raise LessonError(f"{specification!r} is neither module:function nor file.py:function")
    try:
        if runtime.has_gpu():
            module = _import(where)
        else:
            with runtime.interpreting():
                module = _import(where)
    except LessonError:
        raise
    except (Exception, SystemExit) as error:
        raise LessonError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    function = functools.reduce(lambda o, part: getattr(o, part, None), name.split("."), module)
    if not callable(function):
        there = [n for n, v in vars(module).items() if inspect.isfunction(v)]
        raise LessonError(f"{where} has no function {name!r}{closest(name, there)}")
    return function


def _import(where):
    if not where.endswith(".py"):
        return importlib.import_module(where)
    # A lesson runs in its own folder, and its caller mostly in the root.
    places = [(base / where).resolve() for base in (Path(), Path(__file__).parents[2])]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise LessonError(f"no file {where}, neither in {Path.cwd()} nor in the repository's root")
    spec = importlib.util.spec_from_file_location(f"_candidate_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Triton reads a kernel's source through its module
    spec.loader.exec_module(module)
    return module


def takes_out(function: Callable) -> bool:
    """Whether a function has an argument `out` for the caller's outputs."""
    try:
        return "out" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _with_out(function):
    """The function, callable with `out=` whether or not it takes it."""
    if takes_out(function):
        return function

    @functools.wraps(function)  # so that `takes_out` still sees that it does not
    def call(*args, out=None):
        return function(*args)

    return call
