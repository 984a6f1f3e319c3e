"""Program: a function of a state, made runnable; and what a run of it may be told."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, cast

from .backends import as_backend
from .errors import Cancelled, InvalidCall
from .loop import may_block, run_on_loop
from .options import ALIASES, FORMS, check_forms, one_name, read_options, suggestion
from .placeholders import refuse_placeholders
from .protocol import Backend
from .run import Run
from .session import Defaults
from .state import ProgramState
from .tracing import Trace, ensure_not_tracing, trace, warm
from .types import check_regex, choice_of, schema_of

DEFAULTS: Mapping[str, object] = {
    "max_new_tokens": 128,
    "min_new_tokens": None,
    "n": None,
    "stop": None,
    "stop_token_ids": None,
    "stop_regex": None,
    "temperature": 1.0,
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "frequency_penalty": None,
    "presence_penalty": None,
    "repetition_penalty": None,
    "ignore_eos": None,
    "seed": None,
    "regex": None,
    "json_schema": None,
    "grammar": None,
    "choice": None,
    "relaxed": None,
    "compact": None,
    "return_logprob": None,
    "logprob_start_len": None,
    "top_logprobs_num": None,
    "return_text_in_logprobs": None,
}
"""What a run may say for all of its calls, and what holds if it does not (None: the backend's own)."""

Body = Callable[..., Any]  # Any: a body may return anything, and may be async


class Program:
    """What `@function` makes. Calling it runs it; called with a state it goes on in that one."""

    def __init__(
        self,
        func: Body,
        num_api_spec_tokens: int | None = None,
        bound: Mapping[str, object] | None = None,
    ) -> None:
        if not callable(func):
            raise InvalidCall(
                f"function decorates a function whose first parameter is the state, got {func!r:.200}"
            )
        parameters = list(inspect.signature(func).parameters.values())
        if not parameters or parameters[0].kind not in _POSITIONAL:
            raise InvalidCall(
                f"{_name(func)} needs the state as its first parameter: def {_name(func)}(s, ...)"
            )
        if parameters[0].name in ("self", "cls"):
            raise InvalidCall(
                f"{_name(func)} is a method (its first parameter is {parameters[0].name}), and methods "
                "cannot be programs: decorate a function whose first parameter is the state, and bind(...) "
                "the object"
            )
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise InvalidCall(f"{_name(func)} is a generator, which would never run as a program")
        self.func = func
        self.is_async = inspect.iscoroutinefunction(func)
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bound = dict(bound or {})
        self.parameters = parameters[1:]
        update_wrapper(self, func)

    @property
    def arg_names(self) -> list[str]:
        return [each.name for each in self.parameters]

    def bind(self, **kwargs: object) -> Program:
        """The same with some arguments given: what they say is part of the constant prefix."""
        self._check_names(kwargs)
        return Program(self.func, self.num_api_spec_tokens, {**self.bound, **kwargs})

    def __call__(self, *args: object, **kwargs: object) -> object:
        if args and isinstance(args[0], ProgramState):
            return self.func(*args, **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)

    # Any: arguments are the program's own, and the options of DEFAULTS, which are checked by name.
    def run(self, *args: Any, **kwargs: Any) -> ProgramState:
        """Run it and give the final state, in which calls may still be under way.

        Beside the program's own arguments it takes sampling parameters for all calls (max_new_tokens 128,
        temperature 1.0, ... see DEFAULTS), `stream` (the state comes at once and is read as it grows),
        `backend` and `timeout` in seconds, after which what is under way is cancelled (a plain body learns of
        it when it next reads). Raises what the body raises.
        """
        if not may_block() and ("stream" in self.arg_names or not kwargs.get("stream")):
            ensure_not_tracing()
            raise RuntimeError("an async program cannot wait for another one: await run_async(...) instead")
        run, streams = self._prepared(args, kwargs)
        if streams:
            run.start()
            return run.state
        if self.is_async:
            body = run_on_loop(run.quietly())
            try:
                body.result()
            except BaseException:  # the caller is interrupted
                body.cancel()
                raise
            if run.raised is not None:
                raise run.raised
        else:
            run.body()
        return run.state

    async def run_async(self, *args: Any, **kwargs: Any) -> ProgramState:  # Any: as in run
        """The same for async callers: what it gives is over, so that reading it does not block. Cancelling it
        cancels the run."""
        run, streams = self._prepared(args, kwargs)
        if streams:
            if self.is_async:
                run.start_here()
            else:
                run.start()
            return run.state
        try:
            if self.is_async:
                await run.body_async()
            else:
                run.start()
            await run.done()
        except asyncio.CancelledError:
            run.cancel(Cancelled("the caller of run_async was cancelled"))
            raise
        if run.raised is not None:
            raise run.raised
        return run.state

    def launch(
        self,
        arguments: Mapping[str, object] | Sequence[object],
        defaults: Defaults,
        backend: Backend,
        *,
        timeout: float | None = None,
        stream: bool = False,
    ) -> Run:
        """Start a run that the caller waits for later: see Run. `defaults` as `check_defaults` gives them."""
        ensure_not_tracing()
        named = isinstance(arguments, Mapping)
        args = () if named else tuple(cast("Sequence[object]", arguments))
        kwargs = dict(cast("Mapping[str, object]", arguments)) if named else {}
        run = Run(self, *self._bound_to(args, kwargs), defaults, backend, stream=stream, timeout=timeout)
        run.start()
        return run

    def run_batch(self, batch: Iterable[Any], **options: Any) -> Any:  # Any: see batch.run_batch
        """Run it for every item, a dict or a tuple of arguments: see batch.run_batch."""
        from .batch import run_batch

        return run_batch(self, batch, **options)

    def trace(self) -> Trace:
        """The first prompt as far as it can be told without running any call: see tracing.py."""
        return trace(self)

    def cache(self, backend: object = None) -> int:
        """Let the backend read the constant prefix, so that the first run finds it; its length in tokens."""
        return warm(self, as_backend(backend))

    # -- inside ----------------------------------------------------------------------------------------

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Run, bool]:
        ensure_not_tracing()
        own = set(self.arg_names)
        options = {name: kwargs.pop(name) for name in list(kwargs) if name in _OPTIONS and name not in own}
        stream, timeout = options.pop("stream", None), options.pop("timeout", None)
        if stream not in (None, True, False):
            raise InvalidCall(f"stream must be True or False, got {stream!r:.200}")
        backend = as_backend(options.pop("backend", None))
        options.pop("use_thread", None)
        defaults = check_defaults(options)
        check_timeout(timeout)
        bound = self._bound_to(args, kwargs)
        return Run(self, *bound, defaults, backend, stream=bool(stream), timeout=timeout), bool(stream)

    def _bound_to(
        self, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[Sequence[object], Mapping[str, object]]:
        """Raises InvalidCall where the arguments do not fit the function, or are no arguments of a run."""
        merged = {**self.bound, **kwargs}
        try:
            inspect.signature(self.func).bind(None, *args, **merged)
        except TypeError as error:
            unknown = [name for name in merged if name not in self.arg_names]
            meant = suggestion(unknown[0], [*self.arg_names, *_OPTIONS]) if unknown else ""
            of_run = f", and those of a run {', '.join(sorted(_OPTIONS))}" if unknown and not meant else ""
            raise InvalidCall(
                f"{_name(self.func)}: {error}{meant or ';'} its parameters are "
                f"{', '.join(self.arg_names) or 'none'}{of_run}"
            ) from None
        refuse_placeholders([*args, *merged.values()])
        return args, merged

    def _check_names(self, kwargs: Mapping[str, object]) -> None:
        for name in kwargs:
            if name not in self.arg_names:
                raise InvalidCall(
                    f"{_name(self.func)} has no parameter {name!r}, only "
                    f"{', '.join(self.arg_names) or 'none'}{suggestion(name, self.arg_names)}"
                )


def function(
    func: Body | None = None, num_api_spec_tokens: int | None = None
) -> Any:  # Any: Program or decorator
    """Decorator: a function whose first parameter is the state becomes a Program.

    `num_api_spec_tokens` is SGLang's for hosted chat models and changes nothing here: calls are not
    speculated.
    """
    if func is None:
        return lambda each: Program(each, num_api_spec_tokens)
    return Program(func, num_api_spec_tokens)


program = function


def check_defaults(options: Mapping[str, object]) -> Defaults:
    """What a run sets for its calls; `options` are some of DEFAULTS. Raises InvalidCall."""
    check_forms({name: options.get(name) for name in DEFAULTS if name in FORMS})
    given = {**DEFAULTS, **one_name(options)}
    reader = None
    if given["json_schema"] is not None:
        given["json_schema"], reader = schema_of(given["json_schema"])
    if given["choice"] is not None:
        given["choice"], reader = choice_of(given["choice"])
    found = read_options(given, {own: name for name, own in ALIASES.items() if name in options})
    if "regex" in found:
        check_regex(found["regex"])
    return Defaults(found, reader)


def check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or not 0 < timeout < float("inf"):
        raise InvalidCall(f"timeout must be a number of seconds above 0, got {timeout!r:.200}")


_OPTIONS = {*DEFAULTS, *ALIASES, "stream", "backend", "timeout", "use_thread"}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _name(func: object) -> str:
    return getattr(func, "__name__", repr(func))
