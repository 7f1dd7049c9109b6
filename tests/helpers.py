"""What several test modules share."""

import mmap
from html.parser import HTMLParser

import pytest
import torch

from dsv4kernels import own_combine, own_dcp, own_mapping, runtime

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


def direct_kernels():
    """The project's own kernels that go past Triton's lookup, by name."""
    return {
        name: kernel
        for module in (own_mapping, own_dcp, own_combine)
        for name, kernel in vars(module).items()
        if isinstance(kernel, runtime.Kernel) and kernel.tensors
    }


def int32(values):
    """A nested list as a tensor: int32, or bool where it holds true and false."""
    tensor = torch.tensor(values)
    return tensor if tensor.dtype is torch.bool else tensor.int()


def far_apart(values):
    """The rows of `values` 2^30 elements apart: the third one's address passes 2^31 elements.

    An address that wrapped around at 32 bits would fall into the same mapping, 8 GiB before the
    first row, where all is 0. Memory is taken only where it is touched.
    """
    rows, columns = values.shape
    elements = 2**31 + (rows - 1) * 2**30 + columns
    no_reserve = 0x4000  # MAP_NORESERVE on Linux
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    try:
        memory = mmap.mmap(-1, 4 * elements, flags=flags)
    except OSError as error:
        pytest.skip(f"no address space for rows so far apart: {error}")
    whole = torch.frombuffer(memory, dtype=torch.int32)
    return torch.as_strided(whole, (rows, columns), (2**30, 1), 2**31).copy_(values)


class Loads(HTMLParser):
    """Collects what a browser would fetch or execute."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.in_style = False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.in_style = tag == "style"
        for name, value in attributes:
            fetched = name in ("src", "srcset", "data") or (name == "href" and tag != "a")
            if fetched and not (value or "").startswith("data:"):
                self.found.append((tag, value))
        if tag in ("script", "iframe", "object", "embed"):
            self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.in_style:
            urls = data.replace("url(data:", "").replace("url('data:", "").replace('url("data:', "")
            self.found += ["css"] * ("url(" in urls or "@import" in urls)
