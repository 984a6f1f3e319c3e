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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Self, TypeAlias, get_args, overload

import torch

from ..kernels.plan import AttentionSpec
from .backend import open_ops, settle
from .batch import BatchBuilder
from .batch_order import Place, batch_order
from .collect import Collector
from .config import EngineConfig
from .device_sampling import read_on_device
from .embedded import resolve_model, user_cache
from .errors import EngineStopped, InvalidConfig, InvalidRequest, RequestFailed
from .grammar.protocol import CompiledGrammar
from .grammar.spec import GrammarSpec
from .guide import Guide
from .guides import Guides
from .holds import Holds
from .host import prepare_host, return_free_memory
from .kv_pool import KvPool, page_bytes, pages_within
from .metrics import EngineInfo, EngineStats, Meter, TimedCache
from .model import Model
from .outcomes import step_outcomes
from .output import OutputStream
from .profiling import Profiler
from .progress import EngineProgress
from .prompts import Prompt, PromptInput, as_prompts
from .readings import Known, Readings, read_logits
from .request_checks import check_request, each_sampling
from .sampling import SampleRow, Scratch, sample
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .score import ScoreBatch
from .score_items import ScoreInput, ScoreItem, as_items
from .sequence import Sequence as Tokens
from .sequence import connect
from .slot_logprobs import SlotLogprobs
from .tokenizer import Tokenizer
from .types import Completion, Ending, Event, ItemScore, Outcome, Plan, Request, SequenceKey
from .weights import open_model

if TYPE_CHECKING:
    from .engine_backend import EngineBackend
    from .grammar.compiler import GrammarCompiler

ModelName: TypeAlias = str | PathLike[str]
OnProgress: TypeAlias = Callable[[EngineProgress], None]


