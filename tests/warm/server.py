"""``server.py SOCKET [MODULE ...]``: imports PyTorch, MindSpore where it is, and more, once; then forks for
every program asked for and ends with its input."""

import array
import atexit
import contextlib
import gc
import importlib
import os
import random
import selectors
import signal
import socket
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any, NamedTuple

IMPORTED = ("torch", "torch._dynamo", "torch.distributed.run", "torch.utils.checkpoint", "torch.utils.data")
PACKAGES = ("trueup", "torch", "mindspore")
"""hidden until a program imports them"""
MOST_FILES = 250


class Asked(NamedTuple):
    """What a client wants run."""

    folder: str
    group: int
    files: dict[int, int]
    """number in the client -> number here"""
    words: list[str]
    environment: dict[str, str]


class Hidden:
    """Imported modules of a package, out of sight until the program imports it.

    ``names``: theirs, the package's own first; every fork would look through thousands for them.
    """

    def __init__(self, package: str, names: list[str]) -> None:
        self._package = package
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._spec = self._modules[package].__spec__
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The package itself, once, unless the program's path leads to another of its name."""
        if name != self._package or not self._modules:
            return None
        found = PathFinder.find_spec(name)
        if found is not None and found.origin and not os.path.samefile(found.origin, str(self._spec.origin)):
            return None
        return ModuleSpec(name, self, origin=self._spec.origin, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """What is there already."""
        return self._modules[self._package]

    def exec_module(self, module: types.ModuleType) -> None:
        """It has run; show its parts."""
        module.__spec__ = self._spec
        sys.modules.update(self._modules)
        self._modules = {}


def serve(listener: socket.socket) -> Asked:
    """Fork for every client; returns what is asked for in a fork, and never in the server."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    clients: dict[int, tuple[socket.socket, int]] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                os._exit(0)
            if key.fileobj is listener:
                client, _ = listener.accept()
                asked = receive(client)
                child = os.fork()
                if child == 0:
                    for opened in (selector, listener, client, *(one for one, _ in clients.values())):
                        opened.close()
                    return asked
                for number in asked.files.values():
                    os.close(number)
                ended = os.pidfd_open(child)
                clients[ended] = (client, child)
                selector.register(ended, selectors.EVENT_READ)
                selector.register(client, selectors.EVENT_READ, ended)
                client.sendall(child.to_bytes(8, "little"))
                continue
            ended = key.fd if key.data is None else key.data
            if ended not in clients:
                continue
            client, child = clients.pop(ended)
            if key.data is not None:  # the client was killed
                os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            selector.unregister(ended)
            selector.unregister(client)
            os.close(ended)
            with client:
                if key.data is None:
                    client.sendall(status.to_bytes(8, "little", signed=True))


def receive(client: socket.socket) -> Asked:
    """Read one client's words."""
    head, ancillary, _, _ = client.recvmsg(8, socket.CMSG_LEN(MOST_FILES * 4))
    received = array.array("i")
    for _, _, data in ancillary:
        received.frombytes(data)
    left, parts = int.from_bytes(head, "little"), []
    while left:
        parts.append(client.recv(left))
        left -= len(parts[-1])
    folder, group, files, count, *rest = b"".join(parts).decode("utf-8", "surrogateescape").split("\0")
    numbers = [int(number) for number in files.split(",")]
    words, environment = rest[: int(count)], dict(pair.split("=", 1) for pair in rest[int(count) :])
    return Asked(folder, int(group), dict(zip(numbers, received, strict=True)), words, environment)


def settle(asked: Asked, hidden: dict[str, list[str]]) -> None:
    """Take the client's place: files, folder, group, environment, import path."""
    kept = {theirs: os.dup2(here, 500 + theirs) for theirs, here in asked.files.items()}
    os.closerange(3, 500)
    for theirs, here in kept.items():
        os.dup2(here, theirs, inheritable=True)
    os.closerange(500, 1000)
    os.chdir(asked.folder)
    with contextlib.suppress(OSError):  # of another session
        os.setpgid(0, asked.group)
    os.environ.clear()
    os.environ.update(asked.environment)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    unbuffered = "PYTHONUNBUFFERED" in os.environ or "-u" in asked.words[:3]
    sys.stdout.reconfigure(write_through=unbuffered)
    sys.path[:0] = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    for package, names in hidden.items():
        Hidden(package, names)
    if "PYTHONPATH" in os.environ:
        sys.modules.pop("sitecustomize", None)
        importlib.invalidate_caches()
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")


def program(words: list[str]) -> Callable[[], Any]:
    """What Python would run for these words, with ``sys.argv`` and ``sys.path`` as it would set them."""
    sys.orig_argv = [sys.executable, *words]
    while words[0] in ("-u", "-W"):
        if words[0] == "-W":
            warnings._setoption(words[1])  # type: ignore[attr-defined]
        words = words[1 if words[0] == "-u" else 2 :]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = words
    if words[0] == "-m":
        import runpy

        sys.argv = ["-m", *words[2:]]
        sys.path.insert(0, os.getcwd())
        return lambda: runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        return lambda: exec(compile(words[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    main.__file__ = words[0]
    sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))

    def run() -> None:
        with open(words[0], "rb") as file:
            code = compile(file.read(), words[0], "exec", dont_inherit=True)
        exec(code, main.__dict__)

    return run


def main() -> None:
    """Serve, and in a fork run what is asked for."""
    path, *also = sys.argv[1:]
    sys.path.pop(0)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    for name in (*IMPORTED, *also):
        importlib.import_module(name)
    if find_spec("mindspore") is not None:
        blocking_mindspore()
    without_farewells()
    hidden = {
        package: [name for name in sys.modules if name.partition(".")[0] == package]
        for package in PACKAGES
        if package in sys.modules
    }
    gc.collect()
    gc.freeze()
    asked = serve(listener)
    settle(asked, hidden)
    sys.executable = os.path.join(os.path.dirname(path), "python")
    status = 0
    try:
        program(asked.words)()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except Exception as error:
        status = 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    leave(status)


def blocking_mindspore() -> None:
    """Import it; its threads, started with the first operation, are not to spin for each other."""
    mindspore = importlib.import_module("mindspore")
    mindspore.set_device("CPU")
    mindspore.runtime.launch_blocking()


def without_farewells() -> None:
    """What PyTorch's own modules would take back at the end, operator by operator, goes with the process:
    that takes half of the time of a program that does nothing."""
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        called = one.peek()
        if called is not None and str(called[1].__module__).startswith("torch."):
            one.atexit = False


def leave(status: int) -> None:
    """What Python does at the end, but for taking every module of PyTorch apart, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF)


main()
