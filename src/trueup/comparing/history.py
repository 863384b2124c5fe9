"""What one step leaves to the next: rounding noise in gradients becomes noise in parameters, and is
inherited.

An optimizer that divides by the gradient's own size (Adam) turns rounding noise into O(learning rate)
changes: an element near 0 flips its sign. Hence for each parameter, with e_g the accepted relative difference
of its gradient:

- gradient, value and optimizer state bit-equal before the update: the update is judged strictly, k u ||p||;
- otherwise ||t - r|| may grow by ||update|| * min(max(2, e), 4 sqrt(e) + 2 sqrt(flips / n)), e the larger of
  e_g and what the optimizer state had. A relative noise e flips the sign of about a share e of the elements,
  each by twice its step, so the norm changes by 2 sqrt(e) ||update||; in a small parameter it is a matter of
  a few flips, a Poisson number. It cannot exceed 2 ||update||, which for Adam is 2 lr sqrt(numel), unless
  gradients are smaller than eps: then updates follow them, e and all (f(g) = g / (|g| + eps) changes by a
  share of at most max(2, e)). ||update|| comes from the reference's own sketches before and after.
- a vector may hold a part whose gradient is zero in exact arithmetic, the key's in a fused bias of query, key
  and value: there every sign is rounding's, however small e is beside the whole vector. Such a part of half
  the vector changes by ||update||, times the share of a full step that noise of that size moves (sigma / eps,
  at most 1; eps as the optimizer declares it, none where it takes the sign of an average).
- first moments: 4 e_g ||r|| + ||g_t - g_r|| and what they had before; second moments, squares of gradients,
  2 (2 e_g + e_g^2) ||r||.

Where one trace does not show the update (a dump of msprobe), what it left is found in the next step's values
instead: ||update|| is then how far the reference's value moved, by its sketches, else by its statistics.

What statistics alone bound from below (a weight of another layout on the other side, its values not kept)
is not taken for small: such a gradient counts as noisy as the noisiest one that was measured (where none was,
as of parts on many ranks put together, as the noisiest one that is known from below), and its weight as moved
by 4 sqrt(e) ||update||.

A weight that neither side gives a gradient or an update keeps its bits, unless the program writes to it.

The next step's ``param`` records inherit what was accepted there, and every activation and gradient of that
step gets HISTORY_GAIN * eta * scale more, eta being the worst relative difference of a matrix accepted at its
start. Vectors are left out there, since a key bias is pure noise, of no effect on what comes later; but what
a module puts out may differ by HISTORY_GAIN ||t - r|| of its own vector sqrt(numel of the output / of the
vector). What follows an update within the same step (several mini-batches) inherits from it alike. A pair
of runs that stays bit-equal inherits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from trueup.comparing.judgement import WITHIN, Judgement
from trueup.comparing.metrics import STATISTICS, Metrics, sketches_of
from trueup.comparing.not_counted import shown_apart
from trueup.comparing.rows import StepRows
from trueup.comparing.thresholds import (
    CANCELLED_EPS,
    CANCELLED_PART,
    FLIP_CHANCE,
    FLIP_ERRORS,
    FLIPS_AT_LEAST,
    FLOAT32,
    HISTORY_GAIN,
    KNOWN_NORM,
    UPDATE_SPREAD,
)
from trueup.numerics.dtypes import unit_roundoffs
from trueup.types.arrays import Bools, Floats
from trueup.types.codes import NoteCode
from trueup.types.reason import Reason, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class PastWeight:
    """A weight of the reference, as its summary tells it."""

    sketch: Floats | None
    extent: Floats
    """minimum, maximum and norm"""

    def distance(self, other: PastWeight, numel: float) -> float:
        """||self - other|| by the sketches, else about as much as the statistics have moved."""
        if self.sketch is not None and other.sketch is not None:
            return float(np.linalg.norm(self.sketch - other.sketch))
        moved = np.abs(self.extent - other.extent)
        return float(max(max(moved[0], moved[1]) * np.sqrt(numel), moved[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the steps so far leave to the next one of the same rank."""

    step: int | None = None
    eps: Mapping[str, float] = field(default_factory=dict)
    """parameter -> what its optimizer adds to the size of the gradients, where that is declared"""
    parameter: Mapping[str, float] = field(default_factory=dict)
    """parameter -> ||t - r|| after its last update"""
    state: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """(parameter, slot) -> absolute and relative difference of its optimizer state"""
    update: Mapping[str, float] = field(default_factory=dict)
    """parameter -> norm of its last update where gradients were not bit-equal"""
    values: Mapping[str, PastWeight] = field(default_factory=dict)
    """parameter -> what it was before an update that only one trace shows, or none"""
    moved: Mapping[str, float] = field(default_factory=dict)
    """parameter -> norm of such an update, once its outcome is seen"""
    unseen: Mapping[str, tuple[float, float, bool]] = field(default_factory=dict)
    """parameter -> relative difference of the gradient such an update received, ||t - r|| before it, whether
    it is a vector a part of whose gradient may be rounding alone"""
    not_finite: frozenset[str] = frozenset()
    """parameters that were left with NaN or infinities on one side alone"""
    kept: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """digests on both sides of what functions outside the model made of one another within rounding -> by how
    much they differ"""
    still: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """parameter of the same bits on both sides that neither updates -> the digests of the two"""
    exceeded: bool = False
    """an earlier step left more than noise in the weights"""
    notes: tuple[Reason, ...] = ()


