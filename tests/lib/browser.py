# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a screen, driven by its DevTools protocol over a pair of pipes."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time

import harness

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """A browser with one page."""

    def __init__(self, directory, width=1280, height=900):
        ours, theirs = os.pipe(), os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
        options += [f"--user-data-dir={directory}", f"--window-size={width},{height}", "--remote-debugging-pipe", "about:blank"]

        def pipes():
            # It reads at descriptor 3, and writes at 4.
            reads, writes = os.dup(ours[0]), os.dup(theirs[1])
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=pipes, close_fds=False, start_new_session=True
        )
        os.close(ours[0])
        os.close(theirs[1])
        self.writes, self.reads = ours[1], theirs[0]
        self.number, self.rest, self.session, self.complaints = 0, b"", None, []
        target = self.until_there()
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")
        self.send("Runtime.enable")
        self.send("Log.enable")

    def until_there(self):
        end = time.monotonic() + harness.patience(60)
        while time.monotonic() < end:
            for target in self.send("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    return target["targetId"]
            time.sleep(0.05)
        raise harness.Expired("the browser has no page")

    def heard(self, end):
        """The next message."""
        while b"\0" not in self.rest:
            if not select.select([self.reads], [], [], max(0, end - time.monotonic()))[0]:
                raise harness.Expired("the browser does not answer")
            read = os.read(self.reads, 1 << 16)
            assert read, "the browser has ended"
            self.rest += read
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + harness.patience(60)
        while True:
            message = self.heard(end)
            if message.get("id") == self.number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(message["params"]["exceptionDetails"])
            if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["source"] in ("security", "javascript"):
                self.complaints.append(message["params"]["entry"])

    def open(self, address):
        self.send("Page.navigate", url=address)

    def evaluate(self, expression):
        """The value of an expression of JavaScript, which JSON can hold."""
        told = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def text(self, selector):
        return self.evaluate(f"document.querySelector({selector!r})?.textContent ?? ''")

    def shows(self, condition, what):
        """Waits until `condition()` is true."""
        end = time.monotonic() + harness.patience(30)
        while not condition():
            if time.monotonic() > end:
                text = self.evaluate("document.body?.innerText ?? ''")
                raise harness.Expired(f"the page does not show {what}: {text[:2000]}")
            time.sleep(0.05)

    def key(self, key):
        codes = {"Enter": 13, "Tab": 9, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key, key if len(key) == 1 else "")
        common = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def resize(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def picture(self):
        """The whole page as PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": self.evaluate("innerWidth"), "height": size["height"], "scale": 1}
        return base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.writes)
        os.close(self.reads)
