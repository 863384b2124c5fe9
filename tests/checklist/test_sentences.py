"""What a check says of two configurations, of data and of versions, checked from settings and ids alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.checklist.guided import write
from trueup.checklist import check
from trueup.checklist.check import Checklist, compared
from trueup.checklist.configuration import Configuration, configured
from trueup.checklist.data_ids import DataIds, judge_ids
from trueup.checklist.document import advice_headline, headline, training_headline
from trueup.checklist.judging import DemandRow, DemandStatus
from trueup.checklist.recommendations import Unmet, recommendations
from trueup.checklist.settings import Setting, SettingsDocument
from trueup.checklist.templates import judge_inference
from trueup.checklist.versions import judge_versions, table
from trueup.types.codes import ChecklistCode as Code
from trueup.types.reason import Reason, reason
from trueup.wording import text

RANDOM = np.random.default_rng(46)
GOOD: dict[str, Any] = {"num_layers": 2, "hidden_size": 64}


def side(values: Mapping[str, object], dialect: str = "plain") -> Configuration:
    settings = {key: Setting(key=key, value=value, place="a.json") for key, value in values.items()}
    return configured([SettingsDocument(dialect=dialect, path="a.json", settings=settings, kind="json")])


def pair(target: Mapping[str, object], reference: Mapping[str, object], **options: Any) -> Checklist:
    return compared(side(target), side(reference), **options)


def row_of(found: Checklist, key: str) -> DemandRow:
    return next(row for row in found.rows if row.key == key)


def unmet_of(found: Checklist, key: str) -> Unmet | None:
    return next((one for one in found.unmet if one.key == key), None)


ERRORS = {
    "num_layers": (2, 3),
    "hidden_size": (64, 66),
    "intermediate_size": (7, 8),
    "learning_rate": (0.1, 0.2),
}
WARNINGS = {"micro_batch_size": (2, 4), "gradient_accumulation": (1, 2)}
UNRULED = {"my_gain": (1, 2), "my_other": ("a", "b")}
VIOLATED = {"clip_grad": (1.0, 5.0)}
SUGGESTED = {"warmup_steps": (0, 7)}


def drawn() -> tuple[dict[str, Any], dict[str, Any]]:
    """Two configurations that differ in a few of the settings; some of them one side does not set."""
    target, reference = dict[str, Any](), dict[str, Any]()
    for settings in (ERRORS, WARNINGS, UNRULED, VIOLATED, SUGGESTED):
        for key, values in settings.items():
            which = RANDOM.choice(["same", "apart", "alone", "none"], p=[0.75, 0.12, 0.06, 0.07])
            own = values[int(RANDOM.random() < 0.3)]
            if which != "none":
                target[key] = own
            if which in ("same", "apart"):
                reference[key] = own if which == "same" else values[own == values[0]]
    return target | {"vocab_size": 32}, reference | {"vocab_size": 32}


def test_both_headlines_of_any_two() -> None:
    seen = set()
    for at in range(60):
        target, reference = drawn()
        limits = [{}, {"ignore": ["optimizer"]}, {"recommend": False}][at % 3]
        found = pair(target, reference, **limits)
        shared = target.keys() & reference.keys()
        ignored = {"learning_rate", "clip_grad", "warmup_steps"} if "ignore" in limits else set()
        ignored |= set(WARNINGS) if "ignore" in limits else set()
        apart = {key for key in shared - ignored if target[key] != reference[key]}
        alone = (target.keys() ^ reference.keys()) - ignored
        grave = {key for key in apart if key in (*ERRORS, "clip_grad", "warmup_steps")}
        said = training_headline(found)
        seen.add(said.code)
        if said.code is Code.OTHER_TRAINING:
            assert said.facts == {"num": len(grave), "more": len(apart & WARNINGS.keys())}
            assert grave
        elif said.code is Code.OTHER_NUMBERS:
            assert not grave
            assert said.facts["num"] == len(apart & WARNINGS.keys()) > 0
        elif said.code is Code.OPEN:
            assert not grave | (apart & WARNINGS.keys())
            assert said.facts["num"] == len(
                [key for key in alone if key in (*ERRORS, "clip_grad", "warmup_steps")]
            )
        elif said.code is Code.NOT_JUDGED:
            lone = {key for key in UNRULED if target.get(key) != reference.get(key)}
            assert said.facts["num"] == len(lone) > 0
        else:
            assert said.code is (Code.LIMITED_SAME if ignored else Code.SAME_TRAINING)
            assert not apart - UNRULED.keys()
            assert ignored or not apart
        advice = advice_headline(found)
        seen.add(advice.code)
        if not ignored and advice.code is not Code.NOT_ASKED:
            violates = any(of.get("clip_grad") == 5.0 for of in (target, reference))
            suggests = any(of.get("warmup_steps") == 7 for of in (target, reference))
            assert (advice.code is Code.UNMET) is violates, [one.key for one in found.unmet]
            assert (advice.code is Code.NOTES_UNMET) is (suggests and not violates)
            assert (advice.code is Code.ALL_MET) is not (suggests or violates)
            if violates:
                assert advice.facts == {"num": 1, "notes": int(suggests)}
        assert (advice.code is Code.NOT_ASKED) is ("recommend" in limits)
        assert headline(found) == reason(Code.TWO_PARTS, said, advice)
    assert seen >= {Code.OTHER_TRAINING, Code.OTHER_NUMBERS, Code.OPEN, Code.NOT_JUDGED, Code.SAME_TRAINING}
    assert seen >= {Code.UNMET, Code.NOTES_UNMET, Code.ALL_MET, Code.NOT_ASKED, Code.LIMITED_SAME}


def test_what_was_not_looked_at_is_not_met() -> None:
    """Of some sections, or fields, nothing is said of all recommendations."""
    for values, code in (({"warmup_steps": 7}, Code.NOTES_UNMET), ({"warmup_steps": 0}, None)):
        for only in ((), ("optimizer",)):
            found = pair(GOOD | values, GOOD | values, only=only)
            said = advice_headline(found)
            assert said.code is (code or (Code.LIMITED_MET if only else Code.ALL_MET))
            assert ("recommendations are met" in text(said)) is not bool(only)
    alone = compared(side(GOOD), None)
    assert headline(alone) == advice_headline(alone)


def test_rows_that_cannot_be_compared(tmp_path: Path) -> None:
    for own, other in ((2, "many"), ("many", 2), ("many", "many"), (2, None), (None, 2), (2, 2)):
        sides = [{"hidden_size": 64} | ({} if of is None else {"num_layers": of}) for of in (own, other)]
        row = row_of(pair(*sides), "num_layers")
        named = {"target": own, "reference": other}
        broken = [name for name, of in named.items() if of == "many"]
        lacks = [name for name, of in named.items() if of is None]
        parts = [] if row.reason is None else [*row.reason.parts] or [row.reason]
        if broken:
            assert {one.code for one in parts} == {Code.UNREADABLE}
            assert [one.place("side") for one in parts] == broken
            assert row.reason is not None
            assert (row.reason.code is Code.SIDES) is (len(broken) == 2)
            assert [text(one).split(":")[0] for one in parts] == broken
        elif lacks:
            assert parts == [reason(Code.NOT_SET, side=lacks[0])]
        else:
            assert parts == []
    sides = [write(tmp_path / name, dialect) for name, dialect in (("t", "mindformers"), ("r", "megatron"))]
    seen = set()
    for turned in (False, True):
        given = sides[::-1] if turned else sides
        found = check(given[:1], given[1:])
        for row in found.rows:
            own, other = row.target.value, row.reference.value if row.reference else None
            for one in [] if row.reason is None else [row.reason, *row.reason.parts]:
                seen.add(one.code)
                if one.code is Code.NOT_CONFIGURABLE:
                    silent, has = (own, other) if one.place("side") == "target" else (other, own)
                    assert silent is None
                    assert has is not None
                elif one.code is Code.FOLLOWS:
                    assert str(own if one.place("side") == "target" else other) == one.place("value")
                    assert own != other
                    assert row in found.suspects
                elif one.code is Code.BY_HAND:
                    assert row.status is DemandStatus.BY_HAND
                    assert (own, other) == (None, None)
        assert len([row for row in found.rows if row.status is DemandStatus.SUSPECT]) == len(found.suspects)
    assert seen >= {Code.NOT_CONFIGURABLE, Code.FOLLOWS, Code.BY_HAND}
    said = reason(Code.SUSPECTS, keys=[row.key for row in found.suspects])
    assert all(row.key in text(said) for row in found.suspects)


def test_one_effect_of_two_values() -> None:
    """Adam without weight decay is AdamW without it; with it they are two optimizers."""
    for decay in (0.0, 0.1):
        for own, other in (("adam", "adamw"), ("adamw", "adamw"), ("adam", "sgd")):
            row = row_of(
                pair({"optimizer": own, "weight_decay": decay}, {"optimizer": other, "weight_decay": decay}),
                "optimizer",
            )
            same = own == other or ({own, other} == {"adam", "adamw"} and decay == 0)
            assert (row.status is DemandStatus.DIFFERENT) is not same
            assert (row.reason is not None and row.reason.code is Code.SAME_EFFECT) is (same and own != other)


def test_a_broken_condition() -> None:
    for _ in range(12):
        sides = []
        for _side in range(2):
            micro, times, parallel = (int(RANDOM.integers(1, 3)) for _ in range(3))
            whole = micro * times * parallel + int(RANDOM.random() < 0.3)
            sides.append(
                {
                    "micro_batch_size": micro,
                    "gradient_accumulation": times,
                    "data_parallel": parallel,
                    "global_batch_size": whole,
                }
            )
        found = pair(*sides)
        wrong = [
            name
            for name, of in zip(("target", "reference"), sides, strict=True)
            if of["global_batch_size"]
            != of["micro_batch_size"] * of["gradient_accumulation"] * of["data_parallel"]
        ]
        rows = [row for row in found.rows if row.key == "batch_adds_up"]
        assert len(rows) == bool(wrong)
        for row in rows:
            assert row.reason is not None
            assert (row.reason.code, row.reason.facts["sides"]) == (Code.BROKEN, tuple(wrong))
            shown = re.match(r"(.*): the global batch", text(row.reason))
            assert shown is not None
            assert shown[1] == " and ".join(f"the {name}" for name in wrong)
            one = unmet_of(found, "batch_adds_up")
            assert one is not None
            assert (one.sides, one.wanted.code) == (tuple(wrong), Code.WANTED_WORDS)


def test_what_is_recommended() -> None:
    """A value, yes or no, or words; of two sides with a value each of its own, words."""
    for key, values, code, shown in (
        ("clip_grad", (5.0, 5.0), Code.WANTED, "1.0"),
        ("adam_eps", (1e-5, 1e-5), Code.WANTED, "1e-8"),
        ("enable_sdrop", (False, False), Code.WANTED_ON, "yes"),
        ("graph_kernel_fusion", (True, True), Code.WANTED_OFF, "no"),
        ("vocab_size", (1001, 1001), Code.WANTED, "1008"),
        ("vocab_size", (1001, 1003), Code.WANTED, "1008"),
        ("vocab_size", (1001, 2003), Code.WANTED_WORDS, None),
    ):
        more = {"optimizer": "adamw", "num_experts": 4, "capacity_factor": 1.5, "experts_per_token": 2}
        found = pair(*(GOOD | more | {key: value} for value in values))
        one = unmet_of(found, key)
        assert one is not None, key
        assert one.wanted.code is code
        assert shown is None or text(one.wanted) in (shown, shown.removesuffix(".0"))
        assert dict(one.how).keys() <= {"target", "reference"}
        if code is Code.WANTED_WORDS:
            assert one.value is None
            assert all(
                str(-(-value // 16) * 16) in dict(one.how)[name]
                for name, value in zip(one.sides, values, strict=False)
            )


def test_versions_of_any_stack() -> None:
    good = side(GOOD)
    names = ("mindformers", "mindspore", "cann", "driver")
    sets = table()["sets"]
    every = {name: [*sorted({str(row[name]) for row in sets}), "0.0.1"] for name in names}
    for _ in range(80):
        row = sets[RANDOM.integers(len(sets))]
        stated = {
            name: str(row[name]) if RANDOM.random() < 0.7 else str(RANDOM.choice(every[name]))
            for name in names
            if RANDOM.random() < 0.7
        }
        found = judge_versions(stated)
        assert (found is None) is (len(stated) < 2)
        if found is None:
            continue
        together = any(all(str(one[name]) == version for name, version in stated.items()) for one in sets)
        known = all(any(str(one[name]) == version for one in sets) for name, version in stated.items())
        code = Code.ONE_SET if together else Code.NO_SET if known else Code.UNKNOWN_VERSIONS
        assert found.sentence.code is code
        assert all(f"{name} {version}" in text(found.sentence) for name, version in stated.items())
        sides = {"target": found, "reference": judge_versions({"mindspore": "2.4.0", "cann": "8.0.RC2"})}
        for one in recommendations([], good, good, {k: v for k, v in sides.items() if v}):
            assert one.wanted.code is Code.PUBLISHED_TOGETHER
            wrong = {
                name: verdict for name, verdict in sides.items() if verdict and verdict.together is False
            }
            assert one.sides == tuple(wrong)
            assert one.reason is not None
            assert all(v.sentence in (one.reason, *one.reason.parts) for v in wrong.values())


def ids(rows: np.ndarray[Any, Any], **told: Any) -> DataIds:
    values, counts = np.unique(rows, return_counts=True)
    return DataIds(
        path="wiki.bin",
        num_ids=rows.size,
        least=int(values[0]),
        largest=int(values[-1]),
        counts=dict(zip(values.tolist(), counts.tolist(), strict=True)),
        **told,
    )


def test_ids_of_any_data() -> None:
    for _ in range(25):
        size = int(RANDOM.integers(20, 40))
        rows = RANDOM.integers(RANDOM.integers(0, 2), size + RANDOM.integers(-1, 2), (8, 16))
        rows[RANDOM.random(rows.shape) < RANDOM.choice([0.0, 0.5])] = 3
        end, whole = int(RANDOM.integers(0, 5)), bool(RANDOM.random() < 0.5)
        data = ids(rows, end=end, is_whole=whole)
        own = {
            name: {
                "vocab_size": size + int(RANDOM.integers(0, 2)),
                "eos_token_id": int(RANDOM.integers(0, 5)),
            }
            | ({"unk_token_id": 3} if RANDOM.random() < 0.5 else {})
            for name in ("target", "reference")
        }
        found = {one.key: one for one in judge_ids([data], *map(side, own.values()))}
        beyond = [name for name, of in own.items() if rows.max() >= of["vocab_size"]]
        assert ("input_ids" in found) is bool(beyond)
        if beyond:
            one = found["input_ids"]
            assert one.sides == tuple(beyond)
            assert one.wanted.code is Code.WITHIN_VOCABULARY
            facts = {"least": rows.min(), "largest": rows.max(), "path": "wiki.bin"}
            assert one.reason == reason(Code.IDS_BEYOND, **facts)
        wrong = [name for name, of in own.items() if of["eos_token_id"] != end]
        assert ("eos_token_id" in found) is bool(wrong)
        if wrong:
            one = found["eos_token_id"]
            stated = own[wrong[0]]["eos_token_id"]
            times = int((rows == stated).sum())
            said = text(one.reason or Reason(Code.BY_HAND))
            assert one.reason is not None
            assert (one.reason.code, one.wanted) == (Code.DATA_ID, reason(Code.WANTED, value=end))
            assert one.reason.facts["times"] == times
            assert (f"sample of {rows.size} ids" in said) is not whole
            assert ("never" in said) is (times == 0)
        share = float((rows == 3).mean())
        unknown = [
            name for name, of in own.items() if "unk_token_id" in of and of["eos_token_id"] != 3 != end
        ]
        if "unk_token_id" in found:
            one = found["unk_token_id"]
            assert set(one.sides) <= set(unknown)
            assert one.wanted.code is Code.ANOTHER_TOKENIZER
            assert one.reason == reason(Code.UNKNOWN_IDS, share=share, id=3, path="wiki.bin")
            assert share > 0
        else:
            assert not unknown or share < 0.5


def test_the_template_of_inference(tmp_path: Path) -> None:
    texts = [
        "<u>{{ messages[0].content }}</u>",
        "<a>{{ messages[0].content }}</a>",
        "{{ '<u>' }}{{ messages[0]['content'] }}</u>",
    ]
    for own in texts:
        for other in texts:
            (tmp_path / "i.json").write_text(json.dumps({"chat_template": other}))
            found = judge_inference(side({"chat_template": own}), side({"chat_template": other}))
            rendered = [one.replace("{{ '<u>' }}", "<u>")[:3] for one in (own, other)]
            assert (found is None) is (rendered[0] == rendered[1])
            if found is not None:
                assert found.wanted == reason(Code.INFERENCE_TEMPLATE, place="a.json")
                assert found.target is not None
                assert found.target.value == own
