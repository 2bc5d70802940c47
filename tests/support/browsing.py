"""A real browser, for tests and screenshots: Chromium, driven by chromedriver."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
DRIVER = shutil.which("chromedriver") or ""
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-dev-shm-usage"]  # fmt: skip
LEFT, RIGHT, ESCAPE = "\ue012", "\ue014", "\ue00c"  # WebDriver, section 17.4.2


def has_axe() -> bool:
    """Tell whether axe-core can be had: it looks for what keeps people from using a page."""
    return importlib.util.find_spec("axe_playwright_python") is not None


class Browser:
    """Chromium driven by chromedriver. Source: W3C WebDriver, https://www.w3.org/TR/webdriver2/."""

    def __init__(self, address: str, profile: pathlib.Path) -> None:
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._base = address
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options,
                  "goog:loggingPrefs": {"browser": "ALL"}}  # fmt: skip
        session = self._call("POST", "/session", capabilities={"alwaysMatch": wanted})
        self._base += f"/session/{session['sessionId']}"

    def _call(self, method: str, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(self._base + path, data, method=method)  # noqa: S310 (loopback)
        with self._open(request, timeout=600) as answer:
            return json.load(answer)["value"]

    def go(self, address: str) -> None:
        """Open a page."""
        self._call("POST", "/url", url=address)

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        return self._call("POST", "/execute/sync", script=f"return {script}", args=[])

    def expect(self, script: str, value: Any) -> None:
        """Wait until a script says what it should: a page handles some events a moment later."""
        until = time.monotonic() + 120
        while (found := self.ask(script)) != value and time.monotonic() < until:
            time.sleep(0.05)
        assert found == value

    def click(self, selector: str) -> None:
        """Click on an element."""
        element = self._call("POST", "/element", using="css selector", value=selector)
        self._call("POST", f"/element/{next(iter(element.values()))}/click")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        strokes = [{"type": t, "value": k} for k in keys for t in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": strokes}]
        self._call("POST", "/actions", actions=actions)

    def emulate(self, width: int, scheme: str = "light", height: int = 900) -> None:
        """Be a screen of a width, in pixels; below 500, a phone's. The scheme: light or dark."""
        self._command("Emulation.setScrollbarsHidden", hidden=True)  # as on a phone
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._command("Emulation.setEmulatedMedia", features=[feature])
        self._command("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=1, mobile=width < 500)  # fmt: skip

    def too_wide(self) -> list[str]:
        """Texts that the screen cuts off at its side."""
        found: list[str] = self.ask(
            "[...document.querySelectorAll('body *')].filter(e => e.children.length === 0 && "
            "e.checkVisibility() && (e.getBoundingClientRect().right > innerWidth || "
            "e.getBoundingClientRect().left < 0)).map(e => e.textContent)"
        )
        return found

    def smallest_text(self) -> float:
        """Size of the smallest letters of the page, in pixels of the screen."""
        return float(self.ask(
            "Math.min(...[...document.querySelectorAll('body *')].filter(e => e.checkVisibility()"
            " && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => "
            "parseFloat(getComputedStyle(e).fontSize) * (e.getScreenCTM?.().a ?? 1)))"
        ))  # fmt: skip

    def screenshot(self) -> bytes:
        """A picture of what is seen, as PNG."""
        return base64.b64decode(self._command("Page.captureScreenshot")["data"])

    def _command(self, name: str, **values: Any) -> Any:
        """Send a command of the Chrome DevTools Protocol."""
        return self._call("POST", "/goog/cdp/execute", cmd=name, params=values)

    def log(self) -> list[str]:
        """What the console has said of errors since the last call."""
        said = self._call("POST", "/se/log", type="browser")
        return [entry["message"] for entry in said if entry["level"] == "SEVERE"]

    def complaints(self) -> list[str]:
        """What axe-core finds serious or critical in the page: rules and elements."""
        spec = importlib.util.find_spec("axe_playwright_python")
        assert spec is not None
        assert spec.origin is not None
        axe = pathlib.Path(spec.origin).with_name("axe.min.js").read_text()
        script = axe + (
            "\naxe.run().then(found => arguments[arguments.length - 1]("
            "found.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
            ".flatMap(v => v.nodes.map(n => `${v.id}: ${n.html}: ${n.failureSummary}`))))"
        )
        found: list[str] = self._call("POST", "/execute/async", script=script, args=[])
        return found

    def close(self) -> None:
        """End the browser."""
        self._call("DELETE", "")


@contextlib.contextmanager
def running(profile: pathlib.Path) -> Iterator[Browser]:
    """A browser with a fresh profile."""
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        try:
            said = iter(driver.stdout.readline, "")
            port = next(
                m[1] for m in (re.search(r"successfully on port (\d+)", line) for line in said) if m
            )
            made = Browser(f"http://127.0.0.1:{port}", profile)
            with contextlib.closing(made):
                yield made
        finally:
            driver.terminate()
