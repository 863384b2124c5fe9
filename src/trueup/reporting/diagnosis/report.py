"""A diagnosis as a document: the verdict, why, the model with its errors, the stages, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trueup.diagnosing.diagnosis import FILE, Diagnosis, StepLoss
from trueup.diagnosing.stages.protocol import StageOutcome, StageStatus
from trueup.reporting.diagnosis.drawing import model_drawing
from trueup.reporting.diagnosis.errors import error_drawing
from trueup.reporting.diagnosis.model import points_of
from trueup.reporting.diagnosis.words import (
    BASES,
    FAMILIES,
    STAGES,
    coordinates,
    sources,
    way,
)
from trueup.reporting.document import (
    OUTCOMES,
    Cell,
    Column,
    Document,
    Fact,
    Facts,
    Form,
    Look,
    Mark,
    On,
    Paragraph,
    Picture,
    Row,
    Section,
    Sources,
    Span,
    Table,
    Tone,
    fact,
    facts,
    reason_text,
    source_fact,
)
from trueup.reporting.formatting import as_sentence, plain, short_site
from trueup.types.codes import NextCode, NoteCode
from trueup.types.finding import Finding
from trueup.wording.catalogue import command
from trueup.wording.kinds import kind_word
from trueup.wording.stages import STAGE_TITLES

_MARKS = {
    StageStatus.PASSED: Mark("✓", "passed", Tone.GOOD),
    StageStatus.FAILED: Mark("✗", "failed", Tone.BAD),
    StageStatus.CONSEQUENCE: Mark("→", "follows from an earlier stage", Tone.FOLLOWS),
    StageStatus.UNDECIDED: Mark("?", "undecided", Tone.WARN),
    StageStatus.SKIPPED: Mark("·", "skipped", Tone.QUIET),
}
_LEGEND = (
    ("equal", "no difference"),
    ("within", "within tolerance"),
    ("over", "exceeds tolerance"),
    ("far", "more than 100 × tolerance"),
)
_ERRORS = (
    "Relative L2 error of every module output in the first step, in execution order. The band is the "
    "tolerance; points on the lowest line show no difference."
)
_TEXTS = "A few decoded rows with their labels below; labels must run one token ahead of the inputs."
_STAGES = "In the order of a training step. The first confirmed failure gives the verdict."
_OF_PROGRAMS = {
    NoteCode.CODE_DIFFERS,
    NoteCode.NOT_COMPARED,
    NoteCode.PROGRAMS_DIFFER,
    NoteCode.DTYPES_DIFFER,
    NoteCode.WEIGHT_NOT_CAST,
    NoteCode.WEIGHT_DTYPE,
    NoteCode.INPUT_DTYPE,
    NoteCode.OUTPUT_DTYPE,
}
_NUM_EVIDENCE, _NUM_PRECEDING, _NUM_CAUSES, _NUM_FURTHER, _NUM_OTHERS = 4, 3, 3, 4, 2
_NUM_OF_STAGE, _CAUSES_OF_FINDING = 6, 5


def diagnosis_report(diagnosis: Diagnosis, *, reports: Sequence[Path] = ()) -> Document:
    """Two runs diagnosed; ``reports`` are files that were written."""
    finding = diagnosis.verdict
    return Document(
        title=f"Diagnosis: {diagnosis.target} vs {diagnosis.reference}",
        mark=OUTCOMES[diagnosis.outcome],
        headline=reason_text(diagnosis.headline),
        lede=_lede(finding),
        subject=(diagnosis.target, diagnosis.reference),
        blocks=(
            _tiles(diagnosis),
            facts(_verdict_facts(finding) if finding else (), on=On.SCREEN),
            _map(diagnosis),
            _errors(diagnosis),
            _stages(diagnosis, On.SCREEN),
            Section(
                title="Stages",
                key="stages",
                nav="Stages",
                lead=_STAGES,
                blocks=(_stages(diagnosis, On.FILES),),
                on=On.FILES,
            ),
            _further(diagnosis.findings[1:]),
            facts(
                [
                    fact("note", *_apart(diagnosis)),
                    fact("reports", ", ".join(map(str, reports))),
                    fact("next step", *_next_step(diagnosis)),
                ],
                on=On.SCREEN,
            ),
            Section(
                title="Finding" if len(diagnosis.findings) == 1 else "Findings",
                key="findings",
                nav="Findings",
                blocks=tuple(_finding(one, at) for at, one in enumerate(diagnosis.findings, 1)),
                on=On.FILES,
            ),
            _texts(diagnosis.stages),
            _how(diagnosis),
        ),
        footer=FILE,
    )


def _apart(diagnosis: Diagnosis) -> list[str]:
    """What differs between the programs of two runs in which nothing is said to differ."""
    return (
        []
        if diagnosis.findings
        else [reason_text(one) for one in diagnosis.notes if one.code in _OF_PROGRAMS]
    )


def _lede(finding: Finding | None) -> str:
    """What the likeliest kind says of this case, else the first piece of evidence that the headline does not
    say already."""
    if finding is None:
        return ""
    reasons = [*(kind.sentence for kind in finding.kinds[:1]), *finding.evidence]
    sentence = next(
        (text for one in reasons if (text := reason_text(one)) != reason_text(finding.headline)), ""
    )
    return as_sentence(sentence).rstrip(".") + "." if sentence else ""


def _tiles(diagnosis: Diagnosis) -> Facts:
    finding = diagnosis.verdict
    confidence = diagnosis.confidence if finding is None else finding.confidence
    basis = BASES[finding.basis] if finding else ""
    sure = fact("Confidence", str(confidence), note=basis) if confidence else None
    if finding is None:
        return facts([sure], Form.TILES, On.PAGE)
    site = Span(short_site(finding.site), Look.CODE) if finding.site else ""
    kind = finding.kinds[0] if finding.kinds else None
    rows = [
        fact("Location", site, note=coordinates(finding)),
        fact("Kind of fault", kind_word(kind), note=FAMILIES[kind.family]) if kind else None,
        sure,
        _loss(diagnosis.losses),
    ]
    return facts(rows, Form.TILES, On.PAGE)


def _loss(losses: Sequence[StepLoss]) -> Fact | None:
    """The first loss that differs."""
    if not losses:
        return None
    shown = next((one for one in losses if not one.is_same), losses[0])
    note = "identical" if shown.is_same else "first difference"
    return fact(f"Loss of step {shown.step}", shown.text, note=note)


def _verdict_facts(finding: Finding) -> list[Fact | None]:
    kind = finding.kinds[0] if finding.kinds else None
    site = Span(short_site(finding.site), Look.STRONG) if finding.site else ""
    return [
        fact("location", site, coordinates(finding), fit=True),
        source_fact(sources(finding)),
        fact("kind", Span(kind_word(kind), Look.STRONG), note=FAMILIES[kind.family]) if kind else None,
        fact("confidence", str(finding.confidence), note=BASES[finding.basis]),
        fact("evidence", *map(reason_text, finding.evidence), limit=_NUM_EVIDENCE),
        fact("preceding", *map(reason_text, finding.counter_evidence), limit=_NUM_PRECEDING),
        fact("likely causes", *map(reason_text, finding.causes), limit=_NUM_CAUSES),
    ]


def _next_step(diagnosis: Diagnosis) -> list[str | Span]:
    """Of the first finding; without one what an open diagnosis notes."""
    if diagnosis.verdict is not None:
        return _next(diagnosis.verdict)
    return [as_sentence(reason_text(one)) for one in diagnosis.notes if isinstance(one.code, NextCode)]


def _next(finding: Finding) -> list[str | Span]:
    """The command, and on a line of its own what it is for: a command is copied."""
    typed = None if finding.next is None else command(finding.next)
    if finding.next is not None and typed is not None:
        return [Span(typed, Look.COMMAND), as_sentence(reason_text(finding.next))]
    lines: list[str | Span] = [Span(reason_text(finding.next), Look.COMMAND)] if finding.next else []
    return [*lines, as_sentence(reason_text(finding.next_note))] if finding.next_note else lines


def _further(findings: Sequence[Finding]) -> Facts:
    lines = [
        (Span(reason_text(one.headline), Look.STRONG), Span(f"  {one.confidence}", Look.QUIET))
        for one in findings
    ]
    return facts([fact("also", *lines, limit=_NUM_FURTHER)], on=On.SCREEN)


def _map(diagnosis: Diagnosis) -> Section:
    drawing = model_drawing(diagnosis)
    return Section(
        title="From symptom to origin",
        key="way",
        nav="From symptom to origin",
        lead=way(diagnosis.verdict),
        blocks=(Picture(svg=drawing, legend=_LEGEND),) if drawing else (),
        on=On.PAGE,
    )


def _errors(diagnosis: Diagnosis) -> Section:
    phases = [p for p in ("forward", "backward") if any(point.error for point in points_of(diagnosis, p))]
    drawings = [(phase, error_drawing(diagnosis, phase)) for phase in phases]
    pictures = tuple(Picture(svg=svg, caption=phase.capitalize()) for phase, svg in drawings if svg)
    return Section(title="Error by module", key="errors", lead=_ERRORS, blocks=pictures, on=On.PAGE)


def _stages(diagnosis: Diagnosis, on: On) -> Table:
    columns = (Column(title="stage"), Column(title="result", clip=True, below=True, width=90))
    rows = [_stage(outcome) for outcome in diagnosis.stages]
    return Table(columns=columns, rows=tuple(rows), head=On.TEXT, steps=True, on=on)


def _stage(outcome: StageOutcome) -> Row:
    what = STAGE_TITLES.get(str(outcome.title.place("key")), ("", ""))[1]
    failed = outcome.status is StageStatus.FAILED
    evidence = tuple(reason_text(one) for one in outcome.evidence[:_NUM_OF_STAGE])
    tone = Tone.PLAIN if failed else Tone.QUIET
    return Row(
        cells=(
            Cell(value=STAGES[outcome.stage], under=(what,) if what else (), on=On.FILES),
            Cell(value=reason_text(outcome.conclusion), under=evidence, on=On.FILES, tone=tone),
        ),
        mark=_MARKS[outcome.status],
        loud=failed,
    )


def _finding(finding: Finding, at: int) -> Section:
    kinds = finding.kinds
    parts = [
        short_site(finding.site) if finding.site else "",
        coordinates(finding),
        f"{kind_word(kinds[0])} ({kinds[0].confidence})" if kinds else "",
        f"place {finding.confidence}, {BASES[finding.basis]}",
    ]
    others = [
        f"{kind_word(k)} ({k.confidence}): {reason_text(k.sentence)}" for k in kinds[1 : 1 + _NUM_OTHERS]
    ]
    evidence = dict.fromkeys(map(reason_text, finding.evidence))
    causes = [reason_text(cause) for cause in finding.causes[:_CAUSES_OF_FINDING]]
    return Section(
        title=reason_text(finding.headline),
        number=at,
        note=" · ".join(part for part in parts if part),
        blocks=(
            Sources(items=sources(finding)),
            facts(
                [
                    fact("Evidence", *evidence, tone=Tone.BAD),
                    fact("Preceding records", *map(reason_text, finding.counter_evidence), tone=Tone.GOOD),
                    fact("Likely causes", *causes, tone=Tone.QUIET),
                    fact("Alternatives", *others, tone=Tone.QUIET),
                    fact("Next step", *_next(finding)),
                ],
                Form.LISTS,
            ),
        ),
    )


def _texts(stages: Iterable[StageOutcome]) -> Section:
    texts = (outcome.details.get("texts") for outcome in stages)
    found = next((rows for rows in texts if isinstance(rows, list) and rows), [])
    rows = [Row(cells=(str(row["where"]), _text(row, "target"), _text(row, "reference"))) for row in found]
    columns = (Column(title="row", width=16), Column(title="target"), Column(title="reference"))
    return Section(
        title="Batch as text",
        key="texts",
        nav="Batch as text",
        lead=_TEXTS,
        blocks=(Table(columns=columns, rows=tuple(rows)),),
        on=On.PAGE,
    )


def _text(row: Mapping[str, object], side: str) -> Cell:
    labels = (f"labels: {row[f'{side}_labels']}",) if f"{side}_labels" in row else ()
    other = () if row[f"{side}_encodes_back"] else ("encodes to different ids",)
    return Cell(value=str(row[side]), under=(*labels, *other))


def _how(diagnosis: Diagnosis) -> Section:
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in diagnosis.seconds.items())
    rows = [
        fact("target", diagnosis.target),
        fact("reference", diagnosis.reference),
        fact("command of the target", diagnosis.command or ""),
        *(fact(f"folder of {name}", folder) for name, folder in diagnosis.runs.items()),
        fact("tolerance", plain(diagnosis.tolerance)),
        fact("time", seconds),
    ]
    notes = [Paragraph(line=reason_text(note)) for note in dict.fromkeys(diagnosis.notes)]
    return Section(title="Method", key="how", nav="Method", blocks=(*notes, facts(rows)), on=On.FILES)
