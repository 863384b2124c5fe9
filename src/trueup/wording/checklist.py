"""English of the checklist of configurations; the texts of its rules are in checklist/rules/*.yaml."""

from __future__ import annotations

from trueup.types.codes import ChecklistCode as C
from trueup.types.reason import reason
from trueup.wording.phrase import ReasonFacts, clause, count, heading


def _sided(facts: ReasonFacts, what: str) -> str:
    return f"{facts['side']}: {what}" if facts["side"] else what


def _broken(facts: ReasonFacts) -> str:
    where = " and ".join(f"the {side}" for side in facts["sides"])
    return f"{where}: {facts['says']}" if where else str(facts["says"])


def _versions(facts: ReasonFacts) -> str:
    return ", ".join(
        f"{name} {version}" for name, version in zip(facts["names"], facts["versions"], strict=True)
    )


def _wanted(facts: ReasonFacts) -> str:
    value = facts["value"]
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.10g}".partition("e")
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return str(value)


_PLACES = {
    "bos_token_id": "documents begin with",
    "eos_token_id": "documents end with",
    "pad_token_id": "rows are padded with",
}


def _data_id(facts: ReasonFacts) -> str:
    own = "never occurs" if not facts["times"] else f"occurs {count(facts['times'], 'time')}"
    sample = facts.get("sample")
    where = "" if sample is None else f" in a sample of {count(sample, 'id')}"
    return f"{facts['path']}: {_PLACES[facts['key']]} {facts['id']}; {facts['own']} {own}{where}"


_DEFAULT = reason(C.DEFAULT, side="target", of="Megatron-LM")
_WHY = ({"side": "target", "why": "a number was expected"}, {"side": "", "why": "it is fixed"})
_STACK: dict[str, object] = {
    "names": ("mindspore", "cann"),
    "versions": ("2.4.0", "8.0"),
    "as_of": "2025-06",
}


def _other_training(facts: ReasonFacts) -> str:
    num, more = facts["num"], facts["more"]
    differ = (
        f"{count(num, 'setting')} {'differs and changes' if num == 1 else 'differ and change'} the training"
    )
    return differ + (f", {more} more may change the numbers" if more else "")


