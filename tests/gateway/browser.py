"""A headless Chromium that tests drive by its own debugging protocol: clicks and keys as a person's, and pictures.

Nothing but Debian's `chromium` is needed. It runs on a profile of its own and is ended by its process id.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

from tests.waiting import until

START_SECONDS = 60.0
PATIENCE = 30.0
MAX_MESSAGE = 64 * 1024 * 1024


def why_not() -> str | None:
    return None if shutil.which("chromium") else "needs Chromium (Debian package chromium)"


class Browser:
    """One browser; `page` opens a tab."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        """Errors of scripts, and what the page's security policy forbade."""

    async def listen(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                return
            said = json.loads(message.data)
            if "id" in said:
                waiting = self._waiting.pop(said["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["source"] == "security":
                self.complaints.append(str(said["params"]["entry"]["text"]))

    async def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        request: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            request["sessionId"] = session
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        await self._socket.send_json(request)
        async with asyncio.timeout(PATIENCE):
            answer: dict[str, Any] = await waiting
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    async def page(self, url: str) -> "Page":
        target = (await self.ask("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            await page.ask(f"{domain}.enable")
        await page.go(url)
        return page


class Page:
    """One tab, used through what a person would use: the mouse, the keyboard and the eyes."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.ask(method, self._session, **params)

    async def go(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        answer = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str, seconds: float = PATIENCE) -> None:
        """Wait until an expression is true in the page."""

        async def is_true() -> bool:
            # A page that is just being loaded has nothing to look at.
            with contextlib.suppress(AssertionError):
                return bool(await self.value(f"Boolean({expression})"))
            return False

        try:
            await until(is_true, seconds)
        except (AssertionError, TimeoutError):
            shown = await self.value("document.body.innerText")
            raise AssertionError(f"not true in the page: {expression}\nit shows: {shown}") from None

    async def click(self, selector: str) -> None:
        quoted = json.dumps(selector)
        await self.until(f"document.querySelector({quoted})?.checkVisibility()")
        x, y = await self.value(
            f"(() => {{ const box = document.querySelector({quoted}).getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def write(self, selector: str, text: str) -> None:
        await self.click(selector)
        await self.ask("Input.insertText", text=text)

    async def press_enter(self) -> None:
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        await self.ask("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", **key)

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path) -> None:
        answer = await self.ask("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))  # noqa: ASYNC240 - a test's own small file


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Browser]:
    """A browser of its own, with a new profile."""
    profile.mkdir(parents=True)  # noqa: ASYNC240
    command = ["chromium", "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    command += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    command += ["--disable-component-update", "--no-default-browser-check", "--password-store=basic"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # Chromium's own sandbox refuses to run for root
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        port_file = profile / "DevToolsActivePort"

        def listens() -> bool:
            assert process.returncode is None, f"chromium ended with {process.returncode}"
            return port_file.exists() and "\n" in port_file.read_text()

        await until(listens, START_SECONDS, "chromium to say where it listens")
        port, path = port_file.read_text().split("\n")[:2]
        async with (
            ClientSession() as http,
            http.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=MAX_MESSAGE) as socket,
        ):
            one = Browser(socket)
            listening = asyncio.create_task(one.listen())
            try:
                yield one
            finally:
                with contextlib.suppress(Exception):
                    await one.ask("Browser.close")
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
    finally:
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            os.killpg(process.pid, 9)  # its own session: the browser and its helpers
            await process.wait()
