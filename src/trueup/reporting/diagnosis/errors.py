"""The error of module outputs in execution order, over their tolerance, as SVG text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from xml.sax.saxutils import escape

from trueup.diagnosing.diagnosis import Diagnosis
from trueup.reporting.diagnosis.drawing import MAX_FLAGS
from trueup.reporting.diagnosis.model import Point, block_of, points_of, score_text, tone_of
from trueup.reporting.render.plots import svg
from trueup.types.finding import Stage
from trueup.types.site import shown_name

Scale = Callable[[float], float]


def error_drawing(diagnosis: Diagnosis, phase: str) -> str:
    """Relative error of every module output as they ran, over the band of the tolerance; on
    the lowest line those without a difference."""
    points = [point for point in points_of(diagnosis, phase) if point.error is not None]
    if len(points) < 2:
        return ""
    width, height, left, right, top, floor = 1120.0, 300.0, 58.0, 14.0, 34.0, 62.0
    values = [v for p in points for v in (p.error, p.tolerance) if v and math.isfinite(v)]
    low = math.floor(math.log10(min([*values, 1e-7])))
    high = max(low + 2, math.ceil(math.log10(max([*values, 1e-6])) + 0.2))
    bottom, ground = height - floor, height - floor + 24

    def x(at: float) -> float:
        return left + (width - left - right) * (at + 0.5) / len(points)

    def y(value: float) -> float:
        if value == 0:
            return ground
        power = high if math.isinf(value) else min(high, max(low, math.log10(value)))
        return bottom - (bottom - top) * (power - low) / (high - low)

    parts = [_grid(low, high, left, width - right, y), _ground(left, width - right, ground)]
    parts.append(_band(points, x, y, left, width - right, bottom))
    line = " ".join(f"{x(i):.1f},{y(p.error or 0.0):.1f}" for i, p in enumerate(points))
    parts.append(f'<polyline class="curve" points="{line}"/>')
    parts += [_dot(p, x(i), y(p.error or 0.0)) for i, p in enumerate(points)]
    parts += _names(points, x, height, width - right)
    parts += _origin_lines(diagnosis, points, phase, x, top, ground)
    return svg(width, height, "".join(parts), f"Error of module outputs, {phase}")


def _grid(low: int, high: int, left: float, right: float, y: Scale) -> str:
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
        f'<text class="tick" x="{left - 8}" y="{at + 4}" text-anchor="end">0</text>'
    )


def _band(points: Sequence[Point], x: Scale, y: Scale, left: float, right: float, bottom: float) -> str:
    edge = [
        (x(i), y(p.tolerance)) for i, p in enumerate(points) if p.tolerance and math.isfinite(p.tolerance)
    ]
    if not edge:
        return ""
    line = (
        f"M{left} {edge[0][1]:.1f}"
        + "".join(f"L{a:.1f} {b:.1f}" for a, b in edge)
        + f"L{right} {edge[-1][1]:.1f}"
    )
    return (
        f'<path class="band" d="{line}L{right} {bottom}L{left} {bottom}Z"/><path class="bound" d="{line}"/>'
        f'<text class="band-label" x="{right - 6}" y="{bottom - 7:.1f}" text-anchor="end">tolerance</text>'
    )


def _dot(point: Point, x: float, y: float) -> str:
    words = f"{shown_name(point.module)} ({point.type}): {score_text(point.score)}"
    if point.error:
        words += f", relative error {point.error:.3g}"
    title = f"<title>{escape(words)}</title>"
    return f'<circle class="dot t-{tone_of(point.score)}" cx="{x:.1f}" cy="{y:.1f}" r="3.6">{title}</circle>'


def _names(points: Sequence[Point], x: Scale, height: float, right: float) -> list[str]:
    """The layers along the lowest line, as many as have room."""
    parts, taken, before = [], 0.0, None
    for at, point in enumerate(points):
        name = block_of(point.module)
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
    diagnosis: Diagnosis, points: Sequence[Point], phase: str, x: Scale, top: float, ground: float
) -> list[str]:
    parts = []
    for number, finding in enumerate(diagnosis.findings[:MAX_FLAGS], start=1):
        if (finding.stage is Stage.BACKWARD) != (phase == "backward") or not finding.module:
            continue
        module = finding.module
        at = next((i for i, p in enumerate(points) if p.module == module), None)
        if at is None:
            at = next((i for i, p in enumerate(points) if p.module.startswith(module + ".")), None)
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
