"""OpenAI: programs on any server of OpenAI's API, chat and completions. Needs no package of OpenAI's.

That API knows texts and messages only: no token ids, no holds, and no scores of a text but by echo. What a
server cannot do raises Unsupported and says what to do instead; nothing is left out in silence. A hold only
makes things faster: it holds 0 tokens, and the report of its call says so. What a server is known to take
beyond the API (openai_servers.py) is used.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING

from .chat_formats import named_format
from .choice_scores import choice_score, first_change
from .closing import Closing
from .errors import BackendError, InvalidCall, Unreachable, Unsupported
from .http_calls import HttpCalls
from .http_options import Retries, key_header
from .json_values import as_list, as_mapping
from .native_api import check_text_only
from .once import Once
from .openai_bodies import chat_body, choice_body, completion_body, echo_body
from .openai_replies import read_choices, read_chunks, read_echo
from .openai_servers import SERVERS, Server, ServerName, check_server, server_from_models
from .protocol import Delta, Ending, Frame, GenerateCall, Generated, ScoreCall, Scored, text_of

if TYPE_CHECKING:
    import httpx

_OPENAI_URL = "https://api.openai.com/v1"
_NOT_HELD = "OpenAI's API cannot hold a prefix: 0 tokens are held; RuntimeEndpoint(url) can on RadixLM"
_COMPLETION_MODELS = ("instruct", "davinci", "babbage", "curie", "ada")


class OpenAI(Closing):
    """A Backend over OpenAI's API. `base_url` ends in /v1; by default $OPENAI_BASE_URL, or OpenAI's own.
    `api_key` is by default $OPENAI_API_KEY.

    `is_chat_model`: True for /chat/completions, False for /completions. None: on OpenAI's server by the name
    of the model, elsewhere chat where a program speaks in role blocks only, else completions. `server` says
    what the server takes beyond the API; "auto" asks for it, at /models. `chat_template` is for role blocks
    on /completions, a name of chat_formats.FORMATS. The rest is as in RuntimeEndpoint. Raises InvalidCall.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        is_chat_model: bool | None = None,
        server: ServerName = "auto",
        chat_template: str = "plain",
        timeout: float | None = 600.0,
        max_connections: int = 64,
        retries: int | Retries = 3,
        verify: bool | str | PathLike[str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise InvalidCall(f"model must be a name, got {model!r}")
        if is_chat_model is not None and not isinstance(is_chat_model, bool):
            raise InvalidCall(f"is_chat_model must be True, False or None, got {is_chat_model!r:.200}")
        check_server(server)
        if base_url is None:
            base_url = os.environ.get("OPENAI_BASE_URL") or _OPENAI_URL
        if api_key is None:
            api_key = os.environ.get("OPENAI_API_KEY") or None
        self._calls = HttpCalls(
            base_url,
            headers=key_header(api_key),
            timeout=timeout,
            max_connections=max_connections,
            retries=retries,
            verify=verify,
            transport=transport,
            hint=_path_hint(base_url),
        )
        self.model, self.base_url = model, self._calls.base_url
        is_openai = self.base_url.startswith("https://api.openai.com")
        if is_openai and api_key is None:
            raise InvalidCall("OpenAI's server needs a key: pass api_key=, or set OPENAI_API_KEY")
        if server == "auto" and is_openai:
            server = "openai"
        self._given = None if server == "auto" else SERVERS[server]
        if is_chat_model is None and server == "openai":
            is_chat_model = not any(part in _COMPLETION_MODELS for part in model.split("-"))
        self._is_chat_model = is_chat_model
        self._format = named_format(chat_template)
        self._server = Once(self._ask_server)
        self._numbers: dict[Hashable, int] = {}

    def __repr__(self) -> str:
        return f"OpenAI({self.model!r}, base_url={self.base_url!r})"

    async def generate(self, call: GenerateCall) -> list[Generated]:
        self._check_open()
        if call.hint.hold_s is not None and call.sampling.max_new_tokens == 0:
            return [Generated("", (), "length", held_tokens=0, meta={"not_done": _NOT_HELD})]
        path, body = await self._asked(call, stream=False)
        found = read_choices(await self._calls.post(path, body), call.sampling.n, self.base_url + path)
        return [_without_hold(each, call) for each in found]

    async def stream(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        path, body = await self._asked(call, stream=True)
        async with aclosing(read_chunks(self._calls.stream(path, body), self.base_url + path)) as deltas:
            async for delta in deltas:
                done = delta.done
                yield delta if done is None else replace(delta, done=_without_hold(done, call))

    async def score(self, call: ScoreCall) -> Scored:
        """By echo of the whole texts. On chat models no text is echoed: there the server chooses, if it can
        be held to the choices, and nobody knows scores."""
        if not call.choices:
            raise InvalidCall("choices must not be empty")
        if call.unconditional:
            raise Unsupported(
                "unconditional_likelihood_normalized needs the scores of token ids, which OpenAI's API does "
                "not give: use another choices_method, or RuntimeEndpoint(url)"
            )
        server = await self._server.get()
        if self._is_chat(call.messages):
            return await self._chosen(call, server)
        return await self._echoed(call, server)

    async def frame(self, roles: tuple[str, ...]) -> Frame:
        """Of a plain format: a chat model is sent messages, and renders them itself."""
        self._check_open()
        return self._format.frame(roles)

    async def info(self) -> Mapping[str, object]:
        """What the server is taken for, and its models."""
        self._check_open()
        server = await self._server.get()
        models: object = None
        try:
            models = await self._calls.get("/models")
        except Unreachable:
            raise
        except BackendError:
            pass  # many servers list none
        return {"model": self.model, "base_url": self.base_url, "server": server.name, "models": models}

    async def flush(self) -> None:
        raise Unsupported("OpenAI's API cannot empty a cache: use RuntimeEndpoint(url)")

    def end(self, program_ids: Sequence[str], how: Ending) -> None:
        """That API has no words for it. A call that is cancelled closes its connection."""

    # -- closing ---------------------------------------------------------------------------------------

    def _home(self) -> asyncio.AbstractEventLoop | None:
        return self._calls.home()

    async def _end(self) -> None:
        self._server.cancel()
        await self._calls.close()

    def _drop(self) -> None:
        self._calls.drop()

    def _check_open(self) -> None:
        self._calls.check_open()

    # -- one call --------------------------------------------------------------------------------------

    async def _asked(self, call: GenerateCall, *, stream: bool) -> tuple[str, dict[str, object]]:
        server = await self._server.get()
        if self._is_chat(call.messages):
            return "/chat/completions", chat_body(self.model, call, server, stream=stream)
        return "/completions", completion_body(self.model, call, server, stream=stream)

    def _is_chat(self, messages: object) -> bool:
        return bool(messages) if self._is_chat_model is None else self._is_chat_model

    async def _ask_server(self) -> Server:
        if self._given is not None:
            return self._given
        try:
            return server_from_models(await self._calls.get("/models"))
        except Unreachable:
            raise
        except Unsupported:
            await self._check_path()
            return SERVERS["other"]  # many have no such route
        except BackendError:
            return SERVERS["other"]  # a key that is wrong is told by the call itself

    async def _check_path(self) -> None:
        """Raises InvalidCall if the routes are below /v1, and base_url is not."""
        if not _path_hint(self.base_url):
            return
        try:
            models = await self._calls.get("/v1/models")
        except BackendError:
            return
        if isinstance(models, Mapping) and "data" in models:
            right = f"{self.base_url}/v1"
            raise InvalidCall(f"base_url must end with /v1: use {right!r}, got {self.base_url!r}")

    # -- scores ----------------------------------------------------------------------------------------

    async def _chosen(self, call: ScoreCall, server: Server) -> Scored:
        if not server.structure:
            raise Unsupported(
                "select needs log-probabilities of the choices, which a chat model on this server "
                f"({server.name}) does not give: use gen with json_schema= an enum of the choices, a "
                "completion model, RuntimeEndpoint(url), or say what it is by "
                'server="radixlm", "sglang" or "vllm"'
            )
        body = choice_body(self.model, call, server)
        (answer,) = read_choices(await self._calls.post("/chat/completions", body), 1, self.base_url)
        if answer.text not in call.choices:
            raise BackendError(
                f"{self.base_url} was to answer with one of {list(call.choices)!r:.200}, and wrote "
                f"{answer.text!r:.200}"
            )
        return Scored(
            (),
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            computed_tokens=answer.prompt_tokens - answer.cached_tokens + answer.completion_tokens,
            tells_cached=answer.tells_cached,
            chosen=call.choices.index(answer.text),
        )

    async def _echoed(self, call: ScoreCall, server: Server) -> Scored:
        check_text_only(call.parts)
        prompt = text_of(call.parts)
        if not prompt:
            raise Unsupported(
                "select at the very beginning of a text: this API gives no log-probability of a first token; "
                "put some text before it, or use RuntimeEndpoint(url)"
            )
        whole = [prompt, *(prompt + choice for choice in call.choices)]
        reply = as_mapping(
            await self._calls.post("/completions", echo_body(self.model, whole, server)), "reply"
        )
        choices = [as_mapping(each, "choice") for each in as_list(reply.get("choices"), "choices")]
        if len(choices) != len(whole):
            raise BackendError(f"{self.base_url} gave {len(choices)} texts for {len(whole)} prompts")
        before, *texts = [
            read_echo(choice, text, self._numbers) for choice, text in zip(choices, whole, strict=True)
        ]
        start = first_change(before.tokens, texts)
        if any(value is None for text in texts for value in text.logprobs[start:]):
            raise Unsupported(
                f"the choices change the first token of the text {prompt!r:.80}, of which this API gives no "
                "log-probability: begin with a longer text, or use RuntimeEndpoint(url)"
            )
        scores = tuple(choice_score(text, start) for text in texts)
        # What was found in a cache is told of all texts together, if at all.
        return Scored(scores, prompt_tokens=len(before.ids), tells_cached=False)


def _without_hold(generated: Generated, call: GenerateCall) -> Generated:
    if call.hint.hold_s is None:
        return generated
    return replace(generated, held_tokens=0, meta={**generated.meta, "not_done": _NOT_HELD})


def _path_hint(base_url: object) -> str:
    """Where a route is not there: what is forgotten most often."""
    if not isinstance(base_url, str) or base_url.rstrip("/ ").endswith("/v1"):
        return ""
    return f"base_url usually ends with /v1, got {base_url!r:.200}"
