"""Engine: one model, one pool, one tree, and the step that moves every sequence on.

    plan     = scheduler.plan()          pure ints; takes leases
    batch    = builder.build(plan)       the only border from ints to tensors
    logits   = model.forward(inputs)     attention over the tree
    sampled  = sample(logits, rows)
    outcomes = each row's stream: text, stop, end
    ended    = scheduler.commit(plan, outcomes)
    events   = what every row has to tell

It owns these parts and their order, and the streams of the sequences. It runs on one thread and calls nobody
back; worker.py puts it on a thread of its own. A step that raises fails the sequences in it and no other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Self, TypeAlias

import torch
from torch import Tensor

from ..kernels.cpu import NotDeterministic, cpu_ops
from ..kernels.plan import AttentionSpec
from .batch import Batch, BatchBuilder, LogitSpan
from .collect import Collector
from .config import EngineConfig
from .embedded import resolve_model, user_cache
from .errors import EngineStopped, InvalidConfig, InvalidRequest, RequestFailed
from .host import prepare_host
from .kv_pool import KvPool, page_bytes, pages_within
from .logprobs import token_logprobs
from .metrics import EngineInfo, EngineStats, Meter, TimedCache
from .model import Model
from .output import OutputStream
from .progress import EngineProgress
from .prompts import Prompt, PromptInput, as_prompts
from .sampling import Sampled, sample
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .sequence import Sequence as Tokens
from .tokenizer import Tokenizer
from .types import Completion, Event, Outcome, Plan, Request, SequenceKey
from .weights import ModelSource, open_model

ModelName: TypeAlias = str | PathLike[str]
NO_TOKEN = "no token could be chosen: the logits are not finite, or every token is forbidden"


class Engine:
    """`Engine("smollm2-135m", page_size=16, ...)`: options are the fields of EngineConfig.

    Raises InvalidConfig and InvalidModel. Use it as a context manager or call `close`.
    """

    def __init__(
        self,
        model: ModelName | None = None,
        *,
        config: EngineConfig | None = None,
        **fields: object,
    ) -> None:
        self.config = _config(model, config, fields)
        prepare_host(self.config.threads)
        dtype = getattr(torch, self.config.dtype)
        path = resolve_model(self.config.model, with_weights=self.config.load_format != "dummy")
        source = open_model(path, self.config.load_format, cache=user_cache(), seed=self.config.seed)
        shape = self.model_config = source.config
        self._max_context = shape.context(self.config.max_context)
        self.tokenizer = Tokenizer.load(source.path, user_cache(), source.eos_ids)
        a_page = page_bytes(
            shape.num_layers, shape.num_kv_heads, self.config.page_size, shape.head_dim, dtype
        )
        num_pages = self.config.num_pages or pages_within(self.config.kv_memory, a_page)
        self._page_bytes = a_page
        self._model = _build_model(self.config, source, self._max_context)
        self._ops = self._model.ops
        self._pool = KvPool(
            shape.num_layers,
            shape.num_kv_heads,
            shape.head_dim,
            num_pages=num_pages,
            page_size=self.config.page_size,
            dtype=dtype,
        )
        self._meter = Meter()
        self.cache = TimedCache(
            num_pages,
            self.config.page_size,
            self._meter.radix,
            eviction=self.config.eviction,
            enabled=self.config.prefix_cache,
        )
        self._scheduler = Scheduler(
            self.cache,
            policy=self.config.policy,
            chunk_size=self.config.chunk_size,
            max_running=self.config.max_running,
            max_context=self._max_context,
        )
        self._builder = BatchBuilder(self.config.page_size, AttentionSpec(shape.attention_scale), self._ops)
        self._streams: dict[SequenceKey, OutputStream] = {}
        self._keys: dict[str, list[SequenceKey]] = {}
        self._seeds = random.Random(self.config.seed)
        self._batches = 0
        self._closed = False

    # -- questions ---------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return not self._scheduler.is_idle

    def stats(self) -> EngineStats:
        return self._meter.stats(self.cache, self._scheduler.stats())

    def info(self) -> EngineInfo:
        shape = self.model_config
        parameters = sum(math.prod(size) for size in shape.parameter_shapes().values())
        return EngineInfo(
            model=self.config.model,
            family=shape.family,
            parameters=parameters,
            weight_bytes=parameters * self._model.dtype.itemsize,
            dtype=self.config.dtype,
            num_pages=self.cache.num_pages,
            page_size=self.cache.page_size,
            kv_bytes=self.cache.num_pages * self._page_bytes,
            max_context=self._max_context,
            threads=torch.get_num_threads(),
            deterministic=self.config.deterministic,
            attention=self._ops.name,
        )

    # -- commands ----------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request; its events come out of `step`. Raises InvalidRequest (TooLarge where it can never
        fit) and then nothing has changed, EngineStopped after `close`."""
        if self._closed:
            raise EngineStopped("the engine is closed")
        _check_request(request, self.model_config.vocab_size)
        if request.id in self._keys:
            raise InvalidRequest(f"request id {request.id!r} is already in use")
        seed = request.sampling.seed
        seed = self._seeds.getrandbits(63) if seed is None else seed
        sequences = [Tokens(request, index) for index in range(request.sampling.n)]
        streams = [OutputStream(seq, self.tokenizer, self.tokenizer.eos_ids, seed) for seq in sequences]
        for seq, stream in zip(sequences, streams, strict=True):
            # Only the first can be refused: all have the same prompt, and the id is free.
            self._scheduler.add(seq)
            self._streams[seq.key] = stream
            self._keys.setdefault(request.id, []).append(seq.key)

    def abort(self, request_id: str) -> bool:
        """End all choices of a request: their terminal events come out of a later step. False if unknown."""
        keys = self._keys.get(request_id, [])
        found = [self._scheduler.abort(key) for key in keys]
        return any(found)

    def step(self) -> list[Event]:
        """Compute one step and return its news. A step that raises ends the sequences in it with an error;
        KeyboardInterrupt and the like do so too, and go on to the caller."""
        with self._meter.step:
            with self._meter.schedule:
                plan = self._scheduler.plan()
            if plan is None:
                return self._last_events(self._scheduler.take_ended())
            before = self._meter.step.since_start()
            try:
                used, fill = self._occupancy(plan)
                outcomes = self._compute(plan)
            except BaseException as error:
                ended = self._scheduler.fail(plan, f"the step failed: {type(error).__name__}: {error}")
                events = self._last_events(ended)
                if not isinstance(error, Exception):
                    raise
                return events
            with self._meter.schedule:
                ended = self._scheduler.commit(plan, outcomes)
            events = self._events(outcomes, ended)
            generated = sum(len(outcome.new_tokens) for outcome in outcomes)
            self._meter.count_step(plan, generated, self._meter.step.since_start() - before, used, fill)
        return events

    def flush(self) -> int:
        """Forget every cached page that no running sequence holds; how many those were."""
        return self.cache.flush()

    def close(self) -> None:
        """End what is left, unanswered; the engine takes nothing more."""
        self._closed = True
        self._give_up("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_progress: Callable[[EngineProgress], None] | None = None,
    ) -> list[Completion]:
        """Continue every prompt; completions come in the order of the prompts, the n choices of one together.

        A prompt is text, a list of token ids, {"messages": [...]} or a Prompt, whose own sampling wins.
        A prompt that is refused gives a completion with `error`, the others are not affected. Raises
        InvalidRequest while the engine works on anything else, whose events would be lost, and EngineStopped
        if the engine is closed meanwhile.
        """
        if self.has_work:
            raise InvalidRequest("generate needs an idle engine, got one with requests to finish first")
        todo = as_prompts(prompts)
        params = _params(sampling, len(todo))
        collector = Collector()
        batch, self._batches = self._batches, self._batches + 1
        try:
            for i, (prompt, default) in enumerate(zip(todo, params, strict=True)):
                self._announce(collector, prompt, default, f"generate-{batch}-{i}", str(i))
            self._meter.count_batch(*collector.optimum())
            while collector.outstanding:
                if not self.has_work:
                    raise EngineStopped("the engine was closed before its prompts were done")
                collector.take(self.step())
                if on_progress is not None:
                    on_progress(EngineProgress(collector.done, collector.total, collector.generated_tokens))
        except BaseException:
            self._give_up(f"generate-{batch}-")
            raise
        return collector.completions()

    # -- the parts of a step -----------------------------------------------------------------------

    def _compute(self, plan: Plan) -> list[Outcome]:
        with self._meter.schedule:
            batch = self._builder.build(plan)
        with self._meter.forward:
            self._pool.copy(plan.copies, self._ops)
            logits = self._model.forward(batch.inputs, self._pool.keys, self._pool.values)
        return self._outcomes(plan, batch, logits)

    def _outcomes(self, plan: Plan, batch: Batch, logits: Tensor) -> list[Outcome]:
        outcomes = {row.key: Outcome(row.key) for row in plan.rows}
        for span in batch.spans:
            if span.row.logits_from < span.row.stop - span.row.samples:
                self._deliver_prompt_logprobs(span, logits)
        sampling = [span for span in batch.spans if span.row.samples]
        if sampling:
            last = torch.tensor([span.first + span.count - 1 for span in sampling])
            chosen = logits if len(sampling) == len(logits) else logits[last]
            streams = [self._streams[span.row.key] for span in sampling]
            sampled = sample(chosen, [stream.sample_row() for stream in streams])
            for i, (span, stream) in enumerate(zip(sampling, streams, strict=True)):
                outcomes[span.row.key] = _outcome(span, stream, sampled, i)
        return list(outcomes.values())

    def _deliver_prompt_logprobs(self, span: LogitSpan, logits: Tensor) -> None:
        """The logits of position p are those of token p + 1, as far as that belongs to the prompt."""
        seq = self._scheduler.get(span.row.key)
        assert seq is not None, "a row belongs to a sequence that has not ended"
        params = seq.request.sampling
        first = span.row.logits_from + 1
        tokens = seq.tokens[first : min(span.row.stop + 1, seq.prompt_len)]
        rows = logits[span.first : span.first + len(tokens)]
        self._streams[span.row.key].add_prompt_logprobs(token_logprobs(rows, tokens, params.logprobs or 0))

    def _events(self, outcomes: list[Outcome], ended: list[Tokens]) -> list[Event]:
        gone = {seq.key for seq in ended}
        news = [
            self._streams[outcome.key].event()
            for outcome in outcomes
            if outcome.new_tokens and outcome.key not in gone
        ]
        return news + self._last_events(ended)

    def _last_events(self, ended: list[Tokens]) -> list[Event]:
        events = []
        for seq in ended:
            assert seq.finish_reason is not None, "a sequence that ended has a reason"
            events.append(self._streams.pop(seq.key).last_event(seq.finish_reason, seq.error))
            keys = self._keys[seq.key.request_id]
            keys.remove(seq.key)
            if not keys:
                del self._keys[seq.key.request_id]
        return events

    def _occupancy(self, plan: Plan) -> tuple[int, float]:
        """Pages that are not free while the step runs, and the share of their slots that hold a token when it
        has run. Asked before the commit, which gives pages back."""
        used = self.cache.num_pages - self.cache.free_pages
        held = self._scheduler.held_tokens + sum(row.stop - row.write_from for row in plan.rows)
        return used, held / (used * self.cache.page_size)

    # -- the parts of generate ---------------------------------------------------------------------

    def _announce(
        self,
        collector: Collector,
        prompt: Prompt | InvalidRequest,
        default: SamplingParams,
        request_id: str,
        name: str,
    ) -> None:
        """Queue one prompt of a batch, or note why it was refused."""
        ids: tuple[int, ...] = ()
        try:
            if isinstance(prompt, InvalidRequest):
                raise prompt
            name = name if prompt.id is None else prompt.id
            ids = self.encode(prompt)
            request = Request(
                request_id, ids, prompt.sampling or default, prompt.salt, priority=prompt.priority
            )
            self.add(request)
        except InvalidRequest as error:
            collector.refuse(request_id, name, str(error), len(ids))
        else:
            collector.expect(request, name)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The token ids of a prompt: as given, or by the tokenizer or the model's chat template."""
        if prompt.token_ids is not None:
            return prompt.token_ids
        if prompt.messages is not None:
            return tuple(self.tokenizer.apply_chat_template(prompt.messages))
        assert prompt.text is not None, "a prompt is text, ids or messages"
        return tuple(self.tokenizer.encode(prompt.text))

    def _give_up(self, prefix: str) -> None:
        """End the requests of that prefix at once, unanswered: none of them may go on holding pages."""
        for request_id in [request_id for request_id in self._keys if request_id.startswith(prefix)]:
            self.abort(request_id)
        self._scheduler.end_aborted()
        self._last_events(self._scheduler.take_ended())


