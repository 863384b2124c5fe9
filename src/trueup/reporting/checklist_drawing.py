"""The two schedules on one plot, as SVG text; colours and fonts come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from trueup.reporting.checklist_model import number_text

WIDTH, HEIGHT = 1100.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 20.0, 14.0, 32.0
_TICKS = 4


def schedule_drawing(schedules: Mapping[str, Any], quantity: str) -> str:
    """Both sides' ``learning_rate`` or ``weight_decay`` over the steps; empty where neither is known."""
    curves = [
        (side, found["steps"], found[quantity])
        for side in ("reference", "target")
        if (found := schedules.get(side)) and found[quantity]
    ]
    if not curves:
        return ""
    last = max(steps[-1] for _, steps, _ in curves) or 1
    top = max(max(values) for _, _, values in curves) or 1.0
    parts = [_grid(last, top)]
    for side, steps, values in curves:
        points = " ".join(f"{_x(s, last):.1f},{_y(v, top):.1f}" for s, v in zip(steps, values, strict=True))
        parts.append(f'<polyline class="schedule {side}" points="{points}"/>')
    if quantity == "learning_rate" and schedules.get("same") is False:
        at = _x(schedules["first_step_apart"], last)
        parts.append(f'<line class="apart" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(
            _text(at + 5, TOP - 3, f"parts at step {schedules['first_step_apart']}", "said", "start")
        )
    name = quantity.replace("_", " ")
    label = escape(f"{name} of both sides over the steps of the run")
    return (
        f'<svg class="drawing" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def _x(step: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / last


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / (top * 1.06)


def _grid(last: int, top: float) -> str:
    parts = []
    for number in range(_TICKS + 1):
        value = top * number / _TICKS
        y = _y(value, top)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 4, number_text(float(f"{value:.3g}")), "tick", "end"))
    under = HEIGHT - BOTTOM + 18
    parts += [_text(_x(step, last), under, f"{step:,}", "tick", "middle") for step in _round_steps(last)]
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 2, "step", "tick", "end"))
    return "".join(parts)


def _round_steps(last: int) -> Sequence[int]:
    size = 10 ** max(0, len(str(last)) - 1)
    every = next(step for step in (size // 5, size // 2, size, size * 2) if step and last / step <= 8)
    return range(0, last + 1, max(1, every))


def _text(x: float, y: float, words: str, style: str, anchor: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
