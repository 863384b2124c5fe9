"""torch_geometric: a graph network with batch norm on batches of random graphs."""

from __future__ import annotations

import torch
from outcome import Outcome, arguments, halve_gradient
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, SAGEConv, global_mean_pool


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = GCNConv(8, 32), BatchNorm(32)
        self.conv2, self.norm2 = SAGEConv(32, 32), BatchNorm(32)
        self.conv3 = GATConv(32, 16, heads=2)
        self.head = nn.Linear(32, 3)

    def forward(self, data: Data) -> Tensor:
        x = F.relu(self.norm1(self.conv1(data.x, data.edge_index)))
        x = F.dropout(F.relu(self.norm2(self.conv2(x, data.edge_index))), 0.1, self.training)
        x = self.conv3(x, data.edge_index)
        return self.head(global_mean_pool(x, data.batch))


def graphs(seed: int, *, wrong: bool) -> list[Data]:
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(32):
        nodes = int(torch.randint(5, 12, (1,), generator=draw))
        edges = torch.randint(nodes, (2, 3 * nodes), generator=draw)
        x = torch.randn(nodes, 8, generator=draw)
        if wrong:
            x[2, 3] += 1.0
        found.append(Data(x=x, edge_index=edges, y=torch.randint(3, (1,), generator=draw)))
    return found


def main() -> None:
    """Train."""
    args = arguments(__doc__).parse_args()
    outcome = Outcome()
    torch.manual_seed(args.seed)
    model = Net()
    if args.fault == "forward":
        model.norm2.module.eps = 1e-2
    if args.fault == "backward":
        halve_gradient(model.conv2.lin_l.weight)
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-2, betas=(0.9, 0.95 if args.fault == "optimizer" else 0.999)
    )
    loader = DataLoader(graphs(args.seed, wrong=args.fault == "data"), batch_size=8, shuffle=True)
    batches = iter(loader)
    for _ in range(args.steps):
        data = next(batches)
        optimizer.zero_grad()
        smoothing = 0.1 if args.fault == "loss" else 0.0
        loss = F.cross_entropy(model(data), data.y, label_smoothing=smoothing)
        loss.backward()
        optimizer.step()
        outcome.loss(loss)
    outcome.write(model.state_dict().items())


if __name__ == "__main__":
    main()
