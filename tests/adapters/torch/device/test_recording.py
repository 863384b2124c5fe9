"""A recording waits for calls under way, and calls wait for its end."""

from __future__ import annotations

import threading

import pytest

from trueup.adapters.torch.device.recording import RECORDING, Recording, watch

pytestmark = pytest.mark.torch


def started(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_a_recording_begins_after_the_calls_under_way() -> None:
    recording, order = Recording(), []
    entered, go = threading.Event(), threading.Event()

    def call() -> None:
        with recording.call():
            entered.set()
            go.wait(10)
            order.append("call")

    def record() -> None:
        recording.begin()
        order.append("recording")
        recording.end()

    caller = started(call)
    assert entered.wait(10)
    recorder = started(record)
    recorder.join(0.05)
    assert order == []
    go.set()
    caller.join(10)
    recorder.join(10)
    assert order == ["call", "recording"]


def test_a_call_waits_for_the_end_of_all_recordings() -> None:
    recording, done = Recording(), threading.Event()

    def call() -> None:
        with recording.call():
            done.set()

    recording.begin()
    recording.begin()
    caller = started(call)
    recording.end()
    assert not done.wait(0.05)
    recording.end()
    assert done.wait(10)
    caller.join(10)


class Graph:
    """As torch's; one that cannot begin raises."""

    def capture_begin(self, *, pool: object = None) -> None:
        if pool == "bad":
            raise ValueError("no such pool")

    def capture_end(self) -> str:
        return "ended"


def test_a_graph_that_cannot_begin_is_not_recorded() -> None:
    watch(Graph)
    watch(Graph)
    before, graph = RECORDING.depth, Graph()
    with pytest.raises(ValueError, match="no such pool"):
        graph.capture_begin(pool="bad")
    assert RECORDING.depth == before
    graph.capture_begin()
    assert RECORDING.depth == before + 1
    assert graph.capture_end() == "ended"
    assert RECORDING.depth == before
