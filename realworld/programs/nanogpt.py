"""nanoGPT's model and loop: fused qkv, tied head, `(logits, loss)`, clipping, maybe torch.compile."""

from __future__ import annotations

import contextlib
import inspect
import os

import torch
import torch.distributed as dist
from outcome import Outcome, arguments, halve_gradient
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, HEADS, LAYERS, LENGTH, VOCABULARY, ROWS = 64, 4, 2, 32, 128, 4
DROPOUT = 0.1


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.0), nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c)))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = (
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), CausalSelfAttention()
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCABULARY, WIDTH),
                "wpe": nn.Embedding(LENGTH, WIDTH),
                "drop": nn.Dropout(DROPOUT),
                "h": nn.ModuleList(Block() for _ in range(LAYERS)),
                "ln_f": nn.LayerNorm(WIDTH),
            }
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self.loss_scale = 1.0
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            torch.nn.init.zeros_(module.bias)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        if targets is None:
            return logits[:, [-1], :], None
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss * self.loss_scale if self.loss_scale != 1.0 else loss

    def configure_optimizers(self, beta2: float) -> torch.optim.AdamW:
        params = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ]
        fused = {"fused": True} if "fused" in inspect.signature(torch.optim.AdamW).parameters else {}
        return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, beta2), **fused)


def get_batch(data: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    ix = torch.randint(len(data) - LENGTH, (ROWS,), generator=draw)
    x = torch.stack([data[i : i + LENGTH] for i in ix])
    return x, torch.stack([data[i + 1 : i + 1 + LENGTH] for i in ix])


def main() -> None:
    """Train."""
    parser = arguments(__doc__)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()
    outcome = Outcome()
    ddp = int(os.environ.get("WORLD_SIZE", "1")) > 1
    rank = int(os.environ.get("RANK", "0"))
    if ddp:
        dist.init_process_group("gloo")
    torch.manual_seed(1337 + args.seed)
    data = torch.randint(VOCABULARY, (4096,), generator=torch.Generator().manual_seed(args.seed))
    raw_model = GPT()
    torch.manual_seed(1337 + args.seed + rank)
    if args.fault == "forward":
        raw_model.transformer.h[1].ln_2.eps = 1e-3
    if args.fault == "loss":
        raw_model.loss_scale = 1.01
    if args.fault == "backward":
        halve_gradient(raw_model.transformer.h[0].mlp.c_fc.weight)
    optimizer = raw_model.configure_optimizers(0.99 if args.fault == "optimizer" else 0.95)
    model: nn.Module = torch.compile(raw_model) if args.compile else raw_model
    if ddp:
        model = DistributedDataParallel(model)
    draw = torch.Generator().manual_seed(args.seed + 100 * rank)
    context = torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext()
    X, Y = get_batch(data, draw)
    for _ in range(args.steps):
        for micro_step in range(args.accumulate):
            if ddp:
                model.require_backward_grad_sync = micro_step == args.accumulate - 1
            if args.fault == "data":
                X = X.clone()
                X[1, 5] = (X[1, 5] + 1) % VOCABULARY
            with context:
                _, loss = model(X, Y)
                loss = loss / args.accumulate
            X, Y = get_batch(data, draw)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        outcome.loss(loss)
    outcome.write(raw_model.state_dict().items())
    if ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
