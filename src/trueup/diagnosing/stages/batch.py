"""What a training step was fed with, as a trace keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trueup.comparing.losses.calls import root_returns_loss
from trueup.comparing.losses.inputs import LossInputs
from trueup.diagnosing.step_calls import embedded
from trueup.store import StepView
from trueup.store.given import root_inputs, whole_numbers
from trueup.store.same_rows import as_stream, bounds_in
from trueup.types.arrays import Array, Ints
from trueup.types.finding import Basis, Finding, Kind, Stage
from trueup.types.reason import Reason
from trueup.types.trace import ScalarLine

_BESIDE_TOKENS = ("mask", "position", "type")
"""in names of inputs that stand beside token ids"""
TOKENS = ("input_ids", "tokens", "ids", "idx", "token_ids")
"""names of inputs that are token ids"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What one step of one rank was fed with."""

    book: StepView
    ids: dict[str, Ints]
    """"microbatch 0, input.0" -> whole numbers of shape (rows, width)"""
    labels: dict[int, Ints]
    further: dict[tuple[int, int], Ints]
    """(microbatch, number) -> labels of a further loss"""
    masks: dict[int, Array]
    ignore_index: int
    vocab_size: int | None
    digest: str | None
    packed: bool
    """rows may hold several sequences"""
    given: dict[tuple[str, str], int | None]
    """microbatch (and call, where it is not the first) and slot of all that the outermost calls were given ->
    digest"""
    looked_up: dict[int, int]
    """digest of ids that an embedding looks up -> its number of rows"""
    bounds: dict[str, Ints]
    """boundaries of sequences that are packed into one dimension, by the names of ids"""
    loss_inside: bool
    """the outermost call returns the loss: what the loss is made with, that call was given, or made"""

    @classmethod
    def of(cls, book: StepView) -> StepBatch:
        """Read from one step's records."""
        return book.once(StepBatch, lambda: cls._read(book))

    @classmethod
    def _read(cls, book: StepView) -> StepBatch:
        records = {(place, s): r for place, s, r in given(book)}
        ids = {f"{p}, {s}": v for (p, s), r in records.items() if (v := whole_numbers(book, r)) is not None}
        bounds = {
            f"{place}, {slot}": values
            for place, held in _by_place(ids).items()
            for slot, values in bounds_in(held).items()
        }
        ids = _with_streams(ids)
        of_loss = LossInputs.of(book)
        line = next((s for s in book.source.scalars(book.rank) if s.get("step") == book.step), ScalarLine())
        return cls(
            book=book,
            ids={name: v.reshape(len(v), -1) for name, v in ids.items() if v.ndim >= 1 and v.size},
            labels=of_loss.labels,
            further=of_loss.further,
            masks=of_loss.masks,
            ignore_index=of_loss.ignore_index,
            vocab_size=_vocabulary(book),
            digest=line.get("batch_digest"),
            packed=bool(line.get("packed")),
            given={place: book.digest(r) for place, r in records.items()},
            looked_up=embedded(book),
            bounds=bounds,
            loss_inside=root_returns_loss(book),
        )

    def has_same_inputs(self, other: StepBatch) -> bool:
        """Whether both models were given the same bits and make the loss themselves: what it is made with may
        then differ, but no batch does."""
        return self.is_given_the_same(other) and self.loss_inside and other.loss_inside

    def is_given_the_same(self, other: StepBatch, *, but_labels: bool = False) -> bool:
        """Whether both models were given the same bits; ``but_labels``: apart from labels."""
        sides = [
            {at: held for at, held in batch.given.items() if not (but_labels and "labels" in at[1])}
            for batch in (self, other)
        ]
        return bool(sides[0]) and None not in sides[0].values() and sides[0] == sides[1]

    def tokens_of(self, microbatch: int) -> Ints | None:
        """The token ids of one microbatch: of its inputs of whole numbers the one that is looked up in the
        largest table, else the first; one that is called a mask, a position or a type only where there is no
        other."""
        place = f"microbatch {microbatch}"
        held = {slot: ids for name, ids in self.ids.items() for at, slot in [name.split(", ")] if at == place}
        plain = [slot for slot in held if not any(word in slot for word in _BESIDE_TOKENS)] or list(held)
        rows = [self.looked_up.get(self.given.get((place, slot)) or 0, 0) for slot in plain]
        return held[plain[rows.index(max(rows))]] if plain else None


