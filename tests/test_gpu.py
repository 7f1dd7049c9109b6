"""What only a GPU can show: compiled code at sizes past 2^31 elements, on two streams, again."""

import dataclasses

import pytest
import torch
from helpers import direct_kernels
from triton.runtime.jit import JITFunction

from dsv4kernels import own_mapping, presets, runtime, variants
from dsv4kernels.presets import C128A, FLASH_C4A
from dsv4kernels.variants import differences

pytestmark = pytest.mark.skipif(not runtime.has_gpu(), reason="no GPU here")

EVERY = [
    ("slot_mapping", "own"),
    ("slot_mapping", "runtime"),
    ("slot_mapping", "constexpr"),
    ("dcp", "own"),
    ("combine", "own"),
    ("combine", "workers=128"),
    ("combine", "workers=256"),
    ("combine", "one pass"),
    ("combine", "by rows"),
    ("combine", "by columns"),
]
TOKENS, SOME = 262_144, 32  # rows of 8,192 and of 8,320 columns: 2^31 elements and more


@pytest.fixture(scope="module")
def long_batch():
    """One request of 262,144 tokens that ends at 1,048,576; 17 GB with an output."""
    if torch.cuda.get_device_properties(0).total_memory < 40e9:
        pytest.skip("needs 40 GB of GPU memory")
    return presets.batch(C128A, [TOKENS], [1_048_576])


def rows_of(batch, first):
    """The batch of some rows of one request, as if they had come as a chunk of their own."""
    rows = slice(first, first + SOME)
    after = batch.tokens - first - SOME
    return dataclasses.replace(
        batch,
        topk_indices=batch.topk_indices[rows],
        token_to_req_indices=batch.token_to_req_indices[rows],
        is_valid_token=batch.is_valid_token[rows],
        query_start_loc=torch.tensor([0, SOME], dtype=torch.int32, device="cuda"),
        seq_lens=batch.seq_lens - after,
        gather_lens=batch.gather_lens - after,
    )


@pytest.mark.parametrize(("kernel", "variant"), EVERY)
def test_rows_past_2_to_the_31_elements(long_batch, kernel, variant):
    indices, lens = variants.caller(kernel, variant)(*variants.arguments(kernel, long_batch))
    assert indices.numel() >= 2**31
    for first in (0, TOKENS // 2 - SOME // 2, TOKENS - SOME):
        part = rows_of(long_batch, first)
        got = indices[first : first + SOME], lens[first : first + SOME]
        arguments = variants.arguments(kernel, part)
        wanted = variants.expected(kernel, part)
        assert differences.first(kernel, arguments, got, wanted) is None
    del indices, lens
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("kernel", "variant"), EVERY)
def test_the_same_bits_every_time(kernel, variant):
    batch = presets.mixed(FLASH_C4A, 3000, padding=7)
    call, arguments = variants.caller(kernel, variant), variants.arguments(kernel, batch)
    wanted = variants.expected(kernel, batch)
    for _ in range(50):
        got = call(*arguments, out=tuple(torch.full_like(tensor, 777) for tensor in wanted))
        if kernel == "slot_mapping":  # a padding row's slots are unspecified
            got[0][~batch.is_valid_token] = wanted[0][~batch.is_valid_token]
        assert all(map(torch.equal, got, wanted))


@pytest.mark.parametrize(("kernel", "variant"), [case for case in EVERY if case[1] == "own"])
def test_past_tritons_lookup_only_where_its_code_is_the_same(kernel, variant, monkeypatch):
    for own in direct_kernels().values():  # as in a new process
        monkeypatch.setattr(own, "_met", {})
    monkeypatch.setattr(own_mapping, "_compiled", set())
    looked_up = []
    look_up = JITFunction.run
    monkeypatch.setattr(
        JITFunction, "run", lambda *args, **named: looked_up.append(1) or look_up(*args, **named)
    )

    def looks(batch, shift=0):
        """How often a call of a batch, its outputs `shift` elements off, goes to Triton."""
        wanted = variants.expected(kernel, batch)
        out = tuple(
            tensor.new_full((tensor.numel() + shift,), 777)[shift:].view(tensor.shape)
            for tensor in wanted
        )
        arguments, before = variants.arguments(kernel, batch), len(looked_up)
        got = variants.caller(kernel, variant)(*arguments, out=out)
        assert differences.first(kernel, arguments, got, wanted) is None
        return len(looked_up) - before

    batch, longer = (presets.mixed(FLASH_C4A, tokens) for tokens in (3000, 3001))
    looks(batch)
    assert looks(batch) == looks(longer) == 0
    assert looks(batch, shift=1) > 0  # an address that is no multiple of 16 is another code
    assert looks(batch, shift=1) > 0
    assert looks(batch) == 0
    other = presets.mixed(C128A, 3000)
    assert looks(other) > 0
    assert looks(other) == 0


def test_two_streams_at_once():
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    work = []
    for kernel, variant in EVERY:
        for seed, stream in enumerate(streams):
            batch = presets.mixed(FLASH_C4A, 2000 + seed, seed=seed)
            wanted = variants.expected(kernel, batch)
            call = variants.caller(kernel, variant)
            out = tuple(torch.full_like(tensor, 777) for tensor in wanted)
            call(*variants.arguments(kernel, batch), out=out)  # compiled
            work.append((stream, call, variants.arguments(kernel, batch), out, wanted))
    for *_, out, _ in work:
        for tensor in out:
            tensor.fill_(777)
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, call, arguments, out, _ in work:
            with torch.cuda.stream(stream):
                call(*arguments, out=out)
    torch.cuda.synchronize()
    assert all(all(map(torch.equal, out, wanted)) for *_, out, wanted in work)
