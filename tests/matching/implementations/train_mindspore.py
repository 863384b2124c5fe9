"""Two training steps of the MindSpore implementations, from the weights and on the tokens of the others.

python -m tests.matching.implementations.train_mindspore NAME [--sizes NAME] [--graph]

With ``--graph`` a step is one compiled graph, as ``MINDSPORE_DUMP_CONFIG`` dumps it.
"""

from __future__ import annotations

import argparse

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.experimental import optim

from tests.matching.implementations import inputs, mindspore_gpt, mindspore_moe
from tests.matching.implementations.sizes import ALL_SIZES, Sizes
from tests.matching.implementations.weights import for_mindspore

MODELS = {
    "mindspore": mindspore_gpt.Model,
    "mindspore_moe": mindspore_moe.Model,
    "mindspore_sorted_moe": mindspore_moe.SortedModel,
}


def build(name: str, sizes: Sizes) -> nn.Cell:
    """One implementation with the common weights."""
    model = MODELS[name](sizes)
    weights = for_mindspore(inputs.weights(sizes), sizes)
    for key, parameter in model.parameters_and_names():
        parameter.set_data(Tensor(weights.pop(key).contiguous().numpy()))
    assert not weights, weights.keys()
    return model


def plant(model: nn.Cell, change: str) -> None:
    """Make one fault, in layer 1."""
    if change == "norm_eps":
        model.stack[1].before_feed.eps = 1e-2
    elif change == "attention_scale":
        model.stack[1].mix.scale *= 1.05
    elif change == "one_expert_fewer":
        model.stack[1].feed.num_chosen -= 1
    elif change == "expert":
        weight = model.stack[1].feed.narrow
        values = weight.asnumpy().copy()
        values[2] *= 1.05
        weight.set_data(Tensor(values))
    else:
        raise SystemExit(f"no change is called {change}")


def train(
    name: str, *, sizes: Sizes, change: str | None = None, steps: int = 2, graph: bool = False
) -> list[float]:
    """Losses of all steps."""
    ms.set_device("CPU")
    if graph:
        ms.set_context(mode=ms.GRAPH_MODE, jit_config={"jit_level": "O0"})
    model = build(name, sizes)
    if change is not None:
        plant(model, change)
    whole = mindspore_gpt.WithLoss(model)
    whole.set_train()
    batches = [Tensor(inputs.tokens(step, sizes).int().numpy()) for step in range(steps)]
    if graph:
        update = nn.TrainOneStepCell(whole, nn.SGD(model.trainable_params(), 1e-1))
        update.set_train()
        return [float(update(batch).asnumpy()) for batch in batches]
    optimizer = optim.AdamW(list(model.trainable_params()), lr=1e-3)
    gradient = ms.value_and_grad(whole, None, optimizer.parameters)
    losses = []
    for batch in batches:
        loss, found = gradient(batch)
        optimizer(found)
        losses.append(float(loss.asnumpy()))
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--change")
    parser.add_argument("--sizes", choices=ALL_SIZES, default="plain")
    parser.add_argument("--graph", action="store_true")
    given = parser.parse_args()
    print(train(given.name, sizes=ALL_SIZES[given.sizes], change=given.change, graph=given.graph))
