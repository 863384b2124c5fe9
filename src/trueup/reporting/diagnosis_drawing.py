"""The pictures of a diagnosis, as SVG text: the model with the way from the symptom to the origin, and the
error along that way over what is allowed. Colours and fonts come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from trueup.reporting.diagnosis_model import Block, Report, block_of

WIDTH = 1120.0
LEFT = 122.0
BOX, GAP = 44.0, 16.0
BETWEEN = 118.0
"""from the forward lane to the backward lane"""
MAX_BLOCKS = 40
_TONES = {"passed": "equal", "failed": "over", "consequence": "over"}
_DOWNSTREAM = ("reduction", "optimizer", "loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where everything lies."""

    blocks: Sequence[Block]
    places: Sequence[tuple[float, float]]
    """left edge and width of each box"""
    loss: tuple[float, float]
    top: float
    """of the forward lane"""
    inner: Sequence[Block]
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


def model_drawing(report: Report) -> str:
    """Forward runs left to right to the loss, backward returns below it, then the update; every box says how
    far its outputs are beyond what is allowed, and the origins are marked."""
    blocks = _shown(report.blocks())
    if not blocks:
        return ""
    stages = {stage["stage"]: stage["status"] for stage in report.document["stages"]}
    layout = _laid_out(report, blocks)
    parts = [
        _defs(),
        _lane_label(layout.top + BOX / 2, "forward"),
        _lane_label(layout.low + BOX / 2, "backward"),
    ]
    parts += _lane(blocks, layout.places, "forward", layout.top)
    parts += _lane(blocks, layout.places, "backward", layout.low)
    parts += _loss(layout, stages.get("forward", "undecided"), report)
    parts += _wires(layout)
    parts += _marks(report, layout)
    parts += _downstream(report, stages, layout.under)
    return _svg(WIDTH, layout.under + 52, "".join(parts), "The model, with the error of every part")


def _laid_out(report: Report, blocks: Sequence[Block]) -> _Layout:
    widths = [_width(block.label) for block in blocks]
    gaps = GAP * (len(widths) + 1)
    scale = min(2.2, (WIDTH - LEFT - 10 - gaps) / (sum(widths) + 70))
    x, places = LEFT, []
    for width in widths:
        places.append((x, width * scale))
        x += width * scale + GAP
    verdict = report.verdict
    module, lane = (
        str(verdict.get("module") or ""),
        "backward" if verdict.get("stage") == "backward" else "forward",
    )
    home = next((b.name for b in blocks if module.startswith(b.name + ".")), None)
    drawn = verdict.get("stage") in ("forward", "backward", "weights")
    inner = report.inside(home, lane, module) if home and drawn else []
    inner = inner if any(b.holds_origin for b in inner) else []
    top = 118.0 if inner and lane == "forward" else 46.0
    return _Layout(blocks=blocks, places=places, loss=(x, 70 * scale), top=top, inner=inner, lane=lane)


def _shown(blocks: list[Block]) -> list[Block]:
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


def _tone(score: float | None) -> str:
    if score is None:
        return "open"
    if score == 0:
        return "equal"
    if score <= 1:
        return "within"
    return "far" if score > 100 else "over"


def _lane(
    blocks: Sequence[Block], places: Sequence[tuple[float, float]], phase: str, top: float
) -> list[str]:
    parts = []
    for block, (x, width) in zip(blocks, places, strict=True):
        score = block.forward if phase == "forward" else block.backward
        said = f"{block.name}, {phase}: {_times(score)}"
        parts.append(
            f'<g class="box t-{_tone(score)}"><title>{escape(said)}</title>'
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BOX}" rx="8"/>'
            f'<text x="{x + width / 2:.1f}" y="{top + BOX / 2 + 4.5}" text-anchor="middle">'
            f"{escape(_fitted(block.label, width))}</text></g>"
        )
    return parts


def _fitted(label: str, width: float) -> str:
    room = max(1, int((width - 6) / 7))
    return label if len(label) <= room else label[: room - 1] + "…" if room > 2 else ""


def _times(score: float | None) -> str:
    if score is None:
        return "not compared"
    if score == 0:
        return "equal bit for bit"
    if math.isinf(score):
        return "not comparable at all"
    return f"{score:.3g} times what is allowed"


