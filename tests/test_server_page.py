"""The page at /, driven in headless Chromium: chat, stop, regenerate, knobs, the live view; nothing from elsewhere."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from browser import Page, browser_path, open_page
from forced import write_forced
from server_process import ServerProcess

ANSWER = "Here is code:\n```python\nprint(1 < 2)\n```\nand <b>no markup</b>."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_forced(tmp_path_factory.mktemp("serve") / "page.gguf", ANSWER, n_vocab=768).path
    with ServerProcess(model, "--ctx", 512, "--threads", 1, "--alias", "small") as server:
        yield server


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("serve") / "loop.gguf"
    model = write_forced(path, "around and ", loops=True, n_ctx=65536).path
    with ServerProcess(model, "--ctx", 65536, "--threads", 1, "--parallel", 2, "--api-key", "word") as server:
        yield server


def need_browser() -> None:
    if browser_path() is None:
        pytest.skip("Chromium is not installed: apt install chromium")


@pytest.fixture
async def page(server: ServerProcess) -> AsyncIterator[Page]:
    need_browser()
    async with open_page(server.url + "/") as page:
        await page.until("document.querySelector('#state').textContent === 'ready'")
        yield page


async def say(page: Page, text: str) -> None:
    await page.run(f"document.querySelector('#text').value = {text!r}; document.querySelector('#send').click()")


LAST = "document.querySelector('.message.assistant:last-child')"
IS_DONE = f"{LAST} && !{LAST}.classList.contains('busy') && {LAST}.querySelector('.stats').textContent"


async def test_an_answer_streams_and_says_what_it_cost(page: Page) -> None:
    await say(page, "Hello there")
    stats = await page.until(IS_DONE)
    assert "tokens/s" in stats and "% from the cache" in stats
    assert await page.run(f"{LAST}.querySelector('.said').innerText.includes('and <b>no markup</b>.')")
    assert await page.run(f"{LAST}.querySelector('.said pre').textContent") == "print(1 < 2)"
    assert await page.run("document.querySelectorAll('.said b').length") == 0


async def test_an_answer_is_made_again(page: Page) -> None:
    await say(page, "Hello there")
    await page.until(IS_DONE)
    await page.run(f"window.first = {LAST}; document.querySelector('#regenerate').click()")
    await page.until(f"{LAST} !== window.first && ({IS_DONE})")
    assert await page.run("document.querySelectorAll('.message').length") == 2


async def test_knobs_reach_the_server(page: Page) -> None:
    await page.run("document.querySelector('#max_tokens').value = 3")
    await say(page, "Hello there")
    assert (await page.until(IS_DONE)).startswith("3 tokens")
    await page.run("document.querySelector('#temperature').value = 9")
    await say(page, "Hello again")
    await page.until(f"{LAST}.querySelector('.stats').classList.contains('error')")
    assert "temperature" in await page.run(f"{LAST}.querySelector('.stats').textContent")


async def test_the_live_view_shows_ranks_slots_and_memory(page: Page) -> None:
    await page.until("document.querySelectorAll('#slots .row').length === 4")
    assert await page.run("document.querySelector('#ranks .row').textContent.includes('MiB')")
    facts = await page.run("document.querySelector('#facts').innerText")
    assert "512 tokens" in facts and "llama" in facts


async def test_nothing_comes_from_elsewhere_and_the_console_is_silent(page: Page, server: ServerProcess) -> None:
    await say(page, "Hello there")
    await page.until(IS_DONE)
    outside = [url for url in page.requests if not url.startswith((server.url, "data:"))]
    assert (outside, page.problems) == ([], [])


async def test_a_conversation_looks_finished(page: Page, tmp_path: Path) -> None:
    await say(page, "Can you show me how two numbers are compared?")
    await page.until(IS_DONE)
    await say(page, "And once more, please.")
    await page.until(f"document.querySelectorAll('.message').length === 4 && ({IS_DONE})")
    shot = Path(os.environ.get("PYGGML_TEST_SCREENSHOT", tmp_path / "page.png"))
    await page.screenshot(shot)
    assert shot.read_bytes().startswith(b"\x89PNG") and shot.stat().st_size > 20_000
    root = "document.documentElement"
    assert await page.run(f"{root}.scrollWidth <= innerWidth && {root}.scrollHeight <= innerHeight")


async def test_an_answer_is_stopped_and_its_slot_free(endless: ServerProcess) -> None:
    need_browser()
    async with open_page(endless.url + "/") as page:
        await page.until("document.querySelector('#state').textContent === 'needs a key'")
        await page.run("document.querySelector('#key').value = 'word'")
        await page.until("document.querySelector('#state').textContent === 'ready'")
        await say(page, "Go on")
        await page.until(f"{LAST} && {LAST}.querySelector('.said').textContent.length > 100")
        await page.until("document.querySelector('#slots .decode') !== null")
        await page.run("document.querySelector('#stop').click()")
        assert await page.until(IS_DONE) == "stopped"
        await page.until("document.querySelector('#slots .decode') === null")


def test_the_page_needs_no_key_and_its_calls_do(endless: ServerProcess) -> None:
    assert endless.get("/").headers["Content-Type"].startswith("text/html")
    assert [endless.get(f"/page/{name}").status for name in ("page.css", "page.js", "status.js")] == [200, 200, 200]
    assert endless.get("/status").status == 401


def test_without_a_page_there_is_a_line_of_text(tmp_path: Path) -> None:
    model = write_forced(tmp_path / "m.gguf", "Fine.").path
    with ServerProcess(model, "--ctx", 512, "--threads", 1, "--no-webui") as server:
        reply = server.get("/")
        assert reply.headers["Content-Type"].startswith("text/plain") and b"running" in reply.body
        assert server.get("/page/page.js").status == 404
