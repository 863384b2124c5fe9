"""What modules and parameters are called: by their place below the root that trains."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic

from trueup.adapters.base import ModuleT, TensorT

if TYPE_CHECKING:
    from trueup.adapters.engine import ModuleFrame


class ParameterReference(Generic[TensorT]):
    """A parameter by the module that owns it. Calling it gives the parameter; None once that is gone or
    replaced.

    Not a weak reference to the parameter: ``torch.utils.swap_tensors``, which ``Module.to`` uses for
    DTensors, refuses a tensor that has one. Nor a strong one: capture keeps no weight alive.
    """

    __slots__ = ("_identity", "_key", "_owner", "_table")

    def __init__(self, owner: object, table: str, key: str, parameter: TensorT) -> None:
        """``table``: the module's attribute that holds its own parameters by name."""
        self._owner, self._table, self._key = weakref.ref(owner), table, key
        self._identity = id(parameter)

    def __call__(self) -> TensorT | None:
        owner = self._owner()
        if owner is None:
            return None
        own: Mapping[str, TensorT] = getattr(owner, self._table)
        for key, parameter in own.items():  # torch.jit's has no ``get``
            if key == self._key:
                return parameter if id(parameter) == self._identity else None
        return None


def parameter_references(modules: Iterable[object], table: str) -> dict[int, ParameterReference[TensorT]]:
    """A reference to each parameter that these modules own, by its identity."""
    return {
        id(parameter): ParameterReference(module, table, key, parameter)
        for module in modules
        for key, parameter in getattr(module, table).items()
        if parameter is not None
    }


