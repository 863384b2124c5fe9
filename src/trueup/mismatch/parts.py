"""Where the difference is: by position, by length of the sequence, by class of token, over steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import Required, TypedDict  # pydantic reads typing's from Python 3.12 on

from trueup.errors import ConfigError, TraceError
from trueup.mismatch.tokens import Tokens
from trueup.store.checked import object_from_cell
from trueup.types.arrays import Bools, Floats, Ints

_MOST_PARTS = 24
"""parts of a table or plot by position and length"""
_CLASSES = ("special", "number", "space", "punctuation", "other script", "word")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPart:
    """Some tokens."""

    name: str
    first: int
    """position, length, or step; of a class its number"""
    num_tokens: int
    num_equal: int
    rms_diff: float
    max_abs_diff: float
    mean_diff: float
    """of log p_training - log p_rollout"""
    k3: float


def by_position(tokens: Tokens) -> list[TokenPart]:
    """Positions in the response: each alone, ranges of equal width where they are many."""
    return list(_ranges(tokens, tokens.position, 0))


def by_length(tokens: Tokens) -> list[TokenPart]:
    """Tokens of sequences of a length: ranges."""
    return list(_ranges(tokens, np.repeat(tokens.lengths, tokens.lengths), 1))


def by_step(tokens: Tokens) -> list[TokenPart]:
    """Every step."""
    return [_part(tokens, tokens.step == step, str(step), step) for step in tokens.steps]


def by_class(tokens: Tokens, tokenizer: Path | None) -> list[TokenPart]:
    """First and last of their sequence; by probability under the rollout; with a tokenizer by what they are.

    Raises:
        ConfigError: the folder has no tokenizer.json.
    """
    last = np.zeros(len(tokens.rollout), np.bool_)
    last[tokens.starts + tokens.lengths - 1] = True
    probability = np.exp(tokens.rollout)
    edges = {"p above 0.9": (0.9, np.inf), "p 0.1 to 0.9": (0.1, 0.9), "p up to 0.1": (-np.inf, 0.1)}
    groups = {"first token": tokens.position == 0, "last token": last}
    groups |= {name: (probability > low) & (probability <= high) for name, (low, high) in edges.items()}
    if tokenizer is not None and tokens.ids is not None:
        kinds = _kinds(tokenizer, int(tokens.ids.max()) + 1)[np.maximum(tokens.ids, 0)]
        groups |= {name: kinds == at for at, name in enumerate(_CLASSES)}
    return [_part(tokens, keep, name, at) for at, (name, keep) in enumerate(groups.items()) if keep.any()]


def rms(values: Floats) -> float:
    """Root mean square of what is known; nan of nothing."""
    known = values[np.isfinite(values)]
    return float(np.sqrt((known * known).mean())) if len(known) else np.nan


def _ranges(tokens: Tokens, keys: Ints, least: int) -> Iterator[TokenPart]:
    width = -(-(int(keys.max()) - least + 1) // _MOST_PARTS)
    at = (keys - least) // width
    for number in np.unique(at).tolist():
        first = least + number * width
        name = str(first) if width == 1 else f"{first}-{first + width - 1}"
        yield _part(tokens, at == number, name, first)


def _part(tokens: Tokens, keep: Bools, name: str, first: int) -> TokenPart:
    r = tokens.log_ratio[keep]
    known = r[np.isfinite(r)]
    nothing = not len(known)
    return TokenPart(
        name=name,
        first=first,
        num_tokens=len(r),
        num_equal=int(tokens.equal[keep].sum()),
        rms_diff=rms(r),
        max_abs_diff=np.nan if nothing else float(np.abs(known).max()),
        mean_diff=np.nan if nothing else float(known.mean()),
        k3=np.nan if nothing else float((np.exp(known) - known - 1).mean()),
    )


class _Model(TypedDict):
    vocab: Mapping[str, int] | Sequence[Sequence[object]]
    """of a Unigram tokenizer a list of words with their scores"""


class _Added(TypedDict):
    id: int


class _TokenizerFile(TypedDict, total=False):
    """``tokenizer.json``, as far as it is read here."""

    model: Required[_Model]
    added_tokens: Sequence[_Added]


def _kinds(tokenizer: Path, size: int) -> Ints:
    """Class of each token id, by the text of a Hugging Face tokenizer."""
    file = tokenizer / "tokenizer.json"
    try:
        text = file.read_text(encoding="utf-8")
        plain = object_from_cell(text, _TokenizerFile, str(file), remedy="give the folder of a tokenizer")
        vocabulary = plain["model"]["vocab"]
        words = (
            vocabulary
            if isinstance(vocabulary, Mapping)
            else {str(word[0]): number for number, word in enumerate(vocabulary)}
        )
    except (OSError, ValueError, TraceError, IndexError) as error:
        raise ConfigError(
            f"{file}: expected the tokenizer.json of a Hugging Face tokenizer ({error})"
        ) from error
    kinds = np.full(size, _CLASSES.index("other script"), np.int64)
    for word, number in words.items():
        if 0 <= number < size:
            kinds[number] = _CLASSES.index(_kind(word))
    kinds[[one["id"] for one in plain.get("added_tokens", []) if 0 <= one["id"] < size]] = 0
    return kinds


def _kind(word: str) -> str:
    """What a token is, by its text; byte-level tokenizers write a space as U+0120, others as U+2581."""
    text = word.replace("\u0120", " ").replace("\u2581", " ").replace("\u010a", "\n").strip()
    if not text:
        return "space"
    if text.isascii():
        return "number" if text.isdigit() else "word" if any(map(str.isalpha, text)) else "punctuation"
    return "other script"
