"""Options that several verbs have, each worded once."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trueup.errors import ConfigError
from trueup.types.option import Option, expected

Command = Annotated[tuple[str, ...], Option("The training command, unchanged.", argument="-- COMMAND")]
Json = Annotated[bool, Option("Print one JSON document on standard output.", "--json")]
Quiet = Annotated[bool, Option("Print errors only.", "--quiet -q")]
Overwrite = Annotated[bool, Option("Overwrite existing output.", "--overwrite")]
Output = Annotated[Path | None, Option("Folder for the result and the reports.", "-o --output DIR")]
Limit = Annotated[int, Option("Maximum number of rows.", "--limit", least=1)]
AllRows = Annotated[bool, Option("Print every row.", "--all")]
Tokenizer = Annotated[
    Path | None, Option("Folder of a tokenizer, to print batches as text.", "--tokenizer DIR")
]
ReplayNoise = Annotated[
    tuple[Path, ...],
    Option(
        "Replay of a benign variant of the reference, as a noise baseline; may be repeated.",
        "--noise-replay DIR",
    ),
]
NumHeads = Annotated[
    int | None, Option("Attention heads.", "--num-heads", default="from config.json", least=1)
]
NumKvHeads = Annotated[
    int | None, Option("Key/value heads.", "--num-kv-heads", default="as --num-heads", least=1)
]
AllowUnmatched = Annotated[bool, Option("Accept weights that only one side has.", "--allow-unmatched")]


def words_from_command(text: str, place: str) -> tuple[str, ...]:
    """The words of a command given as one value.

    Raises:
        ConfigError: its quotes do not match, it is empty, or there is no such program.
    """
    from trueup.capture.launch.command import check_command

    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise expected(place, f"a shell command ({error})", text) from error
    if not words:
        raise expected(place, 'a command, such as "python train.py"', text)
    try:
        check_command(words)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    return words


def assumptions_from_words(words: Sequence[str], place: str) -> frozenset[str]:
    """What a person vouches for."""
    from trueup.curves.conditions import parse_assumptions

    return parse_assumptions(words)


def conditions_from_words(words: Sequence[str], place: str) -> dict[str, str]:
    """Conditions of the standard that were changed."""
    from trueup.curves.conditions import parse_conditions

    return parse_conditions(words)


PROOF = "What a log cannot prove"
Assumed = Annotated[
    frozenset[str],
    Option(
        "Assume weights, settings, randomness, data or all to be the same, instead of a proof.",
        "--assume WHAT",
        panel=PROOF,
        read_all=assumptions_from_words,
    ),
]
Conditions = Annotated[
    dict[str, str],
    Option(
        "Change of a default condition of the standard (dataset, accuracy_mode, parallelism, cluster, "
        "checkpoint, determinism), such as dataset=c4.",
        "--condition NAME=VALUE",
        panel=PROOF,
        read_all=conditions_from_words,
    ),
]
Configs = Annotated[
    tuple[str, str] | None,
    Option(
        "Configurations of both runs, in any form that trueup check reads.",
        "--config TARGET REFERENCE",
        default="as stored in the traces",
    ),
]
Data = Annotated[
    tuple[str, ...],
    Option(
        "Training data, or a sample of it, whose ids are compared with the special ids and the "
        "vocabulary: PREFIX.bin with PREFIX.idx, a folder of saved batches, or a trace; "
        "may be repeated.",
        "--data PATH",
    ),
]
Inference = Annotated[
    str | None,
    Option(
        "Configuration of inference with the trained TARGET (of a tokenizer, a chat template, or of "
        "MindFormers): its chat template is compared with the one of training.",
        "--inference CONFIG",
    ),
]
Curves = Annotated[
    tuple[str, ...],
    Option(
        "Logs of the long run: the target's, the reference's, and those of its repeats without determinism.",
        "--curves TARGET_LOG REFERENCE_LOG [REPEAT ...]",
        several=True,
    ),
]
Replay = Annotated[
    tuple[str, ...] | None,
    Option(
        "Training command of the target. It is run again with the values, then with the gradients of the "
        "reference; without it no verdict is certain.",
        '--replay "COMMAND"',
        read=words_from_command,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePair:
    """Target and reference."""

    target: Annotated[Path, Option("The run to check: a trace or a dump.", argument="TARGET")]
    reference: Annotated[Path, Option("The run that is trusted.", argument="REFERENCE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What goes to the terminal."""

    as_json: Json = False
    quiet: Quiet = False
