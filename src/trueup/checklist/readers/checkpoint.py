"""The arguments in a Megatron checkpoint, walked opcode by opcode: nothing is unpickled, no class built."""

from __future__ import annotations

import io
import pickletools
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueup.checklist.settings import Setting, SettingsDocument
from trueup.errors import ConfigError

_LARGEST_PICKLE = 256 << 20
_MOST_PICKLES = 8
_DAMAGE = (
    *(
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        StopIteration,
        OverflowError,
        RecursionError,
    ),
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError),
)
"""what a damaged archive or pickle raises; a claimed size is bounded before"""
_LATEST = "latest_checkpointed_iteration.txt"


def file_in(folder: Path) -> Path | None:
    """The file of a Megatron checkpoint's folder that carries its arguments."""
    if (folder / _LATEST).is_file():
        iteration = (folder / _LATEST).read_text(encoding="utf-8", errors="replace").strip()
        named = folder / (f"iter_{int(iteration):07d}" if iteration.isdigit() else iteration)
        folder = named if named.is_dir() else folder
    common = folder / "common.pt"
    if common.is_file():
        return common
    return next(iter(sorted(folder.glob("mp_rank_*/model_optim_rng.pt"))), None)


def document(path: Path) -> SettingsDocument:
    """The arguments of a checkpoint file.

    Raises:
        ConfigError: it is damaged, or holds no ``args``.
    """
    try:
        found = _arguments(_pickle_of(path))
    except _DAMAGE as error:
        raise ConfigError(
            f"{path}: the checkpoint is damaged ({error!r}); was it copied to the end?"
        ) from error
    state = found.state if isinstance(found, Thing) else found
    if not isinstance(state, Mapping) or not state:
        raise ConfigError(f"{path}: no `args` in this checkpoint; the launch script or the log has them too")
    settings = {str(key): Setting(str(key), _plain(value), str(path)) for key, value in state.items()}
    plain = {key: setting.value for key, setting in settings.items()}
    return SettingsDocument(
        dialect="megatron", path=str(path), settings=settings, data=plain, kind="checkpoint"
    )


def _arguments(content: bytes) -> object:
    """``args`` of the first of the file's pickles that holds them; a legacy file has some before its own."""
    stream = io.BytesIO(content)
    for _ in range(_MOST_PICKLES):
        if stream.tell() >= len(content):
            break
        data = _Walk().over(stream)
        if isinstance(data, dict) and "args" in data:
            return data["args"]
    return None


def _pickle_of(path: Path) -> bytes:
    if not zipfile.is_zipfile(path):
        return path.read_bytes()[:_LARGEST_PICKLE]
    with zipfile.ZipFile(path) as archive:
        names = [info for info in archive.infolist() if info.filename.endswith("data.pkl")]
        if not names or names[0].file_size > _LARGEST_PICKLE:
            raise ConfigError(f"{path}: not a checkpoint of torch.save")
        return archive.read(names[0])


def _plain(value: object) -> object:
    """A value of the arguments as text or number; an object by its name: ``torch.bfloat16``."""
    if isinstance(value, Thing):
        return value.name if value.arguments is None else f"{value.name}{_plain(value.arguments)}"
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return {str(k): _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


@dataclass(slots=True, eq=False)
class Thing:
    """Stands for an object a pickle would build: its class's name, the call's arguments, its state."""

    name: str
    arguments: object = None
    state: object = None


_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}


@dataclass(slots=True)
class _Walk:
    """The stack machine of a pickle, on plain values and ``Thing`` alone."""

    stack: list[object] = field(default_factory=list)
    memo: dict[int, object] = field(default_factory=dict)

    def over(self, stream: io.BytesIO) -> object:
        """What the next pickle holds; of tensors and other objects their names.

        Raises:
            one of ``_DAMAGE``.
        """
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name == "STOP":
                break
            self._step(opcode.name, argument)
        return self.stack[-1] if self.stack else None

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("PROTO", "FRAME"):
            return
        elif name in ("POP", "POP_MARK"):
            self._since_mark() if name == "POP_MARK" else stack.pop()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(argument)])
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT", "FROZENSET"):
            self._collect(name)
        elif name in ("APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS"):
            self._extend(name)
        else:
            self._object(name, argument)

    def _since_mark(self) -> list[object]:
        index = next(i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is _MARK)
        items = self.stack[index + 1 :]
        del self.stack[index:]
        return items

    def _collect(self, name: str) -> None:
        if name[-1].isdigit():
            count = int(name[-1])
            items = self.stack[-count:]
            del self.stack[-count:]
        else:
            items = self._since_mark()
        if name == "DICT":
            self.stack.append(dict(zip(map(_hashable, items[::2]), items[1::2], strict=True)))
        else:
            self.stack.append(items if name == "LIST" else tuple(items))

    def _extend(self, name: str) -> None:
        count = {"APPEND": 1, "SETITEM": 2}.get(name)
        if count is None:
            items = self._since_mark()
        else:
            items = self.stack[-count:]
            del self.stack[-count:]
        into = self.stack[-1]
        if isinstance(into, dict):
            into.update(zip(map(_hashable, items[::2]), items[1::2], strict=True))
        elif isinstance(into, list):
            into.extend(items)

    def _object(self, name: str, argument: object) -> None:
        stack = self.stack
        if name == "GLOBAL":
            stack.append(Thing(str(argument).replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(Thing(f"{module}.{attribute}"))
        elif name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX"):
            arguments = stack.pop()
            if name == "NEWOBJ_EX":
                arguments = stack.pop()
            made = stack.pop()
            stack.append(_built(made, arguments))
        elif name in ("BUILD",):
            state = stack.pop()
            if isinstance(stack[-1], Thing):
                stack[-1].state = state
        elif name in ("BINPERSID", "PERSID"):
            if name == "BINPERSID":
                stack.pop()
            stack.append(Thing("storage"))
        elif name in ("OBJ", "INST"):
            self._since_mark()
            stack.append(Thing(str(argument)))
        else:  # every remaining opcode pushes the constant it carries
            stack.append(argument)


def _built(made: object, arguments: object) -> object:
    name = made.name if isinstance(made, Thing) else "?"
    if name == "collections.OrderedDict":
        return {}
    return Thing(name, arguments)


def _hashable(key: object) -> object:
    return key if isinstance(key, (str, int, float, bool, type(None))) else f"object {id(key)}"
