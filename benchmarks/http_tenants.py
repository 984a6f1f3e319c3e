"""Tenants: what one has cached is neither found nor felt by another.

Two keys, and two salts under one key. What is timed are pairs of requests: a prompt that another tenant has
just had computed, and one that nobody has; which comes first changes from pair to pair.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence

from http_bench import Bench, milliseconds, quantile
from http_endpoint import Endpoint
from http_streams import SURFACES
from workloads import unique_prompts

KEYS = ("first-tenant", "second-tenant")
CONFIDENCE = 0.99
RESAMPLES = 10_000


def tenants(bench: Bench) -> None:
    """Cached tokens across and within, and whether time tells one from the other."""
    quick = bench.options.quick
    length, pairs = (60, 4) if quick else (1000, 30)
    prompts = bench.texts(unique_prompts(bench.tokenizer.encode, 4 * pairs + 8, length, seed=5))
    flags = [flag for key in KEYS for flag in ("--api-key", key)]
    with bench.served("tenants", *flags, key=KEYS[0]) as server:
        _found_again(bench, server, prompts[:4], prompts[4:8])
        rest = prompts[8:]
        _felt(bench, server, "keys", rest[: 2 * pairs], [{"key": key} for key in KEYS])
        salted = [{"key": KEYS[0], "cache_salt": salt} for salt in ("first", "second")]
        _felt(bench, server, "salts under one key", rest[2 * pairs :], salted)


Tenant = Mapping[str, str]
"""A key, and perhaps a salt."""


def _call(surface: str, prompt: str, tenant: Tenant) -> dict[str, object]:
    """One token."""
    body: dict[str, object] = {"text": prompt, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    if surface != "/generate":
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    if "cache_salt" in tenant:
        body["cache_salt"] = tenant["cache_salt"]
    return {"path": surface, "body": body, "key": tenant["key"]}


def _cached(answer: Mapping[str, object]) -> int:
    body = answer["body"]
    assert answer["status"] == 200, f"a tenant is answered, got {answer}"
    assert isinstance(body, dict), "an answer is an object"
    if "meta_info" in body:
        return int(body["meta_info"]["cached_tokens"])
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


def _found_again(bench: Bench, server: Endpoint, by_key: Sequence[str], by_salt: Sequence[str]) -> None:
    """The same prompt by one, by the other, and by each again, on both surfaces, with a prompt for each."""
    across, within, asked = [], [], 0
    groups: Mapping[str, tuple[Sequence[str], list[Tenant]]] = {
        "keys": (by_key, [{"key": key} for key in KEYS]),
        "salts": (by_salt, [{"key": KEYS[0]}, *({"key": KEYS[0], "cache_salt": salt} for salt in "ab")]),
    }
    for name, (prompts, group) in groups.items():
        for surface, prompt in zip(SURFACES, prompts, strict=False):
            calls = [_call(surface, prompt, tenant) for tenant in (*group, *group)]
            cached = [_cached(one) for one in bench.client.ask("one_by_one", port=server.port, calls=calls)]
            first, again = cached[: len(group)], cached[len(group) :]
            asked += len(group)
            across += [f"{name}, {surface}: {tokens} tokens of another" for tokens in first if tokens]
            within += [f"{name}, {surface}: {tokens} tokens of its own" for tokens in again if not tokens]
    bench.report.holds("tenants and salts: nothing cached across", across, asked)
    bench.report.holds("tenants and salts: cached within", within, asked)


def _felt(bench: Bench, server: Endpoint, name: str, prompts: Sequence[str], group: Sequence[Tenant]) -> None:
    """Seconds of a prompt that the other one has cached, less those of one that nobody has."""
    owner, other = group
    calls: list[dict[str, object]] = []
    pairs = list(zip(prompts[::2], prompts[1::2], strict=True))
    for i, (known, fresh) in enumerate(pairs):
        asked = [_call("/v1/completions", prompt, other) for prompt in (known, fresh)]
        calls += [_call("/v1/completions", known, owner), *asked[:: 1 if i % 2 else -1]]
        calls.append(_call("/v1/completions", known, owner))
    found = bench.client.ask("one_by_one", port=server.port, calls=calls)
    problems = [f"{answer}"[:200] for answer in found if answer["status"] != 200]
    bench.report.holds(f"{name}: requests that were answered", problems, len(found))
    seconds = [[answer["seconds"] for answer in found[4 * i : 4 * i + 4]] for i in range(len(pairs))]
    known_s = [four[1 if i % 2 else 2] for i, four in enumerate(seconds)]
    fresh_s = [four[2 if i % 2 else 1] for i, four in enumerate(seconds)]
    differences = [a - b for a, b in zip(known_s, fresh_s, strict=True)]
    low, high = bootstrap(differences)
    what = f"{name}: a prompt that another has cached, less one that nobody has"
    apart = [] if low <= 0 <= high else [f"between {1000 * low:.2f} and {1000 * high:.2f} ms"]
    report = bench.report
    report.holds(f"{what}, {CONFIDENCE:.0%} interval of the median holds 0", apart, 1)
    report.note(
        f"{what}, median and interval of {len(pairs)} pairs",
        f"{1000 * statistics.median(differences):.2f} ms, {1000 * low:.2f} to {1000 * high:.2f} ms",
    )
    own = [four[3] for four in seconds]
    report.note(f"{name}: such a prompt, p50", milliseconds(fresh_s, 0.5))
    report.note(f"{name}: one that is cached for whom it asks, p50", milliseconds(own, 0.5))
    report.keep(what, known_s=known_s, fresh_s=fresh_s, own_s=own)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """An interval for the median: of medians of values drawn again and again, with a seed."""
    draw = random.Random(0)
    medians = [statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    margin = (1 - CONFIDENCE) / 2
    return quantile(medians, margin), quantile(medians, 1 - margin)
