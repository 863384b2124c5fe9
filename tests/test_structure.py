"""How the source is kept: no file without a reason, few ``Any``, state of the process in listed modules."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
SMALL, LARGEST = 60, 300
"""lines of a file that needs a reason; lines that no file should exceed"""
REGISTRIES = {"rules", "readers", "kinds", "checks", "codes", "stages"}
"""folders of one file an entry: adding one is one file and one line"""
REASONS = {
    "trueup.adapters.torch.batches": "reads a data loader; its importer arranges long runs",
    "trueup.checklist.readers.verl_log": "the log of one program, beside the others",
    "trueup.numerics.statistics": "the one definition of every statistic, as sketch and digest have theirs",
    "trueup_gpt.data.recorded": "one source of data, beside the others",
    "trueup_gpt.optimize.loss_scale": "one part of the optimizer, beside the others",
    "trueup_gpt.torch.parallel.masters": "one table of the parallel layout, used by the resharding of others",
}

MOST_ANY = 300
"""times that the source says ``Any``: 226 when this was written"""
MOST_BRANCHES = 20
"""decisions in a function; one with more says why"""
STATE = {
    "trueup.adapters.gradients": "slots",
    "trueup.adapters.mindspore.api": "hooks",
    "trueup.adapters.mindspore.collectives": "hooks",
    "trueup.adapters.mindspore.compiled": "hooks",
    "trueup.adapters.mindspore.determinism": "hooks",
    "trueup.adapters.mindspore.long_run": "hooks",
    "trueup.adapters.mindspore.modules": "hooks",
    "trueup.adapters.mindspore.stats": "names of dtypes",
    "trueup.adapters.mindspore.training": "hooks",
    "trueup.adapters.torch.api": "hooks",
    "trueup.adapters.torch.batches": "hooks",
    "trueup.adapters.torch.collectives": "hooks",
    "trueup.adapters.torch.determinism": "hooks",
    "trueup.adapters.torch.dynamo": "hooks",
    "trueup.adapters.torch.quiet": "hooks",
    "trueup.adapters.torch.escapes": "hooks",
    "trueup.adapters.torch.long_run": "hooks",
    "trueup.adapters.torch.modules": "hooks",
    "trueup.adapters.torch.regions": "hooks",
    "trueup.adapters.torch.training": "hooks",
    "trueup.adapters.trees": "slots and arguments as text",
    "trueup.capture.claim": "session",
    "trueup.capture.declared": "session",
    "trueup.capture.passed_options": "session",
    "trueup.capture.launch.startup.sitecustomize": "session",
    "trueup.capture.session": "session",
    "trueup.store.view": "the steps read last",
    "trueup_gpt.mindspore.parallel.mesh": "names of groups",
    "trueup.types.threshold": "every entry, filled by imports",
}
"""what docs/architecture.md explains under "State of the process"; cached pure functions need no line"""
CHANGES = {"append", "add", "update", "setdefault", "pop", "clear", "extend", "discard", "remove", "insert"}
NOT_IN_NAMES = {"told", "said", "handed", "mine", "theirs", "ours", "yours", "alone", "worth"}
"""words that say who speaks or whose something is, and not what it is"""
KEPT_NAMES = {
    ("trueup/diagnosing/around.py", "said"): "a key of the JSON of curves",
    ("trueup/diagnosing/rl/loss_checks.py", "told"): "a fact of a reason, in JSON",
    ("trueup/diagnosing/stages/handed_back.py", "handed_back"): "its codes begin so",
}
MIRRORS = {"torch", "mindspore", "msprobe"}
"""folders of one framework or tool each, whose files and classes have the names of the others'"""
SAME_CLASSES = {"Adapter": "what every framework's adapter is, and theirs"}


@cache
def _tree(path: Path) -> ast.Module:
    """What a file parses to, for all tests of this one."""
    return ast.parse(path.read_text(encoding="utf-8"))


def test_any_is_rare():
    count = sum(
        len(re.findall(r"\bAny\b", path.read_text(encoding="utf-8"))) for path in SOURCE.rglob("*.py")
    )
    assert count <= MOST_ANY, "say what the value is: a Protocol or type of adapters/base.py, or object"


def test_a_complex_function_says_why_it_is_in_one_piece():
    silent = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and _complexity(node) > MOST_BRANCHES:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if not lines[first - 2].strip().startswith("# In one piece: "):
                    silent.append(f"{path.relative_to(SOURCE)}:{node.lineno} {node.name} {_complexity(node)}")
    assert silent == [], "divide it, or say above it why it is in one piece"


def _complexity(function):
    """Branches of a function: 1 and one for every decision, as radon counts them."""
    count = 1
    for node in ast.walk(function):
        count += isinstance(node, (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.Assert))
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        count += 1 + len(node.ifs) if isinstance(node, ast.comprehension) else 0
    return count


def test_state_of_the_process_stands_where_the_page_says():
    files = {_name(path): _tree(path) for path in SOURCE.rglob("*.py")}
    held = {name for name, tree in files.items() if set(_changed_globals(tree))}
    assert sorted(held - set(STATE)) == [], "keep it in an object that is handed on, or write down why not"
    assert sorted(set(STATE) - held) == [], "these keep nothing any more"


def test_state_is_seen_in_a_module_that_has_some():
    kept = "seen = {}\ndef note(key):\n    seen[key] = 1\n"
    assert set(_changed_globals(ast.parse(kept))) == {"seen"}
    assert not set(_changed_globals(ast.parse("WORDS = {}\ndef look(key):\n    return WORDS[key]\n")))


def _changed_globals(tree):
    """Names of a module that its functions assign anew or change in place."""
    names = {
        target.id
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        changed = (
            node.value if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) else None
        )
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            changed = node.func.value
        if isinstance(changed, ast.Name) and changed.id in names:
            yield changed.id


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
        tree = _tree(path)
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


def test_names_are_words_of_the_field():
    found = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        for name in {path.stem, *_identifiers(_tree(path))}
        if _words(name) & NOT_IN_NAMES
    }
    assert sorted(found - set(KEPT_NAMES)) == [], "say what the value is, see CONTRIBUTING.md"
    assert sorted(set(KEPT_NAMES) - found) == [], "these are not there any more"


def test_a_forbidden_name_is_seen():
    code = "class Told:\n    is_said = 1\ndef f(mine, *, x):\n    g(theirs=x.worth_saying)\n"
    code += "    _handed, OURS = x, alone\n"
    seen = {name for name in _identifiers(ast.parse(code)) if _words(name) & NOT_IN_NAMES}
    assert seen == {"Told", "is_said", "mine", "theirs", "worth_saying", "_handed", "OURS", "alone"}


def test_no_two_classes_have_one_name():
    places = defaultdict(set)
    for path in (SOURCE / "trueup").rglob("*.py"):
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                place = path.relative_to(SOURCE).with_suffix("").parts
                places[node.name].add("/".join(part for part in place if part not in MIRRORS))
    doubled = {name for name, found in places.items() if len(found) > 1}
    assert sorted(doubled - set(SAME_CLASSES)) == [], "give one of them a name of its own"
    assert sorted(set(SAME_CLASSES) - doubled) == [], "these have names of their own now"


def _identifiers(tree):
    """Every name that code defines or uses, and keywords of calls."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname", "rest"):
            if isinstance(name := getattr(node, field, None), str):
                yield from name.split(".")
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names


def _words(name):
    return {word.lower() for word in re.split(r"_|(?<=[a-z])(?=[A-Z])", name)}
