"""What a verdict is worth: stage, place and cause, from codes, identifiers and numbers, never from prose."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from bugzoo.public.entries import Facts, PublicEntry
from bugzoo.scoreboard.answers import Answer, Named

Document = dict[str, Any]
YES, HALF, NOTHING, MISLEADING = "yes", "half", "nothing", "misleading"
CLOSE = 0.01
"""relative difference of a number that is meant and one that is printed"""
OUTSIDE = ("given.text",)
"""codes of texts that are not trueup's own"""
SETTING_CODES = (
    "kind.argument",
    "evidence.argument_differs",
    "evidence.setting_differs",
    "evidence.optimizer_setting_differs",
    "origin.setting_differs",
    "optimizer.setting_differs",
    "optimizer.values",
    "setting.value",
    "setting.solved",
    "config.setting_differs",
    "optimizer.weight_decay_in_*",
)
"""codes that say that a setting or an argument differs"""
SETTING_KEYS = ("name", "argument", "setting", "key")
FORMULAS = """
    kind.softmax_rounded kind.fused_rows_by_group kind.fused_rows_by_kind kind.sees_successor
    kind.no_mask kind.key_heads_alternate kind.scores_scaled kind.rotary_pairing kind.no_rotary
    kind.keys_rotated_backward kind.attention_theta kind.causal_mask_added kind.cosines_rounded
    kind.bit_flipped kind.softmax_factor kind.dropout_rate kind.activation kind.norm_eps
    kind.rounded_loss kind.rotated_pairs kind.rotary_theta kind.rotated_backward kind.positions_shifted
    kind.angles_rounded kind.another_draw kind.gate_and_up_swapped kind.update_lost
    kind.moment_starts_anew origin.loss_divisor kind.loss_divisors kind.batch_of_* batch.rows_shifted
    batch.padding_differs batch.stream_offset batch.rows_reordered batch.row_length_differs
    batch.ids_mapped factor.[!n]* labels.shifted_twice labels.not_shifted
""".split()  # noqa: SIM905
"""patterns of codes that state one particular mechanism"""
MEASURED = ("replay.*", "origin.local_norm", "origin.also_at", "evidence.size*")
"""patterns of codes of measurements: they state no cause, whatever names and numbers stand in them"""
LOW = ("bfloat16", "float16", "tf32")


@dataclass(frozen=True, kw_only=True)
class CauseJudged:
    """What an engineer knows after reading the first finding."""

    cause: str
    """``yes``, ``half``, ``nothing`` or ``misleading``"""
    false: list[str]
    """what is stated and not so"""


def judge_cause(entry: PublicEntry, document: Document, answer: Answer) -> CauseJudged:
    """A false statement outweighs everything; the whole cause is a yes, a part of it or the place a half; who
    cannot tell says nothing."""
    if answer.outcome == "agree":
        return CauseJudged(cause=MISLEADING, false=["outcome agree"])
    if not document.get("findings"):
        return CauseJudged(cause=NOTHING, false=[])
    finding, named = document["findings"][0], answer.named[0]
    false = list(_false_places(entry, named)) + list(_false_claims(entry, finding))
    if false:
        return CauseJudged(cause=MISLEADING, false=false)
    told = any(holds(facts, finding) for facts in entry.full)
    return CauseJudged(cause=YES if told else HALF, false=[])


def is_stage(entry: PublicEntry, named: Named) -> bool:
    """Whether the stage is one that is right."""
    return named.stage in (entry.stage, *entry.also_stages)


def is_place(entry: PublicEntry, named: Named) -> bool:
    """Whether the site is; where none is asked for, or the data are named, the stage is."""
    if entry.sites is None or (named.stage == "data" and is_stage(entry, named)):
        return is_stage(entry, named)
    return entry.is_site(named.site)


def _false_places(entry: PublicEntry, named: Named) -> Iterator[str]:
    if not is_stage(entry, named):
        yield f"stage {named.stage}"
    elif not is_place(entry, named):
        yield f"place {named.site}"