def inherited(
    rows: StepRows, metrics: Metrics, rounding: Floats, scale: Floats, history: History, step: int
) -> tuple[Floats, tuple[Reason, ...]]:
    """What the bound of every row grows by, over ``rounding``, and notes about it."""
    extra, notes = np.zeros(len(rows)), []
    names = _parameter_names(rows)
    values = rows.phase_is("param") & rows.paired
    missed = 0 if history.step is None else max(step - history.step - 1, 0)
    for row in np.flatnonzero(values).tolist():
        name = names[row]
        extra[row] = KNOWN_NORM * history.parameter.get(name, 0.0) + 2.0 * missed * history.update.get(
            name, 0.0
        )
    if missed and history.update:
        first = (history.step or 0) + 1
        notes.append(reason(NoteCode.STEPS_NOT_CAPTURED, first=first, last=step - 1, step=step))
    _widen_kept(rows, history, extra)
    eta = _worst_matrix(rows, metrics, values, rounding + extra, history, names)
    written = _written_to(rows, history, names)
    if eta > 0:
        facts = {
            "step": step,
            "rel_diff": float(f"{eta:.1e}"),
            "exceeded": history.exceeded or bool(written),
            "gain": HISTORY_GAIN,
        }
        notes.append(reason(NoteCode.WEIGHTS_DIFFER, **facts))
        running = rows.phase_is("forward", "loss", "backward", "param_grad", "collective")
        extra[running] = HISTORY_GAIN * eta * scale[running]
    _widen_outputs(rows, metrics, values & (metrics.difference <= rounding + extra), names, extra)
    _widen_updates(rows, metrics, history, names, extra)
    _widen_after_updates(rows, metrics, rounding, scale, extra)
    extra[written] = -rounding[written]
    return extra, tuple(notes)


def _written_to(rows: StepRows, history: History, names: list[str]) -> list[int]:
    """Weights that no optimizer updates, and whose bits one side alone has changed since the step before: the
    program wrote to them, as merging adapters does. Bits of what nothing updates do not round; what writing
    leaves in a dtype as fine as float32 is compared as other weights are."""
    if not history.still:
        return []
    is_fine = unit_roundoffs(rows.match.words.dtype) <= FLOAT32
    sides = [half.column("digest").to_list() for half in (rows.target, rows.reference)]
    found = []
    for row in np.flatnonzero(rows.phase_is("param") & rows.paired).tolist():
        held = [column[row] for column in sides]
        before = history.still.get(names[row])
        if before is not None and None not in held and not is_fine[rows.target.dtype[row]]:
            changed = [a != b for a, b in zip(held, before, strict=True)]
            if changed[0] != changed[1]:
                found.append(row)
    return found


