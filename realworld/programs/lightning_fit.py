"""PyTorch Lightning's Trainer: its automatic optimization, clipping, validation, maybe bf16-mixed."""

from __future__ import annotations

import logging
import warnings

import lightning
import torch
from outcome import Outcome, arguments, halve_gradient
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, WIDTH, LENGTH = 64, 32, 16


class Model(lightning.LightningModule):
    def __init__(self, outcome: Outcome, fault: str) -> None:
        super().__init__()
        self.outcome, self.fault = outcome, fault
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.encoder(self.embed(ids), mask=mask, is_causal=True))

    def _loss(self, batch: list[Tensor]) -> Tensor:
        ids = batch[0]
        smoothing = 0.1 if self.fault == "loss" else 0.0
        logits = self(ids[:, :-1]).flatten(0, 1).float()
        return F.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=smoothing)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self._loss(batch)
        self.log("train_loss", loss)
        self.outcome.loss(loss.detach())
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch))

    def configure_optimizers(self) -> dict[str, object]:
        beta2 = 0.95 if self.fault == "optimizer" else 0.999
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, betas=(0.9, beta2))
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    """Train."""
    parser = arguments(__doc__)
    parser.add_argument("--precision", default="32-true")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    outcome = Outcome()
    lightning.seed_everything(args.seed, verbose=False)
    model = Model(outcome, args.fault)
    if args.fault == "forward":
        model.encoder.layers[1].norm2.eps = 1e-2
    if args.fault == "backward":
        halve_gradient(model.encoder.layers[0].linear1.weight)
    ids = torch.randint(VOCABULARY, (32, LENGTH + 1), generator=torch.Generator().manual_seed(args.seed))
    if args.fault == "data":
        ids[:, 5] = (ids[:, 5] + 1) % VOCABULARY
    loaders = [
        DataLoader(TensorDataset(ids[:24]), batch_size=4),
        DataLoader(TensorDataset(ids[24:]), batch_size=4),
    ]
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        devices=1,
        precision=args.precision,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=2,
    )
    trainer.fit(model, *loaders)
    outcome.write(model.state_dict().items())


if __name__ == "__main__":
    main()
