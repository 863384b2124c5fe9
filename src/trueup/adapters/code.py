"""The program's own functions that a step can reach: their source, the plain values they use, and what each
calls by which name. Two runs whose code differs differ there first of all.

Nothing of the program is run to find out: only dictionaries of modules, classes and objects are read. Local
variables are not: reading them refreshes the dictionary that ``locals()`` gave the program.
"""

from __future__ import annotations

import dis
import functools
import gc
import hashlib
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)

MAX_FUNCTIONS = 600
"""functions of one process; what is nearest to the calls of the step comes first"""
MAX_INSTANCES = 4
"""objects of one class that are asked what they carry"""
MAX_REGISTRY = 64
"""functions in one dictionary that a function names"""
_SCALARS = (bool, int, float, str, type(None))
_LONGEST = 80
_MOST = 8
"""plain values in a list that is one itself"""
_LIBRARIES = (
    *("numpy", "torch", "mindspore", "triton", "numba"),
    *("_pytest", "pluggy", "IPython", "ipykernel", "tornado", "psutil"),
)
"""packages that are no part of a program: frameworks, compilers, and what starts programs"""
_HELD_AS = ("__wrapped__", "fn", "py_func", "_init_fn", "_backward_fn")
"""under which an object made of functions keeps them: decorators, kernels of triton, functions of numba,
operators registered with torch"""
_CALLED_UNNAMED = ("__call__", "__iter__", "__next__", "__getitem__")
"""what the language calls without a name"""
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, functools.partial, staticmethod, classmethod)


@dataclass(slots=True, kw_only=True)
class Function:
    """One function of the program."""

    name: str
    file: str
    line: int
    source: str
    """as it is in the file; empty where the file is not at hand"""
    digest: str
    """of its instructions and constants, for where there is no source"""
    values: dict[str, object] = field(default_factory=dict)
    """plain values by the name they are used under"""
    calls: dict[str, int | str] = field(default_factory=dict)
    """name -> number of a function of the program, or the full name of a library's"""

    def to_plain(self) -> list[object]:
        """For JSON."""
        return [self.name, self.file, self.line, self.source, self.digest, self.values, self.calls]


