"""What several test modules share."""

import torch

POISON = 777_777


def assert_same(got, expected, is_valid_token=None):
    """Bit-exact equality of (indices, lens); a padding row's slots are unspecified."""
    (indices, lens), (wanted, wanted_lens) = got, expected
    assert torch.equal(lens, wanted_lens)
    if is_valid_token is not None:
        indices, wanted = indices[is_valid_token], wanted[is_valid_token]
    assert torch.equal(indices, wanted)


def poisoned(tokens, width, stride=None):
    """Outputs that hold old values, rows `stride` apart: (indices [T, width], lens [T])."""
    buffer = torch.full((tokens, stride or width), POISON, dtype=torch.int32)
    return buffer[:, :width], torch.full((tokens,), POISON, dtype=torch.int32)


def int32(values):
    """A nested list as a tensor: int32, or bool where it holds true and false."""
    tensor = torch.tensor(values)
    return tensor if tensor.dtype is torch.bool else tensor.int()
