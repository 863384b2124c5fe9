"""The picture of a diagnosis, as SVG text: the model with the way from the symptom to the origin. Colours and
fonts come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape

from trueup.diagnosing.diagnosis import Diagnosis
from trueup.diagnosing.stages.protocol import StageStatus
from trueup.reporting.diagnosis.model import (
    ModelBlock,
    block_of,
    blocks_of,
    inside,
    points_of,
    score_text,
    tone_of,
)
from trueup.reporting.formatting import elide
from trueup.reporting.render.plots import svg
from trueup.types.finding import Finding, Stage
from trueup.wording.kinds import kind_word

WIDTH = 1120.0
LEFT = 122.0
BOX, GAP = 44.0, 16.0
BETWEEN = 118.0
"""from the forward lane to the backward lane"""
MAX_BLOCKS = 40
MAX_FLAGS = 6
LETTER = 7.4
"""width of a letter of a label, at most"""
_TONES = {StageStatus.PASSED: "equal", StageStatus.FAILED: "over", StageStatus.CONSEQUENCE: "over"}
_DOWNSTREAM = {
    Stage.REDUCTION: "reduce, clip",
    Stage.OPTIMIZER: "optimizer",
    Stage.LOSS: "next loss",
}
_OFF_THE_MAP = (Stage.CONFIG, Stage.REDUCTION, Stage.OPTIMIZER, Stage.RESUME, Stage.LONG_RUN)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where everything lies."""

    blocks: Sequence[ModelBlock]
    places: Sequence[tuple[float, float]]
    """left edge and width of each box"""
    loss: tuple[float, float]
    top: float
    """of the forward lane"""
    inner: Sequence[ModelBlock]
    """what is inside the box that holds the first origin"""
    lane: str
    """of the first origin"""

    @property
    def low(self) -> float:
        """Top of the backward lane."""
        return self.top + BETWEEN

    @property
    def under(self) -> float:
        """Where the row of the update begins."""
        return self.low + BOX + (118 if self.inner and self.lane == "backward" else 62)


def model_drawing(diagnosis: Diagnosis) -> str:
    """Forward runs left to right to the loss, backward returns below it, then the update; every box says how
    far its outputs exceed tolerance, and the origins are marked."""
    blocks = _shown(blocks_of(diagnosis))
    if not blocks:
        return ""
    stages = {outcome.stage: outcome.status for outcome in diagnosis.stages}
    layout = _laid_out(diagnosis, blocks)
    parts = [
        _defs(),
        _lane_label(layout.top + BOX / 2, "forward"),
        _lane_label(layout.low + BOX / 2, "backward"),
    ]
    parts += _lane(blocks, layout.places, "forward", layout.top)
    parts += _lane(blocks, layout.places, "backward", layout.low)
    parts += _loss(layout, stages.get(Stage.FORWARD, StageStatus.UNDECIDED), diagnosis)
    parts += _wires(layout)
    parts += _marks(diagnosis, layout)
    parts += _downstream(diagnosis, stages, layout.under)
    return svg(WIDTH, layout.under + 52, "".join(parts), "The model, with the error of every part")


def _laid_out(diagnosis: Diagnosis, blocks: Sequence[ModelBlock]) -> _Layout:
    widths = [_width(block.label) for block in blocks]
    gaps = GAP * (len(widths) + 1)
    scale = min(2.2, (WIDTH - LEFT - 10 - gaps) / (sum(widths) + 70))
    x, places = LEFT, []
    for width in widths:
        places.append((x, width * scale))
        x += width * scale + GAP
    verdict = diagnosis.verdict
    module = verdict.module or "" if verdict else ""
    lane = "backward" if verdict and verdict.stage is Stage.BACKWARD else "forward"
    home = next((b.name for b in blocks if module.startswith(b.name + ".")), None)
    drawn = verdict is not None and verdict.stage in (Stage.FORWARD, Stage.BACKWARD, Stage.WEIGHTS)
    inner = inside(points_of(diagnosis, lane), home, lane, module) if home and drawn else []
    inner = inner if any(b.holds_origin for b in inner) else []
    top = 118.0 if inner and lane == "forward" else 46.0
    return _Layout(blocks=blocks, places=places, loss=(x, 70 * scale), top=top, inner=inner, lane=lane)


def _shown(blocks: list[ModelBlock]) -> list[ModelBlock]:
    """Boxes that fit; of very many the ends and those around the origins."""
    if len(blocks) <= MAX_BLOCKS:
        return blocks
    chosen = {0, 1, 2, len(blocks) - 3, len(blocks) - 2, len(blocks) - 1}
    for at, block in enumerate(blocks):
        if block.holds_origin:
            chosen |= set(range(max(0, at - 4), min(len(blocks), at + 5)))
    return [blocks[at] for at in sorted(chosen)][:MAX_BLOCKS]


