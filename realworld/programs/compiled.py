"""Models under torch.compile as users call it, or under a compiler that computes one operation wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import nanogpt
import tiny
import torch
from outcome import Outcome, arguments
from torch import Tensor, fx, nn
from torch.nn import functional as F

WRONG = ("none", "activation", "dropped", "norm", "attention", "residual", "loss", "backward")
"""the operation of the second layer, where there are several"""


class Convolutions(nn.Module):
    """A small image classifier with batch norm and a recurrent head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.norm2 = nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32)
        self.head, self.last = nn.GRU(32, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = F.gelu(self.norm1(self.first(images)))
        x = F.silu(self.norm2(self.second(x)))
        x, _ = self.head(x.flatten(2).transpose(1, 2))
        scores = self.last(x[:, -1])
        return scores, F.cross_entropy(scores, labels)


def _second(graph: fx.Graph, *names: str) -> fx.Node:
    found = [node for node in graph.nodes if getattr(node.target, "__name__", node.target) in names]
    return found[len(found) // 2]


def _changed(graph: fx.Graph, wrong: str) -> None:
    """One operation computed otherwise."""
    if wrong == "activation":
        node = _second(graph, "gelu", "silu")
        other = (
            (lambda x: F.gelu(x, approximate="tanh"))
            if "gelu" in node.name
            else (lambda x: x * torch.sigmoid(1.001 * x))
        )
        node.target = other
        node.args, node.kwargs = node.args[:1], {}
    elif wrong == "dropped":
        _second(graph, "gelu", "silu").target = lambda x: x
    elif wrong == "norm":
        node = _second(graph, "layer_norm", "rsqrt")
        if node.target is torch.rsqrt:
            node.target = lambda x: torch.rsqrt(x + 1e-4)
        else:
            node.args = (*node.args[:4], 1e-4)
    elif wrong == "attention":
        node = _second(graph, "scaled_dot_product_attention")
        node.kwargs = {**node.kwargs, "scale": 0.26}
    elif wrong == "residual":
        found = [one for one in graph.nodes if one.target in (torch.add, __import__("operator").add)]
        node = [one for one in found if all(isinstance(arg, fx.Node) for arg in one.args)][-2]
        node.target, node.kwargs = torch.add, {"alpha": 1.001}
    elif wrong == "loss":
        node = _second(graph, "cross_entropy")
        node.kwargs = {**node.kwargs, "label_smoothing": 1e-3}


def wrong_compiler(wrong: str) -> Callable[..., Any]:
    """Inductor with one operation changed; for ``backward`` one of the graph of gradients."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.compile_fx import compile_fx

    def compiler(gm: fx.GraphModule, inputs: list[Tensor]) -> Any:
        _changed(gm.graph, wrong)
        gm.recompile()
        return compile_fx(gm, inputs)

    def backward(gm: fx.GraphModule, inputs: list[Tensor]) -> Any:
        for node in gm.graph.nodes:
            name = str(node.target)
            if name.startswith("aten.gelu_backward"):
                node.kwargs = {"approximate": "tanh"}
                break
            if name.startswith("aten.silu_backward"):
                with gm.graph.inserting_after(node):
                    scaled = gm.graph.call_function(torch.ops.aten.mul.Tensor, (node, 1.001))
                node.replace_all_uses_with(scaled, lambda user, scaled=scaled: user is not scaled)
                break
        gm.recompile()
        return gm.forward

    def plain(gm: fx.GraphModule, inputs: list[Tensor]) -> Any:
        return gm.forward

    return compiler if wrong != "backward" else aot_autograd(fw_compiler=plain, bw_compiler=backward)


def main() -> None:
    """Train."""
    parser = arguments(__doc__)
    parser.add_argument("--model", choices=("nanogpt", "llama", "convolutions"), default="nanogpt")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--layerwise", action="store_true", help="each layer is compiled, as torchtitan does")
    parser.add_argument("--wrong", choices=WRONG, default="none")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    outcome = Outcome()
    torch.manual_seed(args.seed)
    nanogpt.DROPOUT = 0.0
    model: Any = {"nanogpt": nanogpt.GPT, "llama": tiny.llama, "convolutions": Convolutions}[args.model]()
    how: dict[str, Any] = {} if args.wrong == "none" else {"backend": wrong_compiler(args.wrong)}
    compiled = model
    if args.layerwise:
        for layer in model.model.layers if args.model == "llama" else model.transformer.h:
            layer.compile(**how)
    elif not args.eager:
        compiled = torch.compile(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(args.seed)
    context = torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext()
    for _ in range(args.steps):
        ids = torch.randint(3, nanogpt.VOCABULARY, (4, 25), generator=draw)
        with context:
            if args.model == "llama":
                loss = compiled(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss
            elif args.model == "nanogpt":
                _, loss = compiled(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
            else:
                images = torch.randn(8, 3, 12, 12, generator=draw)
                _, loss = compiled(images, torch.randint(10, (8,), generator=draw))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        outcome.loss(loss)
    outcome.write(model.state_dict().items())


if __name__ == "__main__":
    main()
