"""How MindSpore's cells are set (``adapters.settings``), under torch's names where it has one."""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import dtype as ms_dtype
from mindspore import nn

from trueup.adapters.settings import Settings

_NEVER = frozenset(vars(nn.Cell())) | {"cls_name", "param_prefix", "instance_name", "phase"}
_DTYPES = tuple({type(ms_dtype.float32), type(ms_dtype.int32), type(ms_dtype.bool_)})
_ALIKE = {"epsilon": "eps", "vocab_size": "num_embeddings", "embedding_size": "embedding_dim"}
_settings = Settings(_DTYPES, never=_NEVER, alike=_ALIKE)
configuration_of = _settings.of_configuration


def settings_of(cells: Iterable[tuple[str, object]], prefix: str) -> dict[str, dict[str, object]]:
    """Cell fqn -> its plain attributes, cells without any left out."""
    return _settings.of_modules(cells, prefix)
