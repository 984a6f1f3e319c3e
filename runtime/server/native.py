"""SGLang's own routes: /generate and what its clients call beside it.

The routes only: what a body of /generate means is in native_body.py, what its reply looks like in
native_reply.py. What must hold: each text of a stream has one last chunk, or an error in its place, and
[DONE] comes behind all.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ... import __version__
from ..errors import InvalidRequest, RadixError, RequestFailed
from ..model_config import FAMILIES
from ..profiling import MOST_STEPS
from ..text import quote
from ..text_parts import PartsEncoder, beginning, output_parts
from ..token_names import token_text
from ..tokenizer import Tokenizer
from ..types import Event
from .body import read_bytes, read_object
from .context import ServerContext, context_of, new_id, tenant
from .failures import Busy, body_of
from .field_values import read_switch
from .native_body import NativeCall, NativePrompt, parse_call
from .native_fields import ABORT_BODY, GENERATE_BODY
from .native_reply import FindParts, NativeAnswer
from .openai_reply import Tally
from .part_fields import InputParts
from .replies import CLIENT_GONE, DONE, EventStream, event_of, json_reply, until_gone
from .service import Job
from .token_texts import beside, check_characters, encode_texts

router = APIRouter(tags=["native"])

_MOST_ENTRIES = 2_000_000
"""Log-probabilities of prompts that one request may ask for: each takes memory until the reply is sent."""
_MANY_ENTRIES = 10_000
"""So many take too long to be written in the event loop."""

_OF_GENERATE = {"optimal_hit_rate", "hit_rate_of_optimal"}
"""Figures of a batch that `Engine.generate` was given: a server has none."""

# Any: what the log line of a request is told, see gate.py.
Scope = MutableMapping[str, Any]
Grown = AsyncGenerator[tuple[int, NativeAnswer, Event], None]


# -- /generate -------------------------------------------------------------------------------------


@router.post("/generate", openapi_extra=GENERATE_BODY)
@router.put("/generate", openapi_extra=GENERATE_BODY)
async def generate(request: Request) -> Response:
    """Continue each prompt, or only read it."""
    arrived = perf_counter()
    context = context_of(request)
    body = await read_object(request, context.settings.max_body_bytes)
    call = parse_call(body, context.settings)
    answers = _answers(context, call, tenant(request), request.scope)
    if call.stream:
        chunks = _chunks(answers, call.is_list, arrived)
        return EventStream(chunks)
    written = await until_gone(request, _whole(answers, call.is_list, arrived))
    if written is None:
        return json_reply(None, CLIENT_GONE)
    return Response(written, media_type="application/json")


async def _whole(answers: Grown, is_list: bool, arrived: float) -> bytes:
    found: dict[int, NativeAnswer] = {}
    async with aclosing(answers):
        async for place, answer, event in answers:
            if (failure := _failure(event)) is not None:
                raise failure
            found[place] = answer
    seconds = perf_counter() - arrived
    written = [found[place].written(seconds) for place in range(len(found))]
    return b"[%b]" % b",".join(written) if is_list else written[0]


async def _chunks(answers: Grown, is_list: bool, arrived: float) -> AsyncGenerator[bytes, None]:
    """A text that fails ends with the error; the others go on."""
    async with aclosing(answers):
        async for place, answer, event in answers:
            if (failure := _failure(event)) is not None:
                yield event_of({**body_of(failure), **({"index": place} if is_list else {})})
            else:
                written = answer.written(perf_counter() - arrived, place if is_list else None)
                yield b"data: %b\n\n" % written
    yield DONE


async def _answers(context: ServerContext, call: NativeCall, whose: str, scope: Scope) -> Grown:
    """Each event, with the answer that it was added to and the place of that in the reply."""
    jobs = await _jobs(context, call, whose)
    answers = [
        _answer(context, call, prompt, job)
        for prompt, job in zip(call.prompts, jobs, strict=True)
        for _ in range(prompt.sampling.n)
    ]
    firsts = list(accumulate((job.sampling.n for job in jobs), initial=0))
    tally = Tally()
    try:
        async with aclosing(context.service.run(jobs)) as events:
            async for index, event in events:
                tally.take(index, event)
                place = firsts[index] + event.index
                await _add(answers[place], event)
                yield place, answers[place], event
    finally:
        scope["radixlm.figures"] = tally.figures()


async def _add(answer: NativeAnswer, event: Event) -> None:
    entries = event.prompt_logprobs
    if entries and len(entries) * (1 + len(entries[-1].top)) > _MANY_ENTRIES:
        await asyncio.to_thread(answer.add, event)
    else:
        answer.add(event)


def _answer(context: ServerContext, call: NativeCall, prompt: NativePrompt, job: Job) -> NativeAnswer:
    tokenizer = context.service.engine.tokenizer
    return NativeAnswer(
        job.id,
        reports=prompt.reports,
        token_text=(lambda token: token_text(tokenizer, token)) if call.with_text else None,
        null_first=context.settings.native_null_first_logprob,
        find_parts=_parts_behind(tokenizer, job, prompt.content),
        holds=prompt.hint.hold_s is not None,
    )


def _parts_behind(tokenizer: Tokenizer, job: Job, content: object) -> FindParts | None:
    """Of a prompt in parts."""
    if not isinstance(content, InputParts):
        return None
    before = PartsEncoder(tokenizer).before(content.parts)
    skip = job.sampling.skip_special_tokens
    find = partial(output_parts, tokenizer, after=job.prompt_ids, skip_special_tokens=skip)
    return lambda text, ids, matched: (*before, *find(text, ids, matched))


async def _jobs(context: ServerContext, call: NativeCall, whose: str) -> list[Job]:
    tokenizer = context.service.engine.tokenizer
    texts = [prompt.content for prompt in call.prompts if isinstance(prompt.content, str)]
    check_characters(context.service.engine, max(map(len, texts), default=0))
    encoded = iter(await encode_texts(tokenizer, texts))
    jobs = []
    for prompt in call.prompts:
        content = prompt.content
        if isinstance(content, str):
            ids = next(encoded) or beginning(tokenizer)
        elif isinstance(content, InputParts):
            ids = await _part_ids(context, content)
        else:
            ids = content
        rid, salt, priority = prompt.rid or new_id("gen"), prompt.cache_salt, call.priority
        jobs.append(Job(ids, prompt.sampling, rid, salt, priority, whose, prompt.extra_key, prompt.hint))
    _check_reports(jobs)
    return jobs


async def _part_ids(context: ServerContext, prompt: InputParts) -> tuple[int, ...]:
    engine = context.service.engine
    check_characters(engine, prompt.characters)
    return await beside(prompt.characters, partial(PartsEncoder(engine.tokenizer).ids, prompt.parts))


def _check_reports(jobs: list[Job]) -> None:
    entries = 0
    for job in jobs:
        start, length = job.sampling.prompt_logprobs_start, len(job.prompt_ids)
        if start is None:
            continue
        if start > length:
            raise InvalidRequest(
                f"logprob_start_len must be at most the {length} tokens of the prompt, got {quote(start)}"
            )
        entries += (length - start) * (1 + (job.sampling.logprobs or 0)) * job.sampling.n
    if entries > _MOST_ENTRIES:
        raise InvalidRequest(
            f"a request may ask for {_MOST_ENTRIES} log-probabilities of prompts, got {entries}"
        )


def _failure(event: Event) -> RadixError | None:
    """Of a text that nothing can come of. One that somebody aborted by its name ends with that reason."""
    if event.finish_reason == "error":
        return RequestFailed(event.error or "the request failed")
    if event.finish_reason == "abort" and event.error is not None:
        return Busy(event.error)
    return None


# -- beside it -------------------------------------------------------------------------------------


@router.get("/get_model_info")
@router.get("/model_info")
async def model_info(request: Request) -> Response:
    """What is served."""
    return json_reply(_model_info(context_of(request)))


@router.get("/get_server_info")
@router.get("/server_info")
async def server_info(request: Request) -> Response:
    """How it is served: options as settled, sizes, figures after the last step."""
    context = context_of(request)
    service, info = context.service, context.service.engine.info
    settings = {name: value for name, value in asdict(context.settings).items() if name != "api_keys"}
    stats, waiting, tallies = service.engine.snapshot(), service.waiting, context.metrics.tallies
    state = {
        **{name: value for name, value in asdict(stats).items() if name not in _OF_GENERATE},
        "last_gen_throughput": stats.decode_tok_s,
        "waiting_requests": waiting.requests,
        "waiting_tokens": waiting.tokens,
        "active_requests": waiting.active,
    }
    return json_reply(
        {
            **settings,
            **service.engine.config,
            **asdict(info),
            **_model_info(context),
            "runtime": "radixlm",
            "version": __version__,
            "prompt_tokens": tallies.prompt_tokens,
            "cached_tokens": tallies.hit_tokens,
            "optimal_tokens": tallies.optimal_hit_tokens,
            "generated_tokens": tallies.generated_tokens,
            "max_total_num_tokens": info.num_pages * info.page_size,
            "max_req_input_len": service.engine.max_length - 1,
            "internal_states": [state],
        }
    )


def _model_info(context: ServerContext) -> dict[str, object]:
    engine = context.service.engine
    return {
        "model_path": engine.info.model,
        "tokenizer_path": engine.info.model,
        "is_generation": True,
        "served_model_name": context.model,
        "model_type": engine.info.family,
        "architectures": [FAMILIES[engine.info.family].architecture],
        "max_model_len": engine.max_length,
    }


@router.get("/flush_cache")
@router.post("/flush_cache")
async def flush_cache(request: Request) -> Response:
    """Forget what is cached. Refused while anything runs, or after `timeout` seconds of waiting for that."""
    timeout = _seconds(request.query_params.get("timeout", "0"))
    pages = await until_gone(request, context_of(request).service.flush(timeout))
    return json_reply({"message": "the cache is empty", "flushed_pages": pages})


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(f"timeout must be a number of seconds, got {quote(text)}")
    return seconds


@router.post("/abort_request", openapi_extra=ABORT_BODY)
async def abort_request(request: Request) -> Response:
    """End what runs by that name, or all that came with the same key. Of no effect on what has ended."""
    context = context_of(request)
    body = await read_object(request, context.settings.max_body_bytes)
    rid = body.get("rid")
    if read_switch("abort_all", body.get("abort_all")):
        count = context.service.abort_all(tenant(request))
    elif isinstance(rid, str) and rid:
        count = context.service.abort(rid, tenant(request))
    else:
        raise InvalidRequest(f"rid must be the name of a request, or abort_all true, got {quote(rid)}")
    return json_reply({"aborted": count})


@router.post("/concate_and_append_request")
async def concatenate_and_append(request: Request) -> Response:
    """Nothing is to be done: the tokens of a joined text are found in the tree by themselves."""
    await read_bytes(request, context_of(request).settings.max_body_bytes)
    return json_reply({})


@router.get("/start_profile")
@router.post("/start_profile")
async def start_profile(request: Request) -> Response:
    """Record what torch does in the steps to come."""
    await asyncio.wrap_future(context_of(request).service.engine.start_profile())
    return json_reply({"message": f"recording, for at most {MOST_STEPS} steps"})


@router.get("/stop_profile")
@router.post("/stop_profile")
async def stop_profile(request: Request) -> Response:
    """Write what was recorded to a file of the server's, for chrome://tracing or Perfetto."""
    context = context_of(request)
    data_dir = context.settings.data_dir
    folder = Path(tempfile.gettempdir()) if data_dir is None else Path(data_dir) / "profiles"
    folder.mkdir(exist_ok=True)
    file = folder / f"{new_id('radixlm-trace')}.json"
    await asyncio.wrap_future(context.service.engine.stop_profile(file))
    return json_reply({"message": f"written to {file}", "path": str(file)})
