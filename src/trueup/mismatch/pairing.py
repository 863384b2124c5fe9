"""The two forwards of the same tokens: rows of an inference engine beside rows of the trainer.

An engine that batches continuously says of a row which token it is of and where in its sequence, and not in
which sequence. It is told from these two where all sequences of the step that have the token at the place
begin alike up to it: what a causal model gives there is the same for all. Where they begin otherwise, or the
engine has more rows of it than there are sequences (others were sampled too), the row is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from trueup.mismatch.needed import dtype_needed
from trueup.store.rollouts import read_rollouts
from trueup.store.token_layers import BESIDE, FOLDER, SIDES, layer_files, marks
from trueup.types.arrays import Array, Floats, Ints

Place = tuple[int, int]
"""position and token id"""
Sides = Mapping[str, Mapping[str, Array]]


def paired_layers(run: Path, step: int) -> Sides:
    """Side -> layer -> a row a token, the same tokens on every side; empty where none is found on both.

    Raises:
        TraceError: a file cannot be read.
    """
    if not (run / FOLDER).is_dir():
        return {}
    places = _places_of_one_beginning(run, step)
    held = {side: _rows(run, side, step) for side in SIDES}
    first = {side: _first_of_each(held[side][1], places) for side in SIDES}
    common = sorted(first["rollout"].keys() & first["training"].keys())
    names = [name for name in held["training"][0] if name in held["rollout"][0]]
    if not common or not names:
        return {}
    found = {
        side: {name: held[side][0][name][[first[side][place] for place in common]] for name in names}
        for side in SIDES[:2]
    }
    noise = first["noise"]
    if all(place in noise for place in common) and all(name in held["noise"][0] for name in names):
        repeated = {name: held["noise"][0][name][[noise[place] for place in common]] for name in names}
        if all(_is_as_coarse(repeated[name], found["rollout"][name]) for name in names):
            found["noise"] = repeated
    return found


def _is_as_coarse(noise: Array, rollout: Array) -> bool:
    """A repetition in a finer dtype shows less than the rollout's own rounds."""
    return dtype_needed(noise) == dtype_needed(rollout)


def _places_of_one_beginning(run: Path, step: int) -> dict[Place, int]:
    """Tokens at places that all sequences of the step reach alike, and from which a token of a response is
    predicted -> how many sequences have them."""
    beginnings: dict[Place, set[int]] = {}
    counts: Counter[Place] = Counter()
    predicting: set[Place] = set()
    for first, ids in _sequences(run, step):
        beginning = 0
        for place in enumerate(ids):
            beginning = hash((beginning, place[1]))
            beginnings.setdefault(place, set()).add(beginning)
            counts[place] += 1
            if first - 1 <= place[0] < len(ids) - 1:
                predicting.add(place)
    return {place: counts[place] for place in predicting if len(beginnings[place]) == 1}


def _sequences(run: Path, step: int) -> Iterator[tuple[int, list[int]]]:
    """Tokens of the prompt, and prompt and response of every sequence of the step: as the trainer's batch
    holds them."""
    batch = None if (held := read_rollouts(run).get(step)) is None else held.batch
    if batch is None or not {"prompts", "responses"} <= batch.arrays.keys():
        return
    for prompt, response in zip(batch.arrays["prompts"], batch.arrays["responses"], strict=True):
        ids = prompt[prompt >= 0].tolist()
        yield len(ids), [*ids, *response[response >= 0].tolist()]


def _rows(run: Path, side: str, step: int) -> tuple[dict[str, Array], list[Place]]:
    """Layers of one side, and the place of each row."""
    begin, end = _interval(run, step)
    layers: dict[str, list[Array]] = {}
    places: list[Place] = []
    for file in layer_files(run, side):
        known = int(file["step"]) if "step" in file else -1
        if known >= 0:
            keep = np.full(len(file["ids"]), known == step)
        else:
            times: Floats = file["times"]
            keep = (times > begin) & (times <= end)
        if not keep.any():
            continue
        ids: Ints = file["ids"][keep]
        places += zip(file["positions"][keep].tolist(), ids.tolist(), strict=True)
        for name in file:
            if name not in BESIDE:
                layers.setdefault(name, []).append(file[name][keep])
    whole = {name: np.concatenate(parts) for name, parts in layers.items()}
    return {name: rows for name, rows in whole.items() if len(rows) == len(places)}, places


def _interval(run: Path, step: int) -> tuple[float, float]:
    """From the end of the rollout before this step's to the end of its own."""
    before = 0.0
    for number, when in marks(run):
        if number == step:
            return before, when
        before = when
    return np.inf, -np.inf


def _first_of_each(places: list[Place], known: Mapping[Place, int]) -> dict[Place, int]:
    """Place -> its first row, of places that are known and not seen too often."""
    counts = Counter(places)
    found: dict[Place, int] = {}
    for row, place in enumerate(places):
        if 0 < counts[place] <= known.get(place, 0):
            found.setdefault(place, row)
    return found