def _still(rows: StepRows, metrics: Metrics, names: list[str]) -> dict[str, tuple[int, int]]:
    trained = rows.phase_is("param_grad", "optimizer")
    updated = rows.phase_is("optimizer") & rows.slot_is("param")
    if not all((updated & (half.record >= 0)).any() for half in (rows.target, rows.reference)):
        return {}
    moving = {names[row] for row in np.flatnonzero(trained).tolist()}
    sides = [half.column("digest").to_list() for half in (rows.target, rows.reference)]
    same = np.flatnonzero(rows.phase_is("param") & rows.paired & metrics.bits_equal).tolist()
    held = {names[row]: (sides[0][row], sides[1][row]) for row in same if names[row] not in moving}
    return {name: both for name, both in held.items() if None not in both}


def _kept(rows: StepRows, metrics: Metrics, judgement: Judgement) -> dict[tuple[int, int], float]:
    """What functions outside the model made within rounding, and a program may keep for the next step."""
    made = rows.paired & rows.kind_is("api") & (rows.of_call("parent") < 0)
    made &= rows.phase_is("forward") & rows.slot_starts("output")
    made &= (judgement.status == WITHIN) & (metrics.difference > 0)
    at = np.flatnonzero(made)
    sides = [half.column("digest").gather(at).to_list() for half in (rows.target, rows.reference)]
    found = zip(zip(*sides, strict=True), metrics.difference[at].tolist(), strict=True)
    return {both: apart for both, apart in found if None not in both}


def _widen_kept(rows: StepRows, history: History, extra: Floats) -> None:
    """What functions outside the model are given from the step before (a momentum, an average that a program
    keeps), and weights that they made there, were judged there, beside what they were made of."""
    if not history.kept:
        return
    given = rows.kind_is("api") & (rows.of_call("parent") < 0) & rows.phase_is("forward")
    given = rows.paired & ((given & rows.slot_starts("input")) | rows.phase_is("param"))
    at = np.flatnonzero(given)
    sides = [half.column("digest").gather(at).to_list() for half in (rows.target, rows.reference)]
    for row, both in zip(at.tolist(), zip(*sides, strict=True), strict=True):
        extra[row] = max(extra[row], KNOWN_NORM * history.kept.get(both, 0.0))


def update_spread(noise: float, numel: float) -> float:
    """Largest relative change of an adaptive update under gradient noise e: min(max(2, e), 4 sqrt(e) + 2
    sqrt(flips / n)).

    About n e of n elements change sign, a Poisson number: flips = n e + 4 sqrt(n e) + 2, or 0 below a chance
    of 1e-6.
    """
    mean = noise * max(numel, 1.0)
    flips = mean + FLIP_ERRORS * np.sqrt(mean) + FLIPS_AT_LEAST if mean > FLIP_CHANCE else 0.0
    most = max(2.0, KNOWN_NORM * noise)
    return float(min(most, UPDATE_SPREAD * np.sqrt(noise) + 2.0 * np.sqrt(flips / max(numel, 1.0))))


def cancelled_part(gradient: float, numel: float, eps: float = CANCELLED_EPS) -> float:
    """Relative change of a vector's update from a part whose gradient is rounding alone; ``gradient``: norm
    of the gradient's difference."""
    size = gradient / np.sqrt(max(numel, 1.0))
    return float(CANCELLED_PART * (1.0 if size >= eps else size / eps))