def _config(model: ModelName | None, config: EngineConfig | None, fields: dict[str, object]) -> EngineConfig:
    if model is not None:
        fields["model"] = fspath(model) if isinstance(model, PathLike) else model
    if config is not None and not isinstance(config, EngineConfig):
        raise InvalidConfig(f"config must be an EngineConfig, got {config!r}")
    try:
        return replace(config or EngineConfig(), **fields)  # type: ignore[arg-type]
    except TypeError:
        unknown = sorted(set(fields) - set(EngineConfig.__dataclass_fields__))
        allowed = ", ".join(EngineConfig.__dataclass_fields__)
        raise InvalidConfig(f"unknown engine option {unknown[0]!r}; allowed are {allowed}") from None


def _build_model(config: EngineConfig, source: ModelSource, max_context: int) -> Model:
    shape, dtype = source.config, getattr(torch, config.dtype)
    try:
        ops = cpu_ops(shape.num_heads, shape.num_kv_heads, shape.head_dim, deterministic=config.deterministic)
        return Model(shape, source.weights(), ops, dtype, max_context=max_context)
    except NotDeterministic as error:
        raise InvalidConfig(f"deterministic is not possible on this processor: {error}") from None


def _check_request(request: Request, vocab_size: int) -> None:
    wrong = next((token for token in request.prompt_ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise InvalidRequest(f"token id {wrong} is not in the vocabulary, ids are 0 to {vocab_size - 1}")
    start = request.sampling.prompt_logprobs_start
    if start is not None and start > len(request.prompt_ids):
        raise InvalidRequest(
            f"prompt_logprobs_start must be at most the {len(request.prompt_ids)} tokens of the prompt, "
            f"got {start}"
        )
    request.sampling.check_vocabulary(vocab_size)


def _params(sampling: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * count
    params = list(sampling) if isinstance(sampling, Sequence) else [sampling]
    wrong = [item for item in params if not isinstance(item, SamplingParams)]
    if wrong:
        raise InvalidRequest(f"sampling must be SamplingParams or a list of them, got {wrong[0]!r}")
    if len(params) != count:
        raise InvalidRequest(f"got {len(params)} sampling parameters for {count} prompts")
    return params


def _outcome(span: LogitSpan, stream: OutputStream, sampled: Sampled, i: int) -> Outcome:
    if sampled.bad[i]:
        return Outcome(span.row.key, finish="error", error=NO_TOKEN)
    try:
        return stream.push(sampled.token_ids[i], sampled.logprobs[i])
    except RequestFailed as error:
        return Outcome(span.row.key, finish="error", error=str(error))
