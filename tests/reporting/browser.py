"""A small WebDriver client for headless Chromium: standard library only, no dependency comes with it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
]


def missing() -> str | None:
    """What a browser test needs and this machine lacks, or None."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install chromium chromium-driver)"
    return None


class Browser:
    """One headless Chromium with a profile of its own; use as a context manager."""

    def __init__(self, *, width: int = 1440, height: int = 900, dark: bool = False) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="trueup-chromium-", ignore_cleanup_errors=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": self.profile.name},
        )
        self.base = f"http://127.0.0.1:{port}"
        self._await_driver()
        options = {
            "args": [
                *ARGUMENTS,
                f"--user-data-dir={self.profile.name}/data",
                f"--window-size={width},{height}",
            ],
            "binary": shutil.which("chromium"),
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        reply = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{reply['sessionId']}"
        self.resize(width, height)
        self.prefer("dark" if dark else "light")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and its driver."""
        try:
            self._call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(timeout=20)
            self.profile.cleanup()

    def _await_driver(self) -> None:
        for _ in range(200):
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("chromedriver did not start within 10 s")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(f"{method} {path}: {error.read().decode()[:600]}") from None

    def devtools(self, command: str, **parameters: Any) -> Any:
        """One command of the DevTools protocol."""
        return self._call("POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int) -> None:
        """Make the page exactly this large, whatever the window manager thinks."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """What the system prefers: ``light`` or ``dark``."""
        self.devtools(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file as for the first time and wait until its scripts have set it up."""
        self._call("POST", f"{self.session}/url", {"url": "about:blank"})
        self.devtools("Storage.clearDataForOrigin", origin="file://", storageTypes="local_storage")
        self._call("POST", f"{self.session}/url", {"url": page.resolve().as_uri() + fragment})
        self.wait("document.documentElement.dataset.ready === 'true'")

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression."""
        return self._call(
            "POST", f"{self.session}/execute/sync", {"script": f"return ({script});", "args": []}
        )

    def do(self, statements: str) -> Any:
        """Run JavaScript statements; a ``return`` gives a value, a promise is awaited."""
        return self._call("POST", f"{self.session}/execute/sync", {"script": statements, "args": []})

    def wait(self, condition: str, seconds: float = 30) -> None:
        """Until a JavaScript condition holds.

        Raises:
            TimeoutError: it did not, with what the console says.
        """
        until = time.monotonic() + seconds
        while not self.run(condition):
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {condition}; console: {self.console()}")
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """A real pointer click in the middle of the first element the selector finds."""
        key = self._find(selector)
        self.do(
            f"document.querySelector({json.dumps(selector)})"
            ".scrollIntoView({block: 'center', behavior: 'instant'})"
        )
        self._call("POST", f"{self.session}/element/{key}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type text into an element."""
        self._call("POST", f"{self.session}/element/{self._find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys where the focus is (WebDriver's code points, such as ``\\ue015`` for down)."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call(
            "POST",
            f"{self.session}/actions",
            {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]},
        )

    def _find(self, selector: str) -> str:
        found = self._call("POST", f"{self.session}/element", {"using": "css selector", "value": selector})
        return str(next(iter(found.values())))

    def console(self) -> list[str]:
        """What the page complained of since the last call: warnings, errors, refused loads."""
        entries = self._call("POST", f"{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """Save what is in sight, or the whole page, as a PNG."""
        clip = {}
        if whole:
            size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
            clip = {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
            }
        data = self.devtools("Page.captureScreenshot", format="png", **clip)["data"]
        path.write_bytes(base64.b64decode(data))
        return path
