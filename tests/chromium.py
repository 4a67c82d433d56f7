"""A headless Chromium that tests talk to by its DevTools protocol, over pipes: JSON between zero bytes."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip

WAIT = 60
"""Seconds to wait for an answer."""


def chromium():
    """The program, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. ``complaints`` has every error that it logged, and every address that it asked for."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (commands, to), (back, answers) = os.pipe(), os.pipe()
        # The browser reads from 3 and writes to 4; out of the way first.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (commands, answers)]
        launch = f"import os, sys; os.dup2({ends[0]}, 3); os.dup2({ends[1]}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-c", launch, program, *FLAGS]
        self.process = subprocess.Popen(
            [*command, f"--user-data-dir={self.folder.name}", "about:blank"], pass_fds=ends, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (commands, answers, *ends):
            os.close(end)
        self.to, self.back, self.rest, self.number, self.session = to, back, b"", 0, None
        self.complaints, self.addresses, self.events = [], [], []
        try:
            target = self._page()
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def _page(self):
        for _ in range(100):
            pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
            if pages:
                return pages[0]["targetId"]
            time.sleep(0.1)
        raise AssertionError("the browser has no page")

    def call(self, method, **params):
        """Send a command, and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self):
        while b"\0" not in self.rest:
            assert select.select([self.back], [], [], WAIT)[0], "the browser does not answer"
            block = os.read(self.back, 1 << 16)
            assert block, "the browser has ended"
            self.rest += block
        message, self.rest = self.rest.split(b"\0", 1)
        event = json.loads(message)
        kind, params = event.get("method"), event.get("params", {})
        self.events.append(kind)
        if kind == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        if kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(params["args"])
        if kind == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"])
        if kind == "Network.requestWillBeSent":
            self.addresses.append(params["request"]["url"])
        return event

    def open(self, path):
        """Load a file and wait for it."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._next()

    def value(self, expression):
        """Return what a line of JavaScript gives."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def resize(self, width, height=900):
        """Give the window another size, as a phone has it."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme, media=""):
        """Prefer light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def close(self):
        """End the browser, and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.folder.cleanup()
