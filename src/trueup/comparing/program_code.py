"""Where the two programs' code differs, beginning at a place of the step and going on through what is called
there: functions under one name with other statements or other plain values, and functions of one side alone.

A difference in code is a fact, not a fault: it is told beside a place that differs, nearest first. It decides
whether two runs agree in one case: where nothing but casts differs, and made the first other bits.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trueup.comparing.call_arguments import Argument, lacking, not_passed_on, stands_for
from trueup.comparing.program_statements import (
    LINES,
    arguments_of,
    before,
    cast_otherwise,
    changed,
    compared_of,
    from_difference,
    given_otherwise,
    joined,
    nested_otherwise,
    place_of,
    read_statements,
    same_statements,
    statements_of,
)
from trueup.comparing.telling_statements import in_telling_order
from trueup.numerics.dtypes import DTYPES
from trueup.store.code import Called, ProgramCode, ProgramFunction, Roots, code_of
from trueup.store.reader import TraceSource
from trueup.types.codes import BatchCode, EvidenceCode, StagesCode, VerdictCode
from trueup.types.reason import Reason, reason

MOST_PAIRS = 400
"""functions that are compared from one place on"""
SHOWN = 3
"""differences that are told of one place"""
OF_ONE_PROCESS = frozenset(("", "None", "False", "0", "1"))
"""what a program with nothing to share keeps of how it is shared"""
_ABOUT_THE_CAUSE = (
    StagesCode.ALSO_IN,
    StagesCode.ACTS_HERE,
    StagesCode.SETTING_DIFFERS,
    EvidenceCode.BUFFER_DIFFERS,
    EvidenceCode.INPUT_OF_ONE_SIDE,
    BatchCode.NUM_COUNTED,
)
_OF_THE_PLACE = (
    EvidenceCode.CODE_ARGUMENT_LACKS,
    EvidenceCode.CODE_VALUE_DIFFERS,
    EvidenceCode.CODE_DIFFERS,
    EvidenceCode.CODE_CASTS,
    EvidenceCode.CODE_IN_OTHER_ORDER,
    EvidenceCode.CODE_NESTED_OTHERWISE,
    EvidenceCode.CODE_WRAPPED,
)
_WORD = re.compile(r"\w+")
_CUTS = frozenset(
    ("detach", "detach_", "stop_gradient", "no_grad", "inference_mode", "set_grad_enabled")
) | frozenset(("requires_grad", "requires_grad_", "data", "item", "tolist", "numpy", "asnumpy"))
"""what takes a tensor out of the graph"""
_LOSS_AND_MORE = ("loss", "optimizer", "scalar", "param", "collective")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBook:
    """The programs of both sides."""

    target: ProgramCode
    reference: ProgramCode
    worlds: tuple[int, int] = (1, 1)
    """processes of both runs"""
    counterparts: Mapping[str, str] = field(default_factory=dict)
    """module of the target -> that of the reference, where two implementations were paired"""
    of_one_framework: bool = True
    """else every statement that computes differs, and which one matters cannot be told from them"""

    def near(self, module: str | None, phase: str | None) -> Near:
        """Differences nearest to a place: in the module's own forward, else in the modules around it, else in
        the functions that call the model.

        ``module``: "" is the root; None: outside the model.
        """
        for level, begins in enumerate(self._levels(module, phase)):
            found = tuple(_each_once(self._walked(begins, of_loss=phase == "loss")))
            if found:
                one_size = self.worlds[0] == self.worlds[1]
                return Near(reasons=found[:SHOWN], is_own=level == 0, is_of_one_size=one_size)
        return Near(reasons=(), is_own=False)

    def anywhere(self) -> tuple[Reason, ...]:
        """Differences of all that the step reaches, those inside the model first."""
        modules = [self._of_module(module) for module in self.target.types]
        begins = [*(pair for one in modules for pair in one), *self._outside("")]
        return tuple(_each_once(self._walked(begins)))[:SHOWN]

    def of_updates(self) -> tuple[Reason, ...]:
        """Differences of functions outside of the model that write tensors in place: what may update weights
        where no optimizer of the framework does."""
        seen = set[tuple[Called | None, Called | None]]()
        modules = [pair for module in self.target.types for pair in self._of_module(module)]
        deque(self._walked(modules, seen=seen), maxlen=0)
        found = {one: one.place("function") for one in _each_once(self._walked(self._outside(""), seen=seen))}
        every = (*self.target.functions, *self.reference.functions)
        named = [one for one in every if one.name in found.values()]
        writing = {one.name for one in named if _writes_in_place(one.source)}
        return tuple(one for one, name in found.items() if name in writing)

    def _levels(self, module: str | None, phase: str | None) -> Iterator[list[_Pair]]:
        if module is not None and phase not in _LOSS_AND_MORE:
            inner = module
            yield self._of_module(inner)
            while inner:
                inner = inner.rpartition(".")[0]
                yield self._of_module(inner)
        yield self._outside(phase or "")
        if module is None:
            yield self._of_module("")

    def _of_module(self, module: str) -> list[_Pair]:
        other = self.counterpart(module)
        if module not in self.target.types or other not in self.reference.types:
            return []
        pairs = [
            _Pair(module or "the model", self.target.forward_of(module), self.reference.forward_of(other))
        ]
        every = (*self.target.modules, *self.reference.modules) if module == other else ()
        hung = [key for key in every if key.startswith(f"{module} ")]
        pairs += [_Pair(key, self.target.modules.get(key), self.reference.modules.get(key)) for key in hung]
        return pairs

    def counterpart(self, module: str) -> str:
        """The reference's module of that name; where it is of another class, the only one of that class: one
        run may call a module inside where the other calls the whole."""
        if module in self.counterparts:
            return self.counterparts[module]
        of_class = self.target.types.get(module)
        alike = [name for name, one in self.reference.types.items() if one == of_class]
        return alike[0] if len(alike) == 1 else module

    def _outside(self, phase: str) -> list[_Pair]:
        """The optimizer's step, and the functions above the model's call, innermost first."""
        roles = [_Pair(key, one, self.reference.roles.get(key)) for key, one in self.target.roles.items()]
        target, reference = self.target.frames, self.reference.frames
        frames = [_Pair(key, one, reference[key]) for key, one in target.items() if key in reference]
        frames += [_Pair(key, target[key], None) for key in _inside(target, reference)]
        frames += [_Pair(key, None, reference[key]) for key in _inside(reference, target)]
        return [*roles, *frames] if phase in ("optimizer", "param") else [*frames, *roles]

    def _walked(
        self,
        begins: list[_Pair],
        *,
        of_loss: bool = False,
        seen: set[tuple[Called | None, Called | None]] | None = None,
    ) -> Iterator[Reason]:
        """Differences from these functions on, nearest first, but for those seen; of a loss, whose logits are
        given, without what modules run."""
        todo, seen = list(begins), set() if seen is None else seen
        run = (self.target.forwards, self.reference.forwards) if of_loss else (set[Called](), set[Called]())
        while todo and len(seen) < MOST_PAIRS:
            pair = todo.pop(0)
            if (pair.target, pair.reference) in seen:
                continue
            seen.add((pair.target, pair.reference))
            if pair.target in run[0] or pair.reference in run[1]:
                continue
            target, reference = self.target.function(pair.target), self.reference.function(pair.reference)
            if target is None or reference is None:
                one = _replaced(pair, target, reference) if self.of_one_framework else None
                if one is not None and not self._is_of_both(one):
                    yield one
                continue
            if not same_statements(target, reference):
                if self.of_one_framework:
                    yield from self._walked(self._given_otherwise(target, reference), seen=seen)
                    yield from self._other_statements(target, reference)
                    continue
            else:
                yield from _other_values(target, reference, self.worlds)
            names = dict.fromkeys((*target.calls, *reference.calls))
            todo += [_Pair(name, target.calls.get(name), reference.calls.get(name)) for name in names]

    def _is_of_both(self, one: Reason) -> bool:
        """Whether a function that one side calls here, and the other nothing in its place, is called by the
        other elsewhere."""
        if one.code is not EvidenceCode.CODE_OF_ONE_SIDE or one.place("other"):
            return False
        other = self.reference if one.place("side") == "target" else self.target
        return any(_shown_name(function) == one.place("function") for function in other.functions)

    def _given_otherwise(self, target: ProgramFunction, reference: ProgramFunction) -> list[_Pair]:
        """The program's functions that two functions give other arguments, where nothing else differs between
        the two and they do something else with what they are given: that says what the arguments are for."""
        found = []
        for name in given_otherwise(target, reference):
            pair = _Pair(name, target.calls.get(name), reference.calls.get(name))
            sides = self.target.function(pair.target), self.reference.function(pair.reference)
            if sides[0] is None or sides[1] is None or same_statements(sides[0], sides[1]):
                return []
            found.append(pair)
        return found

    def _other_statements(self, target: ProgramFunction, reference: ProgramFunction) -> Iterator[Reason]:
        sides = (("target", self.target, target, reference), ("reference", self.reference, reference, target))
        for side, code, own, other in sides:
            inside = (code.function(one) for one in own.calls.values())
            if any(one is not None and same_statements(one, other) for one in inside):
                for one in not_passed_on(own, other):
                    yield _argument(one, side, other)
                yield reason(
                    EvidenceCode.CODE_WRAPPED,
                    function=_shown_name(other),
                    side=side,
                    text=joined(statements_of(own)),
                    at=own.at,
                )
                return
        originals = stands_for(self.target, target), stands_for(self.reference, reference)
        if (originals[0] is target) != (
            originals[1] is reference
        ):  # of one side alone: what it dispatches to
            target, reference = originals
        yield from _lacking(self, target, reference)
        yield _statements_apart(target, reference)


def _lacking(book: CodeBook, target: ProgramFunction, reference: ProgramFunction) -> Iterator[Reason]:
    """The argument that one call of a changed statement lacks, where that is all that differs."""
    at = changed(target, reference)
    own, other = ([compared_of(one)[n] for n in of] for one, of in zip((target, reference), at, strict=True))
    if (one := lacking(own, other, reference, book.reference)) is not None:
        yield _argument(one, "target", reference)
    elif (one := lacking(other, own, target, book.target)) is not None:
        yield _argument(one, "reference", target)


def _argument(one: Argument, side: str, function: ProgramFunction) -> Reason:
    """``function`` gives the argument; its own are called by their names, not by their positions."""
    names = {f"argument_{at}": name for at, name in enumerate(arguments_of(function))}
    value = re.sub(r"\bargument_\d+\b", lambda found: names.get(found[0], found[0]), one.value)
    facts = {"name": one.name, "called": one.function, "default": one.default, "value": value}
    return reason(EvidenceCode.CODE_ARGUMENT_LACKS, side=side, function=_shown_name(function), **facts)


def _statements_apart(target: ProgramFunction, reference: ProgramFunction) -> Reason:
    """The statements of two functions that differ, the most telling first where they are many."""
    at = changed(target, reference)
    if not any(at) and (moved := nested_otherwise(target, reference)):
        around = [read_statements(one.source, one.name)[3][moved[0]] for one in (target, reference)]
        return reason(
            EvidenceCode.CODE_NESTED_OTHERWISE,
            function=_shown_name(reference),
            text=joined([statements_of(target)[n] for n in moved]),
            target=around[0].rpartition("\n")[2],
            reference=around[1].rpartition("\n")[2],
            target_at=place_of(target, moved),
            reference_at=place_of(reference, moved),
        )
    sides = statements_of(target), statements_of(reference)
    shown = [[lines[n] for n in of] for lines, of in zip(sides, at, strict=True)]
    places = {"target_at": place_of(target, at[0]), "reference_at": place_of(reference, at[1])}
    if sorted(shown[0]) == sorted(shown[1]):  # the same statements in another order
        ahead = [before(one, of) for one, of in zip((target, reference), at, strict=True)]
        return reason(
            EvidenceCode.CODE_IN_OTHER_ORDER,
            function=_shown_name(reference),
            text=joined(shown[0]),
            target=ahead[0],
            reference=ahead[1],
            **places,
        )
    if max(map(len, shown)) > LINES:
        order = in_telling_order(sides, at, (arguments_of(target), arguments_of(reference)))
        shown = [[lines[n] for n in of] for lines, of in zip(sides, order, strict=True)]
    elif len(shown[0]) == len(shown[1]):
        shown = [from_difference(*pair) for pair in (shown, shown[::-1])]
    return reason(
        EvidenceCode.CODE_CASTS if cast_otherwise(target, reference) else EvidenceCode.CODE_DIFFERS,
        function=_shown_name(reference),
        target=joined(shown[0]),
        reference=joined(shown[1]),
        **places,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """What differs in the code nearest to a place."""

    reasons: tuple[Reason, ...]
    is_own: bool
    """it is the code of the place itself, not of what is around it"""
    is_of_one_size: bool = True
    """both runs have as many processes"""

    def beside(self, evidence: tuple[Reason, ...], *, known: bool) -> tuple[Reason, ...]:
        """Evidence with what differs in the code: behind what names a cause that is known, ahead of how large
        the difference is; else ahead of all."""
        named = 1 if known else 0
        while known and named < len(evidence) and evidence[named].code in _ABOUT_THE_CAUSE:
            named += 1
        return (*evidence[:named], *self.reasons, *evidence[named:])

    @property
    def own(self) -> tuple[Reason, ...]:
        """Statements and values of the place itself, without functions of one side."""
        return tuple(one for one in self.reasons if self.is_own and one.code in _OF_THE_PLACE)

    @property
    def cuts_nothing(self) -> bool:
        """Whether statements and values are known that differ, in full, and none of them cuts a graph: a part
        that is detached is written so."""
        texts = [str(value) for one in self.reasons for _, value in one.places]
        is_whole = not any("…" in text for text in texts) and len(self.reasons) < SHOWN
        words = {word for text in texts for word in _WORD.findall(text)}
        return bool(self.reasons) and is_whole and not words & _CUTS

    @property
    def only_casts(self) -> bool:
        """Whether the code of the place itself differs in what it casts, and in nothing else."""
        casts = [one.code is EvidenceCode.CODE_CASTS for one in self.reasons]
        return self.is_own and bool(casts) and all(casts)

    @property
    def dtypes(self) -> frozenset[str]:
        """Dtypes that the code of the place itself names on one side alone."""
        sides: dict[str, set[str]] = {"target": set(), "reference": set()}
        for one in self.reasons if self.is_own else ():
            for side, named in sides.items():
                text = one.place("text") if one.place("side") == side else one.place(side)
                named.update(_WORD.findall(str(text).replace(".half()", ".float16()")))
        return frozenset((sides["target"] ^ sides["reference"]) & DTYPES.keys())

    def headline(self, headline: Reason) -> Reason:
        """The headline of a difference without a known cause, with the code that differs at its place."""
        first = self.reasons[0] if self.is_own else None
        if first is None or first.code is EvidenceCode.CODE_CALLS_ANOTHER:
            return headline
        if first.code is EvidenceCode.CODE_VALUE_DIFFERS:
            values = {str(first.place("target")), str(first.place("reference"))}
            if not self.is_of_one_size and values & OF_ONE_PROCESS:
                return headline  # how many processes share the work, and how, is told of every program
            facts = {key: first.place(key) for key in ("name", "target", "reference")}
            return reason(VerdictCode.OTHER_VALUE_IN_CODE, headline, **facts)
        if first.code is EvidenceCode.CODE_ARGUMENT_LACKS:
            return reason(VerdictCode.ARGUMENT_LACKS, headline, **dict(first.places))
        code = VerdictCode.OTHER_CASTS if self.only_casts else VerdictCode.OTHER_CODE
        return reason(code, headline, function=first.place("function"))


@dataclass(frozen=True, slots=True)
class _Pair:
    name: str
    target: Called | None
    reference: Called | None


_NO_UPDATE = re.compile(r"zero_|requires_grad_|clip_grad.*|.*[^_]__")
"""methods and functions whose names end as those do that write in place"""


def _writes_in_place(source: str) -> bool:
    """Whether a function calls what writes into a tensor, or sets what a parameter holds."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.endswith("_") and not _NO_UPDATE.fullmatch(name):
                return True
        written = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(one, ast.Attribute) and one.attr == "data" for one in written):
            return True
    return False