# How long a step waits for a grammar when nothing else is to be done, in seconds: short beside what a caller
# notices, since whoever drives the engine waits as well.
_PATIENCE = 0.005
_WARM_UP_TOKENS = 8


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
        self.config = settle(_config(model, config, fields))
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
        self._ops = open_ops(self.config, shape)
        self._model = Model(shape, source.weights(), self._ops, dtype, max_context=self._max_context)
        return_free_memory()
        self._pool = KvPool(
            shape.num_layers,
            shape.num_kv_heads,
            shape.head_dim,
            num_pages=num_pages,
            page_size=self.config.page_size,
            dtype=dtype,
            ops=self._ops,
        )
        self._meter = Meter()
        self.profiler = Profiler()
        values = SlotLogprobs(num_pages, self.config.page_size)
        self.cache = TimedCache(
            num_pages,
            self.config.page_size,
            self._meter.radix,
            eviction=self.config.eviction,
            enabled=self.config.prefix_cache,
            values=values,
        )
        self._scheduler = Scheduler(
            self.cache,
            values,
            Holds(self.cache, int(self.config.hold_budget * num_pages)),
            policy=self.config.policy,
            chunk_size=self.config.chunk_size,
            max_running=self.config.max_running,
            max_running_per_tenant=self.config.max_running_per_tenant,
            max_context=self._max_context,
        )
        self._builder = BatchBuilder(self.config.page_size, AttentionSpec(shape.attention_scale), self._ops)
        self._guides = Guides(self._open_compiler, self._meter.masks, self._meter.mask_wait)
        self._unready: dict[str, list[Tokens]] = {}  # requests whose grammar is being compiled
        self._streams: dict[SequenceKey, OutputStream] = {}
        self._keys: dict[str, list[SequenceKey]] = {}
        self._arrivals: dict[SequenceKey, float] = {}  # of those that no step has begun with
        self._choose = partial(sample, forbid=self._ops.logit_mask, scratch=Scratch(), draw=self._ops.draw)
        self._seeds = random.Random(self.config.seed)
        self._batches = 0
        self._closed = self._interrupted = False
        self._endpoint: EngineBackend | None = None
        self._opening = Lock()

    # -- questions ---------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return not self._scheduler.is_idle or bool(self._unready) or self._guides.has_checks

    @property
    def next_hold_end(self) -> float | None:
        """In how many seconds the time of a hold is over, which `stats` and `step` look at; None if there is
        none."""
        return self._scheduler.next_hold_end

    @property
    def max_length(self) -> int:
        """The most tokens a sequence can have, prompt and output: what context and pool allow."""
        return self._scheduler.max_length

    @property
    def endpoint(self) -> EngineBackend:
        """What programs run on: this engine on a thread of its own, which is started when this is first asked
        for. From then on `generate`, `score`, `flush`, `stats` and `close` may be called from any thread, and
        nothing else but questions of what does not change."""
        with self._opening:
            if self._endpoint is None:
                from .engine_backend import EngineBackend

                if self._closed:
                    raise EngineStopped("the engine is closed")
                self._endpoint = EngineBackend(self)
            return self._endpoint

    @property
    def _elsewhere(self) -> EngineBackend | None:
        """Who has the engine's thread, where that is not the caller's."""
        endpoint = self._endpoint
        return None if endpoint is None or endpoint.is_here else endpoint

    def stats(self) -> EngineStats:
        if (elsewhere := self._elsewhere) is not None:
            return elsewhere.snapshot()
        self._scheduler.expire_holds()  # nobody is told of one that is over
        return self._meter.stats(self.cache, self._scheduler.stats())

    def compile(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """What `SamplingParams.structure` asks for, ready for use, so that a request with it need not wait.
        From any thread, without blocking; the future holds InvalidRequest for what is refused."""
        return self._guides.compile(spec)

    def prepare_grammars(self) -> None:
        """Have in place what the first grammar needs (a vocabulary, processes to compile in), so that nobody
        waits for it. Takes a second or two; without it, that first grammar does it."""
        self._guides.prepare()

    def warm_up(self) -> None:
        """Compute something and forget it: what torch and its libraries set up in their first step takes
        about a second, and so does what draws a token or masks some where it has never been compiled."""
        for temperature in (0.0, 1.0):
            params = SamplingParams(max_tokens=2, temperature=temperature, ignore_eos=True)
            self.generate([0] * _WARM_UP_TOKENS, params)
        size, device = self.model_config.vocab_size, self._pool.pages.device
        nothing = torch.zeros(1, -(-size // 32), dtype=torch.int32, device=device)
        self._ops.logit_mask(torch.zeros(1, size, device=device), nothing, None)
        self.flush()

    def info(self) -> EngineInfo:
        shape = self.model_config
        parameters = sum(math.prod(size) for size in shape.parameter_shapes().values())
        return EngineInfo(
            model=self.config.model,
            family=shape.family,
            parameters=parameters,
            weight_bytes=self._model.weight_bytes,
            dtype=self.config.dtype,
            num_pages=self.cache.num_pages,
            page_size=self.cache.page_size,
            kv_bytes=self.cache.num_pages * self._page_bytes,
            max_context=self._max_context,
            threads=torch.get_num_threads(),
            quantization=self.config.quantization,
            attention=self._ops.name,
        )

    # -- commands ----------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request; its events come out of `step`. Raises InvalidRequest (TooLarge where it can never
        fit) and then nothing has changed, EngineStopped after `close`. If its grammar has to be compiled
        first and is refused, the request ends with an event that says so."""
        self._add(request, self._seed(request))

    def _add(self, request: Request, seed: int, shared: int | None = None) -> None:
        """As `add`; a member of a batch comes with what it shares with the one before, see batch_order.py."""
        if self._closed:
            raise EngineStopped("the engine is closed")
        check_request(request, self.model_config.vocab_size)
        if request.id in self._keys:
            raise InvalidRequest(f"request id {request.id!r} is already in use")
        first, *others = request.choices
        sequences = [Tokens(request, first, shared)]
        shared = None if shared is None else len(request.prompt_ids)
        sequences += [Tokens(request, index, shared) for index in others]
        connect(sequences)
        eos_ids, most = self.tokenizer.eos_ids, self._scheduler.max_length
        streams = [OutputStream(seq, self.tokenizer, eos_ids, seed, most) for seq in sequences]
        for seq in sequences:
            self._scheduler.check(seq)
        spec = request.sampling.structure
        compiled = None if spec is None else self._guides.await_grammar(request.id, spec)
        self._streams |= {seq.key: stream for seq, stream in zip(sequences, streams, strict=True)}
        self._keys[request.id] = [seq.key for seq in sequences]
        self._arrivals |= dict.fromkeys(self._keys[request.id], perf_counter())
        if spec is not None and compiled is None:
            self._unready[request.id] = sequences
            for seq in sequences:
                self._scheduler.expect(seq)
        else:
            self._schedule(sequences, compiled)

    def _schedule(self, sequences: Sequence[Tokens], compiled: CompiledGrammar | None) -> None:
        """Queue the sequences of a request, at the beginning of its grammar if it has one."""
        for seq in sequences:
            stream, error = self._streams[seq.key], None
            if compiled is not None:
                words = -(-self.model_config.vocab_size // 32)
                stream.guide = Guide(compiled, seq.request.sampling, self.tokenizer.eos_ids, words)
                try:
                    seq.append(stream.begin())
                    self._meter.generated_tokens += stream.count
                except RequestFailed as failure:
                    error = str(failure)
            self._scheduler.add(seq)
            if error is not None:
                self._scheduler.refuse(seq, error)

    def abort(self, request_id: str) -> bool:
        """End all choices of a request: their terminal events come out of a later step. False if unknown."""
        if request_id in self._unready:
            self._guides.forget(request_id)
            self._schedule(self._unready.pop(request_id), None)  # they end there before they run
        keys = self._keys.get(request_id, [])
        found = [self._scheduler.abort(key) for key in keys]
        return any(found)

    def end_programs(self, program_ids: Sequence[str], how: Ending) -> None:
        """Say what becomes of programs, known by the id in the hints of their requests: see Ending. It is no
        error if one is unknown. With "cancelled", the terminal events of what it runs come out of a later
        step; what nobody else uses of its pages is free then. Raises InvalidRequest on another word."""
        if how not in get_args(Ending):
            raise InvalidRequest(f"a program is {', '.join(get_args(Ending))}, got {how!r}")
        program_ids = [program_id for program_id in program_ids if program_id]  # "" is no program
        unready = self._scheduler.end_programs(program_ids, how)
        for request_id in dict.fromkeys(seq.request.id for seq in unready):
            self.abort(request_id)

    def step(self) -> list[Event]:
        """Compute one step and return its news. A step that raises ends the sequences in it with an error;
        KeyboardInterrupt and the like do so too, and go on to the caller."""
        checked = self._take_grammars()
        with self._meter.step, self.profiler.step():
            return checked + self._step()

    def _step(self) -> list[Event]:
        with self._meter.schedule:
            plan = self._scheduler.plan()
        if plan is None:
            return self._last_events(self._scheduler.take_ended())
        before = self._meter.step.since_start()
        self._note_waits(plan)
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
        """Forget every cached page that no running sequence holds, with all holds of programs; how many those
        were."""
        if (elsewhere := self._elsewhere) is not None:
            return elsewhere.call(self.flush)
        self._scheduler.release_holds()
        return self.cache.flush()

    def interrupt(self) -> None:
        """Let a `generate` or `score` that runs now end with KeyboardInterrupt after its step. From any
        thread."""
        self._interrupted = True

    def close(self) -> None:
        """End what is left, unanswered; the engine takes nothing more."""
        if (elsewhere := self._elsewhere) is not None:
            elsewhere.stop()  # which closes the engine on its own thread
            return
        self._closed = True
        self._give_up("")
        self._guides.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_logprobs: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Completion]:
        """Continue every prompt; always a list, for one prompt too: completions come in the order of the
        prompts, the n choices of one together.

        A prompt is text, a list of token ids, {"messages": [...]} or a Prompt, whose own sampling wins.
        `prompt_logprobs`, where given, is the `prompt_logprobs_start` of all of them. A prompt that is
        refused gives a completion with `error`, the others are not affected. Raises InvalidRequest while the
        engine works on anything else, whose events would be lost, and EngineStopped if it is closed then.
        """
        if (elsewhere := self._elsewhere) is not None:
            return elsewhere.call(
                lambda: self.generate(
                    prompts, sampling, prompt_logprobs=prompt_logprobs, on_progress=on_progress
                )
            )
        todo = as_prompts(prompts)
        params = each_sampling(todo, sampling, prompt_logprobs)
        collector = Collector()
        with self._batch("generate") as prefix:
            self._announce(collector, todo, params, prefix)
            self._finish(collector, on_progress)
        return collector.completions()

    @overload
    def score(
        self, context: ScoreItem, continuations: None = None, *, on_progress: OnProgress | None = None
    ) -> ItemScore: ...
    @overload
    def score(
        self,
        context: str | Sequence[int],
        continuations: Sequence[str | Sequence[int]],
        *,
        on_progress: OnProgress | None = None,
    ) -> ItemScore: ...
    @overload
    def score(
        self,
        context: Sequence[ScoreItem],
        continuations: None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> list[ItemScore]: ...
    def score(
        self,
        context: ScoreInput,
        continuations: Sequence[str | Sequence[int]] | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> ItemScore | list[ItemScore]:
        """How likely each continuation of a context is, by the model's own (raw) log-probabilities.

        One context (text or token ids) with its continuations (texts or lists of ids), a ScoreItem, or a list
        of those, whose results come in its order. What is known from before is not computed again. An item
        that is refused gives a result with `error`, the others are not affected. Raises as `generate`.
        """
        items, several = as_items(context, continuations)
        if (elsewhere := self._elsewhere) is not None:
            return elsewhere.call(lambda: self._score(items, several, on_progress))
        return self._score(items, several, on_progress)

    def _score(
        self, items: list[ScoreItem | InvalidRequest], several: bool, on_progress: OnProgress | None
    ) -> ItemScore | list[ItemScore]:
        with self._batch("score") as prefix:
            batch = ScoreBatch(items, self.tokenizer, prefix)
            batch.refuse(self._submit(batch.requests))
            self._finish(batch, on_progress)
        results = batch.results()
        return results if several else results[0]

    # -- the parts of a step -----------------------------------------------------------------------

    def _take_grammars(self) -> list[Event]:
        """Let requests run whose grammar is ready by now, end those for which there is none, and return the
        last events of texts that were checked. With nothing else to do it waits a little for one."""
        patience = _PATIENCE if self._scheduler.is_idle else 0.0
        checked = self._guides.take_checked(patience) if self._guides.has_checks else []
        for event in checked:
            self._forget(event)
        if not self._unready:
            return checked
        for request_id, found in self._guides.take_ready(0.0 if checked else patience):
            sequences = self._unready.pop(request_id)
            if isinstance(found, InvalidRequest):
                self._schedule(sequences, None)
                for seq in sequences:
                    self._streams[seq.key].is_refused = True
                    self._scheduler.refuse(seq, str(found))
            else:
                self._schedule(sequences, found)
        return checked

    def _open_compiler(self) -> GrammarCompiler:
        from .grammar.compiler import GrammarCompiler
        from .grammar.vocabulary import GrammarVocabulary

        return GrammarCompiler(GrammarVocabulary.of(self.tokenizer, self.model_config.vocab_size))

    def _compute(self, plan: Plan) -> list[Outcome]:
        with self._meter.schedule:
            batch = self._builder.build(plan)
            a_token = self._page_bytes // self.config.page_size
            reads = (batch.reads.once, batch.reads.by_tile, batch.unshared_tokens)
            self._meter.count_reads(*(tokens * a_token for tokens in reads))
            self._meter.count_segments(batch.segments, batch.segment_queries)
        streams = [self._streams[row.key] for row in plan.rows if row.samples]
        guides = [(stream.guide, stream.count) for stream in streams if stream.guide is not None]
        self._meter.filled_masks += len(guides)
        with self._guides.filling(guides), self._meter.forward, self.profiler.region("forward"):
            self._pool.copy(plan.copies)
            logits = self._model.forward(batch.inputs, self._pool.keys, self._pool.values)
        return step_outcomes(plan, batch, logits, self._scheduler.get, self._streams, self._read)

    def _read(
        self, logits: torch.Tensor, known: Sequence[Known], places: Sequence[int], rows: Sequence[SampleRow]
    ) -> Readings:
        """Answers to all that a step asks of its logits, worked out where those are."""
        if self._ops.sample is None:
            return read_logits(logits, known, places, rows, self._choose)
        return read_on_device(logits, known, places, rows, self._ops)

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
            stream = self._streams.pop(seq.key)
            self._arrivals.pop(seq.key, None)
            event = stream.last_event(seq.finish_reason, seq.error)
            self._meter.forced_tokens += event.forced_tokens
            text = stream.unchecked
            if event.finish_reason == "stop" and stream.guide is not None and text is not None:
                self._guides.check(stream.guide, text, event)
            else:
                self._forget(event)
                events.append(event)
        return events

    def _forget(self, last: Event) -> None:
        """A sequence has told its last: its id is free when its siblings' are."""
        keys = self._keys[last.request_id]
        keys.remove(SequenceKey(last.request_id, last.index))
        if not keys:
            del self._keys[last.request_id]

    def _note_waits(self, plan: Plan) -> None:
        now = perf_counter()
        for row in plan.rows:
            arrived = self._arrivals.pop(row.key, None)
            if arrived is not None:
                self._streams[row.key].waited = now - arrived

    def _occupancy(self, plan: Plan) -> tuple[int, float]:
        """Pages that are not free while the step runs, and the share of their slots that hold a token when it
        has run. Asked before the commit, which gives pages back."""
        used = self.cache.num_pages - self.cache.free_pages
        held = self._scheduler.held_tokens + sum(row.stop - row.write_from for row in plan.rows)
        return used, held / (used * self.cache.page_size)

    # -- the parts of generate and score -----------------------------------------------------------

    @contextmanager
    def _batch(self, name: str) -> Iterator[str]:
        """The beginning of the request ids of a new batch, which is given up if anything is raised."""
        if self.has_work:
            raise InvalidRequest(f"{name} needs an idle engine, got one with requests to finish first")
        prefix = f"{name}-{self._batches}-"
        self._batches += 1
        try:
            yield prefix
        except BaseException:
            try:
                self._give_up(prefix)
            except Exception:  # interrupted in the middle of its own bookkeeping: it cannot go on
                self._closed = True
            raise

    def _finish(self, collector: Collector | ScoreBatch, on_progress: OnProgress | None) -> None:
        """Step until all that the collector waits for has come."""
        self._meter.count_batch(*collector.optimum())
        self._interrupted = False
        while collector.outstanding:
            if self._interrupted:
                raise KeyboardInterrupt
            if not self.has_work:
                raise EngineStopped("the engine was closed before its prompts were done")
            collector.take(self.step())
            if on_progress is not None:
                on_progress(EngineProgress(collector.done, collector.total, collector.generated_tokens))

    def _announce(
        self,
        collector: Collector,
        prompts: Sequence[Prompt | InvalidRequest],
        params: Sequence[SamplingParams],
        prefix: str,
    ) -> None:
        """Queue a batch, and note in the order of the input what is due and what was refused."""
        requests = [
            self._request(prompt, sampling, f"{prefix}{i}")
            for i, (prompt, sampling) in enumerate(zip(prompts, params, strict=True))
        ]
        refused = self._submit([request for request in requests if isinstance(request, Request)])
        for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
            name = prompt.id if isinstance(prompt, Prompt) and prompt.id is not None else str(i)
            if isinstance(request, InvalidRequest):
                collector.refuse(f"{prefix}{i}", name, str(request), 0)
            elif request.id in refused:
                collector.refuse(request.id, name, str(refused[request.id]), len(request.prompt_ids))
            else:
                collector.expect(request, name)

    def _request(
        self, prompt: Prompt | InvalidRequest, sampling: SamplingParams, request_id: str
    ) -> Request | InvalidRequest:
        """One prompt of a batch as a request, or why it is none."""
        if isinstance(prompt, InvalidRequest):
            return prompt
        try:
            ids = self.encode(prompt)
        except InvalidRequest as error:
            return error
        return Request(request_id, ids, sampling, prompt.salt, priority=prompt.priority)

    def _submit(self, requests: Sequence[Request]) -> dict[str, InvalidRequest]:
        """Queue a batch that is known as a whole, in the order that shares most (policy "fcfs": in its own).
        What was refused, by the id of its request; the others are not affected."""
        seeds = [self._seed(request) for request in requests]  # in the order given, whatever runs first
        ordered = self.config.policy == "cache-aware"
        places = batch_order(requests) if ordered else [Place(i) for i in range(len(requests))]
        refused = {}
        for index, shared in places:
            try:
                self._add(requests[index], seeds[index], shared)
            except InvalidRequest as error:
                refused[requests[index].id] = error
        return refused

    def _seed(self, request: Request) -> int:
        seed = request.sampling.seed
        return self._seeds.getrandbits(63) if seed is None else seed

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
        for event in self._guides.drop_checks(prefix):
            self._forget(event)


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
