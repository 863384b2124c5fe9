"""Templates of conversations: whether two make the same text of the same messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trueup.checklist.configuration import Configuration
from trueup.checklist.judging import DemandSide
from trueup.checklist.recommendations import Unmet
from trueup.types.codes import ChecklistCode as Code
from trueup.types.reason import reason

FIELD = "chat_template"
INFERENCE = "inference_template"
"""the row of a template of inference that is not the one of training"""
_GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}\n?")
"""what Transformers marks an answer with: it prints nothing"""
_USER, _ANSWER = {"role": "user", "content": "<<one>>"}, {"role": "assistant", "content": "<<two>>"}
_SYSTEM = {"role": "system", "content": "<<zero>>"}
_CONVERSATIONS = (
    [_USER],
    [_USER, _ANSWER],
    [_USER, _ANSWER, {"role": "user", "content": " <<three>>\n"}],
    [_SYSTEM, _USER],
    [_SYSTEM, _USER, _ANSWER],
)
"""a system message, one turn and two, blanks around a text: what templates differ in"""
_BEFORE_AN_ANSWER = (0, 3)
"""of these, those that the next one adds the answer to"""
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_UNKNOWN = {name: chr(0xE000 + at) for at, name in enumerate(_TOKENS)}
"""what stands for a special token whose text no file gives: characters for private use"""
_SPECIAL = r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]"
"""how special tokens are written"""
_APART = "\x00"
Tokens = Mapping[str, str]


def same_template(
    left: object, right: object, left_tokens: Tokens | None = None, right_tokens: Tokens | None = None
) -> bool | None:
    """Whether both make the same text of several conversations; None: one is only a name, or none renders.

    A token that one writes and the other takes from a tokenizer that is not given is the same.

    Args:
        left: a template, or its name.
        right: the other.
        left_tokens: texts of the special tokens, such as ``bos_token``, as far as they are known.
        right_tokens: those of the other side.
    """
    one, other = str(left).strip(), str(right).strip()
    if not (_is_jinja(one) and _is_jinja(other)):
        return True if one == other else None if _is_jinja(one) or _is_jinja(other) else False
    if one == other and (left_tokens or {}) == (right_tokens or {}):
        return True
    texts, others = _texts(one, left_tokens), _texts(other, right_tokens)
    if not any(texts) and not any(others):
        return True if one == other else None
    return _are_same(texts, others)


def fits_training(
    training: object,
    inference: object,
    training_tokens: Tokens | None = None,
    inference_tokens: Tokens | None = None,
) -> bool | None:
    """Whether inference asks in the form that was trained: the same text of the same messages, and a head of
    an answer that answers have in training. A template of training need not know that head itself. None, and
    the arguments, as of ``same_template``."""
    same = same_template(training, inference, training_tokens, inference_tokens)
    if same is not False or not (_is_jinja(str(training)) and _is_jinja(str(inference))):
        return same
    trained, asked = _texts(str(training), training_tokens), _texts(str(inference), inference_tokens)
    given = _given(trained[0::2], asked[0::2])
    if given is None:
        return False
    trained, asked = _filled(trained, given), _filled(asked, given)
    heads = [(asked[2 * number + 1], trained[2 * number + 2]) for number in _BEFORE_AN_ANSWER]
    return all(head is not None and answer is not None and answer.startswith(head) for head, answer in heads)


def _texts(template: str, tokens: Tokens | None) -> list[str | None]:
    return list(_rendered(template.strip(), {**_UNKNOWN, **(tokens or {})}))


def _are_same(texts: Sequence[str | None], others: Sequence[str | None]) -> bool:
    return _given(texts, others) is not None


def _given(texts: Sequence[str | None], others: Sequence[str | None]) -> dict[str, str] | None:
    """The special tokens without a text, as the other side writes them; None where the texts differ."""
    if [text is None for text in texts] != [text is None for text in others]:
        return None
    one, other = (_APART.join(text or "" for text in side) for side in (texts, others))
    if one == other:
        return {}
    for pattern, text in ((one, other), (other, one)):
        match = re.fullmatch(_pattern(pattern), text)
        if match is not None:
            return {_UNKNOWN[name]: written for name, written in match.groupdict().items()}
    return None


def _pattern(text: str) -> str:
    """A text as a pattern: a token without a text is any one, and the same one throughout."""
    seen: set[str] = set()
    names = {mark: name for name, mark in _UNKNOWN.items()}
    found = []
    for part in re.split(f"([{''.join(names)}])", text):
        if part not in names:
            found.append(re.escape(part))
            continue
        name = names[part]
        found.append(f"(?P={name})" if name in seen else f"(?P<{name}>{part}|{_SPECIAL})")
        seen.add(name)
    return "".join(found)


def _filled(texts: Sequence[str | None], given: Mapping[str, str]) -> list[str | None]:
    table = str.maketrans(dict(given))
    return [None if text is None else text.translate(table) for text in texts]


def _tokens_of(side: Configuration) -> Tokens:
    """The texts of special tokens that its files give: ``tokenizer_config.json`` has them."""
    found = {}
    for document in side.documents:
        for name in _TOKENS:
            for key in (name, f"{name}.content"):
                if key in document.settings and isinstance(text := document.settings[key].value, str):
                    found[name] = text
    return found


def _is_jinja(text: str) -> bool:
    return "{{" in text or "{%" in text


def _rendered(text: str, tokens: Tokens) -> Iterator[str | None]:
    """The text of each conversation, with and without the head of an answer; None where it is refused."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals.update(raise_exception=_refuse, strftime_now=str)
    try:
        template = environment.from_string(_GENERATION.sub("", text))
    except TemplateError:
        yield from [None] * (2 * len(_CONVERSATIONS))
        return
    for messages in _CONVERSATIONS:
        for prompted in (False, True):
            try:
                yield template.render(
                    messages=messages,
                    add_generation_prompt=prompted,
                    tools=None,
                    documents=None,
                    **tokens,
                )
            except (TemplateError, TypeError, ValueError, ArithmeticError):
                yield None


def _refuse(message: object) -> None:
    raise TemplateError(str(message))


def judge_inference(training: Configuration, inference: Configuration) -> Unmet | None:
    """The template of inference against the one of training; None where nothing shows two templates."""
    if FIELD not in training.values or FIELD not in inference.values:
        return None
    own, other = training.values[FIELD], inference.values[FIELD]
    if fits_training(own.value, other.value, _tokens_of(training), _tokens_of(inference)) is not False:
        return None
    cells = [
        DemandSide(
            value=value.value,
            origin=value.origin,
            keys=tuple(s.key for s in value.settings),
            places=tuple(s.place for s in value.settings),
        )
        for value in (own, other)
    ]
    places = (other.settings[0].place if other.settings else inference.name,)
    return Unmet(
        key=INFERENCE,
        section="data",
        about="Template of conversations in inference",
        severity="error",
        sides=("target",),
        target=cells[0],
        reference=None,
        wanted=reason(Code.INFERENCE_TEMPLATE, place=places[0]),
        value=other.value,
        why="In fine-tuning the template of training and of inference must be the same.",
        advice="Use one template for both",
        sources=("other: Training Inference Template Consistency",),
    )


def is_shown_same(training: Configuration, inference: Configuration) -> bool:
    """Whether both templates are known and the same, so that a person need not look."""
    if FIELD not in training.values or FIELD not in inference.values:
        return False
    own, other = training.values[FIELD].value, inference.values[FIELD].value
    return fits_training(own, other, _tokens_of(training), _tokens_of(inference)) is True
