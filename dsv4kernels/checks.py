"""Host checks of a call's arguments: what is wrong is named before anything is launched.

Only what the host knows is looked at (dtype, rank, device, lengths, strides, sizes); values on the
device are never read, so a check neither waits nor breaks a CUDA-graph capture. They run on every
call of a kernel that takes microseconds, so each is one condition, and words are made on failure.
"""

import torch

INT32_MAX = 2**31 - 1


def tensor(name, value, dtype, shape, device=None):
    """Require a tensor whose rows are `shape[-1]` contiguous elements.

    Args:
        name: the argument's name, for the message.
        value: the argument.
        dtype: the required dtype.
        shape: length of each dimension; None for any.
        device: the required device; None for any.

    Raises:
        TypeError: not a tensor, or of another dtype.
        ValueError: another rank, length or device, or rows that are not contiguous or overlap.
    """
    try:
        fits = value.dtype is dtype and (device is None or value.device == device)
        actual, strides = value.shape, value.stride()
    except AttributeError:
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}") from None
    if fits and len(actual) == len(shape):
        for length, needed in zip(actual, shape, strict=True):
            if needed is not None and length != needed:
                break
        else:
            one_by_one = strides[-1] == 1 or actual[-1] <= 1
            if one_by_one and (len(shape) == 1 or strides[0] >= actual[1] or actual[0] <= 1):
                return
    _explain(name, value, dtype, shape, device)


def at_least(name, value, least, because=""):
    """Require an int of at least `least`.

    Raises:
        TypeError: not an int.
        ValueError: less.
    """
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}{because}, got {value}")


def _explain(name, value, dtype, shape, device):
    if value.dtype is not dtype:
        raise TypeError(f"{name} must be {dtype}, got {value.dtype}")
    if device is not None and value.device != device:
        raise ValueError(f"{name} must be on {device} like the other tensors, got {value.device}")
    wanted = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
    if value.dim() != len(shape) or any(
        n is not None and n != m for n, m in zip(shape, value.shape, strict=True)
    ):
        raise ValueError(f"{name} must have shape {wanted}, got {list(value.shape)}")
    raise ValueError(
        f"{name} must have contiguous rows that do not overlap: shape {list(value.shape)} "
        f"needs strides of at least [{value.shape[-1]}, 1], got {list(value.stride())}"
    )


def output(out, shape, device):
    """The caller's (indices [T, width], lens [T]) checked, or new ones.

    Raises:
        TypeError, ValueError: `out` is not such a pair.
    """
    tokens = shape[0]
    if out is None:
        return (
            torch.empty(shape, dtype=torch.int32, device=device),
            torch.empty(tokens, dtype=torch.int32, device=device),
        )
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"out must be a pair of tensors (indices, lens), got {type(out).__name__}")
    tensor("out[0]", out[0], torch.int32, shape, device)
    tensor("out[1]", out[1], torch.int32, (tokens,), device)
    return out[0], out[1]