def without_made(target: StepBatch, reference: StepBatch) -> tuple[StepBatch, StepBatch]:
    """Both without inputs that differ and that another model made in both, of inputs with the same bits (a
    generator, say): what that model computes differs, and no batch does."""
    made = {
        place
        for place, digest in target.given.items()
        if place in reference.given
        and digest != reference.given[place]
        and (own := _made_of(target.book, digest)) is not None
        and own == _made_of(reference.book, reference.given[place])
    }
    if not made:
        return target, reference
    left = [
        replace(
            batch,
            given={place: digest for place, digest in batch.given.items() if place not in made},
            ids={name: ids for name, ids in batch.ids.items() if tuple(name.split(", ")) not in made},
        )
        for batch in (target, reference)
    ]
    alike = left[0].given == left[1].given
    return left[0], replace(left[1], digest=target.digest) if alike else left[1]


def _made_of(book: StepView, digest: int | None) -> tuple[str, tuple[int | None, ...]] | None:
    """The outermost call of another model that returned a tensor: its name, and the digests of all that it
    was given; None where there is none."""
    if digest is None:
        return None
    for record, call in enumerate(book.record_call):
        is_output = book.phase[record] == "forward" and book.slot[record].startswith("output")
        outermost = book.kind[call] == "module" and book.parent[call] < 0 and book.name[call]
        if is_output and outermost and book.digest(record) == digest:
            rows = (one for one in book.records(call, "forward") if book.slot[one].startswith("input"))
            return book.name[call], tuple(book.digest(one) for one in rows)
    return None


def given(book: StepView) -> Iterator[tuple[str, str, int]]:
    """Place, slot and record of the inputs of the outermost calls."""
    calls: dict[int, list[int]] = {}
    for microbatch, slot, record in root_inputs(book):
        of_microbatch = calls.setdefault(microbatch, [])
        call = book.record_call[record]
        if call not in of_microbatch:
            of_microbatch.append(call)
        number = of_microbatch.index(call)
        yield f"microbatch {microbatch}" + (f" call {number}" if number else ""), slot, record


def may_be_tokens(slot: str) -> bool:
    """Whether an input is by its slot the ids of tokens, rather than positions, types or masks."""
    return slot.endswith("input.0") or "input_ids" in slot or slot.rpartition(".")[2] in TOKENS


def _vocabulary(book: StepView) -> int | None:
    """Rows of the embedding that looks up the ids the model was given. Where none is seen to do so (a part
    of a vocabulary moves the ids first) no other embedding's rows stand for it: it may hold positions."""
    sizes = embedded(book)
    digests = (book.digest(record) for _, slot, record in root_inputs(book) if may_be_tokens(slot))
    return next((sizes[one] for one in digests if one is not None and one in sizes), None)


def data_finding(
    *,
    headline: Reason,
    site: str,
    book: StepView,
    kinds: tuple[Kind, ...],
    evidence: tuple[Reason, ...],
    next_note: Reason,
    phase: str = "forward",
    axis: str | None = None,
) -> Finding:
    """A finding of the data stage."""
    return Finding(
        stage=Stage.DATA,
        headline=headline,
        module="",
        site=site,
        phase=phase,
        step=book.step,
        rank=book.rank,
        axis=axis,
        kinds=kinds,
        basis=Basis.RECORDED,
        evidence=evidence,
        causes=kinds[0].causes,
        next_note=next_note,
    )


def _by_place(ids: dict[str, Ints]) -> dict[str, dict[str, Ints]]:
    found: dict[str, dict[str, Ints]] = {}
    for name, values in ids.items():
        place, slot = name.split(", ")
        found.setdefault(place, {})[slot] = values
    return found


def _with_streams(ids: dict[str, Ints]) -> dict[str, Ints]:
    """Tokens that a call is given without a dimension of rows, as one row."""
    found: dict[str, Ints] = {}
    for place, held in _by_place(ids).items():
        found |= {f"{place}, {slot}": values for slot, values in (as_stream(held) or held).items()}
    return found
