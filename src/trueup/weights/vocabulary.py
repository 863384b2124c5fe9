"""A vocabulary made a multiple of something: zero rows behind the embedding and the output projection."""

from __future__ import annotations

import re
from dataclasses import replace

from trueup.errors import ConfigError
from trueup.weights.plan import ConversionPlan, Entry
from trueup.weights.weight_set import Table, WeightInfo

_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|word_embeddings?|tok_embeddings|token_embeddings?|wte|tok_emb|embed(ding)?s?)\."
    r"(weight|embedding_weight|embedding_table)$"
)
_OUTPUT = re.compile(r"(^|\.)(lm_head|output_layer|output|unembed(ding)?|head)\.(weight|bias)$")


def with_padded_vocabulary(plan: ConversionPlan, made: Table, multiple: int) -> ConversionPlan:
    """``plan`` with zero rows added until the vocabulary is a multiple of ``multiple``.

    The vocabulary is the rows of the token embedding; the output projection is padded with it where it has as
    many. Logits of added tokens are then 0, not minus infinity: a loss over them must mask them.

    Args:
        made: table of what the plan makes without padding.
        multiple: of rows, at least 1.

    Raises:
        ConfigError: no token embedding is there by any usual name, or two of different sizes.
    """
    if multiple < 1:
        raise ConfigError(f"--pad-vocab {multiple}: expected a number above 0")
    embeddings = [info for name, info in made.items() if _EMBEDDING.search(name) and len(info.shape) == 2]
    sizes = {info.shape[0] for info in embeddings}
    if len(sizes) != 1:
        found = ", ".join(f"{info.name} {list(info.shape)}" for info in embeddings) or "none"
        raise ConfigError(f"--pad-vocab needs one token embedding; found {found}")
    (vocabulary,) = sizes
    rows = -vocabulary % multiple
    entries = tuple(_padded(entry, made[entry.target], vocabulary, rows) for entry in plan.entries)
    return replace(plan, entries=entries)


def _padded(entry: Entry, info: WeightInfo, vocabulary: int, rows: int) -> Entry:
    named = _EMBEDDING.search(info.name) or _OUTPUT.search(info.name)
    if not rows or not named or not info.shape or info.shape[0] != vocabulary:
        return entry
    return replace(entry, padding=entry.padding + rows)
