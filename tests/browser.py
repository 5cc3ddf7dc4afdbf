"""A headless Chromium that a test drives: evaluates JavaScript in a page, waits, and takes screenshots."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

HANG_S = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser_path() -> str | None:
    """Where Chromium is; None where it is not installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of the browser. `requests` are the URLs that it asked for, `problems` what its console says."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._n = 0
        self.requests: list[str] = []
        self.problems: list[str] = []

    async def call(self, method: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        self._n += 1
        await self._socket.send_json({"id": self._n, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive(HANG_S)).data)
            if message.get("id") == self._n:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event["method"] == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(event["params"]["exceptionDetails"])[:500])
        elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.problems.append(event["params"]["entry"]["text"])

    async def run(self, script: str) -> Any:
        """The value of an expression."""
        result = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + HANG_S
        while not (value := await self.run(script)):
            assert time.monotonic() < deadline, f"{script} did not come to be"
            await asyncio.sleep(0.05)
        return value

    async def screenshot(self, path: Path) -> None:
        """Save what is seen, as a PNG."""
        data = (await self.call("Page.captureScreenshot", format="png"))["data"]
        path.write_bytes(base64.b64decode(data))


@asynccontextmanager
async def open_page(url: str, width: int = 1280, height: int = 800) -> AsyncIterator[Page]:
    """The page at a URL, once it is loaded."""
    program = browser_path()
    assert program is not None, "the caller looks first"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                async with aiohttp.ClientSession() as session:
                    target = await _target(session, Path(profile) / "DevToolsActivePort")
                    async with session.ws_connect(target, max_msg_size=0) as socket:
                        page = Page(socket)
                        for domain in ("Page", "Runtime", "Network", "Log"):
                            await page.call(f"{domain}.enable")
                        await page.call("Page.navigate", url=url)
                        await page.until("document.readyState === 'complete'")
                        yield page
            finally:
                process.terminate()


async def _target(session: aiohttp.ClientSession, port_file: Path) -> str:
    """The address of the browser's first page."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        if port_file.exists() and (lines := port_file.read_text().split()):
            async with session.get(f"http://127.0.0.1:{lines[0]}/json/list") as response:
                pages = [t for t in await response.json() if t["type"] == "page"]
            if pages:
                found: str = pages[0]["webSocketDebuggerUrl"]
                return found
        await asyncio.sleep(0.05)
    raise AssertionError("the browser did not start")
