"""RuntimeEndpoint: programs on a server, RadixLM's own or one that speaks SGLang's native API.

Which of the two it is, is asked once: only RadixLM's takes token ids among texts, hints, and renders the
chat template of its model. What must hold: a call that is cancelled closes its connection, by which a server
knows; nothing is connected before the first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from os import PathLike
from typing import TYPE_CHECKING, Protocol

from .chat_formats import format_for, named_format
from .closing import Closing
from .endings import Endings
from .errors import BackendError, InvalidCall, Unsupported
from .http_calls import HttpCalls
from .http_options import Retries, key_header
from .json_values import as_mapping
from .once import Once
from .protocol import Delta, Ending, Frame, GenerateCall, Generated, ScoreCall, Scored
from .radixlm_api import RadixApi
from .sglang_api import SglangApi

if TYPE_CHECKING:
    import httpx

_MOST_FRAMES = 1000
_SGLANG_KEYS = ("internal_states", "model_path", "tp_size", "version")


class _Api(Protocol):
    async def generate(self, call: GenerateCall) -> list[Generated]: ...

    def stream(self, call: GenerateCall) -> AsyncGenerator[Delta, None]: ...

    async def score(self, call: ScoreCall) -> Scored: ...

    async def frame(self, roles: tuple[str, ...]) -> Frame: ...

    async def end(self, program_ids: list[str], how: Ending) -> None: ...


class RuntimeEndpoint(Closing):
    """A Backend over HTTP. `base_url` is the server's root, like http://127.0.0.1:8000.

    `timeout` is how many seconds the server may be silent (None: any time), `max_connections` how many calls
    are under way at once. `retries` says how often a call is tried again that has not run: a refused
    connection, 503 (Retry-After is kept to) or 429. `chat_template`, or by SGLang's name for it
    `chat_template_name`, is for SGLang's servers, which do not tell theirs: a name of chat_formats.FORMATS,
    by default guessed from the name of the model. `verify` is a file with certificates, or False; `transport`
    an httpx transport. Raises InvalidCall.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | PathLike[str] | None = None,
        chat_template_name: str | None = None,
        *,
        chat_template: str | None = None,
        timeout: float | None = 600.0,
        max_connections: int = 128,
        retries: int | Retries = 3,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._calls = HttpCalls(
            base_url,
            headers=key_header(api_key),
            timeout=timeout,
            max_connections=max_connections,
            retries=retries,
            verify=verify,
            transport=transport,
        )
        self.base_url = self._calls.base_url
        if self.base_url.endswith("/v1"):
            raise InvalidCall(
                f"base_url must be the server's root, without /v1, got {base_url!r}; an OpenAI-compatible "
                "server is reached by OpenAI(model, base_url=...)"
            )
        name = chat_template_name if chat_template is None else chat_template
        self._format = None if name is None else named_format(name)
        self._api = Once(self._ask_api)
        self._endings = Endings(self._tell_ending)
        self._frames: dict[tuple[str, ...], Once[Frame]] = {}

    def __repr__(self) -> str:
        return f"RuntimeEndpoint({self.base_url!r})"

    async def generate(self, call: GenerateCall) -> list[Generated]:
        api = await self._known()
        if call.hint.hold_s is not None:
            await self._endings.before_hold(call.hint.program_id)
        return await api.generate(call)

    async def stream(self, call: GenerateCall) -> AsyncGenerator[Delta, None]:
        async with aclosing((await self._known()).stream(call)) as deltas:
            async for delta in deltas:
                yield delta

    async def score(self, call: ScoreCall) -> Scored:
        if not call.choices:
            raise InvalidCall("choices must not be empty")
        return await (await self._known()).score(call)

    async def frame(self, roles: tuple[str, ...]) -> Frame:
        self._check_open()
        if not roles:
            raise InvalidCall("roles must not be empty")
        known = self._frames.get(roles)
        if known is None:
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            known = self._frames[roles] = Once(lambda: self._ask_frame(roles))
        return await known.get()

    async def info(self) -> Mapping[str, object]:
        """What the server says of itself and of its model."""
        await self._known()
        model = await self._model_info()
        return {**model, **await self._server_info()}

    async def flush(self) -> None:
        await self._known()
        await self._calls.command("/flush_cache", {})

    def end(self, program_ids: Sequence[str], how: Ending) -> None:
        self._endings.add(program_ids, how)

    # -- closing ---------------------------------------------------------------------------------------

    def _home(self) -> asyncio.AbstractEventLoop | None:
        return self._calls.home()

    async def _end(self) -> None:
        await self._endings.close()
        self._api.cancel()
        for frame in self._frames.values():
            frame.cancel()
        await self._calls.close()

    def _drop(self) -> None:
        self._calls.drop()

    def _check_open(self) -> None:
        self._calls.check_open()

    # -- what the server is ----------------------------------------------------------------------------

    async def _known(self) -> _Api:
        self._check_open()
        self._endings.attach()
        return await self._api.get()

    async def _ask_api(self) -> _Api:
        info = await self._server_info()
        if info.get("runtime") == "radixlm":
            return RadixApi(self._calls)
        chat_format = self._format
        if chat_format is None:
            model = info.get("model_path")
            if not isinstance(model, str):
                model = (await self._model_info()).get("model_path")
            chat_format = format_for(str(model or ""))
        pieces = info.get("incremental_streaming_output") or info.get("stream_output")
        return SglangApi(self._calls, chat_format, in_pieces=bool(pieces))

    async def _server_info(self) -> Mapping[str, object]:
        try:
            info = await self._by_either_name("server_info")
        except Unsupported as error:
            raise self._is_other(error) from None
        except BackendError as error:
            if type(error) is BackendError:  # an answer, which makes no sense
                raise self._is_other(error) from None
            raise
        if not isinstance(info, Mapping) or not any(key in info for key in ("runtime", *_SGLANG_KEYS)):
            raise self._is_other(f"GET /get_server_info answers {info!r:.200}")
        return info

    async def _model_info(self) -> Mapping[str, object]:
        return as_mapping(await self._by_either_name("model_info"), "model info")

    async def _by_either_name(self, name: str) -> object:
        """SGLang has renamed /get_server_info and /get_model_info, and is to drop these names."""
        try:
            return await self._calls.get(f"/get_{name}")
        except Unsupported as error:
            try:
                return await self._calls.get(f"/{name}")
            except Unsupported:
                raise error from None

    def _is_other(self, reason: object) -> InvalidCall:
        return InvalidCall(
            f"{self.base_url} answers, and is neither a RadixLM nor an SGLang server ({reason}); an "
            "OpenAI-compatible server is reached by OpenAI(model, base_url=...)"
        )

    async def _ask_frame(self, roles: tuple[str, ...]) -> Frame:
        return await (await self._known()).frame(roles)

    async def _tell_ending(self, program_ids: list[str], how: Ending) -> None:
        await (await self._api.get()).end(program_ids, how)
