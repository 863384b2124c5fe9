"""What happens in a captured process the moment a framework is there."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from trueup.capture import seeds, session
from trueup.capture.observer import observer_from_description
from trueup.capture.options import CaptureOptions
from trueup.capture.passed_options import hand_over


def framework_is_ready(framework: str, plan: Mapping[str, Mapping[str, object]]) -> None:
    """Set the seeds and the determinism asked for from outside, then begin the capture, or leave that to the
    Tracer of the program's own that is meant.

    ``plan`` is what ``environment.plan`` wrote: the options, and the folders trueup may be found in.
    """
    options = CaptureOptions.from_json(plan["options"])
    importlib.import_module("trueup.integrations").watch_all()  # by name: it stands above capture
    seeds.apply(options.seed, options.deterministic, framework=framework)
    if options.tracer is not None:
        hand_over(options)
        return
    observer = observer_from_description(options.observer)
    session.begin(options, framework=framework, observer=observer)