def _inside(frames: Roots, others: Roots) -> list[str]:
    """Functions on one side's stack alone, below one that is on both: what starts a program is no part."""
    names = list(frames)
    outermost = max((at for at, name in enumerate(names) if name in others), default=-1)
    return [name for name in names[: outermost + 1] if name not in others]


def code_book(
    target: TraceSource,
    reference: TraceSource,
    rank: int = 0,
    *,
    counterparts: Mapping[str, str] | None = None,
) -> CodeBook | None:
    """The programs of two traces; None where one of them kept none."""
    sides = []
    for source in (target, reference):
        ranks = [rank, *sorted({one for ranks in source.steps().values() for one in ranks})]
        sides.append(next((found for one in ranks if (found := code_of(source, one)) is not None), None))
    of_target, of_reference = sides
    if of_target is None or of_reference is None or not of_target.names & of_reference.names:
        return None  # two programs that have nothing in common differ everywhere
    worlds = int(target.manifest.get("world_size") or 1), int(reference.manifest.get("world_size") or 1)
    return CodeBook(
        target=of_target,
        reference=of_reference,
        worlds=worlds,
        counterparts=counterparts or {},
        of_one_framework=target.manifest.get("framework") == reference.manifest.get("framework"),
    )


def _replaced(
    pair: _Pair, target: ProgramFunction | None, reference: ProgramFunction | None
) -> Reason | None:
    """A function of the program on one side alone, or another of a library; None where nothing is known."""
    if target is None and reference is None:
        if pair.target is None or pair.reference is None or pair.target == pair.reference:
            return None
        return reason(
            EvidenceCode.CODE_CALLS_ANOTHER,
            name=pair.name,
            target=str(pair.target),
            reference=str(pair.reference),
        )
    one, side, other = (
        (target, "target", pair.reference) if target is not None else (reference, "reference", pair.target)
    )
    assert one is not None
    if other is None and "[" in pair.name:  # one more entry of a table changes nothing
        return None
    if other is None and " " not in pair.name and _is_of_a_library(one):
        return None  # the other run may call it as well, from where no function of its program does
    return reason(
        EvidenceCode.CODE_OF_ONE_SIDE,
        name=pair.name,
        function=_shown_name(one),
        side=side,
        text=joined(statements_of(one)),
        at=one.at,
        other=str(other or ""),
    )


