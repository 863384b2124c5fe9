"""How a fused weight whose values tell nothing may hold its parts, by its name: the likelier layout first.

Sources: q, k and v lie group by group of heads in Megatron-core (``linear_qkv``), Megatron-LM, GPT-NeoX,
BLOOM and Falcon (``query_key_value``), InternLM2 (``wqkv``) and MindFormers' Llama from 1.4 on (``w_qkv``).
They lie one above the other in ChatGLM2 to GLM-4 with ``multi_query_attention``
(``transformer.encoder.layers.N``; without it ChatGLM keeps them head by head, which is the same as groups
of one), in MindFormers' Llama 1.2 and 1.3, in its mcore models of 1.6, and under most other names.
MindFormers from 1.4 on keeps gate and up row by row in ``w_gate_hidden``, its mcore models from 1.7 on in
``linear_fc1``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trueup.errors import ConfigError
from trueup.weights.layouts import Heads, Layout

Shape = tuple[int, ...]
_NUM_QKV, _NUM_GATED = 3, 2


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A layout, and the heads it is told by."""

    layout: Layout
    heads: Heads


_CHATGLM = re.compile(r"(^|\.)transformer\.encoder\.layers\.\d+\.self_attention\.query_key_value\.")
_BY_GROUPS = re.compile(
    r"(^|\.)(language_model\.(encoder|transformer)\.layers\.\d+\.(self_)?attention\.query_key_value"
    r"|gpt_neox\.layers\.\d+\.attention\.query_key_value"
    r"|h\.\d+\.self_attention\.query_key_value"
    r"|attention\.wqkv)\."
)
"""names that only programs with groups of heads have"""
_GROUPS_FIRST = re.compile(r"(^|\.)(linear_qkv|query_key_value|w_qkv)\.")
_ROWS_FIRST, _ROWS_SECOND = re.compile(r"(^|\.)w_gate_hidden\."), re.compile(r"(^|\.)linear_fc1\.")
PLAIN, BY_ROWS = Arrangement("concat", Heads()), Arrangement("interleaved_rows", Heads())


def arrangements(
    name: str, parts: Sequence[str], shapes: Sequence[Shape], *, attention: bool, num_heads: int | None
) -> tuple[Arrangement, ...]:
    """The layouts in which ``name`` may hold ``parts``, the likelier first; one where its name decides.

    Args:
        name: of the fused weight.
        parts: names of what it holds, in order.
        shapes: of the parts.
        attention: whether the parts are q, k and v.
        num_heads: of the queries, where known.

    Raises:
        ConfigError: the likelier layout is by groups of heads, and their number is not known or does not fit.
    """
    low = f"{name.lower()}."
    if len(parts) == _NUM_GATED and _ROWS_FIRST.search(low):
        return (BY_ROWS, PLAIN)
    if len(parts) == _NUM_GATED and _ROWS_SECOND.search(low):
        return (PLAIN, BY_ROWS)
    if not attention or len(parts) != _NUM_QKV:
        return (PLAIN,)
    grouped_only = _BY_GROUPS.search(low) is not None
    groups_first = grouped_only or _GROUPS_FIRST.search(low) is not None
    several_queries = shapes[0][0] != shapes[1][0]
    if _CHATGLM.search(low) and several_queries:
        return (PLAIN,)
    if num_heads is None and not groups_first:
        return (PLAIN,)
    heads = _heads(name, shapes, num_heads)
    if heads.num_kv_heads == 1:  # one group: both are the same
        return (PLAIN,)
    grouped = Arrangement("grouped_qkv", heads)
    if grouped_only or _CHATGLM.search(low):
        return (grouped,)
    return (grouped, PLAIN) if groups_first else (PLAIN, grouped)


def _heads(name: str, shapes: Sequence[Shape], num_heads: int | None) -> Heads:
    num, _ = Heads(num_heads=num_heads).both(f"{name}, which holds the rows of each group of heads together,")
    query, key = shapes[0][0], shapes[1][0]
    if not query or query % num or num * key % query:
        raise ConfigError(f"{name}: {query} rows of queries and {key} of keys are not those of {num} heads")
    return Heads(num_heads=num, num_kv_heads=num * key // query)