PHRASES = {
    C.TWO_PARTS: heading(
        lambda facts: ". ".join(facts.parts),
        {"parts": (reason(C.SAME_TRAINING), reason(C.ALL_MET))},
    ),
    C.ALL_MET: heading("The guide's recommendations are met, as far as stated"),
    C.LIMITED_MET: heading("No checked recommendation of the guide is violated"),
    C.UNMET: heading(
        lambda facts: (
            f"{count(facts['num'], 'recommendation')} of the guide "
            f"{'is' if facts['num'] == 1 else 'are'} not met"
            + (f" ({count(facts['notes'], 'suggestion')} more)" if facts["notes"] else "")
        ),
        {"num": 1, "notes": 0},
        {"num": 3, "notes": 2},
    ),
    C.NOTES_UNMET: heading(
        lambda facts: (
            (
                "No checked recommendation is violated; "
                if facts.get("limited")
                else "The guide's recommendations are met; "
            )
            + f"{count(facts['num'], 'suggestion')} {'is' if facts['num'] == 1 else 'are'} not"
        ),
        {"num": 1, "limited": False},
        {"num": 3, "limited": True},
    ),
    C.NOT_ASKED: heading("The guide's recommendations were left out (--no-recommendations)"),
    C.OTHER_TRAINING: heading(_other_training, {"num": 1, "more": 0}, {"num": 2, "more": 1}),
    C.OTHER_NUMBERS: heading(
        lambda facts: (
            f"{count(facts['num'], 'setting')} {'differs' if facts['num'] == 1 else 'differ'} and may change "
            "the numbers"
        ),
        {"num": 1},
        {"num": 2},
    ),
    C.RATES_DIFFER: heading("No compared setting differs, but the computed learning rates do"),
    C.OPEN: heading("Nothing differs, but {num:count setting} could not be compared", {"num": 1}),
    C.NOT_JUDGED: heading(
        lambda facts: (
            f"Nothing differs that a rule reads, but {count(facts['num'], 'other setting')} "
            f"{'differs' if facts['num'] == 1 else 'differ'}"
        ),
        {"num": 1},
        {"num": 3},
    ),
    C.LIMITED_SAME: heading("Nothing differs in the checked sections"),
    C.SAME_TRAINING: heading("The configurations describe the same training"),
    C.SAME_ENVIRONMENT: heading(
        "Only environments were compared; no setting that decides the training differs"
    ),
    C.NOTHING_READ: heading("Nothing was compared: no setting that a rule reads is on every side"),
    C.BY_HAND: clause("{says}", {"says": "compare the data files by hand"}),
    C.BROKEN: clause(
        _broken,
        {"sides": ("target", "reference"), "says": "warmup is longer than the run"},
        {"sides": (), "says": "warmup is longer than the run"},
    ),
    C.UNREADABLE: clause(
        lambda facts: _sided(facts, facts["why"]),
        *_WHY,
    ),
    C.NOT_CONFIGURABLE: clause(
        lambda facts: _sided(facts, facts["why"]),
        *_WHY,
    ),
    C.DEFAULT: clause(
        lambda facts: _sided(facts, f"default of {facts['of']}"),
        {"side": "target", "of": "Megatron-LM"},
        {"side": "", "of": "Megatron-LM"},
    ),
    C.SIDES: clause("{parts:join ; }", {"parts": (_DEFAULT,)}),
    C.SAME_EFFECT: clause(
        lambda facts: "; ".join(("the same in effect", *facts.parts)), {}, {"parts": (_DEFAULT,)}
    ),
    C.OTHER_EFFECT: clause("one value, but its effect differs with the other settings of each side"),
    C.NOT_SET: clause("not set in the {side}", {"side": "target"}),
    C.WANTED: clause(_wanted, {"value": 1e-8}, {"value": "float32"}),
    C.WANTED_ON: clause("yes"),
    C.WANTED_OFF: clause("no"),
    C.WANTED_WORDS: clause("{words}", {"words": "below 0.05"}),
    C.SAME_ON_BOTH: clause("the same on both sides"),
    C.PUBLISHED_TOGETHER: clause("versions published as one set"),
    C.FOLLOWS: clause(
        lambda facts: _sided(facts, f"{facts['value']}, as it {facts['why']}"),
        {"side": "reference", "value": "bfloat16", "why": "follows the dtype of the model's weights"},
    ),
    C.SUSPECTS: clause(
        lambda facts: (
            f"{', '.join(facts['keys'])}: computed in another dtype in the code of one framework; "
            "verify it in the precision table of trueup compare"
        ),
        {"keys": ("embedding_dtype",)},
    ),
    C.IDS_BEYOND: clause(
        "{path}: ids from {least} to {largest}", {"path": "wiki.bin", "least": 0, "largest": 32000}
    ),
    C.WITHIN_VOCABULARY: clause("0 <= id < vocab_size"),
    C.DATA_ID: clause(
        _data_id,
        *(
            {"path": "wiki.bin", "key": key, "id": 0, "own": 2, "times": times}
            for key, times in zip(_PLACES, (0, 1, 5), strict=True)
        ),
        {"path": "wiki.bin", "key": "eos_token_id", "id": 0, "own": 2, "times": 0, "sample": 4096},
    ),
    C.UNKNOWN_IDS: clause(
        "{path}: {share:percent} of the ids are {id}, what the tokenizer does not know",
        {"path": "wiki.bin", "share": 0.12, "id": 0},
    ),
    C.NO_SUCH_LABEL: clause(
        "{path} holds no id {ids:list}: no label is ignored on either side",
        {"path": "wiki.bin", "ids": ("0", "5")},
        {"path": "wiki.bin", "ids": ("0",)},
    ),
    C.IGNORED_LABELS: clause(
        "{path}: {num} of {all:count id} {num:verb are} {id}, whose labels give no loss in the {side}",
        {"path": "wiki.bin", "num": 12, "all": 4096, "id": 0, "side": "target"},
    ),
    C.NONE_IN_SAMPLE: clause(
        "{path}: a sample of {all:count id} has none of {ids:list}; the rest was not looked at",
        {"path": "wiki.bin", "all": 4096, "ids": ("0",)},
    ),
    C.ANOTHER_TOKENIZER: clause("data made with the tokenizer of this vocabulary"),
    C.INFERENCE_TEMPLATE: clause("the template of inference, {place}", {"place": "tokenizer_config.json"}),
    C.ONE_SET: clause(
        lambda facts: f"{_versions(facts)}: published as one set (table of {facts['as_of']})", _STACK
    ),
    C.UNKNOWN_VERSIONS: clause(
        lambda facts: f"{_versions(facts)}: not all are in the table of {facts['as_of']}; unknown, not wrong",
        _STACK,
    ),
    C.NO_SET: clause(
        lambda facts: (
            f"{_versions(facts)}: not published as one set; the table of {facts['as_of']} has "
            f"{'; '.join(facts['sets'])}"
        ),
        {**_STACK, "sets": ("mindspore 2.4.0, cann 8.1",)},
    ),
}
