"""Texts as token ids and back, and what a client that does so itself has to know of the tokenizer.

Every route is also under /v1. Replies have the names of SGLang's and of vLLM's clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..errors import InvalidRequest
from ..text import quote
from .body import read_object
from .chat_prompt import count_characters, prompt_ids
from .context import ServerContext, context_of
from .conversation import conversation_of
from .field_values import read_switch
from .native_fields import DETOKENIZE_BODY, TOKENIZE_BODY
from .replies import json_reply
from .token_texts import beside, check_characters, encode_texts
from .tool_formats.detection import format_of

router = APIRouter(tags=["tokens"])

_MOST_CHARACTERS = 1_000_000
"""Characters of all texts together: tokens of ten times as many take a gigabyte while they are counted."""


@router.post("/tokenize", openapi_extra=TOKENIZE_BODY)
@router.post("/v1/tokenize", openapi_extra=TOKENIZE_BODY)
async def tokenize(request: Request) -> Response:
    """The ids of a text, of each of several, or of a conversation."""
    context = context_of(request)
    body = await read_object(request, context.settings.max_body_bytes)
    tokenizer = context.service.engine.tokenizer
    texts, several = _texts(body, context.settings.max_prompts)
    if texts is None:
        found = [await _chat_ids(context, body)]
    else:
        bos = read_switch("add_special_tokens", body.get("add_special_tokens"), True)
        _check_characters(texts)
        found = [list(ids) for ids in await encode_texts(tokenizer, texts, bos=bos)]
    reply: dict[str, object] = {
        "tokens": found if several else found[0],
        "count": [len(ids) for ids in found] if several else len(found[0]),
        "max_model_len": context.service.engine.max_length,
    }
    if read_switch("return_token_strs", body.get("return_token_strs")):
        pieces = [[tokenizer.piece(token) for token in ids] for ids in found]
        reply["token_strs"] = pieces if several else pieces[0]
    return json_reply(reply)


@router.post("/detokenize", openapi_extra=DETOKENIZE_BODY)
@router.post("/v1/detokenize", openapi_extra=DETOKENIZE_BODY)
async def detokenize(request: Request) -> Response:
    """The text of ids, or of each of several lists."""
    context = context_of(request)
    body = await read_object(request, context.settings.max_body_bytes)
    tokenizer = context.service.engine.tokenizer
    lists, several = _id_lists(body.get("tokens"), tokenizer.vocab_size, context.settings.max_prompts)
    skip = read_switch("skip_special_tokens", body.get("skip_special_tokens"), True)
    found = await asyncio.to_thread(lambda: [tokenizer.decode(ids, skip) for ids in lists])
    text = found if several else found[0]
    return json_reply({"text": text, "prompt": text})


@router.get("/tokenizer_info")
@router.get("/v1/tokenizer_info")
async def tokenizer_info(request: Request) -> Response:
    """Control tokens and the chat template."""
    engine = context_of(request).service.engine
    tokenizer = engine.tokenizer
    return json_reply(
        {
            "bos_token": None,
            "eos_token": None,
            "pad_token": None,
            "unk_token": None,
            **tokenizer.special_names,
            "bos_token_id": tokenizer.bos_id,
            "eos_token_ids": sorted(tokenizer.eos_ids),
            "special_tokens": {str(tokenizer.piece(token)): token for token in sorted(tokenizer.special_ids)},
            "chat_template": tokenizer.chat_template(),
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": engine.max_length,
        }
    )


def _texts(body: Mapping[str, object], most: int) -> tuple[list[str] | None, bool]:
    """What is to be encoded, None for a conversation; and whether it is a list."""
    given = [name for name in ("prompt", "text", "messages") if body.get(name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"one of prompt, text and messages is needed, got {' and '.join(given) or 'none'}"
        )
    [name] = given
    value = body[name]
    if name == "messages":
        return None, False
    if isinstance(value, str):
        return [value], False
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise InvalidRequest(f"{name} must be a text or a list of them, got {quote(value)}")
    _check_count(name, value, most)
    return value, True


def _check_characters(texts: list[str]) -> None:
    characters = sum(map(len, texts))
    if characters > _MOST_CHARACTERS:
        raise InvalidRequest(f"texts may have {_MOST_CHARACTERS} characters together, got {characters}")


async def _chat_ids(context: ServerContext, body: Mapping[str, object]) -> list[int]:
    """Those that chat would send to the model."""
    if read_switch("add_special_tokens", body.get("add_special_tokens")):
        raise InvalidRequest("add_special_tokens must be false for messages: the chat template adds its own")
    engine = context.service.engine
    asked = conversation_of(body, engine.max_length)

    def ids() -> list[int]:
        form = format_of(context.settings.tool_parser, engine.tokenizer)
        return list(prompt_ids(asked, form, engine.tokenizer, partial(check_characters, engine)))

    return await beside(count_characters(asked), ids)


def _id_lists(value: object, vocab_size: int, most: int) -> tuple[list[Sequence[int]], bool]:
    """The lists, and whether there may be several."""
    if not isinstance(value, list):
        raise InvalidRequest(f"tokens must be a list of token ids or of such lists, got {quote(value)}")
    several = bool(value) and isinstance(value[0], list)
    lists = value if several else [value]
    _check_count("tokens", lists, most)
    for ids in lists:
        if not isinstance(ids, list) or set(map(type, ids)) - {int}:
            raise InvalidRequest(f"tokens must be lists of token ids, got {quote(ids)}")
        wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise InvalidRequest(f"tokens must be ids from 0 to {vocab_size - 1}, got {quote(wrong)}")
    return lists, several


def _check_count(name: str, items: Sequence[object], most: int) -> None:
    if len(items) > most:
        raise InvalidRequest(f"{name} may hold {most} entries, got {len(items)}")
