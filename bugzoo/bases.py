"""The base programs by name."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bugzoo.models.settings import ModelConfig

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "migration" / "pytorch_gpt.py"
HALF = HERE / "half" / "train.py"
MINDSPORE = HERE.parent / ".venv-mindspore" / "bin" / "python"


@dataclass(frozen=True, kw_only=True)
class Base:
    """One training program: what is trained, on what, and how."""

    name: str
    summary: str
    model: ModelConfig = field(default_factory=ModelConfig)
    library: str | None = None
    """a model of the transformers library instead of the family's"""
    precision: str = "fp32"
    """``fp32``, ``bf16`` (autocast, or weights where there are master weights) or ``fp16`` (with a scaler)"""
    master_weights: bool = False
    accumulation: int = 1
    ranks: int = 1
    reduction: str = "none"
    """``none``, ``ddp``, ``fsdp``, or by hand: ``mean``, ``sum``, ``sequence`` (sum of what norms and
    embedding got)"""
    sections: dict[str, dict[str, Any]] | None = None
    """of the reference trainer's configuration, in place of the family's model; ``parallel`` is its layout"""
    is_alone: bool = False
    """the same training in one process, whatever its layout"""
    packed: bool = False
    rows: int = 4
    length: int = 32
    learning_rate: float = 3e-3
    warmup: int = 4
    weight_decay: float = 0.1
    max_norm: float = 0.5
    ported: bool = False
    """the reference is the example's PyTorch program, the target its port to MindSpore (``port/train.py``)"""
    framework: str = "pytorch"
    """of the program that entries are planted in; with ``mindspore`` the reference trainer's other half, and
    the reference is still PyTorch"""
    resumes_at: int = 0
    """step of the checkpoint it starts from"""

    @property
    def is_on_mindspore(self) -> bool:
        """Whether entries are planted in a program on MindSpore."""
        return self.ported or self.framework == "mindspore"

    @property
    def alone(self) -> Base | None:
        """The same training in one process; None where there is nothing of the kind."""
        return replace(self, ranks=1, is_alone=True) if self.sections and self.ranks > 1 else None


def from_plain(name: str, plain: dict[str, Any]) -> Base:
    """A base from its entry in ``bases.yaml``."""
    model = ModelConfig(**plain.get("model", {}))
    return Base(name=name, **{**plain, "model": model})


@cache
def bases() -> dict[str, Base]:
    """All of them."""
    read = yaml.load(
        (HERE / "bases.yaml").read_text(encoding="utf-8"),
        Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    )
    return {name: from_plain(name, plain) for name, plain in read.items()}


def command(base: Base, *options: str, python: str = sys.executable) -> list[str]:
    """The command line that trains a base: plain Python, or torchrun's module for several processes. Of a
    ported one the original, or with an entry (``--fault NAME``, ``--benign NAME`` first) the port; so of one
    on MindSpore."""
    entry = options[:1] in (("--fault",), ("--benign",))
    if entry and base.framework == "mindspore":
        return [str(MINDSPORE), str(HALF), "--base", base.name, *options]
    if base.ported:
        return [str(MINDSPORE), str(HERE / "port" / "train.py" if entry else EXAMPLE), *options]
    alone = ["--alone"] if base.is_alone else []
    script = [str(HERE / "train.py"), "--base", base.name, *alone, *options]
    if base.ranks == 1:
        return [python, *script]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={base.ranks}"]
    return [python, *launcher, *script]