def _loss(layout: _Layout, status: str, report: Report) -> list[str]:
    x, width = layout.loss
    tone = _TONES.get(status, "open")
    losses = report.document["losses"]
    first = losses[0] if losses else None
    if first is not None:
        tone = "equal" if first["target"] == first["reference"] else tone
    said = "loss" if first is None else f"loss: {first['target']:.7g} against {first['reference']:.7g}"
    height = BETWEEN + BOX
    return [
        f'<g class="box t-{tone}"><title>{escape(said)}</title>'
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


def _marks(report: Report, layout: _Layout) -> list[str]:
    """A flag at each origin, the way from the first to the loss drawn bold, and what is inside its box."""
    parts: list[str] = []
    taken: list[tuple[float, str]] = []
    for number, finding in enumerate(report.findings[:6], start=1):
        at = _place_of(finding, layout)
        if at is None:
            continue
        x, lane = at
        if number == 1:
            if finding.get("phase") != "param_grad":
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


def _flag(number: int, x: float, lane: str, layout: _Layout, said: str) -> list[str]:
    below = lane == "backward"
    y = layout.low + BOX + 24 if below else layout.top - 24
    edge = layout.low + BOX + 2 if below else layout.top - 2
    return [f'<path class="pin" d="M{x:.1f} {y}V{edge}"/>', *_disc(number, x, y, said)]


def _disc(number: int, x: float, y: float, said: str) -> list[str]:
    disc = (
        f'<g class="flag"><circle cx="{x:.1f}" cy="{y}" r="12"/>'
        f'<text x="{x:.1f}" y="{y + 4.5}" text-anchor="middle">{number}</text></g>'
    )
    if not said:
        return [disc]
    anchor, shift = ("end", -20) if x > WIDTH * 0.6 else ("start", 20)
    return [
        disc,
        f'<text class="said" x="{x + shift:.1f}" y="{y + 5}" text-anchor="{anchor}">{escape(said)}</text>',
    ]


def _inner(x: float, finding: Any, layout: _Layout) -> list[str]:
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
        mark = " erred" if block.holds_origin else ""
        parts.append(
            f'<g class="box t-{_tone(score)}{mark}"><title>{escape(f"{block.name}: {_times(score)}")}</title>'
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


def _flag_label(finding: dict[str, Any] | Any) -> str:
    kinds = finding.get("kinds") or []
    kind = f", {kinds[0]['name'].replace('_', ' ')}" if kinds else ""
    where = finding.get("module") or finding.get("site") or finding["stage"]
    text = f"made here: {where}{kind}"
    return text if len(text) < 70 else text[:69] + "…"


def _place_of(finding: Any, layout: _Layout) -> tuple[float, str] | None:
    """Where on the drawing a finding stands, and in which lane."""
    stage, (x, width) = finding["stage"], layout.loss
    if stage in ("config", "reduction", "optimizer", "resume", "long_run"):
        return None
    if stage == "data":
        return (x + width / 2, "forward") if finding.get("phase") == "loss" else (LEFT - 12, "forward")
    name = block_of(str(finding.get("module") or ""))
    lane = "backward" if stage == "backward" else "forward"
    for block, (left, size) in zip(layout.blocks, layout.places, strict=True):
        if block.name == name or (name and block.name.startswith(name + ".")):
            return left + size / 2, lane
    return (x + width / 2, lane) if finding.get("phase") == "loss" else None


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


def _downstream(report: Report, stages: dict[str, str], top: float) -> list[str]:
    """Reduction, optimizer and the next loss below, as a row."""
    height = 44
    words = {"reduction": "sum, reduce, clip", "optimizer": "optimizer", "loss": "next loss"}
    marked: dict[str, list[int]] = {}
    for number, finding in enumerate(report.findings[:6], start=1):
        stage = "optimizer" if finding["stage"] == "resume" else finding["stage"]
        if stage in _DOWNSTREAM:
            marked.setdefault(stage, []).append(number)
    parts, x = [_lane_label(top + height / 2, "update")], LEFT
    for stage in _DOWNSTREAM:
        status = stages.get(stage, "undecided")
        tone = _TONES.get(status, "open")
        faint = " faint" if status == "consequence" else ""
        parts.append(
            f'<g class="box t-{tone}{faint}"><title>{escape(status)}</title>'
            f'<rect x="{x}" y="{top}" width="190" height="{height}" rx="8"/>'
            f'<text x="{x + 95}" y="{top + height / 2 + 4.5}" text-anchor="middle">{words[stage]}</text></g>'
        )
        for place, number in enumerate(marked.get(stage, [])):
            parts += _disc(number, x + 176 - 27 * place, top, "")
        if stage != _DOWNSTREAM[-1]:
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


def _svg(width: float, height: float, inside: str, label: str) -> str:
    return (
        f'<svg class="drawing" viewBox="0 0 {width:g} {height:g}" role="img" aria-label={quoteattr(label)}>'
        f"{inside}</svg>"
    )


# -- error along the way ------------------------------------------


def error_drawing(report: Report, phase: str) -> str:
    """Relative error of every module output as they ran, over the band of what is allowed; on the lowest line
    what is equal bit for bit."""
    points = [p for p in report.points(phase) if p["error"] is not None]
    if len(points) < 2:
        return ""
    width, height, left, right, top, floor = 1120.0, 300.0, 58.0, 14.0, 34.0, 62.0
    values = [v for p in points for v in (p["error"], p["bound"]) if v and math.isfinite(v)]
    low = math.floor(math.log10(min([*values, 1e-7])))
    high = max(low + 2, math.ceil(math.log10(max([*values, 1e-6])) + 0.2))
    bottom, ground = height - floor, height - floor + 24

    def x(at: int) -> float:
        return left + (width - left - right) * (at + 0.5) / len(points)

    def y(value: float) -> float:
        if value == 0:
            return ground
        power = high if math.isinf(value) else min(high, max(low, math.log10(value)))
        return bottom - (bottom - top) * (power - low) / (high - low)

    parts = [_grid(low, high, left, width - right, y), _ground(left, width - right, ground)]
    parts.append(_band(points, x, y, left, width - right, bottom))
    line = " ".join(f"{x(i):.1f},{y(p['error']):.1f}" for i, p in enumerate(points))
    parts.append(f'<polyline class="curve" points="{line}"/>')
    parts += [_dot(p, x(i), y(p["error"])) for i, p in enumerate(points)]
    parts += _names(points, x, height, width - right)
    parts += _origin_lines(report, points, phase, x, top, ground)
    return _svg(width, height, "".join(parts), f"Error of module outputs, {phase}")


def _grid(low: int, high: int, left: float, right: float, y: Any) -> str:
    step = max(1, math.ceil((high - low) / 6))
    parts = []
    for power in range(low, high + 1, step):
        at = y(10.0**power)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">10'
            f'<tspan dy="-5" font-size="8.5">{power}</tspan></text>'
        )
    return "".join(parts)


def _ground(left: float, right: float, at: float) -> str:
    return (
        f'<rect class="lane" x="{left}" y="{at - 8}" width="{right - left}" height="16" rx="3"/>'
        f'<text class="tick" x="{left - 8}" y="{at + 4}" text-anchor="end">equal</text>'
    )


def _band(points: Sequence[dict[str, Any]], x: Any, y: Any, left: float, right: float, bottom: float) -> str:
    edge = [(x(i), y(p["bound"])) for i, p in enumerate(points) if p["bound"] and math.isfinite(p["bound"])]
    if not edge:
        return ""
    line = (
        f"M{left} {edge[0][1]:.1f}"
        + "".join(f"L{a:.1f} {b:.1f}" for a, b in edge)
        + f"L{right} {edge[-1][1]:.1f}"
    )
    return (
        f'<path class="band" d="{line}L{right} {bottom}L{left} {bottom}Z"/><path class="bound" d="{line}"/>'
        f'<text class="band-label" x="{right - 6}" y="{bottom - 7:.1f}" text-anchor="end">allowed</text>'
    )


def _dot(point: dict[str, Any], x: float, y: float) -> str:
    tone = _tone(point["score"])
    said = f"{point['module'] or '(root)'} ({point['type']}): {_times(point['score'])}"
    if point["error"]:
        said += f", relative error {point['error']:.3g}"
    title = f"<title>{escape(said)}</title>"
    return f'<circle class="dot t-{tone}" cx="{x:.1f}" cy="{y:.1f}" r="3.6">{title}</circle>'


def _names(points: Sequence[dict[str, Any]], x: Any, height: float, right: float) -> list[str]:
    """The layers along the lowest line, as many as have room."""
    parts, taken, before = [], 0.0, None
    for at, point in enumerate(points):
        name = block_of(point["module"])
        if name is None or name == before:
            continue
        before = name
        size = 6.4 * len(name)
        place = min(x(at) - 4, right - size)
        if place < taken:
            continue
        parts.append(f'<text class="tick" x="{place:.1f}" y="{height - 10}">{escape(name)}</text>')
        taken = place + size + 12
    return parts


def _origin_lines(
    report: Report, points: Sequence[dict[str, Any]], phase: str, x: Any, top: float, ground: float
) -> list[str]:
    parts = []
    for number, finding in enumerate(report.findings[:6], start=1):
        if (finding["stage"] == "backward") != (phase == "backward") or not finding.get("module"):
            continue
        module = str(finding["module"])
        at = next((i for i, p in enumerate(points) if p["module"] == module), None)
        if at is None:
            at = next((i for i, p in enumerate(points) if p["module"].startswith(module + ".")), None)
        if at is not None:
            place = x(at)
            parts.append(
                f'<line class="pin" x1="{place:.1f}" x2="{place:.1f}" y1="{top - 6}" y2="{ground}"/>'
            )
            parts.append(
                f'<g class="flag"><circle cx="{place:.1f}" cy="{top - 16}" r="11"/>'
                f'<text x="{place:.1f}" y="{top - 11.5}" text-anchor="middle">{number}</text></g>'
            )
    return parts
