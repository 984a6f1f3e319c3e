"""Bodies that no client should send, drawn from a seed: wrong types, values beyond every limit, broken bytes.

Stands on bodies of the real routes, which ask for next to nothing, so that one that is valid after all costs
little. Imports nothing but the standard library.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

from http_client import request

_MODEL = "smollm2-135m"

BODIES: Mapping[str, Mapping[str, object]] = {
    "/v1/completions": {
        "model": _MODEL,
        "prompt": "Hello",
        "max_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "n": 1,
        "stop": ["x"],
        "logprobs": 1,
        "logit_bias": {"5": 1.0},
        "echo": False,
        "stream": False,
        "stream_options": None,
        "seed": 1,
        "cache_salt": "a",
        "priority": 0,
    },
    "/v1/chat/completions": {
        "model": _MODEL,
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}],
        "max_tokens": 2,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"type": "object"}},
        },
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "none",
        "stream": True,
    },
    "/generate": {
        "text": "Hello",
        "sampling_params": {"max_new_tokens": 2, "temperature": 0, "stop": ["x"], "regex": "[ab]+", "n": 1},
        "rid": "r",
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "stream": False,
    },
    "/tokenize": {"prompt": "Hello", "model": _MODEL, "add_special_tokens": True},
    "/detokenize": {"tokens": [1, 2, 3], "model": _MODEL},
    "/v1/embeddings": {"input": "Hello", "model": _MODEL},
    "/v1/batches": {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h"},
}
_STRANGE: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    1e308,
    -0.0,
    10**30,
    float("nan"),
    "",
    "\0",
    "\ud800",
    "é" * 10_000,
    [],
    {},
    [[]],
    [None] * 1000,
    {"a": {"b": [1, "2", None]}},
    [{"role": "user"}],
    "a" * 65,
    2**63,
    ["\udfff"],
)
_LEFT_ALONE = ("max_tokens", "max_new_tokens")
"""What keeps an answer short."""


def fuzzed(draw: random.Random, key: str) -> bytes:
    """A request whose body differs from a valid one in some places, and one in four in some bytes too."""
    path = draw.choice(list(BODIES))
    body: Any = copy.deepcopy(BODIES[path])
    for _ in range(draw.randint(1, 3)):
        _spoil(draw, body)
    if draw.random() < 0.05:
        body = copy.deepcopy(draw.choice(_STRANGE))
    raw = json.dumps(body).encode()
    if draw.random() < 0.25:
        raw = _broken(draw, raw)
    return request("POST", path, key=key, raw=raw)


def _spoil(draw: random.Random, body: Any) -> None:  # Any: a part of a body
    """Change one place, at any depth."""
    names = [
        name for name in (body if isinstance(body, dict) else range(len(body))) if name not in _LEFT_ALONE
    ]
    if not names:
        return
    name = draw.choice(names)
    inner = body[name]
    if isinstance(inner, dict | list) and inner and draw.random() < 0.6:
        _spoil(draw, inner)
    elif draw.random() < 0.1:
        del body[name]
    else:
        body[name] = copy.deepcopy(draw.choice(_STRANGE))


def _broken(draw: random.Random, raw: bytes) -> bytes:
    place = draw.randrange(len(raw) + 1)
    kind = draw.randrange(3)
    if kind == 0:
        return raw[:place]
    if kind == 1:
        return raw[:place] + draw.randbytes(4) + raw[place:]
    return raw[:place] + bytes([draw.randrange(256)]) + raw[place + 1 :]


@cache
def large(key: str, size: int) -> list[bytes]:
    """Bodies of about so many bytes: a text, a text for chat, token ids, an unknown field, no JSON; and one
    that is said to be much larger still."""
    text = "word " * (size // 5)
    completions = BODIES["/v1/completions"]
    bodies: list[tuple[str, bytes]] = [
        ("/v1/completions", json.dumps({**completions, "prompt": text}).encode()),
        ("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": text}]}).encode()),
        ("/v1/completions", json.dumps({**completions, "prompt": [7] * (size // 3)}).encode()),
        ("/generate", json.dumps({**BODIES["/generate"], "unknown": [text[:96]] * (size // 100)}).encode()),
        ("/generate", b"x" * size),
    ]
    sent = [request("POST", path, key=key, raw=raw) for path, raw in bodies]
    return [*sent, _announced(64 * size, key)]


def _announced(size: int, key: str) -> bytes:
    whole = request("POST", "/generate", key=key, raw=b"x" * 1000)
    return whole.replace(b"Content-Length: 1000", b"Content-Length: %d" % size)


def deep(key: str) -> list[bytes]:
    """10,000 levels, and fewer: as the whole body and as the value of a field."""
    found = []
    for depth in (10_000, 900, 300):
        nested = b"[" * depth + b"]" * depth
        found += [
            request("POST", "/generate", key=key, raw=nested),
            request("POST", "/generate", key=key, raw=b'{"text":' + nested + b"}"),
            request("POST", "/v1/completions", key=key, raw=b'{"prompt":"a","logit_bias":' + nested + b"}"),
            request("POST", "/generate", key=key, raw=b'{"a":' * depth + b"1" + b"}" * depth),
        ]
    return found


def numerous(key: str) -> list[bytes]:
    """A billion choices, and the like."""
    much = 1_000_000_000
    completions, generate = BODIES["/v1/completions"], BODIES["/generate"]
    params = generate["sampling_params"]
    assert isinstance(params, dict), "an object in the body above"
    changed: list[tuple[str, dict[str, object]]] = [
        *(("/v1/completions", {**completions, name: much}) for name in ("n", "best_of", "logprobs")),
        ("/v1/completions", {**completions, "logit_bias": {str(i): 1 for i in range(100_000)}}),
        ("/v1/completions", {**completions, "prompt": ["a"] * 100_000}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": much}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 10_000}),
        ("/generate", {**generate, "sampling_params": {**params, "n": much}}),
        ("/generate", {**generate, "top_logprobs_num": much}),
        ("/generate", {**generate, "text": ["a"] * 100_000}),
    ]
    return [request("POST", path, body, key=key) for path, body in changed]


def stops(key: str) -> list[bytes]:
    """10,000 of them."""
    texts = [f"stop {i}" for i in range(10_000)]
    found = [request("POST", "/v1/completions", {**BODIES["/v1/completions"], "stop": texts}, key=key)]
    for params in ({"stop": texts}, {"stop_regex": texts}, {"stop_token_ids": [7] * 10_000}):
        limited = {"max_new_tokens": 2, **params}
        found.append(request("POST", "/generate", {"text": "a", "sampling_params": limited}, key=key))
    return found


def not_text(key: str) -> list[bytes]:
    """Bytes that are no UTF-8, and escapes of half a character."""
    raws = (b'{"text":"\xff\xfe"}', b'{"text":"\xc3("}', b'\xef\xbb\xbf{"text":1}', b'{"text":"\\ud800"}')
    chat = b'{"messages":[{"role":"user","content":"\\udc00 \xed\xa0\x80"}],"max_tokens":1}'
    sent = [request("POST", "/generate", key=key, raw=raw) for raw in raws]
    return [*sent, request("POST", "/v1/chat/completions", key=key, raw=chat)]
