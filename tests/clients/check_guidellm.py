"""guidellm: its load on both of OpenAI's routes, with prefixes in common and with conversations."""

from __future__ import annotations

import json
import sys
from typing import Any

from checks import KEY, SCRATCH, TOKENIZER, URL, main, program, run_program

REQUESTS = 12
OUTPUT_TOKENS = 16


def a_load_of_completions_finds_their_common_prefix() -> None:
    prefix = {"prefix_buckets": [{"prefix_count": 1, "prefix_tokens": 96}]}
    done = _run("/v1/completions", {"prompt_tokens": 32, **prefix})
    assert all(one["prompt_tokens"] >= 96 for one in done)
    assert sum((one["cached_tokens"] or 0) >= 90 for one in done) >= REQUESTS // 2, done


def a_load_of_conversations_finds_what_was_said() -> None:
    done = _run("/v1/chat/completions", {"prompt_tokens": 32, "turns": 3})
    later = [one for one in done if one["prompt_tokens"] > 80]
    assert later
    assert all((one["cached_tokens"] or 0) > 32 for one in later), later


def _run(route: str, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures of each request; all have succeeded and have the length that was asked for."""
    out = SCRATCH / f"{route.replace('/', '_')}.json"
    backend = {"kind": "openai_http", "target": URL, "api_key": KEY, "request_format": route}
    flags = {
        "--backend": backend,
        "--profile": {"kind": "concurrent", "streams": [4]},
        "--constraint": {"kind": "max_requests", "count": REQUESTS},
        "--tokenizer": {"kind": "huggingface_auto", "model": TOKENIZER},
        "--data": {"kind": "synthetic_text", "output_tokens": OUTPUT_TOKENS, **data},
        "--output": {"kind": "json", "path": str(out)},
    }
    words = [word for flag, value in flags.items() for word in (flag, json.dumps(value))]
    run_program([program("guidellm"), "run", "--disable-console-interactive", *words])
    [measured] = json.loads(out.read_text())["benchmarks"]
    totals = measured["metrics"]["request_totals"]
    assert totals["successful"] >= REQUESTS, totals
    assert totals["errored"] == 0, measured["requests"]["errored"][:1]
    done: list[dict[str, Any]] = measured["requests"]["successful"]
    assert {one["output_tokens"] for one in done} == {OUTPUT_TOKENS}, done[0]
    return done


if __name__ == "__main__":
    main(sys.modules[__name__])
