"""``trueup diagnose``: two runs, one verdict, with evidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from trueup.cli.printing import notes, print_json, stdout_to_file
from trueup.cli.roles import by_role
from trueup.cli.shared import Configs, Curves, Printed, Replay, ReplayNoise, Tokenizer, TracePair
from trueup.comparing.options import MappingOption, NoiseProfileOption
from trueup.types.option import Option

PROGRAM_LOG = "program.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseOptions:
    """What is used for a diagnosis, and where it goes."""

    output: Annotated[Path, Option("Folder for the diagnosis.", "-o --output DIR")]
    replay: Replay = None
    budget: Annotated[
        float,
        Option(
            "Seconds for further runs with --replay, each as long as a replay: what is supposed to be the "
            "cause is tried in one, and what was found is confirmed in one. 0: none.",
            "--budget SECONDS",
            default="30",
            least=0,
            no_effect="without --replay",
            only_with="replay",
        ),
    ] = 30.0
    replayed: Annotated[Path | None, Option("Use this replay instead of making one.", "--replayed DIR")] = (
        None
    )
    gradients: Annotated[
        Path | None, Option("Use this gradient replay instead of making one.", "--gradients DIR")
    ] = None
    noise: NoiseProfileOption = True
    noise_replay: ReplayNoise = ()
    tokenizer: Tokenizer = None
    mapping: MappingOption = None
    config: Configs = None
    curves: Curves = ()
    html: Annotated[bool, Option("Write diagnosis.html.", "--html/--no-html")] = True


def command(runs: TracePair, options: DiagnoseOptions, printed: Printed) -> int:
    """Find out why two runs differ: what differs, where, the kind of fault, the confidence, and what to do
    next.

    Checks the stages of a training step: configuration, data, initial weights, forward and loss, backward,
    reduction and clipping, optimizer, the next loss; then the long run. Of jobs with several process groups
    (verl's critic) each role is diagnosed with its counterpart. Exit status: 0 if the runs agree, 1 if they
    differ, 2 if that cannot be decided.
    """

    def one(target: Path, reference: Path, output: Path | None) -> int:
        return _diagnosed(target, reference, output or options.output, options, printed)

    quiet = printed.quiet or printed.as_json
    return by_role(runs.target, runs.reference, options.output, one, quiet=quiet)


def _diagnosed(
    target: Path, reference: Path, output: Path, options: DiagnoseOptions, printed: Printed
) -> int:
    from trueup.capture.launch.folder import make_writable
    from trueup.diagnosing.pipeline import diagnose

    make_writable(output)
    with stdout_to_file(output / PROGRAM_LOG):
        diagnosis = diagnose(
            target,
            reference,
            output=output,
            command=options.replay,
            budget=options.budget,
            replay=options.replayed,
            gradients=options.gradients,
            noise=options.noise,
            replay_noise=options.noise_replay,
            tokenizer=options.tokenizer,
            mapping=options.mapping,
            configs=options.config,
            curves=options.curves,
            say=notes(quiet=printed.quiet or printed.as_json),
        )
    from trueup.reporting.diagnosis import diagnosis_report
    from trueup.reporting.render import show, write

    report = output / "diagnosis.html"
    reports = [write(diagnosis_report(diagnosis), report)] if options.html else []
    if printed.as_json:
        print_json(diagnosis.to_json())
    elif not printed.quiet:
        from rich.console import Console

        show(diagnosis_report(diagnosis, reports=reports), Console())
    return diagnosis.exit_code
