"""What is counted of requests and told to Prometheus: times, ends, hits against the best there could be."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from radixlm.runtime.engine import Engine
from radixlm.runtime.errors import EngineStopped, InvalidRequest
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.server.engine_face import LocalEngine
from radixlm.runtime.server.failures import TookTooLong
from radixlm.runtime.server.metrics import JobWatch, ServerMetrics
from radixlm.runtime.server.service import Job, Service
from radixlm.runtime.server.settings import ServerSettings
from radixlm.runtime.types import Event, FinishReason, Request
from testkit.http_server import running_server

T = TypeVar("T")
PATIENCE = 30
OpenLocal = Callable[..., LocalEngine]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Figures:
    """What /metrics tells, by name and labels; those of model_name are left out."""

    def __init__(self, metrics: ServerMetrics) -> None:
        body, self.content_type = metrics.render()
        self.text = body.decode()
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.types: dict[str, str] = {}
        for family in text_string_to_metric_families(self.text):
            self.types[family.name] = family.type
            for sample in family.samples:
                labels = frozenset(item for item in sample.labels.items() if item[0] != "model_name")
                self.values[sample.name, labels] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset(labels.items())]


@pytest.fixture
def open_local(tiny_folder: Path) -> Iterator[OpenLocal]:
    """Opens tiny engines on a thread of their own, and closes them at the end."""
    opened: list[LocalEngine] = []

    def open_one(**options: Any) -> LocalEngine:  # Any: options of an engine
        options = {"page_size": 4, "num_pages": 256, **options}
        opened.append(LocalEngine(Engine(str(tiny_folder), **options)))
        return opened[-1]

    yield open_one
    for local in opened:
        local.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(local_engine: LocalEngine, clock: Clock) -> ServerMetrics:
    return ServerMetrics(local_engine, clock=clock)


def job(ids: tuple[int, ...] = (5, 6, 7), max_tokens: int = 8, salt: str = "", **more: Any) -> Job:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **more)
    return Job(ids, sampling, "a", salt)


def news(*tokens: int, index: int = 0, finish: FinishReason | None = None, **more: Any) -> Event:
    return Event("r", index, token_ids=tokens, finish_reason=finish, **more)


def served(engine: LocalEngine, use: Callable[[Service, ServerMetrics], Coroutine[Any, Any, T]]) -> T:
    """Runs `use` with a service over the engine, and what is counted of it."""

    async def bounded() -> T:
        metrics = ServerMetrics(engine)
        async with asyncio.timeout(PATIENCE):
            return await use(Service(engine, ServerSettings(), metrics), metrics)

    return asyncio.run(bounded())


# -- names -----------------------------------------------------------------------------------------

KNOWN_TO_DASHBOARDS = {
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
}


def test_the_names_that_dashboards_look_for_are_there_with_their_types(metrics: ServerMetrics) -> None:
    figures = Figures(metrics)
    borrowed = {name: kind for name, kind in figures.types.items() if name.startswith("vllm:")}
    assert borrowed == KNOWN_TO_DASHBOARDS
    assert figures.content_type.startswith("text/plain; version=0.0.4")


def test_they_carry_the_name_that_clients_see(local_engine: LocalEngine) -> None:
    text = Figures(ServerMetrics(local_engine, 'our "model"')).text
    named = [line for line in text.splitlines() if line.startswith("vllm:")]
    assert named
    assert all('model_name="our \\"model\\""' in line for line in named)


def test_counters_end_in_total_and_nothing_tells_when_it_was_created(metrics: ServerMetrics) -> None:
    figures = Figures(metrics)
    for line in figures.text.splitlines():
        if line.startswith("# TYPE") and line.endswith(" counter"):
            assert line.split()[2].endswith("_total")
    assert "_created" not in figures.text


def test_every_name_says_what_it_means(metrics: ServerMetrics) -> None:
    lines = Figures(metrics).text.splitlines()
    helped = {line.split()[2] for line in lines if line.startswith("# HELP") and len(line.split()) > 4}
    assert helped == {line.split()[2] for line in lines if line.startswith("# TYPE")}


# -- times -----------------------------------------------------------------------------------------


def test_times_of_a_request_are_those_of_its_tokens(metrics: ServerMetrics, clock: Clock) -> None:
    watch = metrics.arrived(job())
    clock.now += 2.0
    watch.event(news(7, waited_s=0.5))
    for gap in (0.25, 0.25, 4.0):
        clock.now += gap
        watch.event(news(7, waited_s=0.5))
    clock.now += 0.5
    watch.event(news(finish="stop", completion_tokens=4))
    watch.over(None)
    figures = Figures(metrics)
    sums = {
        "time_to_first_token_seconds": (1, 2.0),
        "inter_token_latency_seconds": (3, 4.5),
        "request_queue_time_seconds": (1, 0.5),
        "e2e_request_latency_seconds": (1, 7.0),
    }
    for name, (count, total) in sums.items():
        assert (figures(f"vllm:{name}_count"), figures(f"vllm:{name}_sum")) == (count, total), name
    assert figures("vllm:inter_token_latency_seconds_bucket", le="0.2") == 0
    assert figures("vllm:inter_token_latency_seconds_bucket", le="0.3") == 2
    assert figures("vllm:inter_token_latency_seconds_bucket", le="+Inf") == 3


def test_a_value_at_a_bound_is_below_it(metrics: ServerMetrics, clock: Clock) -> None:
    watch = metrics.arrived(job())
    clock.now += 0.5
    watch.event(news(7))
    assert Figures(metrics)("vllm:time_to_first_token_seconds_bucket", le="0.5") == 1


def test_choices_have_gaps_of_their_own_and_one_first_token(metrics: ServerMetrics, clock: Clock) -> None:
    watch = metrics.arrived(job(n=3))
    watch.event(news(7, index=2, finish="length"))
    for index in (0, 1, 0, 1):
        clock.now += 1.0
        watch.event(news(7, index=index))
    figures = Figures(metrics)
    assert figures("vllm:time_to_first_token_seconds_count") == 1
    assert figures("vllm:inter_token_latency_seconds_sum") == 4.0
    assert figures("vllm:inter_token_latency_seconds_count") == 2


def test_tokens_that_come_together_are_one_piece_of_news(metrics: ServerMetrics, clock: Clock) -> None:
    watch = metrics.arrived(job())
    watch.event(news(7))
    clock.now += 1.0
    watch.event(news(7, 8, 9))
    figures = Figures(metrics)
    assert figures("vllm:inter_token_latency_seconds_count") == 1
    assert figures("vllm:generation_tokens_total") == 4


def test_no_token_has_no_time(metrics: ServerMetrics) -> None:
    watch = metrics.arrived(job(max_tokens=0))
    watch.event(news(finish="length"))
    watch.over(None)
    figures = Figures(metrics)
    assert figures("vllm:time_to_first_token_seconds_count") == 0
    assert figures("vllm:request_queue_time_seconds_count") == 0
    assert figures("vllm:e2e_request_latency_seconds_count") == 1


# -- ends ------------------------------------------------------------------------------------------


def finished(metrics: ServerMetrics) -> dict[str, float]:
    """Choices by how they ended, where there are any."""
    figures = Figures(metrics)
    reasons = ("stop", "length", "abort", "error", "refused", "timeout")
    found = {reason: figures("radixlm_finished_total", reason=reason) for reason in reasons}
    return {reason: count for reason, count in found.items() if count}


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "error"])
def test_a_terminal_event_counts_its_choice(metrics: ServerMetrics, reason: FinishReason) -> None:
    watch = metrics.arrived(job(n=2))
    watch.event(news(7, 8, index=1, finish=reason, completion_tokens=2))
    watch.event(news(index=0, finish="stop"))
    watch.over(None)
    assert finished(metrics) == ({reason: 1, "stop": 1} if reason != "stop" else {"stop": 2})
    assert Figures(metrics)("radixlm_request_generation_tokens_sum") == 2


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (InvalidRequest("no such token"), "refused"),
        (TookTooLong("too long"), "timeout"),
        (EngineStopped("gone"), "error"),
        (GeneratorExit(), "abort"),
        (asyncio.CancelledError(), "abort"),
    ],
)
def test_what_has_no_terminal_event_counts_by_its_cause(
    metrics: ServerMetrics, cause: BaseException, reason: str
) -> None:
    watch = metrics.arrived(job(n=3))
    watch.event(news(7, index=1, finish="stop"))
    watch.over(cause)
    assert finished(metrics) == {"stop": 1, reason: 2}
    assert Figures(metrics)("vllm:e2e_request_latency_seconds_count") == 0, "it was not answered whole"


def test_what_is_turned_away_is_no_request(metrics: ServerMetrics) -> None:
    metrics.turned_away(job())
    metrics.arrived(job())
    figures = Figures(metrics)
    assert (figures("radixlm_requests_turned_away_total"), figures("radixlm_requests_total")) == (1, 1)


def test_replies_are_counted_by_status(metrics: ServerMetrics) -> None:
    for status in (200, 400, 200):
        metrics.replied(status)
    figures = Figures(metrics)
    assert figures("radixlm_http_replies_total", status="200") == 2
    assert figures("radixlm_http_replies_total", status="400") == 1


# -- the engine ------------------------------------------------------------------------------------


def test_what_arrived_waits_until_the_engine_runs_it(metrics: ServerMetrics) -> None:
    watches = [metrics.arrived(job(n=2)), metrics.arrived(job())]
    assert Figures(metrics)("vllm:num_requests_waiting") == 3
    watches[0].event(news(finish="stop"))
    assert Figures(metrics)("vllm:num_requests_waiting") == 2
    for watch in watches:
        watch.over(GeneratorExit())
    figures = Figures(metrics)
    assert (figures("vllm:num_requests_waiting"), figures("vllm:num_requests_running")) == (0, 0)


def test_a_whole_run_is_told_and_leaves_nothing_running(open_local: OpenLocal) -> None:
    async def use(service: Service, metrics: ServerMetrics) -> None:
        await service.collect([job((*range(5, 45), i), n=2) for i in range(50, 53)])
        after = Figures(metrics)
        assert after("vllm:num_requests_running") == after("vllm:num_requests_waiting") == 0
        assert after("vllm:kv_cache_usage_perc") == 0
        assert after("vllm:prompt_tokens_total") == after("radixlm_prompt_tokens_total") == 3 * 41
        assert after("vllm:prefix_cache_queries_total") == 6 * 41, "every choice looks for it"
        assert after("vllm:generation_tokens_total") == 6 * 8
        assert after("vllm:request_queue_time_seconds_count") == 3
        assert after("radixlm_attention_segments_total") < after("radixlm_attention_segment_queries_total")
        assert after("radixlm_steps_total") > 1
        assert finished(metrics) == {"length": 6}

    served(open_local(), use)


@contextmanager
def held(local: LocalEngine, request: Request, completion_tokens: int) -> Iterator[None]:
    """The engine stands still behind the step in which a choice got so many tokens."""
    reached, go_on = threading.Event(), threading.Event()

    def deliver(event: Event) -> None:
        if event.completion_tokens == completion_tokens:
            reached.set()
            assert go_on.wait(PATIENCE)

    local.submit(request, deliver).result()
    try:
        assert reached.wait(PATIENCE)
        yield
    finally:
        go_on.set()


def test_while_the_engine_stands_still_its_figures_are_those_of_the_last_step(open_local: OpenLocal) -> None:
    local = open_local()
    metrics = ServerMetrics(local)
    request = Request("r", tuple(range(5, 45)), SamplingParams(max_tokens=9, n=4, ignore_eos=True, seed=1))
    with held(local, request, 5):
        figures = Figures(metrics)
        assert figures("vllm:num_requests_running") == 4
        # 40 tokens of the prompt in 10 pages that all share, and the 4 generated ones that were computed.
        assert figures("radixlm_shared_pages_saved") == 3 * 10
        assert figures("radixlm_pages", state="in_use") == 10 + 4
        assert figures("vllm:kv_cache_usage_perc") == 14 / 256


def test_of_a_dead_engine_nothing_runs(open_local: OpenLocal) -> None:
    local = open_local()
    metrics = ServerMetrics(local)
    assert Figures(metrics)("radixlm_engine_alive") == 1
    local.close()
    figures = Figures(metrics)
    assert (figures("radixlm_engine_alive"), figures("vllm:num_requests_running")) == (0, 0)


def test_masks_and_forced_tokens_of_grammars_are_told(open_local: OpenLocal) -> None:
    async def use(service: Service, metrics: ServerMetrics) -> None:
        await service.collect([job(max_tokens=20, regex="[a-c]{3}-forced-[a-c]")])
        figures = Figures(metrics)
        assert figures("radixlm_grammar_masks_total") == 4
        assert figures("radixlm_grammar_mask_seconds_total") > 0
        assert figures("radixlm_forced_tokens_total") == 8

    served(open_local(), use)


# -- hits against the best there could be -----------------------------------------------------------


class Hits:
    """Tokens of prompts, of those found, and of those that would have been found or were computed again."""

    def __init__(self, metrics: ServerMetrics) -> None:
        figures = Figures(metrics)
        self.prompts = figures("radixlm_prompt_tokens_total")
        self.found = figures("radixlm_hit_tokens_total", tier="device")
        self.best = figures("radixlm_optimal_hit_tokens_total")
        self.again = figures("radixlm_recomputed_tokens_total")


def test_what_is_found_to_the_last_token_is_the_best_there_is(open_local: OpenLocal) -> None:
    async def use(service: Service, metrics: ServerMetrics) -> None:
        prompt = tuple(range(5, 50))
        for _ in range(2):
            await service.collect([job(prompt)])
        hits = Hits(metrics)
        assert (hits.prompts, hits.found, hits.best, hits.again) == (90, 45, 45, 0)

    served(open_local(), use)


def test_what_was_flushed_is_computed_again(open_local: OpenLocal) -> None:
    async def use(service: Service, metrics: ServerMetrics) -> None:
        prompt = tuple(range(5, 50))
        await service.collect([job(prompt)])
        await service.flush()
        await service.collect([job(prompt)])
        hits = Hits(metrics)
        assert (hits.found, hits.best, hits.again) == (0, 32, 32), "45 tokens, in whole runs of 16"

    served(open_local(), use)


def test_namespaces_are_no_loss(open_local: OpenLocal) -> None:
    async def use(service: Service, metrics: ServerMetrics) -> None:
        for salt in ("a", "b"):
            await service.collect([job(tuple(range(5, 50)), salt=salt)])
        hits = Hits(metrics)
        assert (hits.found, hits.best, hits.again) == (0, 0, 0)

    served(open_local(), use)


def test_a_conversation_finds_all_it_could_and_what_it_wrote_too(open_local: OpenLocal) -> None:
    async def use(service: Service, metrics: ServerMetrics) -> None:
        text = tuple(range(5, 30))
        for turn in range(4):
            [events] = await service.collect([job(text, max_tokens=21)])
            text = (*text, *(token for event in events for token in event.token_ids), 60 + turn)
        hits = Hits(metrics)
        assert hits.found == hits.best > 100
        assert hits.again == 0
        await service.flush()
        await service.collect([job(text)])
        assert Hits(metrics).again >= len(text) - 1 - 15 - 1, "outputs are remembered as well"

    served(open_local(), use)


def test_with_room_for_all_random_programs_lose_nothing(open_local: OpenLocal) -> None:
    generator = random.Random(7)

    async def use(service: Service, metrics: ServerMetrics) -> None:
        texts = [tuple(generator.choices((5, 6), k=20)) for _ in range(4)]
        for _ in range(12):
            chosen = [generator.choice(texts) for _ in range(3)]
            jobs = [
                job(text[: generator.randint(1, len(text))], generator.choice((0, 1, 17)), n=n)
                for text, n in zip(chosen, generator.choices((1, 2), k=3), strict=True)
            ]
            for asked, events in zip(jobs, await service.collect(jobs), strict=True):
                wrote = tuple(token for event in events if event.index == 0 for token in event.token_ids)
                texts.append((*asked.prompt_ids, *wrote, 7)[:100])
        hits = Hits(metrics)
        assert hits.again == 0
        assert 0 < hits.found == hits.best <= hits.prompts

    served(open_local(num_pages=4096), use)


def test_a_pool_that_is_too_small_shows_in_what_is_computed_again(open_local: OpenLocal) -> None:
    async def use(service: Service, metrics: ServerMetrics) -> None:
        prompts = [tuple(range(start, start + 64)) for start in (5, 70, 135)]
        for _ in range(3):
            for prompt in prompts:
                await service.collect([job(prompt, max_tokens=1)])
        hits, figures = Hits(metrics), Figures(metrics)
        assert hits.best == 2 * sum(map(len, prompts)), "only the first round was new"
        assert hits.again == hits.best - hits.found > 0
        assert figures("radixlm_evicted_pages_total") > 0

    served(open_local(num_pages=33), use)


def test_what_was_never_computed_is_not_missed(metrics: ServerMetrics) -> None:
    prompt = tuple(range(64))
    for finish in ("abort", "error"):
        watch = metrics.arrived(job(prompt))
        watch.event(news(finish=finish))  # type: ignore[arg-type]
        watch.over(None)
    metrics.arrived(job(prompt)).over(GeneratorExit())
    watch = metrics.arrived(job(prompt))
    watch.event(news(7, cached_tokens=0))
    hits = Hits(metrics)
    assert (hits.prompts, hits.best, hits.again) == (64, 0, 0)


def test_of_what_failed_only_the_prompt_is_remembered(metrics: ServerMetrics) -> None:
    for finish, best in (("error", 16), ("abort", 32)):
        prompt = (*range(16),)
        first = metrics.arrived(job(prompt, salt=finish))
        watches: list[JobWatch] = [first]
        first.event(news(*range(100, 116)))
        first.event(news(7, finish=finish))  # type: ignore[arg-type]
        before = Hits(metrics).best
        watches.append(metrics.arrived(job((*prompt, *range(100, 116)), salt=finish)))
        watches[-1].event(news(7))
        assert Hits(metrics).best - before == best
        for watch in watches:
            watch.over(GeneratorExit())


# -- over HTTP, and what is shown of it -------------------------------------------------------------

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:  # Any: JSON
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "radixlm.json").read_text())
    return found


def test_the_route_answers_in_the_format_of_prometheus_and_counts_other_answers(
    local_engine: LocalEngine,
) -> None:
    with running_server(local_engine, ServerSettings(served_model_name="ours", api_keys=("k",))) as endpoint:
        assert httpx.get(f"{endpoint.url}/v1/models").status_code == 401
        reply = httpx.get(f"{endpoint.url}/metrics")
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'vllm:num_requests_running{model_name="ours"} 0.0' in reply.text
        assert 'radixlm_http_replies_total{status="401"} 1.0' in reply.text
        again = httpx.get(f"{endpoint.url}/metrics")
        assert 'radixlm_http_replies_total{status="200"}' not in again.text, "monitoring does not count"


def test_all_that_the_dashboard_asks_for_is_told(dashboard: dict[str, Any], metrics: ServerMetrics) -> None:
    metrics.replied(500)
    told = {name for name, _ in Figures(metrics).values}
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["definition"] for each in dashboard["templating"]["list"] if "definition" in each]
    names = {name for text in asked for name in re.findall(r"(?:vllm:|radixlm_|process_)[a-z0-9_]+", text)}
    assert len(names) > 30
    assert names <= told
    assert all(text.count("(") == text.count(")") and text.count("{") == text.count("}") for text in asked)


def test_the_dashboard_is_one_that_can_be_imported(dashboard: dict[str, Any]) -> None:
    assert {"title", "uid", "schemaVersion", "templating", "time", "panels"} <= dashboard.keys()
    assert dashboard["id"] is None, "an import gives it one"
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert {"type", "title", "datasource", "fieldConfig", "options", "targets"} <= panel.keys()
        assert panel["datasource"]["uid"] == "${datasource}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, "panels do not overlap"
        taken |= cells


def test_the_example_for_prometheus_reads_the_route() -> None:
    [scrape] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["metrics_path"] == "/metrics"
    assert scrape["static_configs"] == [{"targets": [f"{ServerSettings().host}:{ServerSettings().port}"]}]
