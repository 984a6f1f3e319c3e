"""SGLang's own load generator, sglang.bench_serving, on the native route and on both of OpenAI's.

The package is installed without what it needs to serve. 0.5.9 is its last version whose generator runs so:
later ones import torchvision. What those ask a server beside is asked here by hand.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from typing import Any

import requests
from checks import KEY, MODEL, SCRATCH, TOKENIZER, URL, main, run_program

GROUPS, EACH, SYSTEM_TOKENS, OUTPUT_TOKENS = 2, 6, 160, 12
SHARED = {
    "dataset-name": "generated-shared-prefix",
    "gsp-num-groups": GROUPS,
    "gsp-prompts-per-group": EACH,
    "gsp-system-prompt-len": SYSTEM_TOKENS,
    "gsp-question-len": 16,
    "gsp-output-len": OUTPUT_TOKENS,
}
IDS = {
    "dataset-name": "random-ids",
    "num-prompts": 12,
    "random-input-len": 64,
    "random-output-len": OUTPUT_TOKENS,
    "random-range-ratio": 1.0,
}


def prompts_in_groups_are_streamed_from_the_native_route() -> None:
    cached = _counter("prefix_cache_hits")
    _run("sglang", SHARED, "flush-cache")
    assert _counter("prefix_cache_hits") - cached >= GROUPS * (EACH - 1) * SYSTEM_TOKENS // 2


def token_ids_are_answered_with_log_probabilities() -> None:
    _run("sglang", IDS, "tokenize-prompt", "return-logprob")


def requests_arrive_one_by_one() -> None:
    _run("sglang", {**IDS, "request-rate": 20, "max-concurrency": 4}, "disable-stream")


def the_same_load_goes_to_completions() -> None:
    _run("sglang-oai", SHARED)


def the_same_load_goes_to_chat() -> None:
    _run("sglang-oai-chat", {**SHARED, "gsp-num-turns": 2}, count=GROUPS * EACH * 2)


def the_servers_profile_can_be_asked_for() -> None:
    _run("sglang", {**IDS, "num-prompts": 2}, "profile", count=2)


def what_later_versions_ask_beside_is_answered() -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    models = requests.get(f"{URL}/v1/models", headers=headers, timeout=30).json()
    assert models["data"][0]["id"] == MODEL
    info = requests.get(f"{URL}/model_info", headers=headers, timeout=30).json()
    assert info["model_path"]
    assert info["tokenizer_path"]
    server = requests.get(f"{URL}/server_info", headers=headers, timeout=30).json()
    assert isinstance(server["internal_states"], list)
    requests.post(
        f"{URL}/flush_cache", headers=headers, params={"timeout": 60.0}, timeout=90
    ).raise_for_status()
    body = {
        "text": "The capital of France is",
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True},
        "stream": True,
        "lora_path": None,
        "return_logprob": False,
        "return_routed_experts": False,
        "logprob_start_len": -1,
    }
    with requests.post(f"{URL}/generate", headers=headers, json=body, stream=True, timeout=60) as answer:
        lines = [line.removeprefix(b"data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == b"[DONE]"
    texts = [json.loads(line) for line in lines[:-1]]
    assert texts[-1]["meta_info"]["completion_tokens"] == 8
    assert "Paris" in texts[-1]["text"]
    assert all(after["text"].startswith(before["text"]) for before, after in pairwise(texts))


def _run(backend: str, options: dict[str, Any], *switches: str, count: int = 12) -> dict[str, Any]:
    """The figures of a run in which every request succeeded and has its length."""
    out = SCRATCH / f"{backend}-{'-'.join(switches)}-{options['dataset-name']}.jsonl"
    given = {"base-url": URL, "tokenizer": TOKENIZER, "output-file": str(out), "seed": 1, **options}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    switched = [f"--{name}" for name in ("output-details", "disable-tqdm", *switches)]
    command = [sys.executable, "-m", "sglang.bench_serving", "--backend", backend, *words, *switched]
    run_program(command, HOME=str(SCRATCH), OPENAI_API_KEY=KEY, PATH=os.environ["PATH"])
    figures: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
    assert [error for error in figures["errors"] if error] == []
    assert figures["completed"] == count, figures["completed"]
    assert figures["server_info"], "its figures come with what the server says of itself"
    assert set(figures["output_lens"]) == {OUTPUT_TOKENS}, figures["output_lens"]
    assert all(figures["generated_texts"])
    return figures


def _counter(name: str) -> float:
    text = requests.get(f"{URL}/metrics", timeout=30).text
    found = [line.split()[-1] for line in text.splitlines() if line.startswith(f"vllm:{name}")]
    return sum(map(float, found[:1]))


if __name__ == "__main__":
    main(sys.modules[__name__], note="bench_serving, installed without the packages that serve")
