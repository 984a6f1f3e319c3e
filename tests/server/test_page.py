"""The web page without a browser: its files, what they may load, and the JSON that it asks for."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest

import radixlm.runtime.server.page as page_module
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.server.metrics import ServerMetrics
from radixlm.runtime.server.page import MOST_NODES
from radixlm.runtime.server.service import Job, Service
from radixlm.runtime.server.settings import ServerSettings
from testkit.http_server import running_server
from testkit.scripted_face import ScriptedFace

OpenFace = Callable[..., ScriptedFace]
FOLDER = Path(page_module.__file__).with_name("page_files")
FILES = sorted(path.name for path in FOLDER.iterdir())
SCRIPTS = [name for name in FILES if name.endswith(".js")]
KEYS = {"Authorization": "Bearer key-of-a"}
KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "html": "text/html"}


@pytest.fixture(scope="module")
def client(local_engine: LocalEngine) -> Iterator[httpx.Client]:
    """Asks a server with the keys key-of-a and key-of-b; no key is sent."""
    settings = ServerSettings(api_keys=("key-of-a", "key-of-b"), shutdown_timeout=5.0)
    with running_server(local_engine, settings) as endpoint, httpx.Client(base_url=endpoint.url) as client:
        yield client


def path_of(name: str) -> str:
    return "/" if name == "index.html" else f"/page/{name}"


def generate(client: httpx.Client, ids: list[int], max_tokens: int = 4) -> None:
    body = {"prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    assert client.post("/v1/completions", json=body, headers=KEYS).status_code == 200


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_the_page_is_served_without_a_key(client: httpx.Client, name: str) -> None:
    reply = client.get(path_of(name))
    assert reply.status_code == 200
    assert reply.content == (FOLDER / name).read_bytes()
    assert reply.headers["content-type"].split(";")[0] == KINDS[name.rsplit(".", 1)[1]]
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_the_page_may_run_and_load_nothing_but_its_own_files(client: httpx.Client) -> None:
    rules = dict(
        rule.strip().split(" ", 1)
        for rule in client.get("/").headers["content-security-policy"].split(";")
        if " " in rule.strip()
    )
    assert rules["default-src"] == "'none'"
    assert {rules[f"{kind}-src"] for kind in ("script", "style", "img", "connect")} == {"'self'"}
    assert rules["frame-ancestors"] == "'none'"


def test_the_page_has_no_script_or_style_in_line_and_names_no_other_host() -> None:
    html = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", html)
    assert all(re.search(r"\ssrc=", tag) for tag in re.findall(r"<script[^>]*>", html))
    for name in FILES:
        hosts = set(re.findall(r"(?:https?:)?//([\w.-]+\.\w+)", (FOLDER / name).read_text()))
        assert hosts <= {"www.w3.org"}, name  # the name of SVG


def test_text_from_the_server_is_never_taken_for_html() -> None:
    unsafe = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function")
    for name in SCRIPTS:
        assert not unsafe.search((FOLDER / name).read_text()), name


def test_what_the_page_refers_to_exists() -> None:
    html = (FOLDER / "index.html").read_text()
    assert set(re.findall(r'(?:src|href)="page/([^"]+)"', html)) <= set(FILES)
    for name in SCRIPTS:
        assert set(re.findall(r'from "\./([^"]+)"', (FOLDER / name).read_text())) <= set(SCRIPTS)


@pytest.mark.parametrize(
    "name", ["nothing.js", "index.html", "..%2fpage.py", "%2e%2e/page.py", "style.css/x"]
)
def test_what_is_not_in_the_table_is_not_found(client: httpx.Client, name: str) -> None:
    assert client.get(f"/page/{name}", headers=KEYS).status_code == 404


def test_a_file_that_a_browser_has_is_not_sent_again(client: httpx.Client) -> None:
    tag = client.get("/page/app.js").headers["etag"]
    reply = client.get("/page/app.js", headers={"If-None-Match": tag})
    assert (reply.status_code, reply.content) == (304, b"")


def test_an_installed_package_has_the_files_too() -> None:
    root = Path(__file__).parents[2]
    data = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = data["radixlm.runtime.server"]
    assert all(any(fnmatch.fnmatch(f"page_files/{name}", one) for one in patterns) for name in FILES)


# -- the tree --------------------------------------------------------------------------------------


def test_tree_and_state_need_a_key(client: httpx.Client) -> None:
    assert [client.get(path).status_code for path in ("/radix", "/status")] == [401, 401]


def test_the_tree_shows_what_two_prompts_share_and_who_found_it(client: httpx.Client) -> None:
    stem = list(range(10, 34))
    generate(client, [*stem, 40, 41, 42, 43])
    before = client.get("/radix", headers=KEYS).json()
    generate(client, [*stem, 50, 51, 52, 53])
    tree = client.get("/radix", headers=KEYS).json()
    nodes = {node["id"]: node for node in tree["nodes"]}
    [shared] = [node for node in nodes.values() if node["tokens"] == len(stem)]
    assert shared["hits"] >= 1
    assert sum(node["parent"] == shared["id"] for node in nodes.values()) == 2
    assert tree["clock"] > before["clock"]
    assert sum(node["pages"] for node in nodes.values()) == tree["cached_pages"]
    assert tree["free_pages"] + tree["cached_pages"] + tree["leased_pages"] == tree["num_pages"]


def test_in_the_tree_parents_come_before_their_children(client: httpx.Client) -> None:
    seen = set[int]()
    for node in client.get("/radix", headers=KEYS).json()["nodes"]:
        assert node["parent"] is None or node["parent"] in seen
        seen.add(node["id"])


def test_the_tree_tells_numbers_only(client: httpx.Client) -> None:
    generate(client, [60, 61, 62, 63, 64])
    for node in client.get("/radix", headers=KEYS).json()["nodes"]:
        assert node.pop("tier") == "device"
        assert all(value is None or type(value) is int for value in node.values())


def test_the_tree_is_cut_to_the_nodes_that_were_asked_for(client: httpx.Client) -> None:
    for first in range(70, 80):
        generate(client, [first, 1, 2, 3, 4, 5], max_tokens=1)
    tree = client.get("/radix?nodes=4", headers=KEYS).json()
    assert len(tree["nodes"]) == 4
    assert tree["left_out"] == tree["total_nodes"] - 4 > 0


@pytest.mark.parametrize("nodes", ["0", "-1", "x", "1.5", "²", str(MOST_NODES + 1), "9" * 5000])
def test_a_number_of_nodes_that_is_not_allowed_is_refused(client: httpx.Client, nodes: str) -> None:
    reply = client.get("/radix", params={"nodes": nodes}, headers=KEYS)
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert message.startswith(f"nodes must be an integer from 1 to {MOST_NODES}, got ")
    assert len(message) < 200


# -- the state -------------------------------------------------------------------------------------


def test_the_state_counts_tokens_and_pages(client: httpx.Client) -> None:
    before = client.get("/status", headers=KEYS).json()
    generate(client, [80, 81, 82, 83, 84, 85, 86, 87], max_tokens=3)
    after = client.get("/status", headers=KEYS).json()
    assert after["tokens"]["prompt"] - before["tokens"]["prompt"] == 8
    assert after["tokens"]["generated"] - before["tokens"]["generated"] == 3
    assert after["steps"] > before["steps"]
    assert after["time"] > before["time"]
    assert after["pages"]["total"] == 256
    assert after["pages"]["used"] == 0 < after["pages"]["cached"]
    assert after["requests"] == {"running": 0, "waiting": 0, "listed": []}
    assert after["problem"] is None


def test_jobs_under_way_are_told_to_their_tenant_alone(open_face: OpenFace) -> None:
    face = open_face(lambda _: "abcdef", hold=2)
    params = SamplingParams(max_tokens=8, temperature=0.0)

    async def scenario() -> None:
        service = Service(face, ServerSettings(), ServerMetrics(face))
        job = Job((5, 6, 7, 8), params, "mine", tenant="a")
        async with aclosing(service.run([job])) as events:
            await anext(events)
            [found] = service.under_way("a", 9)
            assert (found.id, found.waits) == ("mine", False)
            assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (4, 2, 1)
            assert found.age >= 0
            assert service.under_way("b", 9) == service.under_way("", 9) == service.under_way("a", 0) == []
        assert service.under_way("a", 9) == []

    asyncio.run(scenario())


def test_a_job_that_has_no_token_yet_waits_and_two_of_one_id_are_told_apart(open_face: OpenFace) -> None:
    face = open_face(lambda _: "abcdef", hold=0)
    params = SamplingParams(max_tokens=8, temperature=0.0)

    async def scenario() -> None:
        service = Service(face, ServerSettings(), ServerMetrics(face))
        events = service.run(
            [Job((5, 6), params, "twice"), Job((7,), params, "twice"), Job((7,), params, "")]
        )
        first = asyncio.ensure_future(anext(events))
        while len(face.requests) < 3:
            await asyncio.sleep(0)
        found = service.under_way("", 9)
        assert [(job.id, job.waits, job.completion_tokens) for job in found] == [("twice", True, 0)] * 2
        assert len({job.key for job in found}) == 2
        face.release()
        await first
        await events.aclose()

    asyncio.run(scenario())


def test_the_description_of_the_server_has_the_routes_of_the_page(client: httpx.Client) -> None:
    paths: dict[str, Any] = client.get("/openapi.json", headers=KEYS).json()["paths"]
    assert {"/radix", "/status"} <= set(paths)
    assert "/page/{name}" not in paths
    assert json.dumps(paths["/radix"]).count(f'"maximum": {MOST_NODES}') == 1
