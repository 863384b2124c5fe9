"""What collective functions are called in every framework, and which arguments they do not read."""

from __future__ import annotations

FUNCTIONS = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "isend",
    "irecv",
)
"""of ``torch.distributed``, and of ``mindspore.mint.distributed``"""

ONLY_WRITTEN: dict[str, tuple[str, ...]] = {
    "all_gather": ("0", "tensor_list"),
    "all_gather_into_tensor": ("0", "output_tensor"),
    "all_gather_single": ("0", "output_tensor"),
    "reduce_scatter": ("0", "output"),
    "reduce_scatter_single": ("0", "output"),
    "reduce_scatter_tensor": ("0", "output"),
    "all_to_all": ("0", "output_tensor_list"),
    "all_to_all_single": ("0", "output"),
    "gather": ("1", "gather_list"),
    "scatter": ("0", "tensor"),
    "recv": ("0", "tensor"),
    "irecv": ("0", "tensor"),
}
"""the argument, by place or keyword, that a collective does not read: anything may be in it before"""