def remember(rows: StepRows, metrics: Metrics, judgement: Judgement, history: History, step: int) -> History:
    """What this step leaves to the next one."""
    names = _parameter_names(rows)
    slots = rows.match.words.slot
    updated = rows.phase_is("optimizer") & rows.paired & ~np.isnan(metrics.difference)
    relative, lengths, below = metrics.rel_l2, metrics.update_lengths, _known_from_below(metrics)
    gradient, noise, least = _gradient_noise(rows, metrics, rows.num_weights)
    flips = np.array([_may_flip(a, b) for a, b in zip(least.tolist(), gradient.tolist(), strict=True)], bool)
    parameter: dict[str, float] = {}
    state: dict[tuple[str, str], tuple[float, float]] = {}
    update: dict[str, float] = {}
    for row in np.flatnonzero(updated).tolist():
        name, slot, weight = names[row], slots[rows.slot[row]], rows.weight[row]
        moved = 0.0
        if slot == "param" and below[row] and np.isfinite(lengths[weight]):
            moved = UPDATE_SPREAD * np.sqrt(noise[weight]) * lengths[weight]
        if metrics.difference[row] == 0 and moved == 0:
            continue
        if slot == "param":
            parameter[name] = float(max(metrics.difference[row], moved))
            update[name] = float(lengths[weight])
        else:
            state[name, slot] = (float(metrics.difference[row]), float(relative[row]))
    left = np.flatnonzero(not_finite_apart(rows) & rows.phase_is("param", "param_grad", "optimizer"))
    return replace(
        history,
        step=step,
        parameter=parameter,
        state=state,
        update=update,
        unseen=_unseen(rows, metrics, names, noise, flips, history),
        not_finite=frozenset(names[row] for row in left.tolist()),
        kept=_kept(rows, metrics, judgement),
        still=_still(rows, metrics, names),
        exceeded=history.exceeded or judgement.exceeded,
        notes=(*history.notes, *judgement.notes),
    )


def observe(rows: StepRows, history: History) -> History:
    """With the weights whose updates are not compared, and how far those of the step before went; taken while
    the rows have their sketches."""
    values = rows.phase_is("param") & rows.paired & (rows.reference.summary >= 0)
    compared = np.zeros(rows.num_weights, bool)
    compared[rows.weight[rows.phase_is("optimizer") & rows.slot_is("param") & rows.paired]] = True
    at = np.flatnonzero(values)
    if not history.unseen:
        at = at[~compared[rows.weight[at]]]
    if not len(at):
        return replace(history, values={}, moved={})
    names = _parameter_names(rows)
    sketches, present = sketches_of(rows.reference.tables.summaries, rows.reference.summary[at])
    held = rows.reference.statistics
    extents = np.stack([held[name][at] for name in ("minimum", "maximum", "l2_norm")], axis=1)
    seen: dict[str, PastWeight] = {}
    moved: dict[str, float] = {}
    for n, row in enumerate(at.tolist()):
        value = PastWeight(sketch=sketches[n] if present[n] else None, extent=np.nan_to_num(extents[n]))
        if names[row] in history.values:
            distance = value.distance(history.values[names[row]], float(rows.reference.numel[row]))
            moved[names[row]] = distance
        if not compared[rows.weight[row]]:
            seen[names[row]] = value
    return _settled(rows, names, replace(history, values=seen, moved=moved))


def not_finite_apart(rows: StepRows) -> Bools:
    """Pairs whose one side holds more NaN, or infinities of one sign."""
    out = np.zeros(len(rows), bool)
    for name in ("num_nan", "num_posinf", "num_neginf"):
        target, reference = rows.target.statistics[name], rows.reference.statistics[name]
        out |= (target != reference) & ~np.isnan(target + reference)
    for sides in shown_apart(rows).values():
        out |= sides[0] | sides[1]
    return np.asarray(out & rows.paired)


def left_not_finite(rows: StepRows, history: History) -> Bools:
    """Per ``StepRows.weight``: whether the step before left it with NaN or infinities on one side alone."""
    out = np.zeros(rows.num_weights, bool)
    if history.not_finite:
        values = rows.phase_is("param") & rows.paired
        names = _parameter_names(rows)
        at = [row for row in np.flatnonzero(values).tolist() if names[row] in history.not_finite]
        out[rows.weight[at]] = True
    return out


def _unseen(
    rows: StepRows, metrics: Metrics, names: list[str], noise: Floats, flips: Bools, history: History
) -> dict[str, tuple[float, float, bool]]:
    """Weights that received another gradient, and whose update was not compared."""
    if not history.values:
        return {}
    dims = np.array([len(s) for s in rows.match.words.shape] + [0])[rows.reference.shape]
    found = {}
    for row in np.flatnonzero(rows.phase_is("param") & rows.paired).tolist():
        name = names[row]
        most, _, before = history.unseen.get(name, (0.0, 0.0, False))
        most = max(noise[rows.weight[row]], most)
        if most > 0 and name in history.values:
            difference = float(np.nan_to_num(metrics.difference[row]))
            is_apart = before or bool(flips[rows.weight[row]] and dims[row] == 1)
            found[name] = (float(most), difference, is_apart)
    return found


