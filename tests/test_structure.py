"""A file with one importer and under 60 lines belongs into that importer, unless there is a reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
SMALL, LARGEST = 60, 300
"""lines of a file that needs a reason; lines that no file should exceed"""
REGISTRIES = {"rules", "readers", "kinds", "checks", "codes", "stages"}
"""folders of one file an entry: adding one is one file and one line"""
REASONS = {
    "trueup.adapters.torch.batches": "reads a data loader; its importer arranges long runs",
    "trueup.adapters.torch.content": "identity of a tensor's content; its importer starts capture",
    "trueup.adapters.torch.dynamo": "touches torch._dynamo, of which nothing else may know",
    "trueup.capture.flat": "the memory layout of a step, measured by its own benchmark",
    "trueup.checklist.thresholds": "the constants that decide, in one table as in every room",
    "trueup.comparing.other_ranks": "one question about an origin, tested alone",
    "trueup.diagnosing.evidence.windows": "one quantity of the evidence, beside the others",
    "trueup_gpt.data.recorded": "one source of data, beside the others",
    "trueup_gpt.optimize.loss_scale": "one part of the optimizer, beside the others",
    "trueup_gpt.parallel.masters": "one table of the parallel layout, used by the resharding of others",
}


def test_small_files_with_one_importer_have_a_reason():
    small = dict(_small_files())
    assert sorted(set(small) - set(REASONS)) == [], "merge these, or write down why not"
    assert sorted(set(REASONS) - set(small)) == [], "these need no reason any more"


def _small_files():
    files = {_name(path): path for path in SOURCE.rglob("*.py")}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()}
    importers = _importers(files)
    for name, path in files.items():
        if path.name == "__init__.py" or lines[name] >= SMALL or len(importers[name]) != 1:
            continue
        ((importer, loaded_late),) = importers[name].items()
        package = name.rpartition(".")[0]
        a_registry = package.rpartition(".")[2] in REGISTRIES and importer == package
        if not (a_registry or loaded_late or _has_twin(path) or lines[name] + lines[importer] > LARGEST):
            yield name, importer


def _importers(files):
    """Module -> those that import it, and whether they do so inside functions alone."""
    importers = defaultdict(dict)
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        early = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            for imported in _imported(node, files) - {name}:
                late = id(node) not in early and importers[imported].get(name, True)
                importers[imported][name] = late
    return importers


def _imported(node, files):
    if isinstance(node, ast.Import):
        return {one.name for one in node.names} & set(files)
    if isinstance(node, ast.ImportFrom) and node.module:
        names = {f"{node.module}.{one.name}" for one in node.names}
        return (names & set(files)) or ({node.module} & set(files))
    return set()


def _has_twin(path):
    """The other framework's adapter has a file of the same name."""
    framework = {"torch": "mindspore", "mindspore": "torch"}.get(path.parent.name)
    return framework is not None and (path.parent.parent / framework / path.name).exists()


def _name(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
