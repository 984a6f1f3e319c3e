"""Speed of the engine on the default model: against itself with an option changed, the model's own matrix
products, and transformers. All ratios are of medians of interleaved repeats in this one process.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Callable
from functools import partial

import torch
from common import MODEL, Report, interleave, ratio, say, seconds_of
from engine_runs import decode_steps, generate_seconds, open_engine, prefill_seconds
from peer import Peer
from workloads import ids, shared_prompts, unique_prompts

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.ops import Linear
from radixlm.runtime.engine import Engine
from radixlm.runtime.model_config import ModelConfig
from radixlm.runtime.sampling_params import SamplingParams

CHUNK = 512
GATE = 1e-3


def deterministic_mode(report: Report) -> None:
    """What it costs: on over off, for decoding, prompts, and one stream."""
    options = report.options
    steps, repeats = (4, 2) if options.quick else (24, options.repeats)
    with (
        open_engine(options.threads, deterministic=True) as on,
        open_engine(options.threads, deterministic=False) as off,
    ):
        encode = on.tokenizer.encode
        rows = unique_prompts(encode, 16, 24 if options.quick else 96, seed=1)
        prompt = ids(encode, 100 if options.quick else 2 * CHUNK, random.Random(2))

        def decoding(engine: Engine, count: int) -> Callable[[], float]:
            return lambda: statistics.median(decode_steps(engine, rows[:count], steps).seconds)

        measured = {
            "decode step, 16 rows": {"on": decoding(on, 16), "off": decoding(off, 16)},
            "prompt processing": {
                "on": lambda: prefill_seconds(on, prompt),
                "off": lambda: prefill_seconds(off, prompt),
            },
            "decode step, one row": {"on": decoding(on, 1), "off": decoding(off, 1)},
        }
        for name, runs in measured.items():
            interleave(1, **runs)  # warm-up, which does not count
            seconds = interleave(repeats, **runs)
            cost = ratio(seconds, "on", "off") - 1
            report.keep(f"deterministic mode: {name}", seconds=seconds)
            report.note(f"cost of deterministic mode: {name}", f"{100 * cost:.1f} %", cost)


def shared_decoding(report: Report) -> None:
    """A decode step of 16 rows that share a long prefix over one of rows that share next to nothing."""
    options = report.options
    steps, repeats = (4, 2) if options.quick else (32, options.repeats)
    shared = 200 if options.quick else 1063
    with open_engine(options.threads) as engine:
        encode = engine.tokenizer.encode
        long = shared_prompts(encode, 16, shared=shared, seed=3)
        short = shared_prompts(encode, 16, shared=16, seed=4)
        runs = {
            "long": lambda: statistics.median(decode_steps(engine, long, steps).seconds),
            "short": lambda: statistics.median(decode_steps(engine, short, steps).seconds),
        }
        interleave(1, **runs)
        seconds = interleave(repeats, **runs)
    lengths = {"long": [len(prompt) for prompt in long], "short": [len(prompt) for prompt in short]}
    report.keep("decode step, 16 rows", seconds=seconds, prompt_tokens=lengths)
    report.note(f"decode step, 16 rows, {shared:,} shared tokens", _milliseconds(seconds["long"]))
    report.note("decode step, 16 rows, 16 shared tokens", _milliseconds(seconds["short"]))
    name = f"decode step, 16 rows: {shared:,} shared tokens over 16 shared tokens"
    report.at_most(name, ratio(seconds, "long", "short"), 1.5, "x")


def prompt_processing(report: Report) -> None:
    """How much of the time of a prompt is the model's own matrix products, run by themselves: for one chunk,
    and for a prompt long enough that attention counts."""
    options = report.options
    with open_engine(options.threads) as engine:
        shapes = MatrixShapes(engine.model_config, deterministic=engine.info().deterministic)
        for chunks in (1,) if options.quick else (1, 4):
            prompt = ids(engine.tokenizer.encode, chunks * CHUNK, random.Random(5))
            runs = {
                "prefill": partial(prefill_seconds, engine, prompt),
                "matrices": partial(shapes.seconds, CHUNK, chunks),
            }
            interleave(1, **runs)
            seconds = interleave(max(2, options.repeats), **runs)
            speed = len(prompt) / statistics.median(seconds["prefill"])
            name = f"prompt processing, {len(prompt):,} tokens in chunks of {CHUNK}"
            report.keep(name, seconds=seconds, tokens=len(prompt), chunk=CHUNK)
            report.note(name, f"{speed:.0f} tokens/s", speed)
            share = ratio(seconds, "matrices", "prefill")
            report.at_least(f"{name}: share of the model's matrix shapes at 512 rows", share, 0.75, "%")


class MatrixShapes:
    """Every linear layer of a model with random weights of its own, as the op table packs them.

    A layer has four: q, k and v as one, the output, gate and up as one, down; the head comes once.
    """

    def __init__(self, config: ModelConfig, *, deterministic: bool) -> None:
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        ops = cpu_ops(heads, kv_heads, size, deterministic=deterministic)
        hidden, inner = config.hidden_size, config.intermediate_size
        shapes = [
            ((heads + 2 * kv_heads) * size, hidden),
            (hidden, heads * size),
            (2 * inner, hidden),
            (hidden, inner),
        ]

        def packed(outputs: int, inputs: int) -> tuple[int, Linear]:
            return inputs, ops.pack_linear(torch.randn(outputs, inputs) * inputs**-0.5, None)

        self._layers = [packed(*shape) for _ in range(config.num_layers) for shape in shapes]
        self._head = packed(config.vocab_size, hidden)

    @torch.no_grad()
    def seconds(self, rows: int, chunks: int) -> float:
        """`chunks` times all layers at `rows` rows, and the head for one row."""
        inputs = {width: torch.randn(rows, width) for width, _ in self._layers}

        def run() -> None:
            for _ in range(chunks):
                for width, linear in self._layers:
                    linear(inputs[width])
            self._head[1](inputs[self._head[0]][:1])

        return seconds_of(run)


def against_transformers(report: Report) -> None:
    """A batch that shares a long prefix, and one stream; only if both models are the same model."""
    options = report.options
    peer = Peer(MODEL)
    with open_engine(options.threads) as engine:
        if not _same_model(report, engine, peer):
            return
        _shared_batch(report, engine, peer)
        gc.collect()
        _one_stream(report, engine, peer)


def _same_model(report: Report, engine: Engine, peer: Peer) -> bool:
    """No timing before this holds: the chosen tokens' log-probabilities are those of transformers."""
    prompt = ids(engine.tokenizer.encode, 40, random.Random(6))
    sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, logprobs=0)
    entries = engine.generate([prompt], sampling)[0].logprobs
    ours = [entry.logprob for entry in entries if entry.logprob is not None]
    theirs = peer.logprobs(prompt, [entry.token_id for entry in entries])
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    report.at_most("log-probabilities apart from transformers'", apart, GATE)
    return apart <= GATE