def _width(label: str) -> float:
    return max(BOX, 7.4 * len(label) + 16)


def _lane(
    blocks: Sequence[ModelBlock], places: Sequence[tuple[float, float]], phase: str, top: float
) -> list[str]:
    parts = []
    for block, (x, width) in zip(blocks, places, strict=True):
        score = block.forward if phase == "forward" else block.backward
        words = f"{block.name}, {phase}: {score_text(score)}"
        parts.append(
            f'<g class="box t-{tone_of(score)}"><title>{escape(words)}</title>'
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BOX}" rx="8"/>'
            f'<text x="{x + width / 2:.1f}" y="{top + BOX / 2 + 4.5}" text-anchor="middle">'
            f"{escape(_fitted(block.label, width))}</text></g>"
        )
    return parts


def _fitted(label: str, width: float) -> str:
    room = max(1, int((width - 6) / 7))
    return label if len(label) <= room else label[: room - 1] + "…" if room > 2 else ""


def _loss(layout: _Layout, status: StageStatus, diagnosis: Diagnosis) -> list[str]:
    x, width = layout.loss
    tone, words = _TONES.get(status, "open"), "loss"
    if diagnosis.losses:
        first = diagnosis.losses[0]
        tone, words = "equal" if first.is_same else tone, f"loss: {first.text}"
    height = BETWEEN + BOX
    return [
        f'<g class="box t-{tone}"><title>{escape(words)}</title>'
        f'<rect x="{x:.1f}" y="{layout.top}" width="{width:.1f}" height="{height}" rx="8"/>'
        f'<text x="{x + width / 2:.1f}" y="{layout.top + height / 2 + 4}" text-anchor="middle">'
        "loss</text></g>"
    ]


def _wires(layout: _Layout) -> list[str]:
    lines = []
    up, down = layout.top + BOX / 2, layout.low + BOX / 2
    for (x, width), (after, _) in pairwise([*layout.places, layout.loss]):
        lines.append(
            f'<path class="wire" d="M{x + width + 1:.1f} {up}H{after - 2:.1f}" marker-end="url(#tip)"/>'
        )
        lines.append(
            f'<path class="wire" d="M{after - 1:.1f} {down}H{x + width + 2:.1f}" marker-end="url(#tip)"/>'
        )
    return lines


def _marks(diagnosis: Diagnosis, layout: _Layout) -> list[str]:
    """A flag at each origin, the way from the first to the loss drawn bold, and what is inside its box."""
    parts: list[str] = []
    taken: list[tuple[float, str]] = []
    for number, finding in enumerate(diagnosis.findings[:MAX_FLAGS], start=1):
        at = _place_of(finding, layout)
        if at is None:
            continue
        x, lane = at
        if number == 1:
            if finding.phase != "param_grad":
                parts.append(_route(x, lane, layout))
            if layout.inner:
                parts += _inner(x, finding, layout)
                taken.append((x, lane))
                continue
        while any(lane == other and abs(used - x) < 27 for used, other in taken):
            x += 28
        taken.append((x, lane))
        parts += _flag(number, x, lane, layout, _flag_label(finding) if number == 1 else "")
    return parts


def _flag(number: int, x: float, lane: str, layout: _Layout, label: str) -> list[str]:
    below = lane == "backward"
    y = layout.low + BOX + 24 if below else layout.top - 24
    edge = layout.low + BOX + 2 if below else layout.top - 2
    return [f'<path class="pin" d="M{x:.1f} {y}V{edge}"/>', *_disc(number, x, y, label)]


def _disc(number: int, x: float, y: float, label: str) -> list[str]:
    """A number in a disc, its label on the side that has more room, cut to that room."""
    disc = (
        f'<g class="flag"><circle cx="{x:.1f}" cy="{y}" r="12"/>'
        f'<text x="{x:.1f}" y="{y + 4.5}" text-anchor="middle">{number}</text></g>'
    )
    if not label:
        return [disc]
    left = x > WIDTH / 2 and x + 20 + LETTER * len(label) > WIDTH
    anchor, shift, room = ("end", -20, x - 24) if left else ("start", 20, WIDTH - x - 24)
    text = elide(label, max(8, int(room / LETTER)))
    return [
        disc,
        f'<text class="said" x="{x + shift:.1f}" y="{y + 5}" text-anchor="{anchor}">{escape(text)}</text>',
    ]


