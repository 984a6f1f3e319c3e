"""Bodies of /chat/completions and /completions from calls; what a server cannot do is refused here. Pure."""

from __future__ import annotations

from dataclasses import replace

from .errors import InvalidCall, Unsupported
from .native_api import check_text_only
from .openai_servers import Server, schema_of
from .protocol import GenerateCall, Sampling, ScoreCall, text_of
from .radixlm_api import hint_on_wire

Body = dict[str, object]

_SHARED = ("top_p", "frequency_penalty", "presence_penalty", "seed")
_MOST_TOP = 20


def chat_body(model: str, call: GenerateCall, server: Server, *, stream: bool = False) -> Body:
    body = {"model": model, **_messages(call, server), **_sampling(call, server, stream=stream)}
    sampling = call.sampling
    body[server.limit] = sampling.max_new_tokens
    if sampling.json_schema is not None:
        named = {"name": "answer", "schema": schema_of(sampling.json_schema), "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    if sampling.return_logprob:
        body["logprobs"] = True
        if sampling.top_logprobs_num:
            body["top_logprobs"] = min(sampling.top_logprobs_num, _MOST_TOP)
    return body


def completion_body(model: str, call: GenerateCall, server: Server, *, stream: bool = False) -> Body:
    check_text_only(call.parts)
    body = {"model": model, "prompt": text_of(call.parts), **_sampling(call, server, stream=stream)}
    sampling = call.sampling
    body["max_tokens"] = sampling.max_new_tokens
    if sampling.json_schema is not None:
        body |= server.structure_fields("json_schema", schema_of(sampling.json_schema))
    if sampling.return_logprob:
        body["logprobs"] = max(1, sampling.top_logprobs_num or 0)
    return body


def echo_body(model: str, prompts: list[str], server: Server) -> Body:
    """Each prompt with the log-probabilities of its tokens, and no more of a text than must be."""
    body: Body = {"model": model, "prompt": prompts, "echo": True, "logprobs": 1, "temperature": 0.0}
    body["max_tokens"] = 0 if server.reads else 1
    if server.takes_hints:
        body["return_token_ids"] = True
    return body


def choice_body(model: str, call: ScoreCall, server: Server) -> Body:
    """A chat answer that is one of the choices."""
    tokens = 4 * max(map(len, call.choices)) + 8
    sampling = Sampling(max_new_tokens=tokens, temperature=0.0, choice=call.choices)
    return chat_body(model, GenerateCall(call.parts, sampling, call.hint, call.messages), server)


def _messages(call: GenerateCall, server: Server) -> Body:
    if not call.messages:
        raise Unsupported(
            "a chat model takes messages, and this program has text outside of role blocks: put it into "
            "s += user(...) and generate in s += assistant(gen(...)), or use a completion model "
            "(is_chat_model=False) or RuntimeEndpoint(url)"
        )
    messages = [dict(message) for message in call.messages]
    if messages[-1]["role"] != "assistant":
        return {"messages": messages}
    if not messages[-1]["content"]:
        return {"messages": messages[:-1]}
    if not server.continues:
        raise Unsupported(
            f"this server ({server.name}) cannot continue an answer that has begun with "
            f"{messages[-1]['content'][:80]!r}: generate first in the assistant's block, and once, or use "
            'RuntimeEndpoint(url), or say what it is by server="radixlm", "sglang" or "vllm"'
        )
    return {"messages": messages, **server.continues}


def _sampling(call: GenerateCall, server: Server, *, stream: bool) -> Body:
    sampling = call.sampling
    _refuse(call)
    body: Body = {}
    if server.sends_temperature or sampling.temperature != 1.0:
        body["temperature"] = sampling.temperature
    body |= {name: getattr(sampling, name) for name in _SHARED if getattr(sampling, name) is not None}
    if sampling.n != 1:
        body["n"] = sampling.n
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    body |= _options(sampling, server)
    for way in ("regex", "grammar", "choice"):
        value = getattr(sampling, way)
        if value is not None:
            body |= server.structure_fields(way, list(value) if way == "choice" else value)
    hint = hint_on_wire(replace(call.hint, hold_s=None))  # no answer would say what is held
    if server.takes_hints and hint:
        body["hint"] = hint
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _options(sampling: Sampling, server: Server) -> Body:
    """What OpenAI's API does not have, where it says anything: -1 for top_k and the like say nothing."""
    given = {
        "min_new_tokens": sampling.min_new_tokens or None,
        "top_k": None if sampling.top_k in (None, -1, 0) else sampling.top_k,
        "min_p": sampling.min_p or None,
        "repetition_penalty": None if sampling.repetition_penalty == 1.0 else sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "ignore_eos": sampling.ignore_eos or None,
        "stop_regex": list(sampling.stop_regex) or None,
        "relaxed": sampling.relaxed or None,
        "compact": sampling.compact or None,
    }
    found: Body = {}
    for name, value in given.items():
        if value is None:
            continue
        if name not in server.options:
            raise Unsupported(
                f"this server ({server.name}) is not known to take {name}, got {value!r}: leave it out, use "
                'RuntimeEndpoint(url), or say what it is by server="radixlm", "sglang" or "vllm"'
            )
        found[server.options[name]] = value
    return found


def _refuse(call: GenerateCall) -> None:
    sampling = call.sampling
    if sampling.max_new_tokens == 0:
        raise Unsupported(
            "OpenAI's API cannot only read a prompt: leave out .cache(), or use RuntimeEndpoint(url)"
        )
    if sampling.return_logprob and sampling.logprob_start_len not in (None, -1):
        raise Unsupported(
            "OpenAI's API gives no log-probabilities of a prompt here: leave out logprob_start_len, or use "
            "RuntimeEndpoint(url)"
        )
    if sampling.n < 1:
        raise InvalidCall(f"n must be at least 1, got {sampling.n}")