def _settled(rows: StepRows, names: list[str], history: History) -> History:
    """With what the updates that were not compared may have left, now that it is seen how far they went."""
    update, parameter = dict(history.update), dict(history.parameter)
    for row in np.flatnonzero(rows.phase_is("param") & rows.paired).tolist() if history.moved else []:
        name = names[row]
        if name in history.unseen and name in history.moved:
            noise, before, is_apart = history.unseen[name]
            spread = update_spread(noise, float(rows.reference.numel[row]))
            spread = max(spread, min(2.0, spread + CANCELLED_PART)) if is_apart else spread
            update[name] = history.moved[name]
            parameter[name] = before + history.moved[name] * spread / KNOWN_NORM
    return replace(history, update=update, parameter=parameter)


def _parameter_names(rows: StepRows) -> list[str]:
    words = rows.match.words.name
    names = [words[code] if code >= 0 else "" for code in rows.of_call("plain").tolist()]
    for row in np.flatnonzero(rows.weight >= rows.match.target.num_calls).tolist():
        names[row] += f" < {words[rows.match.reference.plain[rows.reference.call[row]]]}"
    return names


def _known_from_below(metrics: Metrics) -> Bools:
    """Records that may differ by more than was found."""
    return np.asarray((metrics.evidence == STATISTICS) & ~metrics.bits_equal)


def _worst_matrix(
    rows: StepRows, metrics: Metrics, values: Bools, extra: Floats, history: History, names: list[str]
) -> float:
    dims = np.array([len(s) for s in rows.match.words.shape] + [0])[rows.reference.shape]
    difference = metrics.difference.copy()
    for row in np.flatnonzero(values & _known_from_below(metrics)).tolist():
        difference[row] = max(difference[row], history.parameter.get(names[row], 0.0))
    explained = values & (dims >= 2) & (difference > 0) & (difference <= extra)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float((difference / metrics.norm)[explained].max(initial=0.0))


def _widen_after_updates(
    rows: StepRows, metrics: Metrics, rounding: Floats, scale: Floats, extra: Floats
) -> None:
    """What updates within a step (its mini-batches) leave in the weights grows the bounds of all that comes
    after them, as what a step leaves grows those of the next."""
    dims = np.array([len(s) for s in rows.match.words.shape] + [0])[rows.reference.shape]
    updated = rows.phase_is("optimizer") & rows.slot_is("param") & rows.paired & (dims >= 2)
    accepted = updated & (metrics.difference > 0) & (metrics.difference <= rounding + extra)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(accepted, metrics.difference / metrics.norm, 0.0)
    eta = np.maximum.accumulate(left) if len(left) else left
    running = rows.phase_is("forward", "loss", "backward", "param_grad", "collective")
    extra[running] += HISTORY_GAIN * eta[running] * scale[running]


def _widen_outputs(
    rows: StepRows, metrics: Metrics, accepted: Bools, names: list[str], extra: Floats
) -> None:
    """What a bias that differs, within what is accepted, adds to its module's output."""
    dims = np.array([len(s) for s in rows.match.words.shape] + [0])[rows.reference.shape]
    vectors = np.flatnonzero(accepted & (dims == 1) & (metrics.difference > 0))
    if not len(vectors):
        return
    codes = {word: code for code, word in enumerate(rows.match.words.name)}
    of_module = np.zeros(len(rows.match.words.name) + 1)
    for row in vectors.tolist():
        owner = codes.get(names[row].rpartition(".")[0], -1)
        each = metrics.difference[row] / np.sqrt(max(rows.reference.numel[row], 1.0))
        of_module[owner] = max(of_module[owner], each)
    of_module[-1] = 0.0
    outputs = rows.phase_is("forward") & rows.slot_starts("output") & rows.kind_is("module")
    grown = HISTORY_GAIN * of_module[rows.of_call("plain")] * np.sqrt(np.nan_to_num(rows.reference.numel))
    extra[outputs] += grown[outputs]


