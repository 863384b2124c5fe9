"""Templates of conversations: whether two make the same text of the same messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def same_template(left: object, right: object) -> bool | None:
    """Whether both make the same text of several conversations; None: one is only a name, or none renders."""
    one, other = str(left).strip(), str(right).strip()
    if one == other:
        return True
    if not (_is_jinja(one) and _is_jinja(other)):
        return None if _is_jinja(one) or _is_jinja(other) else False
    texts, others = list(_rendered(one)), list(_rendered(other))
    if not any(texts) and not any(others):
        return None
    return texts == others


def fits_training(training: object, inference: object) -> bool | None:
    """Whether inference asks in the form that was trained: the same text of the same messages, and a head of
    an answer that answers have in training. A template of training need not know that head itself. None as
    of ``same_template``."""
    same = same_template(training, inference)
    if same is not False or not (_is_jinja(str(training)) and _is_jinja(str(inference))):
        return same
    trained, asked = list(_rendered(str(training).strip())), list(_rendered(str(inference).strip()))
    if trained[0::2] != asked[0::2]:
        return False
    heads = [(asked[2 * number + 1], trained[2 * number + 2]) for number in _BEFORE_AN_ANSWER]
    return all(head is not None and answer is not None and answer.startswith(head) for head, answer in heads)


def _is_jinja(text: str) -> bool:
    return "{{" in text or "{%" in text


def _rendered(text: str) -> Iterator[str | None]:
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
                    bos_token="<bos>",
                    eos_token="<eos>",
                    pad_token="<pad>",
                    unk_token="<unk>",
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
    if fits_training(own.value, other.value) is not False:
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
    return fits_training(training.values[FIELD].value, inference.values[FIELD].value) is True
