"""DeepSeek V4's sparse-attention metadata kernels: three functions and the presets that feed them.

CPU tensors run in Triton's interpreter, CUDA tensors compiled; nothing has to be set.
"""

from .combine import combine_topk_swa_indices
from .deep_check import check_batch
from .presets import PRESETS, Preset
from .slot_mapping import (
    compute_dcp_global_topk_indices_and_lens,
    compute_global_topk_indices_and_lens,
)

__all__ = [
    "PRESETS",
    "Preset",
    "check_batch",
    "combine_topk_swa_indices",
    "compute_dcp_global_topk_indices_and_lens",
    "compute_global_topk_indices_and_lens",
]
