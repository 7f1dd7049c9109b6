"""Check a candidate: run anyone's callable through all trials, and say in words where it differs.

Its outputs must have the right types and shapes and equal the reference to the bit, in the caller's
own where it takes `out=`, and come out the same when called again. Its inputs must stay as they
were; they lie in larger buffers full of likely values, so that reading beside a tensor shows. A
candidate runs in a process of its own: a wrong address can end a process, or make a GPU useless to
it.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
import triton

from .. import runtime, variants
from ..measure import bench, suites
from ..parameters import LessonError
from . import differences, trials

SECONDS, LOADING = 60.0, 120.0  # that one trial may take, compilation included; and loading
DEATHS = 3  # of the process, after which the rest is not tried
BORDER, NEARBY = 64, 1  # elements around an input, and what they hold
NOT_TRIED = f"not tried: the process was lost {DEATHS} times"
GPU_TOKENS = 2048  # of the larger batches on a GPU


class Verdict(NamedTuple):
    """How a trial ended: `fault` is None where all was right, else a sentence."""

    group: str
    name: str
    fault: str | None


def check(
    specification: str,
    kernel: str,
    *,
    device: str | None = None,
    safe: bool = False,
    seconds: float = SECONDS,
) -> Iterator[Verdict]:
    """Run a candidate through the trials of a kernel, each verdict as it comes.

    Args:
        specification: `package.module:function`, `file.py:function`, or a built-in variant.
        kernel: `slot_mapping`, `combine` or `dcp`.
        device: `cpu` (Triton's interpreter) or `cuda`; default the GPU where there is one.
        safe: try device values outside the definition too.
        seconds: that a trial may take before it counts as hung.

    Raises:
        LessonError: the candidate cannot be loaded; the message says why.
    """
    device = device or runtime.default_device().type
    named = trials.of(kernel, _tokens(device))
    wanted = [n for n, trial in enumerate(named) if safe or trial.group != "safety"]
    deaths = 0
    while wanted and deaths < DEATHS:
        for verdict in _in_a_process(specification, kernel, device, tuple(wanted), seconds):
            trial = named[wanted.pop(0)]
            deaths += verdict.endswith(_GONE) if verdict else 0
            yield Verdict(trial.group, trial.name, verdict or None)
    for number in wanted:
        yield Verdict(named[number].group, named[number].name, NOT_TRIED)


_GONE = "; the process is lost"


def _tokens(device):
    return GPU_TOKENS if device == "cuda" else 24


def _in_a_process(specification, kernel, device, numbers, seconds) -> Iterator[str]:
    """Faults of the numbered trials, "" for none; ends early, with a fault, if the process does."""
    here, there = multiprocessing.Pipe(duplex=False)
    command = [sys.executable, "-m", __spec__.name, str(there.fileno())]
    command += [specification, kernel, device, *map(str, numbers)]
    process = subprocess.Popen(
        command,
        pass_fds=[there.fileno()],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    there.close()
    try:
        if not here.poll(LOADING):
            raise LessonError(f"{specification} is still loading after {LOADING:g} s")
        error = here.recv()
        if error:
            raise LessonError(error)
        for _ in numbers:
            if not here.poll(seconds):
                yield f"did not end within {seconds:g} s{_GONE}"
                return
            fault = here.recv()
            yield fault
            if fault.endswith(_GONE):
                return
    except EOFError:
        yield _death(process.wait()) + _GONE
    finally:
        process.kill()
        process.wait()
        here.close()


def _death(status):
    """What a process died of, in words, from its exit status."""
    if status >= 0:
        return f"ended its process (exit status {status})"
    died = signal.Signals(-status)
    if died == signal.SIGKILL:
        return "was killed (SIGKILL); the system does this when memory runs out"
    if died in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
        return f"died ({died.name}); an address outside every tensor does this"
    return f"died ({died.name})"


def _child(connection, specification, kernel, device, *numbers):
    """Say whether the candidate can be loaded, then the fault of each trial."""
    # New tensors are filled, so that an output that is never written is seen every time.
    torch.use_deterministic_algorithms(True, warn_only=True)
    interpreting = runtime.interpreting() if device == "cpu" else contextlib.nullcontext()
    try:
        with interpreting:  # its kernels are then defined for the interpreter
            if ":" in specification:
                variants.register(kernel, specification)
            function = variants.caller(kernel, specification)
    except (LessonError, ValueError) as error:
        connection.send(str(error))
        return
    connection.send("")
    named = trials.of(kernel, _tokens(device))
    for number in map(int, numbers):
        try:
            group, _, draw = named[number]
            fault = fault_of(function, kernel, draw(), device, again=group == "batch")
        except torch.AcceleratorError as error:
            connection.send(_raised(error) + _GONE)
            return
        connection.send(fault or "")


def fault_of(
    function, kernel: str, arguments: tuple, device: str = "cpu", *, again: bool = False
) -> str | None:
    """What is wrong with a call of a function, in a sentence; None if all is right.

    Args:
        function: takes the kernel's positional arguments; where it takes `out=`, that is given it.
        kernel: `slot_mapping`, `combine` or `dcp`.
        arguments: of the call, on the CPU.
        device: where to call it.
        again: call it a second time, without `out=`; on a GPU that is always done.
    """
    wanted = [tensor.to(device) for tensor in variants.REFERENCE[kernel](*arguments)]
    placed, buffers = zip(*(_placed(value, device) for value in arguments), strict=True)
    before = [None if buffer is None else buffer.clone() for buffer in buffers]
    fault = None
    try:
        for how, call in _calls(function, placed, device, wanted, again or device == "cuda"):
            where = differences.first(kernel, arguments, call(), wanted)
            if where:
                fault = how + where
                break
    except torch.AcceleratorError:
        raise  # the GPU is of no more use to this process
    except (Exception, SystemExit) as error:
        return _raised(error)
    for value, buffer, old in zip(placed, buffers, before, strict=True):
        if buffer is not None and not torch.equal(buffer, old):
            name = _NAMES[kernel][next(i for i, other in enumerate(placed) if other is value)]
            return f"wrote to its input {name}, or beside it"
    return fault


_NAMES = {
    kernel: function.__code__.co_varnames[: function.__code__.co_argcount]
    for kernel, function in variants.REFERENCE.items()
}


def _calls(function, arguments, device, wanted, again):
    """How a function is called, in words, and a call of it for what that gives, one by one."""
    plain = functools.partial(_called, function, arguments, device)
    if variants.takes_out(function):
        out = differences.poisoned(wanted)
        yield "called with out=, ", functools.partial(plain, out=out)
        yield "called with out=, ", lambda: out
    else:
        yield "", plain
    if again:
        yield "called again, ", plain


def _called(function, arguments, device, **out):
    if device == "cuda":
        got = function(*arguments, **out)
        torch.cuda.synchronize()
        return got
    with runtime.interpreting():
        return function(*arguments, **out)


def _placed(value, device):
    """A tensor of the same values, strides and alignment inside a larger buffer, and that buffer.

    Aligned as a view of the trial's own buffer is: by its storage offset.
    """
    if not isinstance(value, torch.Tensor):
        return value, None
    span = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) + 1
    span = span if value.numel() else 0
    first = BORDER + value.storage_offset() % BORDER
    buffer = torch.full((first + span + BORDER,), NEARBY, device=device).to(value.dtype)
    view = buffer.as_strided(value.shape, value.stride(), first)
    view.copy_(value)
    return view, buffer


def _raised(error):
    """An exception in a line, with the line of the candidate's own code that it came from."""
    cause = runtime.raised(error)
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    words = f"raised {type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ")
    frames = traceback.extract_tb(error.__traceback__) + traceback.extract_tb(cause.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
    if own:
        words += f" ({Path(own[-1].filename).name}, line {own[-1].lineno})"
    if "active driver" in words:
        words += "; an autotuned kernel needs a GPU to be defined"
    return words


# Where code lies that is not a candidate's.
_OTHERS = (*(str(Path(m.__file__).parent) for m in (torch, triton, runtime, functools)), "<")


def compare(specification: str, kernel: str) -> pd.DataFrame:
    """Measure a candidate beside the built-in variants, on the shapes of the published table.

    Returns:
        Rows of `records.COLUMNS`, of the `graph` protocol, warm and cold. Nothing is recorded.

    Raises:
        LessonError: the candidate cannot be loaded.
        timing.SkippedError: no GPU.
    """
    variants.register(kernel, specification)
    suite = "presets" if kernel == "dcp" else "published"
    shapes = [case for case in suites.SUITES[suite]() if case.kernel == kernel]
    return pd.DataFrame(bench.live(case._replace(protocols=suites.DEVICE) for case in shapes))


def in_words(table: pd.DataFrame) -> str:
    """What `compare` measured, as text: µs of each variant, and ratios to the last, the candidate.

    A ratio above 1 says how many times longer that variant took than the candidate.
    """
    table = table[table["median_us"].notna()]
    shape = ["preset", "mix", "tokens", "cache"]
    order = list(dict.fromkeys(table["variant"]))
    us = table.pivot(index=shape, columns="variant", values="median_us")[order]
    noise = table.groupby(shape)["noise"].max().map("{:.1%}".format).rename("noise")
    over = us[order[:-1]].div(us[order[-1]], axis=0).round(2).add_suffix(" / it")
    device = table["device"].iloc[0]
    head = f"µs a call on {device}, graph protocol; it: {order[-1]}"
    shown = us.round(2).rename(columns={order[-1]: "it"}).join(over).join(noise)
    return f"{head}\n{shown.to_string()}"


if __name__ == "__main__":
    _child(Connection(int(sys.argv[1]), readable=False), *sys.argv[2:])