def _inner(x: float, finding: Finding, layout: _Layout) -> list[str]:
    """The children of the box, as a row of their own, with the flag at the one that erred."""
    below = layout.lane == "backward"
    widths = [max(52.0, 7.6 * len(b.label) + 22) for b in layout.inner]
    total = sum(widths) + 8 * (len(widths) - 1)
    start = min(max(LEFT, x - total / 2), WIDTH - total - 6)
    top = layout.low + BOX + 26 if below else layout.top - 62
    edge, near = (layout.low + BOX, top) if below else (layout.top, top + 34)
    parts = [
        f'<path class="lens" d="M{start:.1f} {near}L{x - 20:.1f} {edge}'
        f'H{x + 20:.1f}L{start + total:.1f} {near}Z"/>'
    ]
    at = start
    for block, width in zip(layout.inner, widths, strict=True):
        score = block.backward if below else block.forward
        mark, words = " erred" if block.holds_origin else "", f"{block.name}: {score_text(score)}"
        parts.append(
            f'<g class="box t-{tone_of(score)}{mark}"><title>{escape(words)}</title>'
            f'<rect x="{at:.1f}" y="{top}" width="{width:.1f}" height="34" rx="7"/>'
            f'<text x="{at + width / 2:.1f}" y="{top + 21.5}" text-anchor="middle">'
            f"{escape(block.label)}</text></g>"
        )
        if block.holds_origin:
            middle = at + width / 2
            y = top + 54 if below else top - 22
            tip = top + 36 if below else top - 2
            parts.append(f'<path class="pin" d="M{middle:.1f} {y}V{tip}"/>')
            parts += _disc(1, middle, y, _flag_label(finding))
        at += width + 8
    return parts


def _flag_label(finding: Finding) -> str:
    kind = f", {kind_word(finding.kinds[0])}" if finding.kinds else ""
    return f"origin: {finding.module or finding.site or finding.stage.value}{kind}"


def _place_of(finding: Finding, layout: _Layout) -> tuple[float, str] | None:
    """Where on the drawing a finding stands, and in which lane."""
    x, width = layout.loss
    if finding.stage in _OFF_THE_MAP:
        return None
    if finding.stage is Stage.DATA:
        return (x + width / 2, "forward") if finding.phase == "loss" else (LEFT - 12, "forward")
    name = block_of(finding.module or "")
    lane = "backward" if finding.stage is Stage.BACKWARD else "forward"
    for block, (left, size) in zip(layout.blocks, layout.places, strict=True):
        if block.name == name or (name and block.name.startswith(name + ".")):
            return left + size / 2, lane
    return (x + width / 2, lane) if finding.phase == "loss" else None


def _route(x: float, lane: str, layout: _Layout) -> str:
    """From where the error was made to the loss, where it was seen; in the backward to the first layers."""
    if lane == "forward":
        y = layout.top + BOX + 14
        if x >= layout.loss[0]:
            return ""
        way = f"M{x:.1f} {layout.top + BOX + 3}V{y}H{layout.loss[0] - 3:.1f}"
        return f'<path class="route" d="{way}" marker-end="url(#tip-route)"/>'
    y = layout.low - 14
    return f'<path class="route" d="M{x:.1f} {layout.low - 3}V{y}H{LEFT + 2}" marker-end="url(#tip-route)"/>'


def _downstream(diagnosis: Diagnosis, stages: Mapping[Stage, StageStatus], top: float) -> list[str]:
    """Reduction, optimizer and the next loss below, as a row."""
    height = 44
    marked: dict[Stage, list[int]] = {}
    for number, finding in enumerate(diagnosis.findings[:MAX_FLAGS], start=1):
        at = Stage.OPTIMIZER if finding.stage is Stage.RESUME else finding.stage
        marked.setdefault(at, []).append(number)
    parts, x = [_lane_label(top + height / 2, "update")], LEFT
    for stage, words in _DOWNSTREAM.items():
        status = stages.get(stage, StageStatus.UNDECIDED)
        tone = _TONES.get(status, "open")
        faint = " faint" if status is StageStatus.CONSEQUENCE else ""
        parts.append(
            f'<g class="box t-{tone}{faint}"><title>{escape(status.value)}</title>'
            f'<rect x="{x}" y="{top}" width="190" height="{height}" rx="8"/>'
            f'<text x="{x + 95}" y="{top + height / 2 + 4.5}" text-anchor="middle">{words}</text></g>'
        )
        for place, number in enumerate(marked.get(stage, [])):
            parts += _disc(number, x + 176 - 27 * place, top, "")
        if stage is not Stage.LOSS:
            parts.append(
                f'<path class="wire" d="M{x + 191} {top + height / 2}H{x + 228}" marker-end="url(#tip)"/>'
            )
        x += 230
    return parts


def _lane_label(y: float, text: str) -> str:
    return f'<text class="lane-label" x="104" y="{y + 4.5:.1f}" text-anchor="end">{escape(text)}</text>'


def _defs() -> str:
    tips = (("tip", "tip-line"), ("tip-route", "tip-bold"))
    markers = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto">'
        f'<path class="{style}" d="M1 1L7 4L1 7"/></marker>'
        for name, style in tips
    )
    return f"<defs>{markers}</defs>"
