"""A process that is forked off while connections are open has its own, and reads no answer of the other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from testkit.fake_http import Asked, served

GENERATED = {"finish_reason": {"type": "stop"}, "prompt_tokens": 1, "cached_tokens": 0}


async def answer(asked: Asked) -> None:
    """Each prompt comes back, so that an answer that was read by the wrong process is seen."""
    if asked.path == "/get_server_info":
        await asked.json({"runtime": "radixlm"})
    elif asked.path == "/v1/models":
        await asked.json({"data": [{"owned_by": "other"}]})
    elif asked.path == "/v1/completions":
        choice = {"index": 0, "text": asked.body["prompt"], "finish_reason": "stop"}
        await asked.json({"choices": [choice]})
    elif asked.path == "/generate":
        text = "".join(asked.body["input_parts"])
        await asked.json({"text": text, "output_parts": [text], "meta_info": GENERATED})
    else:
        await asked.json({})


CODE = """
import os, sys, threading
import radixlm as rx

backend = {backend}
body = rx.function(lambda s, x: s.append(f"{{x}}" + rx.gen("x")))

def ask(name):
    for number in range(20):
        prompt = f"{{name}} {{number}}"
        assert body.run(prompt, backend=backend, timeout=30)["x"] == prompt

ask("before")
child = os.fork()
ask("child" if not child else "parent")
if not child:
    backend.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
ask("after")
backend.close()
"""


@pytest.mark.parametrize(
    "backend", ["rx.RuntimeEndpoint({url!r})", "rx.OpenAI('m', base_url={url!r} + '/v1')"]
)
def test_both_processes_go_on_with_connections_of_their_own(backend: str) -> None:
    with served(answer) as fake:
        code = CODE.format(backend=backend.format(url=fake.url))
        subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120)
        assert fake.accepted >= 2, "one before, and one of the child"
        prompts = [each.body for each in fake.asked if each.path in ("/generate", "/v1/completions")]
        assert len(prompts) == 80


def test_a_child_that_only_closes_leaves_the_connections_of_the_parent_open() -> None:
    code = """
import os
import radixlm as rx

backend = rx.RuntimeEndpoint({url!r})
body = rx.function(lambda s: s.append("a" + rx.gen("x")))
assert body.run(backend=backend)["x"] == "a"
child = os.fork()
if not child:
    backend.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert body.run(backend=backend)["x"] == "a"
"""
    with served(answer) as fake:
        subprocess.run([sys.executable, "-P", "-c", code.format(url=fake.url)], check=True, timeout=60)
        assert fake.accepted == 1


def test_a_transport_that_was_given_is_not_used_in_two_processes() -> None:
    code = """
import os
import httpx
import radixlm as rx

backend = rx.RuntimeEndpoint({url!r}, transport=httpx.AsyncHTTPTransport())
body = rx.function(lambda s: s.append("a" + rx.gen("x")))
assert body.run(backend=backend)["x"] == "a"
child = os.fork()
if not child:
    state = body.run(backend=backend)
    os._exit(7 if "belongs to the process before the fork" in str(state.error()) else 8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    with served(answer) as fake:
        subprocess.run([sys.executable, "-P", "-c", code.format(url=fake.url)], check=True, timeout=60)