def _is_of_a_library(function: ProgramFunction) -> bool:
    """Whether a function is an installed package's: of these only what the program calls is kept."""
    return any(part in _PACKAGES for part in re.split(r"[/\\]", function.file))


_PACKAGES = ("site-packages", "dist-packages")


def _other_values(
    target: ProgramFunction, reference: ProgramFunction, worlds: tuple[int, int]
) -> Iterator[Reason]:
    """Plain values that differ; the number of processes is what a launch gives, not what a program chose."""
    for name, value in target.values.items():
        both = value, reference.values.get(name)
        if name in reference.values and both[0] != both[1] and both != worlds:
            texts = [str(one) for one in both]
            is_blank = any(not text.strip() for text in texts)  # an empty text shows nothing
            texts = [repr(one) for one in both] if is_blank or texts[0] == texts[1] else texts
            yield reason(
                EvidenceCode.CODE_VALUE_DIFFERS,
                name=name,
                function=_shown_name(target),
                target=texts[0],
                reference=texts[1],
                at=target.at,
            )


def _each_once(found: Iterator[Reason]) -> Iterator[Reason]:
    """Without repetitions: what runs in a step, then what made its parts, then values."""
    return iter(sorted(dict.fromkeys(found), key=_nearness))


def _nearness(one: Reason) -> int:
    if one.code is EvidenceCode.CODE_VALUE_DIFFERS:
        return 2
    return int(str(one.place("function")).endswith(("<module>", "__init__")))


def _shown_name(function: ProgramFunction) -> str:
    return function.name
