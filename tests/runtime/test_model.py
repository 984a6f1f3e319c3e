"""The model against transformers: the same logits and tokens through paged keys and values, in any cut."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.ops import PreparedPlan
from radixlm.kernels.plan import AttentionSpec, build_plan
from radixlm.runtime.errors import InvalidModel
from radixlm.runtime.model import Model, ModelInputs
from radixlm.runtime.model_config import ModelConfig
from testkit.tiny_model import FAMILIES, tiny_model, tiny_weights

PAGE_SIZE = 4
TOLERANCE = 1e-4


def load(
    reference: PreTrainedModel,
    weights: dict[str, Tensor] | None = None,
    quantization: Literal["none", "int8"] = "none",
) -> Model:
    config = ModelConfig.from_hf(reference.config.to_dict())
    ops = cpu_ops(config.num_heads, config.num_kv_heads, threads=2, quantization=quantization)
    return Model(config, (tiny_weights(reference) if weights is None else weights).items(), ops)


@dataclass
class Sequence:
    """Pages are given in a scrambled order so that nothing depends on neighbours."""

    pages: np.ndarray
    tokens: list[int]


@dataclass
class Paged:
    """Runs steps of (sequence, start, stop, write_from, logits_from) over pages that start as NaN."""

    model: Model
    num_pages: int = 64
    pages: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        config = self.model.config
        shape = (2 * config.num_layers, self.num_pages, config.num_kv_heads, PAGE_SIZE, config.head_dim)
        self.pages = list(torch.full(shape, torch.nan))

    def step(self, *rows: tuple[Sequence, int, int, int, int]) -> Tensor:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wanted: list[int] = []
        for sequence, start, stop, write_from, logits_from in rows:
            for position in range(start, stop):
                page = int(sequence.pages[position // PAGE_SIZE])
                slots.append(page * PAGE_SIZE + position % PAGE_SIZE if position >= write_from else -1)
                if position >= logits_from:
                    wanted.append(len(tokens))
                tokens.append(sequence.tokens[position])
                positions.append(position)
        inputs = ModelInputs(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            logit_rows=torch.tensor(wanted, dtype=torch.int64),
            plan=self.plan(rows),
        )
        layers = self.model.config.num_layers
        return self.model.forward(inputs, self.pages[:layers], self.pages[layers:])

    def plan(self, rows: tuple[tuple[Sequence, int, int, int, int], ...]) -> PreparedPlan:
        ops = self.model.ops
        plan = build_plan(
            [sequence.pages for sequence, *_ in rows],
            [start for _, start, *_ in rows],
            [stop for _, _, stop, *_ in rows],
            page_size=PAGE_SIZE,
            spec=AttentionSpec(self.model.config.attention_scale),
            options=ops.plan_options,
        )
        return ops.prepare(plan)


def prompt(reference: PreTrainedModel, length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(reference.config.vocab_size, (length,), generator=generator).tolist()


def logits_of(reference: PreTrainedModel, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = reference(torch.tensor([tokens])).logits[0]
    return logits


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.dtype == torch.float32
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decoding_give_the_logits_and_tokens_of_transformers(family: str) -> None:
    reference = tiny_model(family)
    paged = Paged(load(reference))
    sequence = Sequence(np.array([7, 3, 40, 21, 9, 2, 33, 11]), prompt(reference, 19))
    assert_close(paged.step((sequence, 0, 19, 0, 0)), logits_of(reference, sequence.tokens))
    ours = paged.step((sequence, 18, 19, 19, 18))
    for position in range(19, 25):
        sequence.tokens.append(int(ours[-1].argmax()))
        ours = torch.cat((ours, paged.step((sequence, position, position + 1, position, position))))
    theirs = logits_of(reference, sequence.tokens)[18:]
    assert_close(ours, theirs)
    assert theirs[:-1].argmax(-1).tolist() == sequence.tokens[19:]


@pytest.mark.parametrize("family", FAMILIES)
def test_loaded_logits_are_spread_enough_to_tell_a_wrong_result(family: str) -> None:
    reference = tiny_model(family)
    logits = logits_of(reference, prompt(reference, 12))
    assert logits.std() > 0.3
    assert (logits[5] - logits[11]).abs().max() > 1000 * TOLERANCE


ROPE = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn-tuned": {
        "rope_type": "yarn",
        "factor": 2.5,
        "original_max_position_embeddings": 32,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
        "truncate": False,
        "attention_factor": 1.3,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
    },
}


@pytest.mark.parametrize("scaling", ROPE)
def test_scaled_rope_gives_the_logits_of_transformers(scaling: str) -> None:
    reference = tiny_model("llama", rope_parameters={"rope_theta": 500.0, **ROPE[scaling]})
    plain = tiny_model("llama", rope_parameters={"rope_theta": 500.0, "rope_type": "default"})
    sequence = Sequence(np.arange(15), prompt(reference, 57))
    ours = Paged(load(reference)).step((sequence, 0, 57, 0, 0))
    assert_close(ours, logits_of(reference, sequence.tokens))
    assert (ours - logits_of(plain, sequence.tokens)).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", ["llama-tied", "smollm3", "qwen3"])
def test_chunks_and_batch_mates_do_not_change_logits(family: str) -> None:
    reference = tiny_model(family)
    paged = Paged(load(reference))
    first = Sequence(np.arange(8), prompt(reference, 21))
    other = Sequence(np.arange(20, 28), prompt(reference, 13, seed=1))
    assert paged.step((first, 0, 6, 0, 6)).shape == (0, reference.config.vocab_size)
    assert_close(paged.step((first, 6, 7, 6, 6)), logits_of(reference, first.tokens)[6:7])
    mixed = paged.step((first, 7, 21, 7, 15), (other, 0, 13, 0, 12))
    assert_close(mixed[:6], logits_of(reference, first.tokens)[15:])
    assert_close(mixed[6:], logits_of(reference, other.tokens)[12:])


def eager(model: Model) -> Model:
    """The same model, whose passes are never replayed."""
    never = replace(model.ops, run_pass=lambda pass_, name, inputs, plan: pass_(inputs, plan))
    other = object.__new__(Model)
    other.__dict__.update({**model.__dict__, "ops": never})
    return other


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("family", ["smollm3", "qwen3-biased"])
def test_replayed_steps_give_and_write_the_bits_of_eager_ones(
    family: str, quantization: Literal["none", "int8"]
) -> None:
    reference = tiny_model(family)
    model = load(reference, quantization=quantization)
    replayed, plain = Paged(model), Paged(eager(model))
    chance = random.Random(0)
    sequences = [Sequence(np.arange(8 * i, 8 * i + 8), prompt(reference, 32, seed=i)) for i in range(6)]
    done = [0] * 6
    for n in range(60):
        rows = []
        for i in sorted(chance.sample(range(6), chance.choice((1, 2, 3)))):
            start = done[i] = done[i] if done[i] < 32 else 0
            done[i] = stop = min(32, start + chance.choice((1, 1, 1, 4)))
            rows.append(
                (sequences[i], start, stop, chance.choice((start, start, stop)) if start else 0, stop - 1)
            )
        for one in (replayed, plain):
            one.pages = [pages.nan_to_num_(0.25) for pages in one.pages]
        assert torch.equal(replayed.step(*rows), plain.step(*rows)), n
        assert all(map(torch.equal, replayed.pages, plain.pages)), n


def test_logits_that_are_kept_are_not_changed_by_later_steps() -> None:
    reference = tiny_model("llama")
    paged = Paged(load(reference))
    sequence = Sequence(np.arange(8), prompt(reference, 20))
    kept = [paged.step((sequence, i, i + 1, i, i)) for i in range(20)]
    assert_close(torch.cat(kept), logits_of(reference, sequence.tokens))
    with torch.inference_mode():
        for logits in kept:
            logits.fill_(torch.nan)
    again = [paged.step((sequence, i, i + 1, i, i)) for i in range(20)]
    assert_close(torch.cat(again), logits_of(reference, sequence.tokens))


def test_steps_without_logits_are_computed_and_give_none() -> None:
    reference = tiny_model("llama")
    paged = Paged(load(reference))
    sequence = Sequence(np.arange(8), prompt(reference, 20))
    for i in range(19):
        assert paged.step((sequence, i, i + 1, i, i + 1)).shape == (0, reference.config.vocab_size)
    assert_close(paged.step((sequence, 19, 20, 19, 19)), logits_of(reference, sequence.tokens)[19:])


def test_rows_over_shared_pages_read_them_without_writing() -> None:
    reference = tiny_model("llama")
    paged = Paged(load(reference))
    owner = Sequence(np.arange(8), prompt(reference, 16))
    paged.step((owner, 0, 16, 0, 16))
    before = [pages.clone() for pages in paged.pages]
    again = Sequence(owner.pages, owner.tokens)
    branch = Sequence(np.array([0, 1, 2, 3, 30]), [*owner.tokens, 5])
    ours = paged.step((again, 15, 16, 16, 15), (branch, 12, 17, 16, 12))
    assert_close(ours[:1], logits_of(reference, owner.tokens)[15:])
    assert_close(ours[1:], logits_of(reference, branch.tokens)[12:])
    for old, new in zip(before, paged.pages, strict=True):
        assert torch.equal(old[:4], new[:4])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_same_model_runs_with_weights_and_pages_in_half_precision(dtype: torch.dtype) -> None:
    """Computed in float32: nearer to the exact model than transformers is in half precision."""
    halves = tiny_model("qwen3", dtype=dtype)
    exact = tiny_model("qwen3")
    exact.load_state_dict({name: tensor.float() for name, tensor in halves.state_dict().items()})
    config = ModelConfig.from_hf(halves.config.to_dict())
    ops = cpu_ops(config.num_heads, config.num_kv_heads, threads=2)
    paged = Paged(Model(config, tiny_weights(halves).items(), ops, dtype))
    paged.pages = [pages.to(dtype) for pages in paged.pages]
    sequence = Sequence(np.arange(8), prompt(halves, 9))
    ours, theirs = paged.step((sequence, 0, 9, 0, 0)), logits_of(halves, sequence.tokens).float()
    truth = logits_of(exact, sequence.tokens)
    assert ours.dtype == torch.float32
    assert (ours - truth).norm() < (theirs - truth).norm()
    assert (ours - truth).abs().mean() < 0.02 * truth.abs().mean()


def test_weights_as_bytes_give_nearly_the_same_logits() -> None:
    reference = tiny_model("llama")
    sequence = Sequence(np.arange(8), prompt(reference, 20))
    truth = logits_of(reference, sequence.tokens)
    ours = Paged(load(reference, quantization="int8")).step((sequence, 0, 20, 0, 0))
    plain = Paged(load(reference)).step((sequence, 0, 20, 0, 0))
    assert 100 * (plain - truth).norm() < (ours - truth).norm() < 0.05 * truth.norm()


def test_weights_stored_in_half_precision_are_widened() -> None:
    reference = tiny_model("llama")
    halves = {name: tensor.half() for name, tensor in tiny_weights(reference).items()}
    reference.load_state_dict({name: tensor.float() for name, tensor in halves.items()})
    sequence = Sequence(np.arange(8), prompt(reference, 9))
    ours = Paged(load(reference, halves)).step((sequence, 0, 9, 0, 0))
    assert_close(ours, logits_of(reference, sequence.tokens))


def test_a_head_stored_beside_tied_embeddings_is_used() -> None:
    reference = tiny_model("llama-tied")
    weights = tiny_weights(reference)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    sequence = Sequence(np.arange(8), prompt(reference, 9))
    ours = Paged(load(reference, weights)).step((sequence, 0, 9, 0, 0))
    assert_close(ours, logits_of(reference, sequence.tokens))


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.1.self_attn.k_proj.bias",
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.1.input_layernorm.weight",
    ],
)
def test_a_missing_weight_is_named(name: str) -> None:
    reference = tiny_model("llama-biased")
    weights = tiny_weights(reference)
    del weights[name]
    with pytest.raises(InvalidModel, match=f"{name} is missing"):
        load(reference, weights)


def test_an_unknown_weight_is_named() -> None:
    reference = tiny_model("llama")
    weights = {**tiny_weights(reference), "model.layers.0.self_attn.sinks": torch.zeros(4)}
    with pytest.raises(InvalidModel, match=r"self_attn\.sinks is not part of this model"):
        load(reference, weights)


def test_a_wrong_shape_is_named_with_both_shapes() -> None:
    reference = tiny_model("llama")
    weights = tiny_weights(reference)
    weights["model.layers.1.self_attn.v_proj.weight"] = torch.zeros(11, 48)
    with pytest.raises(InvalidModel, match=r"v_proj.weight must have shape \(12, 48\), got \(11, 48\)"):
        load(reference, weights)


def test_a_weight_that_comes_twice_is_refused() -> None:
    reference = tiny_model("llama")
    config = ModelConfig.from_hf(reference.config.to_dict())
    ops = cpu_ops(config.num_heads, config.num_kv_heads, threads=2)
    twice = [*tiny_weights(reference).items(), ("model.norm.weight", torch.ones(48))]
    with pytest.raises(InvalidModel, match=r"model\.norm\.weight comes twice"):
        Model(config, twice, ops)


def test_integer_weights_are_refused() -> None:
    reference = tiny_model("llama")
    weights = tiny_weights(reference)
    weights["model.norm.weight"] = torch.ones(48, dtype=torch.int8)
    with pytest.raises(InvalidModel, match=r"stored as torch\.int8"):
        load(reference, weights)


def test_the_rotary_constants_of_old_checkpoints_are_skipped() -> None:
    reference = tiny_model("llama")
    weights = {**tiny_weights(reference), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}
    assert load(reference, weights).config.num_layers == 2