class ReachableCode:
    """What the program's calls can reach, in one process.

    ``library``: folders whose functions are no part of the program, besides Python's own.
    """

    def __init__(self, library: tuple[str, ...]) -> None:
        self._library = (*library, *_python_folders())
        self._frames: dict[CodeType, dict[str, object]] = {}
        """code of frames above a call -> its globals, innermost first"""
        self._extra: dict[str, FunctionType] = {}
        self._collected = -1
        """frames and roles that were known when the code was last collected"""
        self._types: dict[type, bool] = {}
        self._found: list[Function] = []
        self._numbers: dict[tuple[int, int | None], int] = {}
        self._todo: list[tuple[_Reached, int]] = []
        self._kept: list[object] = []

    def frame(self, code: CodeType, its_globals: dict[str, object]) -> None:
        """A frame of the program stands above a call."""
        if not self._is_library(code):
            self._frames.setdefault(code, its_globals)

    def function(self, role: str, function: object) -> None:
        """A function of the program is used as ``role``."""
        if isinstance(function, FunctionType):
            self._extra.setdefault(role, function)

    @property
    def has_grown(self) -> bool:
        """Whether calls came from functions that were not known when the code was last collected."""
        return len(self._frames) + len(self._extra) > self._collected

    def collect(self, modules: Iterable[tuple[str, object]]) -> dict[str, object]:
        """All functions, and by which number each frame, class of modules and module begins.

        ``modules``: name and object; their ``forward`` (``construct``) and what hangs on them is read.
        """
        self._collected = len(self._frames) + len(self._extra)
        by_class: dict[type, list[tuple[str, object]]] = {}
        for name, module in modules:
            by_class.setdefault(type(module), []).append((name, module))
        roots: dict[str, dict[str, int | str]] = {
            "type": {},
            "class": {},
            "module": {},
            "frame": {},
            "role": {},
        }
        for kind, members in by_class.items():
            self._roots_of_class(kind, members, roots)
        instances = self._instances()
        for code, its_globals in self._frames.items():
            types = self._types_of(code, its_globals, instances)
            reached = _Reached(code=code, globals=its_globals, closure={}, types=types)
            roots["frame"].setdefault(_name(code), self._number(reached))
        for role, function in self._extra.items():
            self._put(roots["role"], role, function, ())
        while self._todo:
            self._resolve(*self._todo.pop(0))
        self._without_results()
        found: dict[str, object] = {"functions": [one.to_plain() for one in self._found], "roots": roots}
        self._found, self._numbers, self._kept = [], {}, []
        return found

    def _without_results(self) -> None:
        """Leave out values that the program sets as it runs: they are what it came to, not what it is."""
        set_while_running = {
            name
            for reached in self._kept
            if isinstance(reached, _Reached) and reached.code.co_name not in ("__init__", "<module>")
            for name in reached.sets
        }
        for function in self._found:
            of_script = function.name == "<module>"  # its statements tell; its variables change
            names = list(function.values) if of_script else set_while_running & set(function.values)
            for name in names:
                del function.values[name]

    # -- where it begins ------------------------------------------

    def _roots_of_class(
        self, kind: type, members: list[tuple[str, object]], roots: dict[str, dict[str, int | str]]
    ) -> None:
        objects = tuple(module for _, module in members[:MAX_INSTANCES])
        types = ((kind, objects),)
        for method in ("forward", "construct"):
            if (found := _attribute(kind, method)) is not None:
                self._put(roots["class"], kind.__name__, found, types)
        for name, module in members:
            roots["type"][name] = kind.__name__
            its = vars(module)
            hung = {"forward": its.get("forward"), "construct": its.get("construct")}
            for hooks in ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks"):
                its_hooks = its.get(hooks)
                if isinstance(its_hooks, Mapping):
                    hung |= {f"{hooks[1:-1]} {n}": hook for n, hook in enumerate(its_hooks.values())}
            for what, function in hung.items():
                if isinstance(function, _FUNCTIONS):
                    key = name if what in ("forward", "construct") else f"{name} {what}"
                    self._put(roots["module"], key, function, ((kind, (module,)),))

    def _instances(self) -> dict[type, list[object]]:
        """Objects of the classes that frames' functions belong to, and of classes derived from those."""
        wanted: set[type] = set()
        for code, its_globals in self._frames.items():
            if code.co_argcount and (owner := _owner(code, its_globals)) is not None:
                wanted |= {owner, *_derived(owner)}
        found: dict[type, list[object]] = {}
        if wanted:
            for one in gc.get_referrers(*wanted):
                kind = type(one)
                if kind in wanted and len(found.setdefault(kind, [])) < MAX_INSTANCES:
                    found[kind].append(one)
        return found

    def _types_of(
        self, code: CodeType, its_globals: dict[str, object], instances: Mapping[type, list[object]]
    ) -> _Types:
        owner = _owner(code, its_globals) if code.co_argcount else None
        if owner is None:
            return ()
        found = [(kind, tuple(instances[kind])) for kind in (owner, *_derived(owner)) if kind in instances]
        return tuple(found) or ((owner, ()),)

    # -- what a name stands for ------------------------------------------

    def _put(self, into: dict[str, int | str], name: str, value: object, types: _Types) -> None:
        """Note what ``name`` stands for, where it is a function."""
        function, given = _unwrapped(value)
        while isinstance(function, FunctionType) and self._is_library(function.__code__):
            inner = vars(function).get("__wrapped__")  # a library's decorator around the program's
            if not isinstance(inner, FunctionType):
                break
            function = inner
        if isinstance(function, FunctionType) and not self._is_library(function.__code__):
            into.setdefault(name, self._number(_reached(function, types, given)))
        elif (full := _full_name(function)) is not None:
            into.setdefault(name, full)

    def _number(self, reached: _Reached) -> int:
        code = reached.code
        key = (id(code), reached.identity)
        if (
            key not in self._numbers and reached.identity is None
        ):  # of a frame: what it closes over is not seen
            key = next((known for known in self._numbers if known[0] == id(code)), key)
        if key in self._numbers:
            return self._numbers[key]
        if len(self._found) >= MAX_FUNCTIONS:
            return -1
        self._kept.append(reached)
        number = self._numbers[key] = len(self._found)
        self._found.append(
            Function(
                name=_name(code),
                file=shown_file(code.co_filename),
                line=code.co_firstlineno,
                source=_source(code),
                digest=_digest(code),
            )
        )
        self._todo.append((reached, number))
        return number

    def _resolve(self, reached: _Reached, number: int) -> None:
        function = self._found[number]
        names = _names(reached.code)
        modules: list[ModuleType] = []
        for name, value in reached.closure.items():
            self._note(function, name, value, names, reached.types)
        used, reached.sets = _used(reached.code)
        for name in names:
            if name in used and name in reached.globals:
                value = reached.globals[name]
                if isinstance(value, ModuleType):
                    modules.append(value)
                else:
                    self._note(function, name, value, names, ())
        for module in modules:
            its = vars(module)
            for name in names:
                if name in its and name not in function.calls:
                    self._note_of_module(function, name, its[name], names)
        for kind, objects in reached.types:
            for one in objects:
                self._note_carried(function, one, names, reached.types)
            self._note_methods(function, kind, names, reached.types)

    def _note(
        self, function: Function, name: str, value: object, names: Iterable[str], types: _Types
    ) -> None:
        """What a name in the function stands for: a plain value, a function, a class, a dictionary of
        functions or an object of the program."""
        if _is_plain(value):
            if not name.startswith("__"):
                function.values.setdefault(name, _plain(value))
        elif isinstance(value, _FUNCTIONS):
            self._put(function.calls, name, value, types)
        elif isinstance(value, type):
            if self._is_own(value):
                for called in (*names, "__init__", "__call__", "forward", "backward"):
                    found = vars(value).get(called)
                    if isinstance(found, _FUNCTIONS):
                        self._put(function.calls, f"{name}.{called}", found, ((value, ()),))
        elif isinstance(value, dict):
            self._note_registry(function, name, value)
        elif made_of := [one for one in _made_of(value) if not self._is_library(one.__code__)]:
            for number, one in enumerate(made_of):
                self._put(function.calls, f"{name}.{one.__name__}" if number else name, one, types)
        elif self._is_own(type(value)):
            kind = type(value)
            self._note_carried(function, value, names, ((kind, (value,)),), name)
            self._note_methods(function, kind, (*names, *_CALLED_UNNAMED), ((kind, (value,)),))
            for inner, held in [*_vars(value).items(), *_vars(kind).items()]:
                if isinstance(held, dict):
                    self._note_registry(function, f"{name}.{inner}", held)

    def _note_registry(self, function: Function, name: str, registry: dict[object, object]) -> None:
        if len(registry) <= MAX_REGISTRY:
            for key, value in list(registry.items()):
                if isinstance(key, str) and isinstance(value, _FUNCTIONS):
                    self._put(function.calls, f"{name}[{key}]", value, ())

    def _note_of_module(self, function: Function, name: str, value: object, names: Iterable[str]) -> None:
        """A module's attribute under a name: the program's; of a library's own functions nothing is noted."""
        if isinstance(value, FunctionType):
            if not self._is_library(value.__code__):
                self._put(function.calls, name, value, ())
        elif isinstance(value, type) and self._is_own(value):
            self._note(function, name, value, names, ())

    def _note_carried(
        self, function: Function, one: object, names: Iterable[str], types: _Types, owner: str = ""
    ) -> None:
        """What an object itself carries under a name: functions put there and, one step on, its objects."""
        its = _vars(one)
        for name in names:
            if name not in its:
                continue
            value = its[name]
            if isinstance(value, _FUNCTIONS):
                self._put(function.calls, name, value, types)
            elif _is_plain(value):
                if not _is_module(one):  # how modules are set is kept for each of them
                    function.values.setdefault(name, _plain(value))
            elif not owner and self._is_own(type(value)) and not _is_module(value):
                self._note(function, f"{name}.", value, names, ())

    def _note_methods(self, function: Function, kind: type, names: Iterable[str], types: _Types) -> None:
        for name in names:
            found = _attribute(kind, name)
            if found is None:
                continue
            if isinstance(found, property):
                found = found.fget
            elif isinstance(found, functools.cached_property):
                found = found.func
            if isinstance(found, FunctionType) and self._is_library(found.__code__):
                continue
            if isinstance(found, _FUNCTIONS):
                self._put(function.calls, name, found, types)
            elif _is_plain(found):
                function.values.setdefault(name, _plain(found))

    def _is_own(self, kind: type) -> bool:
        """Whether a class is the program's."""
        if kind not in self._types:
            module = sys.modules.get(getattr(kind, "__module__", "") or "")
            path = getattr(module, "__file__", None)
            of_script = module is not None and path is None and module.__name__ == "__main__"
            self._types[kind] = of_script or (
                isinstance(path, str) and not path.startswith(self._library) and path.endswith(".py")
            )
        return self._types[kind]

    def _is_library(self, code: CodeType) -> bool:
        name = code.co_filename
        return name.startswith(self._library) or name == "<string>"


