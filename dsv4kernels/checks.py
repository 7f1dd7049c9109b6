"""Host checks of a call's arguments: what is wrong is named before anything is launched.

Only what the host knows is looked at (dtype, rank, device, lengths, strides, sizes); values on the
device are never read, so a check neither waits nor breaks a CUDA-graph capture. They run on every
call of a kernel that takes microseconds: each asks a tensor as little as it can while all is well,
and finds its words on failure.
"""

import torch

INT32_MAX = 2**31 - 1


def vector(name, value, dtype, length, like):
    """Require a contiguous 1-D tensor on the device of `like`.

    Args:
        name: the argument's name, for the message.
        value: the argument.
        dtype: the required dtype.
        length: the required length; None for any.
        like: a tensor on the required device.

    Raises:
        TypeError: not a tensor, or of another dtype.
        ValueError: another rank, length or device, or not contiguous.
    """
    if not (
        isinstance(value, torch.Tensor)
        and value.dtype is dtype
        and value.dim() == 1
        and (length is None or value.size(0) == length)
        and value.is_contiguous()
        and _same_device(value, like)
    ):
        _explain(name, value, dtype, (length,), like)


def matrix(name, value, shape, like=None):
    """Require a 2-D int32 tensor whose rows are contiguous and do not overlap.

    Args:
        name: the argument's name, for the message.
        value: the argument.
        shape: the required rows and columns; None for any.
        like: a tensor on the required device; None for any.

    Raises:
        TypeError: not a tensor, or of another dtype.
        ValueError: another rank, length or device, or rows that are not contiguous or overlap.
    """
    if not (
        isinstance(value, torch.Tensor)
        and value.dtype is torch.int32
        and value.dim() == 2
        and (shape[0] is None or value.size(0) == shape[0])
        and (shape[1] is None or value.size(1) == shape[1])
        and (value.is_contiguous() or _has_rows(value))
        and (like is None or _same_device(value, like))
    ):
        _explain(name, value, torch.int32, shape, like)


def at_least(name, value, least):
    """Require an int of at least `least`.

    Raises:
        TypeError: not an int.
        ValueError: less.
    """
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def output(out, tokens, width, like):
    """The caller's (indices int32 [T, width], lens int32 [T]) checked, or new ones.

    Raises:
        TypeError, ValueError: `out` is not such a pair.
    """
    if out is None:
        indices = torch.empty((tokens, width), dtype=torch.int32, device=like.device)
        return indices, torch.empty(tokens, dtype=torch.int32, device=like.device)
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"out must be a pair of tensors (indices, lens), got {type(out).__name__}")
    indices, lens = out
    matrix("out[0]", indices, (tokens, width), like)
    vector("out[1]", lens, torch.int32, tokens, like)
    return indices, lens


def _same_device(value, like):
    index = value.get_device()  # quicker than `.device`, but -1 for all that is not a GPU
    return index == like.get_device() and (index >= 0 or value.device == like.device)


def _has_rows(value):
    rows, columns = value.shape
    stride, step = value.stride()
    return (step == 1 or columns <= 1) and (stride >= columns or rows <= 1)


def _explain(name, value, dtype, shape, like):
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.dtype is not dtype:
        raise TypeError(f"{name} must be {dtype}, got {value.dtype}")
    if like is not None and value.device != like.device:
        raise ValueError(
            f"{name} must be on {like.device} like the other tensors, got {value.device}"
        )
    if value.dim() != len(shape) or any(
        n is not None and n != m for n, m in zip(shape, value.shape, strict=True)
    ):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(value.shape)}")
    raise ValueError(
        f"{name} must have contiguous rows that do not overlap: shape {list(value.shape)} "
        f"needs strides of at least {[*value.shape[1:], 1]}, got {list(value.stride())}"
    )