def _shared_batch(report: Report, engine: Engine, peer: Peer) -> None:
    options = report.options
    rows, shared, tokens = (4, 64, 4) if options.quick else (32, 1063, 32)
    prompts = shared_prompts(engine.tokenizer.encode, rows, shared=shared, seed=8)
    theirs: list[float] = []
    ours: list[float] = []
    generate_seconds(engine, prompts[:2], 2, cold=True)  # warm-up
    for i in range(max(options.repeats, options.peer_repeats)):
        if i < options.repeats:
            ours.append(generate_seconds(engine, prompts, tokens, cold=True))
            say(f"  ours, repeat {i + 1}: {ours[-1]:.2f} s")
        if i < options.peer_repeats:
            theirs.append(seconds_of(lambda: peer.generate(prompts, tokens)))
            say(f"  transformers, repeat {i + 1}: {theirs[-1]:.2f} s")
    seconds = {"ours": ours, "transformers": theirs}
    report.keep("shared batch", seconds=seconds, rows=rows, shared=shared, generated=tokens)
    for name, runs in seconds.items():
        speed = rows * tokens / statistics.median(runs)
        text = f"{speed:.1f} tokens/s (median of {len(runs)})"
        report.note(f"{rows} requests, {shared:,} shared tokens, {tokens} generated: {name}", text, speed)
    name = f"tokens/s over transformers', {rows} requests, {shared:,} shared + ~20 private tokens, cache cold"
    report.at_least(name, ratio(seconds, "transformers", "ours"), 8, "x")


def _one_stream(report: Report, engine: Engine, peer: Peer) -> None:
    options = report.options
    tokens, repeats = (6, 2) if options.quick else (64, 5)
    prompt = ids(engine.tokenizer.encode, 24, random.Random(9))
    runs = {
        "ours": lambda: generate_seconds(engine, [prompt], tokens, cold=True),
        "transformers": lambda: seconds_of(lambda: peer.generate([prompt], tokens)),
    }
    interleave(1, **runs)
    seconds = interleave(repeats, **runs)
    report.keep("one stream", seconds=seconds, prompt=len(prompt), generated=tokens)
    for name, each in seconds.items():
        speed = tokens / statistics.median(each)
        label = f"one stream, prompt of {len(prompt)}, {tokens} generated: {name}"
        report.note(label, f"{speed:.1f} tokens/s", speed)
    report.at_least("one stream over transformers'", ratio(seconds, "transformers", "ours"), 1.8, "x")


def _milliseconds(seconds: list[float]) -> str:
    return f"{1000 * statistics.median(seconds):.1f} ms"
