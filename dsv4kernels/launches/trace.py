"""Who reads and writes what: one launch in Triton's interpreter, access by access.

The pictures of the lessons and the tests of ownership ("each element written once") come from here.
Beside `runtime` in the data flow, and of use to whoever writes a kernel: an access outside every
tensor is recorded instead of carried out.
"""

import contextlib

import numpy as np
import pandas as pd
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from .. import runtime

OUTSIDE = "outside"
COLUMNS = ("program", "worker", "order", "op", "tensor", "row", "column", "value")


def trace(launch: runtime.Launch) -> pd.DataFrame:
    """Run a launch and list each element that a program loads or stores.

    Lanes that are masked off do nothing and do not appear; neither do atomic operations. An access
    outside every tensor's shape is listed and not carried out: a store changes nothing, a load
    gives what its masked lanes get. So a wrong kernel can be traced too.

    Args:
        launch: what to run, once; its tensors are on the CPU and have one or two dimensions.

    Returns:
        One row an element accessed, in the order of the run. `program` and `worker` are the first
        and second index of the grid, `order` counts the loads and stores of a program from 0, `op`
        is "load" or "store", `tensor` the kernel's name for the argument, `row` and `column` the
        element's place in its shape (column 0 of a vector), `value` what was loaded or stored. An
        address in no tensor's shape, between the rows of a strided view too, is of tensor
        "outside" and has row and column -1.

    Raises:
        ValueError: a tensor on another device, or of more dimensions.
    """
    tensors = {n: v for n, v in launch.named().items() if isinstance(v, torch.Tensor)}
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu" or not 1 <= tensor.ndim <= 2:
            raise ValueError(
                f"{name} must be a vector or matrix on the CPU to be traced, "
                f"got {tensor.ndim} dimensions on {tensor.device}"
            )
    recorder = _Recorder(tensors)
    with runtime.language_lock, recorder.listening(interpreter.interpreter_builder):
        launch.run()
    return recorder.table()


class _Recorder:
    """Stands between the interpreter's builder and memory for one launch."""

    def __init__(self, tensors):
        self.names = np.array([*tensors, OUTSIDE], dtype=object)
        self.tensors = list(tensors.values())
        self.accesses = []  # arrays of one load or store: grid index, op, which tensor, ...

    @contextlib.contextmanager
    def listening(self, builder):
        """Take over the two methods that every load and store of the interpreter ends in."""
        load, store = builder.create_masked_load, builder.create_masked_store

        def traced_load(ptrs, mask, other, *options):
            inside, note = self._locate(builder, "load", ptrs, mask)
            loaded = load(ptrs, inside, other, *options)
            note(loaded)
            return loaded

        def traced_store(ptrs, value, mask, *options):
            inside, note = self._locate(builder, "store", ptrs, mask)
            note(value)
            return store(ptrs, value, inside, *options)

        # On the object, so that taking them off again uncovers the class's own.
        builder.create_masked_load, builder.create_masked_store = traced_load, traced_store
        try:
            yield
        finally:
            del builder.create_masked_load, builder.create_masked_store

    def _locate(self, builder, op, ptrs, mask):
        """The mask without accesses outside, and a function that notes the values."""
        active = mask.data.astype(bool)
        address = ptrs.data[active].astype(np.int64)
        which = np.full(len(address), len(self.tensors))
        row, column = np.full(len(address), -1), np.full(len(address), -1)
        for number, tensor in enumerate(self.tensors):
            found_row, found_column, found = _element(tensor, address)
            found &= which == len(self.tensors)  # of two views of one buffer, the first
            which[found] = number
            row[found], column[found] = found_row[found], found_column[found]
        inside = np.zeros_like(active)
        inside[active] = which < len(self.tensors)
        program, worker = builder.grid_idx[:2]

        def note(value):
            values = value.data[active]
            self.accesses.append((program, worker, op, which, row, column, values))

        return TensorHandle(inside, mask.dtype), note

    def table(self):
        """The accesses as `trace` returns them."""
        if not self.accesses:
            return pd.DataFrame(columns=list(COLUMNS))
        program, worker, op, which, row, column, value = zip(*self.accesses, strict=True)
        lanes = [len(values) for values in value]
        access = pd.DataFrame({"program": program, "worker": worker, "op": op})
        access["order"] = access.groupby(["program", "worker"]).cumcount()
        table = access.loc[access.index.repeat(lanes)].reset_index(drop=True)
        table["tensor"] = self.names[np.concatenate(which)]
        table["row"], table["column"] = np.concatenate(row), np.concatenate(column)
        table["value"] = np.concatenate(value)
        return table[list(COLUMNS)]


def _element(tensor, address):
    """Row and column of addresses in a tensor, and which of them are inside its shape."""
    rows, columns = tensor.shape if tensor.ndim == 2 else (tensor.shape[0], 1)
    row_stride = tensor.stride(0) if rows > 1 else max(columns, 1) * tensor.stride(-1)
    column_stride = tensor.stride(1) if tensor.ndim == 2 else 1
    offset, part = np.divmod(address - tensor.data_ptr(), tensor.element_size())
    row, inside_row = np.divmod(offset, max(row_stride, 1))
    column, between = np.divmod(inside_row, max(column_stride, 1))
    found = (row >= 0) & (row < rows) & (column < columns) & (part == 0) & (between == 0)
    return row, column, found
