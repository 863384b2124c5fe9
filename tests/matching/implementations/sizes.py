"""The sizes that all implementations share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A Llama small enough for a test; no two of its dimensions are the same by chance."""

    vocab_size: int = 250
    hidden_size: int = 48
    ffn_size: int = 112
    num_layers: int = 3
    num_heads: int = 6
    num_groups: int = 2
    rope_base: float = 10000.0
    norm_eps: float = 1e-5
    batch_size: int = 3
    seq_length: int = 16
    num_experts: int = 0
    num_chosen: int = 2
    """experts a token goes to"""

    @property
    def head_size(self) -> int:
        """Channels of one head."""
        return self.hidden_size // self.num_heads


EXPERTS = Sizes(num_experts=5, num_layers=2, ffn_size=40)
"""of the mixtures of experts"""
SIZES = {
    "plain": Sizes(),
    "alike": Sizes(batch_size=2, seq_length=8, num_layers=2),
    "wide": Sizes(hidden_size=64, num_heads=8, num_groups=4, batch_size=4, seq_length=32, num_layers=2),
}
"""``alike``: batch as large as the key heads, sequence as a head, so that shapes do not tell layouts;
``wide``: as many sequences as key heads, as long as half the width"""
SMALL = Sizes(
    vocab_size=32, hidden_size=16, ffn_size=24, num_layers=2, num_heads=4, batch_size=2, seq_length=8
)
"""of the dump in tests/fixtures/mindspore"""
ALL_SIZES = SIZES | {"experts": EXPERTS, "small": SMALL}
