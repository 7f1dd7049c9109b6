"""CUDA graphs: the serving shape of these kernels.

A graph replays launches with the arguments they were captured with: the same addresses, the same
numbers. So its buffers are owned here and persist; a batch is copied in, padded to the size that
was captured, and what comes out are views of the outputs. Sizes are captured once for each dispatch
key, a padded token count, and a batch takes the smallest key that holds it.
"""

import bisect
from collections.abc import Iterable

import torch

from .. import combine, runtime, slot_mapping
from ..presets import STALE_REQUEST, Batch, Preset


class MetadataGraphs:
    """Slot mapping and combine over persistent buffers, one graph for each padded token count.

    On a machine without a GPU there is no graph: replay launches the same kernels in Triton's
    interpreter, on the same buffers, with the same padding.

    Args:
        preset: the model's geometry; one object for each.
        keys: padded token counts to serve, each captured on its first use or by `capture`.
        max_requests: requests of the largest batch; fewer are padded with empty ones.
        max_blocks: columns of the block table.
        M, N: the workspace's geometry, fixed since a graph repeats the numbers it was given.
        device: default the GPU where there is one.

    Raises:
        ValueError: no key, or one below 1.
    """

    def __init__(
        self,
        preset: Preset,
        keys: Iterable[int],
        *,
        max_requests: int,
        max_blocks: int,
        M: int,
        N: int,
        device: torch.device | str | None = None,
    ):
        self.preset, self.keys = preset, sorted(set(keys))
        if not self.keys or self.keys[0] < 1:
            raise ValueError(f"keys must be token counts of at least 1, got {self.keys}")
        self.device = torch.device(device) if device else runtime.default_device()
        tokens = self.keys[-1]

        def buffer(*shape, dtype=torch.int32):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        # Views of these are what the kernels see; a view keeps the buffer's stride whatever its
        # length, so a batch of another size is read through the stride that was captured.
        self.inputs = Batch(
            preset=preset,
            topk_indices=buffer(tokens, preset.row_width),
            token_to_req_indices=buffer(tokens).fill_(STALE_REQUEST),
            is_valid_token=buffer(tokens, dtype=torch.bool),
            block_table=buffer(max_requests, max_blocks).fill_(-1),
            query_start_loc=buffer(max_requests + 1),
            seq_lens=buffer(max_requests),
            gather_lens=buffer(max_requests),
            M=M,
            N=N,
        )
        width = combine.output_width(preset.topk, preset.window_size)
        self.slots, self.slot_lens = buffer(tokens, preset.row_width), buffer(tokens)
        self.indices, self.index_lens = buffer(tokens, width), buffer(tokens)
        self._table = 0, 0  # requests and blocks that the latest batch wrote
        self._replays = {}

    def key(self, tokens: int) -> int:
        """The dispatch key of a batch: the smallest that holds it.

        Raises:
            ValueError: it is larger than the largest key.
        """
        place = bisect.bisect_left(self.keys, tokens)
        if place == len(self.keys):
            raise ValueError(f"{tokens} tokens exceed the largest captured size, {self.keys[-1]}")
        return self.keys[place]

    def capture(self, key: int) -> None:
        """Capture a key's graph, once; compilation and warm-up happen before the capture.

        Raises:
            ValueError: not one of `keys`.
        """
        if key not in self.keys:
            raise ValueError(f"{key} is not one of the keys {self.keys}")
        if key in self._replays:
            return
        if self.device.type != "cuda":
            self._replays[key] = lambda: self._launch(key)
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._launch(key)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._launch(key)
        self._replays[key] = graph.replay

    def replay(self, batch: Batch):
        """Copy a batch in, pad it, and run its key's graph.

        Nothing is allocated or waited for, once the key has been captured. Copying in is a launch
        for each tensor; an engine whose kernels write `inputs` in place calls `run` alone.

        Args:
            batch: of this preset, on this device, with at most `max_requests` requests.

        Returns:
            ((slots [T, K], lens [T]), (indices [T, width], lens [T])): views of the persistent
            outputs, valid until the next replay.

        Raises:
            ValueError: more tokens, requests or blocks than there is room for, another width,
                preset or workspace geometry.
            TypeError: a tensor of another dtype or device.
        """
        key = self.key(batch.tokens)
        self._fits(batch)
        self.capture(key)
        self._copy_in(batch, key)
        return self.run(batch.tokens)

    def run(self, tokens: int):
        """Run the graph for the first `tokens` rows of `inputs` as they are; as `replay` returns.

        Rows up to the key have to be padding already: `is_valid_token` False, and not within
        `query_start_loc`.
        """
        key = self.key(tokens)
        self.capture(key)
        self._replays[key]()
        return (
            (self.slots[:tokens], self.slot_lens[:tokens]),
            (self.indices[:tokens], self.index_lens[:tokens]),
        )

    def _fits(self, batch):
        rooms = self.inputs
        for name, got, room in (
            ("requests", batch.requests, rooms.requests),
            ("blocks", batch.block_table.shape[1], rooms.block_table.shape[1]),
        ):
            if got > room:
                raise ValueError(f"{got} {name} exceed the {room} there is room for")
        width = batch.topk_indices.shape[1]
        if width != self.preset.row_width:
            raise ValueError(f"rows must have {self.preset.row_width} columns, got {width}")
        if (batch.M, batch.N) != (rooms.M, rooms.N):
            raise ValueError(
                f"the workspace geometry is fixed at M = {rooms.M}, N = {rooms.N}, "
                f"got {batch.M} and {batch.N}"
            )
        if batch.preset != self.preset:
            raise ValueError(f"the preset is {self.preset}, got a batch of {batch.preset}")
        # A copy would convert a tensor, or wait for it, without a word.
        for name, room in vars(rooms).items():
            if isinstance(room, torch.Tensor):
                got = getattr(batch, name)
                if got.dtype is not room.dtype or got.get_device() != room.get_device():
                    raise TypeError(
                        f"{name} must be {room.dtype} on {room.device}, "
                        f"got {got.dtype} on {got.device}"
                    )

    def _copy_in(self, batch, key):
        into, tokens, requests = self.inputs, batch.tokens, batch.requests
        into.topk_indices[:tokens].copy_(batch.topk_indices, non_blocking=True)
        into.token_to_req_indices[:tokens].copy_(
            batch.token_to_req_indices[:tokens], non_blocking=True
        )
        into.is_valid_token[:tokens].copy_(batch.is_valid_token, non_blocking=True)
        # Padding rows keep whatever an earlier batch left in them, but are no longer valid.
        into.is_valid_token[tokens:key].fill_(False)
        blocks = batch.block_table.shape[1]
        into.block_table[:requests, :blocks].copy_(batch.block_table, non_blocking=True)
        # What an earlier batch left beside it would pass for blocks of this one: -1 is none.
        before_requests, before_blocks = self._table
        into.block_table[requests:before_requests].fill_(-1)
        into.block_table[:requests, blocks:before_blocks].fill_(-1)
        self._table = requests, blocks
        into.query_start_loc[: requests + 1].copy_(batch.query_start_loc, non_blocking=True)
        # Padding requests begin where the last one ends: they have no token.
        into.query_start_loc[requests + 1 :].copy_(batch.query_start_loc[-1], non_blocking=True)
        into.seq_lens[:requests].copy_(batch.seq_lens, non_blocking=True)
        into.gather_lens[:requests].copy_(batch.gather_lens, non_blocking=True)

    def _launch(self, key):
        rows, inputs, preset = slice(0, key), self.inputs, self.preset
        if preset.topk:
            slot_mapping.compute_global_topk_indices_and_lens(
                inputs.topk_indices[rows],
                inputs.token_to_req_indices,
                inputs.block_table,
                preset.block_size,
                inputs.is_valid_token[rows],
                out=(self.slots[rows], self.slot_lens[rows]),
            )
        combine.combine_topk_swa_indices(
            inputs.topk_indices[rows],
            inputs.query_start_loc,
            inputs.seq_lens,
            inputs.gather_lens,
            preset.window_size,
            preset.compress_ratio,
            preset.topk,
            inputs.M,
            inputs.N,
            out=(self.indices[rows], self.index_lens[rows]),
        )