_Types = tuple[tuple[type, tuple[object, ...]], ...]
"""classes that ``self`` is of, each with some of its objects"""


@dataclass(slots=True, kw_only=True)
class _Reached:
    code: CodeType
    globals: dict[str, object]
    closure: dict[str, object]
    types: _Types
    identity: int | None = None
    """of what the function closes over: of the same code, others compute something else"""
    sets: frozenset[str] = frozenset()
    """attributes and globals that it sets"""


def _reached(function: FunctionType, types: _Types, given: Mapping[str, object]) -> _Reached:
    code = function.__code__
    closure: dict[str, object] = {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        if isinstance(cell, CellType):
            try:
                closure[name] = cell.cell_contents
            except ValueError:  # not filled yet
                continue
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    closure.update(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    closure.update(function.__kwdefaults__ or {})
    closure.update(given)
    cells = function.__closure__ or ()
    identity = hash((tuple(map(id, cells)), tuple(map(id, given.values()))))
    return _Reached(code=code, globals=function.__globals__, closure=closure, types=types, identity=identity)


def _unwrapped(value: object) -> tuple[object, Mapping[str, object]]:
    """The function in a method, a partial or a decorator's object, with arguments that are given to it."""
    given: dict[str, object] = {}
    for _ in range(8):
        if isinstance(value, functools.partial):
            given |= value.keywords
            value = value.func
        elif isinstance(value, (MethodType, staticmethod, classmethod)):
            value = value.__func__
        else:
            break
    return value, given


def _made_of(value: object) -> list[FunctionType]:
    """The functions that an object was made of, which stands under the first's name: a kernel that is
    compiled when it is started, whose choices are tried first, a function whose results are kept, an operator
    and its backward."""
    for _ in range(8):
        its = _vars(value)
        held = [its[name] for name in _HELD_AS if its.get(name) is not None]
        found = [one for one in held if isinstance(one, FunctionType)]
        if found or not held:
            return found
        value = held[0]
    return []


def _attribute(kind: type, name: str) -> object | None:
    """What a class or one it is derived from holds under a name, as it is held."""
    for one in kind.__mro__:
        if name in vars(one):
            held: object = vars(one)[name]
            return held
    return None


def _owner(code: CodeType, its_globals: Mapping[str, object]) -> type | None:
    """The class among a module's globals that has a frame's function as a method."""
    for value in list(its_globals.values()):
        if isinstance(value, type):
            function, _ = _unwrapped(vars(value).get(code.co_name))
            while isinstance(function, FunctionType):
                if function.__code__ is code:
                    return value
                function = vars(function).get("__wrapped__")
    return None


def _derived(kind: type) -> list[type]:
    found: list[type] = []
    below: list[type] = type.__subclasses__(kind)
    for one in below:
        found += [one, *_derived(one)]
    return found


def _names(code: CodeType) -> tuple[str, ...]:
    """Every name that a function and those written in it use; not that of ``super().__init__``, which stands
    for another function in every class."""
    found = dict.fromkeys((*code.co_names, *code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= dict.fromkeys(_names(constant))
    found.pop("__init__", None)
    return tuple(found)


_EXTENDED = dis.opmap["EXTENDED_ARG"]
_NOTHING = (_EXTENDED, dis.opmap.get("CACHE", -1))
"""instructions that do nothing by themselves"""
_STORES = {dis.opmap[name] for name in ("STORE_ATTR", "STORE_GLOBAL", "STORE_NAME")}
_LOADS = {dis.opmap["LOAD_GLOBAL"]: int(sys.version_info >= (3, 11)), dis.opmap["LOAD_NAME"]: 0}
"""instruction -> bits of its argument below the name's number"""
_MEMBERS = {dis.opmap["LOAD_ATTR"]: int(sys.version_info >= (3, 12)), dis.opmap.get("LOAD_METHOD", -1): 0}
"""the same, of the attribute of what was loaded before"""
_OF_ITEMS = {dis.opmap[name] for name in ("STORE_SUBSCR", "DELETE_SUBSCR")}
_CHANGING = (
    *("add", "append", "clear", "discard", "extend", "insert", "intersection_update"),
    *("pop", "remove", "reverse", "sort", "update"),
)
"""methods that change a list or a set"""


@functools.lru_cache(maxsize=1 << 14)
def _used(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Names of globals that a function reads, and of attributes and globals that it sets or changes in place:
    ``self.seen = []``, ``self.seen.append(x)``, ``self.seen[at] = x``."""
    read: set[str] = set()
    written: set[str] = set()
    instructions, above = code.co_code, 0
    before: tuple[str | None, str | None] = (None, None)
    """names that the last two instructions loaded"""
    for at in range(0, len(instructions), 2):
        instruction, argument = instructions[at], instructions[at + 1] | above << 8
        above = argument if instruction == _EXTENDED else 0
        name = None
        if instruction in _STORES:
            written.add(code.co_names[argument])
        elif instruction in _LOADS:
            name = code.co_names[argument >> _LOADS[instruction]]
            read.add(name)
        elif instruction in _MEMBERS:
            name = code.co_names[argument >> _MEMBERS[instruction]]
            if name in _CHANGING and before[1] is not None:
                written.add(before[1])
        elif instruction in _OF_ITEMS and before[0] is not None:
            written.add(before[0])
        if instruction not in _NOTHING:
            before = before[1], name
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _used(constant)
            read |= inner[0]
            written |= inner[1]
    return frozenset(read), frozenset(written)


def _vars(value: object) -> dict[str, object]:
    try:
        its = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return dict(its) if isinstance(its, Mapping) else {}


def _is_module(value: object) -> bool:
    return "_modules" in _vars(value) or "_cells" in _vars(value)


def _is_plain(value: object) -> bool:
    """A number, a dtype, a word, some of them: no path, and no text. A stand-in that names another class as
    its own (a mock with a spec, a lazy object) is none of that class."""
    if value.__class__ is not type(value) or (type(value) is int and value == os.getpid()):
        return False  # a process has another number in every run
    if isinstance(value, (tuple, list, set, frozenset)):
        return len(value) <= _MOST and all(isinstance(one, _SCALARS) and _is_plain(one) for one in value)
    if isinstance(value, str):
        return len(value) <= _LONGEST and os.sep not in value
    return isinstance(value, _SCALARS) or (
        type(value).__name__ in ("dtype", "Type") and not isinstance(value, type)
    )


def _plain(value: object) -> object:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    if isinstance(value, int) and abs(value) >= 1 << 62:
        return str(value)
    if isinstance(value, (tuple, list, set, frozenset)):
        unordered = isinstance(value, (set, frozenset))
        return str(sorted(map(repr, value)) if unordered else list(value)).replace('"', "")
    return value if isinstance(value, _SCALARS) else str(value).removeprefix("torch.")


def _full_name(value: object) -> str | None:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else None


def _name(code: CodeType) -> str:
    return str(getattr(code, "co_qualname", code.co_name)).replace("<locals>.", "")


def _source(code: CodeType) -> str:
    lines = linecache.getlines(code.co_filename)
    if not lines:
        return ""
    first = code.co_firstlineno
    if code.co_name == "<module>":
        return "".join(lines)
    if code.co_name == "<lambda>" and (body := _body_of_lambda(code, lines)):
        return body
    return "".join(lines[first - 1 : _last_line(code, code.co_filename)])


def _body_of_lambda(code: CodeType, lines: list[str]) -> str:
    """A lambda's own text: its line may hold others, and the statement around it."""
    positions = getattr(code, "co_positions", None)
    places = (
        [] if positions is None else [one for one in positions() if None not in one and one[2:] != (0, 0)]
    )
    if not places:
        return ""
    first, start = min((one[0], one[2]) for one in places)
    last, end = max((one[1], one[3]) for one in places)
    text = [line.encode() for line in lines[first - 1 : last]]
    if not text:
        return ""
    text[-1] = text[-1][:end]
    text[0] = text[0][start:]
    arguments = ", ".join(code.co_varnames[: code.co_argcount])
    return f"lambda {arguments}: (" + b"".join(text).decode(errors="replace") + ")\n"


@functools.lru_cache(maxsize=1 << 14)
def _last_line(code: CodeType, of_file: str) -> int:
    """``of_file``: functions that do the same are one key, and stand on other lines of other files."""
    last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    inner = [_last_line(one, of_file) for one in code.co_consts if isinstance(one, CodeType)]
    return max([last, *inner])


@functools.lru_cache(maxsize=1 << 14)
def _digest(code: CodeType) -> str:
    found = hashlib.blake2b(digest_size=8)
    found.update(code.co_code)
    found.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        found.update((_digest(constant) if isinstance(constant, CodeType) else repr(constant)).encode())
    return found.hexdigest()


_HERE = os.getcwd() + os.sep
"""a program's own files are named from where it was started, as a person would name them"""


def shown_file(path: str) -> str:
    """A file's path as a person would name it."""
    return path.removeprefix(_HERE)


def _python_folders() -> tuple[str, ...]:
    """Folders of Python's own library, and of packages that compute nothing of a training."""
    paths = sysconfig.get_paths()
    standard = paths["stdlib"] + os.sep
    packages = {paths["purelib"], paths["platlib"]}
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = [os.path.join(folder, name) + os.sep for folder in packages for name in _LIBRARIES]
    frozen = ("<frozen", own + os.sep)
    # site-packages lie below the standard library's folder: only what is beside them is Python's own
    beside = [
        os.path.join(standard, name) + (os.sep if os.path.isdir(os.path.join(standard, name)) else "")
        for name in (os.listdir(standard) if os.path.isdir(standard) else [])
        if name not in ("site-packages", "dist-packages")
    ]
    return (*inside, *frozen, *beside)
