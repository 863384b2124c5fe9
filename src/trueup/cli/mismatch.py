"""``trueup mismatch``: log-probs of the rollout against those of the trainer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from trueup.cli.curves import span_from_text
from trueup.cli.printing import print_json
from trueup.cli.shared import Output, Printed, Tokenizer
from trueup.errors import ConfigError
from trueup.types.option import Option, expected


def bounds_from_words(words: Sequence[str], place: str) -> dict[str, float]:
    """``k3=1e-3`` as a measure and what is accepted of it.

    Raises:
        ConfigError: no such measure, or no number.
    """
    from trueup.mismatch.measuring import TokenMeasures

    known = [name for name in TokenMeasures.__dataclass_fields__ if name != "quantiles"]
    found = {}
    for word in words:
        name, _, text = word.partition("=")
        if name not in known:
            raise expected(place, f"MEASURE=VALUE with one of: {', '.join(known)}", word)
        try:
            found[name] = float(text)
        except ValueError:
            raise expected(place, f"a number, such as {name}=0.001", word) from None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchOptions:
    """Which tokens, and what agrees."""

    tokens: Annotated[
        tuple[Path, ...],
        Option("Token files (.npz), folders of some, or traces of RL runs.", argument="TOKENS..."),
    ] = ()
    exact: Annotated[bool, Option("Accept nothing but bit-identical log-probs and layers.", "--exact")] = (
        False
    )
    bounds: Annotated[
        dict[str, float],
        Option(
            "Most (of pearson, ess_* and min_ratio* least) that is accepted of a measure, such as "
            "k3=0.001; may be "
            "repeated.",
            "--bound MEASURE=VALUE",
            read_all=bounds_from_words,
        ),
    ] = field(default_factory=dict)
    steps: Annotated[
        tuple[int | None, int | None],
        Option("Only these training steps.", "--steps FIRST-LAST", default="all", read=span_from_text),
    ] = (None, None)
    tokenizer: Tokenizer = None
    output: Output = None


def command(options: MismatchOptions, printed: Printed) -> int:
    """Compare log-probs of sampled tokens from the rollout with those of the trainer, and say why they
    differ.

    Reads numpy archives with rollout_log_probs and training_log_probs, or with verl's or TRL's names, and
    traces
    of verl and TRL runs. Layer outputs of both forwards in the same archive say which layer differs beyond
    rounding.

    Exit status: 0 if they agree (bit-identical, explained by rounding or noise, or within --bound), 1 if they
    differ, 2 if that cannot be decided.
    """
    from trueup.mismatch.analysis import analyse
    from trueup.reporting.mismatch import FILES, mismatch_json, mismatch_report
    from trueup.reporting.render import show, write

    if not options.tokens:
        raise ConfigError("TOKENS is missing: trueup mismatch tokens.npz, or trueup mismatch RUN")
    first, last = options.steps
    found = analyse(
        options.tokens,
        exact=options.exact,
        bounds=options.bounds,
        tokenizer=options.tokenizer,
        first=first,
        last=last,
    )
    plain, written = mismatch_json(found), []
    if options.output is not None:
        from trueup.capture.launch.folder import make_writable

        make_writable(options.output)
        file = options.output / FILES["json"]
        file.write_text(json.dumps(plain, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        written = [write(mismatch_report(found), options.output / FILES["html"]), file]
    if printed.as_json:
        print_json(plain)
    elif not printed.quiet:
        from rich.console import Console

        show(mismatch_report(found, written=written), Console(highlight=False))
    return found.judgement.outcome.exit_code