class NamedModules(Generic[ModuleT, TensorT]):
    """Roots, the names of everything below them, and the table of parameters."""

    MAX_REFRESHES = 8
    """times a step that all names are looked up anew for a module nobody has registered"""
    OWN_PARAMETERS = "_parameters"
    """attribute of a module that holds its own parameters by name"""

    def __init__(self) -> None:
        self.models: list[weakref.ref[ModuleT]] = []
        """what capture is restricted to; empty: every model that trains"""
        self.names: dict[int, tuple[weakref.ref[ModuleT], str]] = {}
        self.parameter_names: dict[int, str] = {}
        self.roots: list[tuple[weakref.ref[ModuleT], str]] = []
        self.parameter_table: dict[str, dict[str, object]] = {}
        self._classes: dict[str, str] = {}
        """name of a root -> class"""
        self._evaluated: dict[int, weakref.ref[ModuleT]] = {}
        """models that were evaluated, captured or not, in the order of their first call"""
        self._trees: dict[int, tuple[tuple[object, ...], list[tuple[ParameterReference[TensorT], str]]]] = {}
        """root -> what it was made of when it was last named, and its parameters"""
        self._named_in_step: set[int] = set()
        self._refreshes = 0

    def forget_what_is_named(self) -> None:
        """A step is over: in the next, roots are looked at anew."""
        self._named_in_step = set()
        self._refreshes = 0

    # -- how a framework's things are asked ------------------------------------------

    def modules_below(self, module: ModuleT) -> Iterator[tuple[str, ModuleT]]:
        """The module itself (under the empty name) and every module below it, by name."""
        raise NotImplementedError

    def parameters_below(self, module: ModuleT) -> Iterator[tuple[str, TensorT]]:
        """Every parameter by name, tied ones under each of their names."""
        raise NotImplementedError

    def fingerprint(self, module: ModuleT) -> list[int]:
        """Identities of all modules and parameters below, in a fixed order."""
        raise NotImplementedError

    def bare(self, module: ModuleT) -> ModuleT:
        """The model inside a wrapper that only forwards."""
        raise NotImplementedError

    def class_of(self, module: ModuleT) -> str:
        """Name of the class the program wrote."""
        raise NotImplementedError

    def table_row(self, parameter: TensorT) -> dict[str, object] | None:
        """shape, dtype, numel and requires_grad of a parameter; None for one that has no values yet."""
        raise NotImplementedError

    def content_hash(self, parameter: TensorT) -> int | Callable[[], int] | None:
        """Hash of the values in any order (``numerics.content``), or what waits for it; None for what has
        none."""
        raise NotImplementedError

    def failed(self, site: str, error: BaseException) -> None:
        """An error of ours: noted, never raised into the program."""
        raise NotImplementedError

    def has_parameters(self, module: ModuleT) -> bool:
        """Whether the module owns at least one parameter."""
        return next(self.parameters_below(module), None) is not None

    # -- names ------------------------------------------

    def name_of(self, module: ModuleT, frame: ModuleFrame | None, *, recompute: bool) -> str:
        """Fully qualified name; a module nobody registered is named after its caller and class."""
        if frame is None and not recompute:
            return self.root_name(module)
        name = self._known_name(module)
        if name is None and self._refreshes < self.MAX_REFRESHES:
            self._refreshes += 1
            self._refresh_names()
            name = self._known_name(module)
        if name is None:
            above = frame.name if frame is not None else ""
            name = f"{above}.<{self.class_of(module)}>".lstrip(".")
            self.names[id(module)] = weakref.ref(module), name
        return name

    def _known_name(self, module: ModuleT) -> str | None:
        """The name it was given, unless what was named has gone and this one took its place in memory."""
        entry = self.names.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def root_name(self, module: ModuleT) -> str:
        """Name of a root; its modules and parameters are named anew once a step, because programs replace
        them."""
        for reference, name in self.roots:
            if reference() is module:
                if id(module) not in self._named_in_step:
                    self._named_in_step.add(id(module))
                    self._name_tree(module, name)
                return name
        return self._known_name(module) or self._add_root(module)

    def note_evaluated(self, module: ModuleT) -> None:
        """A model is evaluated. Those of one class are numbered in this order when one of them is captured,
        whether the program asked the first of them inside of a step or before it."""
        known = self._evaluated.get(id(module))
        if known is None or known() is not module:
            living = {at: one for at, one in self._evaluated.items() if one() not in (None, module)}
            self._evaluated = living | {id(module): weakref.ref(module)}

    def restrict(self, models: list[ModuleT]) -> None:
        """Capture only inside these models; the first is the main root, even if another trained before."""
        bare = [self.bare(m) for m in models]
        self.models = [weakref.ref(m) for m in models]
        main = next((reference() for reference, name in self.roots if name == ""), None)
        if bare and main is not bare[0]:
            self.roots, self.names, self.parameter_names, self._trees = [], {}, {}, {}
            self._named_in_step.clear()
            for model in bare:
                self.root_name(model)

    def _add_root(self, module: ModuleT) -> str:
        kind = self.class_of(module)
        inside = {id(m) for _, m in self.modules_below(module)}
        parts = {n for r, n in self.roots if id(r()) in inside}
        for part in inside - {id(module)}:  # named below this one from now on, when called by itself too
            self._trees.pop(part, None)
        before = self._names_below(module) if parts else {}
        self.roots = [(r, n) for r, n in self.roots if id(r()) not in inside]
        name = self._name_for(module, kind)
        self._classes[name] = kind
        self.roots.append((weakref.ref(module), name))
        self._named_in_step.add(id(module))
        self._name_tree(module, name)
        if before:
            now = self._names_below(module)
            self.renamed({old: now[one] for one, old in before.items() if old != now[one]})
        return name

    def _name_for(self, module: ModuleT, kind: str) -> str:
        """The empty one of the first model with weights; of one that is built anew that of the one before."""
        weighted = self.has_parameters(module)
        gone = self._gone_like(module, kind) if weighted else None
        if gone is not None:
            self.roots = [(r, n) for r, n in self.roots if n != gone]
            return gone
        if weighted and "" not in (n for _, n in self.roots):
            return ""
        if id(module) in self._evaluated:
            for earlier in self._evaluated_before(module, kind):
                self.roots.append((weakref.ref(earlier), self._next_root(kind)))
        return self._next_root(kind)

    def _gone_like(self, module: ModuleT, kind: str) -> str | None:
        """The name of a root of this class, with parameters of the same names and shapes, that the program
        has let go, if there is one: it has built the model anew, and loaded a checkpoint into it, say."""
        own = {inner: self.table_row(parameter) for inner, parameter in self.parameters_below(module)}

        def is_like(name: str) -> bool:
            rows = [(row, self.parameter_table.get(_joined(name, inner))) for inner, row in own.items()]
            return all(row and there and row["shape"] == there["shape"] for row, there in rows)

        names = [name for _, name in self.roots if self._classes.get(name) == kind and is_like(name)]
        if names and all(reference() is not None for reference, name in self.roots if name in names):
            gc.collect()  # it may wait for that
        return next((name for reference, name in self.roots if name in names and reference() is None), None)

    def _next_root(self, kind: str) -> str:
        same = sum(n == kind or n.startswith(f"{kind}#") for _, n in self.roots)
        return f"{kind}#{same}" if same else kind

    def _evaluated_before(self, module: ModuleT, kind: str) -> list[ModuleT]:
        """Models of this class that were evaluated first, and have no name yet."""
        before = list(self._evaluated)[: list(self._evaluated).index(id(module))]
        living = [one for one in (self._evaluated[at]() for at in before) if one is not None]
        rooted = {id(reference()) for reference, _ in self.roots}
        return [
            one
            for one in living
            if self.class_of(one) == kind and id(one) not in rooted and self._known_name(one) is None
        ]

    def _names_below(self, module: ModuleT) -> dict[int, str]:
        """Identity of the modules and parameters below that have a name -> it."""
        found = {id(m): n for _, m in self.modules_below(module) if (n := self._known_name(m)) is not None}
        parameters = (id(parameter) for _, parameter in self.parameters_below(module))
        return found | {one: self.parameter_names[one] for one in parameters if one in self.parameter_names}

    def renamed(self, names: dict[str, str]) -> None:
        """A model begins of which parts were called before it, as models of their own: from the name that a
        part had to the one it has."""

    def tree_of(self, root: ModuleT) -> object:
        """What a root was made of when it was last named: the same object while nothing below has changed."""
        known = self._trees.get(id(root))
        return None if known is None else known[0]

    def parameters_of(self, root: ModuleT) -> list[tuple[ParameterReference[TensorT], str]]:
        """Parameters of a root with their names, tied ones once."""
        if id(root) in self._trees:
            return self._trees[id(root)][1]
        references = self._references_below(root)  # a part of a known root, called by itself
        first: dict[int, tuple[ParameterReference[TensorT], str]] = {}
        for name, parameter in self.parameters_below(root):
            known = self.parameter_names.get(id(parameter), name)
            if id(parameter) in references:
                first.setdefault(id(parameter), (references[id(parameter)], known))
        return list(first.values())

    def _references_below(self, module: ModuleT) -> dict[int, ParameterReference[TensorT]]:
        return parameter_references((child for _, child in self.modules_below(module)), self.OWN_PARAMETERS)

    def _name_tree(self, module: ModuleT, name: str) -> None:
        """Note the names of everything below, if anything there has changed since the last time."""
        print_ = self.fingerprint(module)
        known = self._trees.get(id(module))
        if known is not None and known[0] == (name, *print_):
            return
        for inner, child in self.modules_below(module):
            self.names[id(child)] = weakref.ref(child), _joined(name, inner)
        tied: dict[int, str] = {}
        references = self._references_below(module)
        parameters: list[tuple[ParameterReference[TensorT], str]] = []
        for inner, parameter in self.parameters_below(module):
            fqn = _joined(name, inner)
            first = tied.setdefault(id(parameter), fqn)
            if first is fqn and id(parameter) in references:
                parameters.append((references[id(parameter)], fqn))
            self.parameter_names[id(parameter)] = first
            self._tabulate(parameter, fqn, first)
        self._trees[id(module)] = (name, *print_), parameters

    def _refresh_names(self) -> None:
        self.roots = [(r, n) for r, n in self.roots if r() is not None]
        for reference, name in self.roots:
            module = reference()
            if module is not None:
                self._name_tree(module, name)

    def _tabulate(self, parameter: TensorT, fqn: str, first: str) -> None:
        if fqn in self.parameter_table:
            return
        row = self.table_row(parameter)
        if row is not None:
            tied = None if first == fqn else first
            content = self._content(parameter, fqn, first)
            self.parameter_table[fqn] = {"fqn": fqn, **row, "tied_to": tied, "content": content}

    def _content(self, parameter: TensorT, fqn: str, first: str) -> object:
        """Hash of the values in any order, hex: pairs weights across implementations."""
        if first != fqn:
            return self.parameter_table.get(first, {}).get("content")
        try:
            found = self.content_hash(parameter)
        except Exception as error:
            self.failed(fqn, error)
            return None
        return None if found is None else _OnItsWay(found) if callable(found) else f"{found:016x}"


class _OnItsWay:
    """A hash that is on a device; as text, which is how facts are written, it is waited for."""

    def __init__(self, arrived: Callable[[], int]) -> None:
        self._arrived = arrived

    def __str__(self) -> str:
        return f"{self._arrived():016x}"


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
