"""A decoder-only transformer that knows nothing of processes: ``parallel/layout.py`` cuts it from outside.

Shape suffixes of names:
    B rows, T tokens of a row, S tokens attended to, H hidden_size, N heads, K heads of key and value,
    D channels of a head, F ffn_hidden_size, V vocabulary, M tokens of all rows (B * T), E experts,
    A experts a token goes to. Under a parallel layout T, N, K, F, V and E may be this process's part. With
    ``tokens_first`` B and T change places in all that lies between embedding and loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from trueup_gpt.config import ModelConfig, MoEConfig
from trueup_gpt.torch.model.attention import Attention, Rotation, rotation
from trueup_gpt.torch.model.experts import MixtureOfExperts
from trueup_gpt.torch.model.parts import CrossEntropy, Embedding, FeedForward, Linear, Norm, TokenSum


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, moe: MoEConfig, layer: int, *, tokens_first: bool) -> None:
        super().__init__()
        self.input_norm, self.post_attention_norm = Norm(config), Norm(config)
        self.attention = Attention(config, layer, tokens_first=tokens_first)
        sparse = moe.are_in(layer)
        self.mlp = MixtureOfExperts(config, moe) if sparse else FeedForward(config)
        self.sparse, self.dropout = sparse, config.hidden_dropout
        self.from_norm = config.apply_residual_connection_post_norm

    def forward(
        self,
        x_BTH: Tensor,
        turn: Rotation | None,
        positions_BT: Tensor | None,
        valid_BT: Tensor | None,
        loss_weight: Tensor | None,
    ) -> Tensor:
        n_BTH = self.input_norm(x_BTH)
        y_BTH = self.attention(n_BTH, turn, positions_BT, valid_BT)
        x_BTH = self._add(n_BTH if self.from_norm else x_BTH, y_BTH)
        n_BTH = self.post_attention_norm(x_BTH)
        y_BTH = self.mlp(n_BTH, loss_weight) if self.sparse else self.mlp(n_BTH)
        return self._add(n_BTH if self.from_norm else x_BTH, y_BTH)

    def _add(self, x_BTH: Tensor, y_BTH: Tensor) -> Tensor:
        wide = torch.promote_types(x_BTH.dtype, y_BTH.dtype)
        return x_BTH.to(wide) + self.drop(y_BTH.to(wide))

    def drop(self, y_BTH: Tensor) -> Tensor:
        """Dropout of the stream."""
        return F.dropout(y_BTH, self.dropout, self.training)


class GPTModel(nn.Module):
    """The transformer, or one pipeline stage of it.

    Args:
        config: its sizes.
        moe: its experts.
        layers: numbers of the layers held; default: all.
        pre_process: holds the embedding, takes token ids; else takes the residual stream (B, T, H).
        post_process: holds the head, gives logits or loss; else gives the residual stream.
        recompute: keep only the inputs of layers, and run them again in the backward pass.
        tokens_first: the residual stream, and what comes of it, is (T, B, ...) in place of (B, T, ...).

    Example:
        >>> model = GPTModel(config)                                              # doctest: +SKIP
        >>> loss, logits_BTV, num_tokens = model(tokens_BT, labels_BT=labels_BT)  # doctest: +SKIP
    """

    def __init__(
        self,
        config: ModelConfig,
        moe: MoEConfig | None = None,
        *,
        layers: Sequence[int] | None = None,
        pre_process: bool = True,
        post_process: bool = True,
        recompute: bool = False,
        tokens_first: bool = False,
    ) -> None:
        super().__init__()
        moe = moe or MoEConfig()
        self.config, self.recompute, self.tokens_first = config, recompute, tokens_first
        self.pre_process, self.post_process = pre_process, post_process
        dtypes = config.residual_connection_dtype, config.compute_dtype
        self.residual_dtype = torch.promote_types(*(getattr(torch, name) for name in dtypes))
        held = range(config.num_layers) if layers is None else layers
        tied = not config.untie_embeddings_and_output_weights
        if pre_process or (post_process and tied):
            self.word_embeddings = Embedding(config.vocab_size, config)
        if pre_process and config.position_embedding_type == "absolute":
            self.position_embeddings = Embedding(config.seq_length, config)
        self.layers = nn.ModuleDict(
            {str(number): Layer(config, moe, number, tokens_first=tokens_first) for number in held}
        )
        if post_process:
            self.final_norm = Norm(config) if config.use_final_norm else nn.Identity()
            self.output = Linear(config.hidden_size, config.vocab_size, config, bias=False)
            if tied:
                self.output.weight = self.word_embeddings.weight
            self.loss, self.over_tokens = CrossEntropy(config), TokenSum()

    def forward(
        self,
        x: Tensor,
        *,
        labels_BT: Tensor | None = None,
        loss_mask_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
        attention_mask_BT: Tensor | None = None,
        loss_weight: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """The next stage's input; on the last stage logits, and with labels (loss, logits, token count).

        Args:
            x: token ids (B, T), or the residual stream (B, T, H) of the stage before.
            labels_BT: the token that follows each token.
            loss_mask_BT: weight of each token in the loss; default: all count.
            positions_BT: of the tokens in their row; default: 0 to T - 1.
            attention_mask_BT: true where a token is real, for the padding masks.
            loss_weight: what the caller multiplies the loss by; the router's losses are multiplied alike.
        """
        turn = None
        if self.config.position_embedding_type == "rope":
            rows = x if labels_BT is None else labels_BT  # the stream may hold a part of the tokens
            cos, sin = rotation(self._positions(rows, positions_BT), self.config)
            turn = self._laid(cos), self._laid(sin)
        x_BTH = self.embed(x, positions_BT) if self.pre_process else x
        for layer in self.layers.values():
            given = (x_BTH, turn, positions_BT, attention_mask_BT, loss_weight)
            again = self.recompute and torch.is_grad_enabled()
            x_BTH = checkpoint(layer, *given, use_reentrant=False) if again else layer(*given)
        if not self.post_process:
            return x_BTH
        logits_BTV = self.output(self.final_norm(x_BTH))
        if labels_BT is None:
            return logits_BTV
        loss_BT = self.loss(logits_BTV, self._laid(labels_BT))
        mask_BT = torch.ones_like(loss_BT)
        if loss_mask_BT is not None:
            mask_BT = self._laid(loss_mask_BT).to(loss_BT.dtype)
        num_tokens = self.over_tokens(mask_BT.sum())
        return (loss_BT * mask_BT).sum() / num_tokens, logits_BTV, num_tokens

    def embed(self, tokens_BT: Tensor, positions_BT: Tensor | None) -> Tensor:
        """Token ids to the residual stream."""
        x_BTH = self.word_embeddings(self._laid(tokens_BT)).to(self.residual_dtype)
        if self.config.position_embedding_type == "absolute":
            x_BTH = x_BTH + self.position_embeddings(self._laid(self._positions(tokens_BT, positions_BT)))
        return self.drop(x_BTH)

    def drop(self, x_BTH: Tensor) -> Tensor:
        """Dropout of the stream."""
        return F.dropout(x_BTH, self.config.hidden_dropout, self.training)

    def _laid(self, x_BT: Tensor) -> Tensor:
        """As the residual stream lies."""
        return x_BT.transpose(0, 1) if self.tokens_first else x_BT

    @staticmethod
    def _positions(x: Tensor, positions_BT: Tensor | None) -> Tensor:
        return torch.arange(x.shape[1], device=x.device)[None] if positions_BT is None else positions_BT