def _widen_updates(
    rows: StepRows, metrics: Metrics, history: History, names: list[str], extra: Floats
) -> None:
    optimizer = rows.phase_is("optimizer") & rows.paired
    if not optimizer.any():
        return
    num = rows.num_weights
    gradient, gradient_error, least = _gradient_noise(rows, metrics, num)
    before = np.zeros(num)
    values = rows.phase_is("param") & rows.paired
    before[rows.weight[values]] = np.nan_to_num(metrics.difference[values], posinf=0.0)
    lengths = metrics.update_lengths
    dims = np.array([len(s) for s in rows.match.words.shape] + [0])[rows.reference.shape]
    state_error: dict[str, float] = {}
    for (name, _), (_, relative) in history.state.items():
        state_error[name] = max(state_error.get(name, 0.0), relative if np.isfinite(relative) else 1.0)
    slots = rows.match.words.slot
    for row in np.flatnonzero(optimizer).tolist():
        call, name, slot = int(rows.weight[row]), names[row], slots[rows.slot[row]]
        noise, earlier = gradient_error[call], state_error.get(name, 0.0)
        if noise == 0 and earlier == 0 and before[call] == 0:
            continue
        if slot == "param":
            length = lengths[call] if np.isfinite(lengths[call]) else metrics.norm[row]
            numel = float(rows.reference.numel[row])
            spread = update_spread(max(noise, earlier), numel)
            if dims[row] == 1 and _may_flip(least[call], gradient[call]):
                eps = history.eps.get(name, CANCELLED_EPS)
                spread = max(spread, min(2.0, spread + cancelled_part(gradient[call], numel, eps)))
            extra[row] = KNOWN_NORM * before[call] + length * spread
        else:
            grown = UPDATE_SPREAD * noise * metrics.norm[row] + KNOWN_NORM * gradient[call]
            squared = UPDATE_SPREAD * (noise + noise**2 / 2) * metrics.norm[row]
            extra[row] = squared if "sq" in slot else grown
            extra[row] += KNOWN_NORM * history.state.get((name, slot), (0.0, 0.0))[0]


def _may_flip(least: float, gradient: float) -> bool:
    """Whether the smallest element of a gradient is no larger than its difference, so that rounding decides
    on its sign."""
    return bool(gradient > 0 and not least > gradient)


def _gradient_noise(rows: StepRows, metrics: Metrics, num: int) -> tuple[Floats, Floats, Floats]:
    """Per weight, absolute and relative difference of the gradient the optimizer received (clipped, else
    accumulated), the relative one of the noisiest measured where its own is known from below; and the least
    magnitude in the reference's, 0 where it is not known."""
    absolute, relative, least = np.zeros(num), np.zeros(num), np.zeros(num)
    magnitudes = rows.reference.column("smallest_nonzero")
    slots, below = rows.match.words.slot, _known_from_below(metrics)
    gradients = rows.phase_is("param_grad") & rows.paired & np.isfinite(metrics.rel_l2)
    measured = gradients & ~below if (gradients & ~below).any() else gradients
    worst = float(np.minimum(metrics.rel_l2[measured], 1.0).max(initial=0.0))
    for slot in ("local", "accumulated", "clipped"):
        if slot not in slots:
            continue
        at = rows.phase_is("param_grad") & rows.paired & (rows.slot == slots.index(slot))
        at &= ~np.isnan(metrics.difference)
        absolute[rows.weight[at]] = metrics.difference[at]
        known = np.where(below[at], np.fmax(metrics.rel_l2[at], worst), metrics.rel_l2[at])
        relative[rows.weight[at]] = np.where(np.isfinite(known), known, 1.0)
        least[rows.weight[at]] = magnitudes.gather(np.flatnonzero(at)).fill_null(0.0).to_numpy()
    return absolute, relative, least
