"""The page in a real browser, Debian's Chromium: what is drawn, what keys do, what is kept and asked for.

Needs more than the other tests, and is skipped without it: `pip install playwright`, and Chromium as Debian
installs it (`apt-get install chromium`); no browser is ever downloaded.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from radixlm.radix.cache import PrefixCache
from radixlm.radix.tree_view import TreeView
from radixlm.runtime.metrics import EngineStats, Meter
from radixlm.runtime.scheduler import SchedulerStats
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.types import Request
from testkit.byte_tokenizer import build_byte_tokenizer
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"there is no {CHROMIUM}", allow_module_level=True)

PATIENCE = 15_000
expect = sync_api.expect
expect.set_options(timeout=PATIENCE)
ANSWER = "A tree of <b>prefixes</b> & pages."


class FaceWithTree(ScriptedFace):
    """A script beside a real tree of known prompts."""

    def __init__(self, cache: PrefixCache, **more: Any) -> None:
        super().__init__(build_byte_tokenizer(), _script, **more)
        self.cache = cache
        self.views = 0

    def tree(self, most_nodes: int) -> Future[TreeView]:
        self.views += 1
        future: Future[TreeView] = Future()
        future.set_result(self.cache.view(most_nodes))
        return future

    def snapshot(self) -> EngineStats:
        scheduled = SchedulerStats(**dict.fromkeys(SchedulerStats.__dataclass_fields__, 0))
        return Meter().stats(self.cache, replace(scheduled, prompt_tokens=1000, cached_tokens=750))


def _script(_: Request) -> str:
    return ANSWER


def grown_cache(prompts: int) -> PrefixCache:
    """Conversations that share four beginnings; two of them go on."""
    draws = random.Random(1)
    cache = PrefixCache(16 * prompts + 64, 16)
    known = [tuple(draws.randrange(1000) for _ in range(16 * size)) for size in (2, 5, 9, 20)]
    for place in range(prompts):
        tokens = (*draws.choice(known), *(draws.randrange(1000) for _ in range(draws.randrange(8, 80))))
        lease = cache.acquire(tokens, ("",), len(tokens))
        assert lease is not None, "the pool is large enough"
        cache.take_copies()
        cache.settle()
        cache.publish(lease, tokens, len(tokens))
        if place < prompts - 2:
            cache.release(lease)
        if place % 3 == 0:
            known.append(tokens)
    return cache


@dataclass(frozen=True)
class Site:
    url: str
    face: FaceWithTree


def site(prompts: int, settings: ServerSettings | None = None, **more: Any) -> Iterator[Site]:
    face = FaceWithTree(grown_cache(prompts), **more)
    with running_server(face, settings) as endpoint:
        yield Site(endpoint.url, face)


@pytest.fixture(scope="module")
def small() -> Iterator[Site]:
    yield from site(60)


@pytest.fixture(scope="module")
def large() -> Iterator[Site]:
    yield from site(1700)


@pytest.fixture(scope="module")
def held() -> Iterator[Site]:
    """Answers stop after four tokens until they are aborted."""
    yield from site(5, hold=4)


@pytest.fixture(scope="module")
def locked() -> Iterator[Site]:
    yield from site(5, ServerSettings(api_keys=("right",), shutdown_timeout=5.0))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # As root, which CI is, Chromium starts without its sandbox only; it sees nothing but these tests.
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab of its own, in which nothing may go wrong unseen."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert [text for text in wrong if "the server responded with a status of 40" not in text] == []


def open_page(page: Any, site: Site) -> None:
    page.goto(site.url)
    page.wait_for_selector('#link[data-state="live"]')
    expect(page.locator("#tree-summary")).to_contain_text("node")


def text(page: Any, selector: str) -> str:
    return str(page.inner_text(selector))


# -- the tree --------------------------------------------------------------------------------------


def test_two_thousand_nodes_of_a_larger_tree_are_drawn(page: Any, large: Site) -> None:
    open_page(page, large)
    assert text(page, "#tree-summary").startswith("1,999 of ")
    painted = page.evaluate(
        """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
            const canvas = document.querySelector("#tree-canvas");
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            let count = 0;
            for (let i = 3; i < data.length; i += 4) count += data[i] > 0;
            done(count / (canvas.width * canvas.height));
        })))"""
    )
    assert painted > 0.15


def test_cells_lie_under_their_parents_and_are_as_wide_as_their_tokens(page: Any, small: Site) -> None:
    open_page(page, small)
    found = page.evaluate(
        """async () => {
            const { linked, cellsOf } = await import("/page/tree_layout.js");
            const view = await (await fetch("/radix")).json();
            const { top, all } = linked(view.nodes, view.clock);
            const { cells } = cellsOf(top, top, 1000, 400, 0);
            const scale = 1000 / top.weight;
            const place = new Map(cells.map((cell) => [cell.node.id, cell]));
            const wrong = cells.filter(({ node, x, y, w }) => {
                const over = place.get(node.parent.id);
                const inside = !over || (x >= over.x - 1e-6 && x + w <= over.x + over.w + 1e-6 && y > over.y);
                return !inside || Math.abs(w - node.weight * scale) > 1e-6;
            });
            return { cells: cells.length, nodes: all.length, weight: top.weight, wrong: wrong.length,
                     tokens: view.nodes.reduce((sum, node) => sum + node.tokens, 0) };
        }"""
    )
    assert found["wrong"] == 0
    assert found["cells"] == found["nodes"] > 60
    assert found["weight"] == found["tokens"]


def test_keys_move_in_the_tree_look_closer_and_go_back(page: Any, small: Site) -> None:
    open_page(page, small)
    page.focus("#tree-canvas")
    page.keyboard.press("ArrowRight")
    second = text(page, "#tree-readout")
    assert "from token 0 on" in second
    page.keyboard.press("ArrowDown")
    below = text(page, "#tree-readout")
    assert "tokens in" in below
    assert "from token 0 on" not in below
    page.keyboard.press("Enter")
    page.wait_for_selector("#tree-out:visible")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.wait_for_selector("#tree-out", state="hidden")
    page.keyboard.press("ArrowUp")
    assert text(page, "#tree-readout") == second


def test_pointing_at_a_cell_tells_its_figures_and_a_click_looks_closer(page: Any, small: Site) -> None:
    open_page(page, small)
    box = page.locator("#tree-canvas").bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 10)
    expect(page.locator("#tree-readout")).to_contain_text("from token 0 on")
    page.mouse.click(box["x"] + 40, box["y"] + 10)
    page.click("#tree-out")
    page.wait_for_selector("#tree-out", state="hidden")


def test_an_unchanged_tree_is_not_asked_for_every_second(page: Any, small: Site) -> None:
    page.clock.install()
    open_page(page, small)
    before = small.face.views
    for _ in range(3):
        with page.expect_response("**/status"):
            page.clock.run_for(1000)
    assert small.face.views == before


# -- asking ----------------------------------------------------------------------------------------


def test_a_hidden_page_asks_for_nothing_until_it_is_seen_again(page: Any, small: Site) -> None:
    page.clock.install()
    open_page(page, small)
    asked: list[str] = []
    show = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(show, True)
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    assert asked == []
    with page.expect_response("**/status"):
        page.evaluate(show, False)


def test_the_page_says_that_the_engine_has_stopped(page: Any, held: Site) -> None:
    open_page(page, held)
    held.face.alive = False
    try:
        page.wait_for_selector('#link[data-state="trouble"]')
        assert text(page, "#link") == "the engine has stopped"
    finally:
        held.face.alive = True


def test_a_key_is_asked_for_and_kept_in_this_tab_alone(page: Any, locked: Site) -> None:
    page.goto(locked.url)
    expect(page.locator("#key-field")).to_be_focused()
    for key, state in (("wrong", "trouble"), ("right", "live")):
        page.fill("#key-field", key)
        page.keyboard.press("Enter")
        page.wait_for_selector(f'#link[data-state="{state}"]')
    kept = "[sessionStorage.length, localStorage.length, document.cookie, location.search]"
    assert page.evaluate(kept) == [1, 0, "", ""]
    page.reload()
    page.wait_for_selector('#link[data-state="live"]')


# -- chat ------------------------------------------------------------------------------------------


def test_an_answer_is_shown_as_text_with_its_figures(page: Any, small: Site) -> None:
    open_page(page, small)
    page.click("#chat-options summary")
    page.fill("#chat-system", "Be brief.")
    page.fill("#chat-text", "<img src=x onerror=alert(1)>")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-log .figures")
    assert text(page, "#chat-log .assistant .text") == ANSWER
    assert text(page, "#chat-log .user .text") == "<img src=x onerror=alert(1)>"
    assert page.locator("#chat-log img, #chat-log b").count() == 0
    figures = text(page, "#chat-log .figures")
    prompt = len(small.face.requests[-1].prompt_ids)
    assert f"{prompt // 2} of {prompt} prompt tokens cached" in figures
    assert "first token after" in figures
    asked = small.face.tokenizer.decode(small.face.requests[-1].prompt_ids)
    assert "[system] Be brief." in asked
    assert text(page, "#chat-status").startswith("Answer complete")


def test_the_next_question_has_the_conversation_before_it(page: Any, small: Site) -> None:
    open_page(page, small)
    for question in ("one?", "two?"):
        page.fill("#chat-text", question)
        page.click("#chat-send")
        page.wait_for_selector("#chat-stop", state="hidden")
    asked = small.face.tokenizer.decode(small.face.requests[-1].prompt_ids)
    assert asked.index("one?") < asked.index(ANSWER) < asked.index("two?")
    page.click("#chat-new")
    assert page.locator("#chat-log article").count() == 0


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_an_answer_can_be_stopped(page: Any, held: Site, way: str) -> None:
    open_page(page, held)
    page.fill("#chat-text", "Go on.")
    page.keyboard.press("Enter")
    expect(page.locator("#chat-log .assistant .text")).to_have_text(re.compile(".{3}"))
    page.wait_for_selector("#requests tbody tr")
    assert text(page, "#requests-summary") == "1 running · 0 waiting"
    if way == "button":
        page.click("#chat-stop")
    else:
        page.keyboard.press("Escape")
    page.wait_for_selector("#chat-log .figures")
    assert "stopped" in text(page, "#chat-log .figures")
    assert ANSWER.startswith(text(page, "#chat-log .assistant .text"))
    page.wait_for_selector("#requests-empty:visible")


def test_a_refused_question_says_why_and_comes_back(page: Any, small: Site) -> None:
    open_page(page, small)
    page.click("#chat-options summary")
    page.fill("#chat-temperature", "-1")
    page.fill("#chat-text", "Why?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat-log .failure")
    assert "temperature" in text(page, "#chat-log .failure")
    assert page.input_value("#chat-text") == "Why?"


# -- for everybody ---------------------------------------------------------------------------------


def test_all_can_be_reached_by_the_tab_key_and_has_a_name(page: Any, small: Site) -> None:
    open_page(page, small)
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                """() => {
                    const at = document.activeElement;
                    if (at === document.body) return "";
                    const box = at.getBoundingClientRect();
                    if (getComputedStyle(at).outlineStyle === "none" || !box.width) return "unseen " + at.id;
                    return at.id || at.getAttribute("href") || at.textContent.trim();
                }"""
            )
        )
    assert not [name for name in reached if name.startswith("unseen")]
    assert {
        "#tree",
        "#chat",
        "API key",
        "tree-canvas",
        "chat-new",
        "chat-log",
        "chat-text",
        "chat-send",
    } <= reached
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, canvas, svg, summary")]
            .filter((one) => !(one.textContent.trim() || one.labels?.length || one.ariaLabel))
            .map((one) => one.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_as_well_as_a_wide_screen(page: Any, small: Site, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    open_page(page, small)
    page.click("#key summary")
    for width in (360, 1000, 1600):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        box = page.locator("#key form").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, colour[4:-1].split(","))) < 100) == (scheme == "dark")
