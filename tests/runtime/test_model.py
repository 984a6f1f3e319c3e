"""The model against transformers: the same logits and tokens through paged keys and values, in any cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from radixlm.kernels.cpu import cpu_ops
from radixlm.kernels.plan import AttentionSpec, build_plan
from radixlm.runtime.errors import InvalidModel
from radixlm.runtime.model import Model, ModelInputs
from radixlm.runtime.model_config import ModelConfig
from testkit.tiny_model import FAMILIES, tiny_model, tiny_weights

PAGE_SIZE = 4
TOLERANCE = 1e-4


def load(reference: PreTrainedModel, weights: dict[str, Tensor] | None = None) -> Model:
    config = ModelConfig.from_hf(reference.config.to_dict())
    ops = cpu_ops(config.num_heads, config.num_kv_heads, config.head_dim, deterministic=False)
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
        written: list[int] = []
        slots: list[int] = []
        wanted: list[int] = []
        for sequence, start, stop, write_from, logits_from in rows:
            for position in range(start, stop):
                if position >= write_from:
                    written.append(len(tokens))
                    page = int(sequence.pages[position // PAGE_SIZE])
                    slots.append(page * PAGE_SIZE + position % PAGE_SIZE)
                if position >= logits_from:
                    wanted.append(len(tokens))
                tokens.append(sequence.tokens[position])
                positions.append(position)
        inputs = ModelInputs(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions),
            write_rows=None if len(written) == len(tokens) else torch.tensor(written, dtype=torch.int64),
            write_slots=torch.tensor(slots, dtype=torch.int64),
            logit_rows=torch.tensor(wanted, dtype=torch.int64),
            plan=self.plan(rows),
        )
        layers = self.model.config.num_layers
        return self.model.forward(inputs, self.pages[:layers], self.pages[layers:])

    def plan(self, rows: tuple[tuple[Sequence, int, int, int, int], ...]) -> object:
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


def test_the_same_model_runs_in_bfloat16() -> None:
    reference = tiny_model("qwen3", dtype=torch.bfloat16)
    config = ModelConfig.from_hf(reference.config.to_dict())
    ops = cpu_ops(config.num_heads, config.num_kv_heads, config.head_dim, deterministic=False)
    paged = Paged(Model(config, tiny_weights(reference).items(), ops, torch.bfloat16))
    paged.pages = [pages.to(torch.bfloat16) for pages in paged.pages]
    sequence = Sequence(np.arange(8), prompt(reference, 9))
    ours = paged.step((sequence, 0, 9, 0, 0))
    theirs = logits_of(reference, sequence.tokens).float()
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().mean() < 0.05 * theirs.abs().mean()


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
    ops = cpu_ops(config.num_heads, config.num_kv_heads, config.head_dim, deterministic=False)
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
