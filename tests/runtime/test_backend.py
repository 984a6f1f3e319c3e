"""What "auto" means on a machine, and which options do not go together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from radixlm.runtime.backend import open_ops, settle
from radixlm.runtime.config import EngineConfig
from radixlm.runtime.errors import InvalidConfig
from radixlm.runtime.model_config import ModelConfig
from testkit.tiny_model import tiny_model


@pytest.fixture
def has_gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
    return found


def settled(**fields: object) -> tuple[str, str, str]:
    config = settle(replace(EngineConfig(), **fields))
    return config.device, config.attention, config.dtype


@pytest.mark.parametrize(
    ("has_gpu", "fields", "expected"),
    [
        (False, {}, ("cpu", "cpu", "float32")),
        (True, {}, ("cuda", "triton", "bfloat16")),
        (True, {"device": "cpu"}, ("cpu", "cpu", "float32")),
        (True, {"attention": "cpu"}, ("cpu", "cpu", "float32")),
        (True, {"dtype": "float16"}, ("cuda", "triton", "float16")),
        (False, {"attention": "triton"}, ("cpu", "triton", "float32")),
        (True, {"device": "cpu", "attention": "triton"}, ("cpu", "triton", "float32")),
    ],
    indirect=["has_gpu"],
)
def test_what_is_left_open_follows_from_the_machine(
    has_gpu: bool, fields: dict[str, object], expected: tuple[str, str, str]
) -> None:
    assert settled(**fields) == expected


@pytest.mark.parametrize(
    ("has_gpu", "fields", "message"),
    [
        (False, {"device": "cuda"}, "device cuda needs a GPU"),
        (True, {"device": "cuda", "attention": "cpu"}, "attention cpu does not go with device cuda"),
        (True, {"quantization": "int8", "device": "cuda"}, "quantization int8 does not go with device cuda"),
        (True, {"quantization": "int8", "attention": "triton"}, "int8 does not go with attention triton"),
    ],
    indirect=["has_gpu"],
)
def test_what_does_not_go_together_is_refused(has_gpu: bool, fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        settled(**fields)


def test_triton_without_a_gpu_asks_for_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    from radixlm.kernels import triton_ops

    monkeypatch.setattr(triton_ops, "is_interpreted", lambda: False)
    config = replace(EngineConfig(), device="cpu", attention="triton", dtype="float32")
    with pytest.raises(InvalidConfig, match="TRITON_INTERPRET=1"):
        open_ops(config, ModelConfig.from_hf(tiny_model("mistral").config.to_dict()))


def test_heads_that_the_kernels_cannot_take_are_refused_by_name() -> None:
    config = replace(EngineConfig(), device="cpu", attention="triton", dtype="float32")
    with pytest.raises(InvalidConfig, match="multiples of 8 up to 256, got 12"):
        open_ops(config, ModelConfig.from_hf(tiny_model("llama").config.to_dict()))
