"""Frames of well-known chat templates, put together."""

from __future__ import annotations

import pytest

from radixlm.frontend.chat_formats import FORMATS, format_for, named_format
from radixlm.frontend.errors import InvalidCall, Unsupported

CONVERSATION = (("system", "Be kind."), ("user", "Hello"), ("assistant", "Hi"), ("user", "Bye"))


def rendered(name: str, messages: tuple[tuple[str, str], ...] = CONVERSATION) -> str:
    text = ""
    for count, (_, content) in enumerate(messages, 1):
        frame = FORMATS[name].frame(tuple(role for role, _ in messages[:count]))
        text += frame.before + content + frame.after
    return text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "SYSTEM: Be kind.\nUSER: Hello\nASSISTANT: Hi\nUSER: Bye\n"),
        (
            "chatml",
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
            "<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n",
        ),
        (
            "llama-3",
            "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>",
        ),
        (
            "llama-2",
            "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHello [/INST] Hi </s><s>[INST] Bye [/INST]",
        ),
        ("mistral", "[INST] Be kind.\n\nHello [/INST] Hi</s>[INST] Bye [/INST]"),
        (
            "gemma",
            "<start_of_turn>user\nBe kind.\n\nHello<end_of_turn>\n<start_of_turn>model\nHi<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n",
        ),
        ("vicuna", "Be kind. USER: Hello ASSISTANT:Hi</s>USER: Bye "),
        (
            "phi-3",
            "<|system|>\nBe kind.<|end|>\n<|user|>\nHello<|end|>\n"
            "<|assistant|>\nHi<|end|>\n<|user|>\nBye<|end|>\n",
        ),
        (
            "zephyr",
            "<|system|>\nBe kind.</s>\n<|user|>\nHello</s>\n<|assistant|>\nHi</s>\n<|user|>\nBye</s>\n",
        ),
    ],
)
def test_a_conversation_looks_as_the_model_knows_it(name: str, text: str) -> None:
    assert rendered(name) == text


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistral"),
        ("Qwen/Qwen2.5-7B-Instruct", "chatml"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "chatml"),
        ("lmsys/vicuna-7b-v1.5", "vicuna"),
        ("google/gemma-2-9b-it", "gemma"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3"),
        ("HuggingFaceH4/zephyr-7b-beta", "zephyr"),
        ("meta-llama/Llama-2-7b-hf", "plain"),
        ("", "plain"),
    ],
)
def test_models_are_known_by_their_names(path: str, name: str) -> None:
    assert format_for(path).name == name


def test_names_of_sglang_s_are_known() -> None:
    assert named_format("llama-3-instruct").name == "llama-3"
    with pytest.raises(InvalidCall, match="chatml"):
        named_format("unknown")


def test_a_role_that_a_template_does_not_have_is_refused() -> None:
    with pytest.raises(Unsupported, match="system, user, assistant"):
        FORMATS["llama-2"].frame(("tool",))
    assert FORMATS["chatml"].frame(("tool",)).before == "<|im_start|>tool\n"