def _false_claims(entry: PublicEntry, finding: Document) -> Iterator[str]:
    """Kinds, settings, dtypes and mechanisms that are named, and are not so."""
    first = finding["kinds"][0] if finding["kinds"] else None
    headline = finding["headline_reason"]
    named = headline.get("places", {}).get("kind") or (first and is_named(first) and first["name"])
    right = {*entry.kinds, *(kind for facts in (*entry.full, *entry.partial) for kind in facts.kinds)}
    if named and named not in right:
        yield f"kind {named}"
    codes = [code for facts in (*entry.full, *entry.partial) for code in facts.codes]
    found = list(reasons(finding))
    if any(reason["code"].startswith("factor.") and _is_any(reason["code"], codes) for reason in found):
        codes.append("factor.*")  # several quantities may equal the factor; the right one is among them
    for reason in found:
        code, places = reason["code"], {**reason.get("places", {}), **reason.get("numbers", {})}
        if _is_any(code, SETTING_CODES):
            name = next((str(places[key]) for key in SETTING_KEYS if key in places), "weight_decay")
            if not _is_any(name.lower(), [f"*{one.lower()}*" for one in entry.true_settings]):
                yield f"setting {name}"
        if _is_any(code, FORMULAS) and not _is_any(code, codes):
            yield f"mechanism {code}"
        if places.get("dtype") in LOW and "dtype_or_rounding" not in right and code.startswith("kind."):
            yield f"dtype {places['dtype']}"


def is_named(kind: Document) -> bool:
    """Whether a kind is more than a guess."""
    return kind.get("rank") not in ("some", "guess", "by_elimination")


def holds(facts: Facts, finding: Document) -> bool:
    """Whether all of these facts stand in a finding."""
    first = finding["kinds"][0]["name"] if finding["kinds"] else None
    found = [reason for reason in reasons(finding) if not _is_any(reason["code"], MEASURED)]
    values = [value for reason in found for value in _values(reason)]
    words = [value.lower() for value in values if isinstance(value, str)]
    return (
        (not facts.kinds or first in facts.kinds)
        and (not facts.codes or any(_is_any(reason["code"], facts.codes) for reason in found))
        and (not facts.names or any(_has(name.lower(), words) for name in facts.names))
        and all(any(_same(wanted, value) for value in values) for wanted in facts.values)
    )


def reasons(finding: Document) -> Iterator[Document]:
    """Headline, first kind and evidence, each with its parts."""
    kinds = finding["kinds"][:1]
    given = [finding["headline_reason"], *(kind["sentence_reason"] for kind in kinds)]
    given += finding.get("evidence_reasons", [])
    for reason in given:
        yield from _with_parts(reason)


def _with_parts(reason: Document | None) -> Iterator[Document]:
    if reason and reason["code"] not in OUTSIDE:
        yield reason
        for part in reason.get("parts", []):
            yield from _with_parts(part)


def _values(reason: Document) -> Iterator[Any]:
    for value in (*reason.get("numbers", {}).values(), *reason.get("places", {}).values()):
        yield from value if isinstance(value, list) else [value]


def _has(name: str, words: list[str]) -> bool:
    """An identifier, or one with it as a part between dots, spaces or brackets."""
    return any(name == word or f" {name} " in f" {_spaced(word)} " for word in words)


def _spaced(word: str) -> str:
    return "".join(c if c.isalnum() or c in "_" else " " for c in word)


def _same(wanted: float | str | None, value: Any) -> bool:
    if wanted is None or isinstance(wanted, bool):
        return value is wanted or (str(value).lower() in ("none", "null") and wanted is None)
    if isinstance(wanted, str):
        return isinstance(value, str) and wanted in value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    return math.isclose(number, wanted, rel_tol=CLOSE)


def _is_any(text: str, patterns: Any) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)
