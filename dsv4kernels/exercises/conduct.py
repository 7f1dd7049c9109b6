"""How a kernel does it, whatever comes out: gaps, exceptions, accesses that must not be."""

import ast
import traceback

from .. import runtime
from .tasks import Attempt


def gaps(code):
    """The lines where `...` stands, but for those in an index, as in x[..., None]."""
    indices = [n.slice for n in ast.walk(code) if isinstance(n, ast.Subscript)]
    indexing = {id(n) for index in indices for n in ast.walk(index)}
    for node in ast.walk(code):
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in indexing:
            yield node.lineno


def fault(task, attempt: Attempt):
    """What is wrong with how a case was done, whatever came out: words and a hint, or None."""
    case, outside = attempt.case, attempt.outside()
    if len(outside):
        program, op = outside.iloc[0][["program", "op"]]
        return (
            f"Program {program} {op}s outside every tensor ({len(outside)} such accesses in the "
            "batch, none carried out)",
            "On a GPU such an access reads or destroys other data, or ends the process: mask it.",
        )
    stores = attempt.accesses[attempt.accesses["op"] == "store"]
    for name in set(stores["tensor"]) - set(case.expected):
        return f"The kernel stores to `{name}`, which is an input", ""
    twice = stores[stores.duplicated(["tensor", "row", "column"])]
    if len(twice):
        tensor, row, column = twice.iloc[0][["tensor", "row", "column"]]
        return (
            f"Row {row}, column {column} of `{tensor}` is written more than once",
            "Between two stores of different threads of a program there is no order: each element "
            "must be stored once, with its final value.",
        )
    if task.aligned:
        return _unaligned(stores[stores["tensor"] == "indices"])
    return None


def _unaligned(stores):
    """The first store whose part of a row does not begin at a multiple of four columns."""
    first = stores.groupby(["program", "order", "row"])["column"].min()
    off = first[first % 4 != 0]
    if len(off):
        (_, _, row), column = off.index[0], off.iloc[0]
        return (
            f"A store of row {row} begins at column {column}",
            "A thread stores 16 bytes, four columns, at once where they begin at a multiple of "
            "four. Walk the row in chunks of fixed columns and choose each column's value: top-k, "
            "window or -1.",
        )
    return None


def stopped(error, kernel):
    """The exception that ended a kernel, as a sentence with the line it stood in, and a hint."""
    cause = runtime.raised(error)
    lines = [
        f for f in traceback.extract_tb(cause.__traceback__) if f.name == kernel.plain.__name__
    ]
    where = f" at `{lines[-1].line}`" if lines else ""
    told = "it divides by 0" if isinstance(cause, ZeroDivisionError) else sentence(cause)
    return f"the kernel stopped{where}: {told}", hint(told)


HINTS = {
    "divides by 0": "What that gives on a GPU is undefined. See that it is not reached: with "
    "`topk` 0, say, nothing needs `compress_ratio`.",
    "cannot be block type": "A whole tile is stored where one number has its place: `tl.sum` adds "
    "up the lanes.",
    "Loop-carried variable": "A variable keeps its type from pass to pass. A sum of comparisons is "
    "uint32: make them whole numbers first, with `.to(tl.int32)`.",
}


def logical(code):
    """A hint where code has `and`, `or` or `not`; the interpreter takes any tile for true."""
    if any(isinstance(node, ast.BoolOp | ast.Not) for node in ast.walk(code)):
        return "`and`, `or` and `not` are not lane by lane: use `&`, `|` and `~`."
    return ""


def hint(message):
    """What to think of where an exception says this; "" where nothing is known."""
    return next((hint for words, hint in HINTS.items() if words in message), "")


def sentence(error):
    """An exception in one line: its kind and the end of its message."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    text = " ".join(lines[-1].split())
    return f"{type(error).__name__}: {text}".rstrip(": ")
