"""Commands, with an engine that needs no model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

import pytest

from radixlm.runtime.byte_size import parse_bytes
from radixlm.runtime.cli import build_parser, main
from radixlm.runtime.commands.engine_view import OpenEngine
from radixlm.runtime.commands.options import ENGINE_FLAGS, SAMPLING_FLAGS
from radixlm.runtime.config import EngineConfig
from radixlm.runtime.demo_questions import EXAMPLES, QUESTIONS, few_shot_prompt
from radixlm.runtime.environment import prepare_environment
from radixlm.runtime.errors import EngineStopped, InvalidModel
from radixlm.runtime.metrics import EngineInfo, EngineStats
from radixlm.runtime.progress import EngineProgress
from radixlm.runtime.prompts import Prompt
from radixlm.runtime.sampling_params import SamplingParams
from radixlm.runtime.score_items import ScoreItem
from radixlm.runtime.types import Completion, ItemScore, ScoredContinuation

STATS = EngineStats(
    prompt_tokens=1200, cached_tokens=1000, hit_rate=0.8333, optimal_hit_rate=0.85, hit_rate_of_optimal=0.98,
    generated_tokens=40, computed_tokens=200,
    wall_s=2.5, prefill_tok_s=400.0, decode_tok_s=120.0, steps=9, preemptions=0, evicted_pages=0,
    peak_pages=80, num_pages=100, page_size=16, page_fill=0.97, radix_s=0.01, schedule_s=0.02, forward_s=2.0,
    kv_read_bytes=1000, kv_tile_bytes=2000, kv_unshared_bytes=9000,
    forced_tokens=0, mask_s=0.0, mask_wait_s=0.0, filled_masks=0, attention_segments=9, segment_queries=40,
    waiting=0, running=0, free_pages=20, evictable_pages=80, held_pages=0, saved_pages=0,
    holds=0, holds_granted=0, holds_refused=0, holds_broken=0,
)  # fmt: skip
INFO = EngineInfo(
    model="smollm2-135m", family="llama", parameters=134_515_008, weight_bytes=538_000_000, dtype="float32",
    num_pages=100, page_size=16, kv_bytes=2 << 30, max_context=2048, threads=2, quantization="none",
    attention="cpu",
)  # fmt: skip


@dataclass
class EchoEngine:
    """Answers each prompt with its own text, and one that says "too long" with an error."""

    config: EngineConfig
    asked: list[tuple[Prompt, SamplingParams]] = field(default_factory=list)
    scored: list[ScoreItem] = field(default_factory=list)
    closed: bool = False

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        on_progress: Callable[[EngineProgress], None] | None = None,
    ) -> list[Completion]:
        completions = []
        for done, prompt in enumerate(prompts, start=1):
            params = prompt.sampling or sampling or SamplingParams()
            self.asked.append((prompt, params))
            completions += [self._answer(prompt, index) for index in range(params.n)]
            if on_progress is not None:
                on_progress(EngineProgress(done, len(prompts), 2 * done))
        return completions

    @staticmethod
    def _answer(prompt: Prompt, index: int) -> Completion:
        plain = Completion(prompt.id or "", index, f"{prompt.content}", (1, 2), 4, 0, 2, "length")
        if prompt.text == "too long":
            return replace(
                plain, text="", output_ids=(), finish_reason="error", error="9 tokens of at most 4"
            )
        return plain

    def score(
        self, context: Sequence[ScoreItem], *, on_progress: Callable[[EngineProgress], None] | None = None
    ) -> list[ItemScore]:
        """Each continuation is as likely as it is long; a context that says "too long" is refused."""
        self.scored += context
        return [self._scores(item) for item in context]

    @staticmethod
    def _scores(item: ScoreItem) -> ItemScore:
        if item.context == "too long":
            return ItemScore(item.id or "", (), 0, 0, "9 tokens of at most 4")
        found = [
            ScoredContinuation(f"{each}", (1, 2), (-0.5, -len(each)), -0.5 - len(each), -1.0, False)
            for each in item.continuations
        ]
        return ItemScore(item.id or "", tuple(found), 3, 4)

    def stats(self) -> EngineStats:
        return STATS

    def info(self) -> EngineInfo:
        return INFO

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


@dataclass
class Desk:
    """A folder with a prompts file, and the engine that the last command opened."""

    folder: Path
    engines: list[EchoEngine] = field(default_factory=list)

    def open_engine(self, config: EngineConfig) -> EchoEngine:
        self.engines.append(EchoEngine(config))
        return self.engines[-1]

    def generate(self, prompts: str, *flags: str, open_engine: OpenEngine | None = None) -> int:
        (self.folder / "in.jsonl").write_text(prompts)
        files = ["--prompts", f"{self.folder}/in.jsonl", "--output", f"{self.folder}/out.jsonl"]
        return main(["generate", *files, *flags], open_engine=open_engine or self.open_engine)

    def score(self, items: str, *flags: str) -> int:
        (self.folder / "in.jsonl").write_text(items)
        files = ["--prompts", f"{self.folder}/in.jsonl", "--output", f"{self.folder}/out.jsonl"]
        return main(["score", *files, *flags], open_engine=self.open_engine)

    @property
    def output(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]

    @property
    def files(self) -> set[str]:
        return set(os.listdir(self.folder)) - {"in.jsonl"}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err.strip()


# ---- flags


def test_every_field_of_the_config_has_a_flag() -> None:
    assert list(ENGINE_FLAGS) == [item.name for item in fields(EngineConfig)]


def test_every_flag_of_sampling_is_a_field() -> None:
    assert set(SAMPLING_FLAGS) <= {item.name for item in fields(SamplingParams)}


@pytest.mark.parametrize(
    ("flag", "name", "value"),
    [
        ("--model=some/model", "model", "some/model"),
        ("--load-format=dummy", "load_format", "dummy"),
        ("--device=cpu", "device", "cpu"),
        ("--dtype=bfloat16", "dtype", "bfloat16"),
        ("--quantization=int8", "quantization", "int8"),
        ("--attention=cpu", "attention", "cpu"),
        ("--attention=triton", "attention", "triton"),
        ("--page-size=4", "page_size", 4),
        ("--kv-memory=1.5GiB", "kv_memory", parse_bytes("1536MiB")),
        ("--num-pages=77", "num_pages", 77),
        ("--no-prefix-cache", "prefix_cache", False),
        ("--eviction=priority", "eviction", "priority"),
        ("--policy=fcfs", "policy", "fcfs"),
        ("--chunk-size=16", "chunk_size", 16),
        ("--max-running=3", "max_running", 3),
        ("--max-context=99", "max_context", 99),
        ("--seed=5", "seed", 5),
        ("--threads=1", "threads", 1),
    ],
)
def test_a_flag_sets_its_field_and_no_other(desk: Desk, flag: str, name: str, value: object) -> None:
    assert main(["info", flag], open_engine=desk.open_engine) == 0
    assert desk.engines[-1].config == replace(EngineConfig(), **{name: value})


def test_sampling_flags_are_the_defaults_of_lines(desk: Desk) -> None:
    prompts = '{"prompt": "a"}\n{"prompt": "b", "sampling": {"temperature": 1, "max_new_tokens": 2}}'
    flags = (
        "--max-tokens=9",
        "--temperature=0",
        "--top-p=0.5",
        "--seed=4",
        "--ignore-eos",
        "--stop=X",
        "--stop=Y",
    )
    assert desk.generate(prompts, *flags) == 0
    defaults = SamplingParams(
        max_tokens=9, temperature=0.0, top_p=0.5, seed=4, ignore_eos=True, stop=("X", "Y")
    )
    asked = [params for _, params in desk.engines[-1].asked]
    assert asked == [defaults, replace(defaults, temperature=1.0, max_tokens=2)]


def test_a_seed_is_the_engines_too(desk: Desk) -> None:
    assert desk.generate('{"prompt": "a"}', "--seed", "4") == 0
    assert desk.engines[-1].config.seed == 4


# ---- generate


def test_completions_are_written_in_order_with_the_ids_of_the_file(desk: Desk) -> None:
    assert desk.generate('{"prompt": "a", "id": 7}\n{"prompt_ids": [5, 6]}\n{"prompt": "c", "id": "x"}') == 0
    assert [(line["id"], line["text"]) for line in desk.output] == [(7, "a"), ("1", "(5, 6)"), ("x", "c")]
    assert desk.engines[-1].closed


def test_every_choice_has_a_line_of_its_own(desk: Desk) -> None:
    assert desk.generate('{"prompt": "a"}\n{"prompt": "b"}', "--n", "2") == 0
    assert [(line["id"], line["index"]) for line in desk.output] == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]


def test_stats_have_exactly_the_fields_of_the_engine(desk: Desk) -> None:
    assert desk.generate('{"prompt": "a"}', "--stats", f"{desk.folder}/stats.json") == 0
    figures = json.loads((desk.folder / "stats.json").read_text())
    assert list(figures) == [item.name for item in fields(EngineStats)]
    assert figures["hit_rate"] == STATS.hit_rate


def test_without_output_the_lines_go_to_standard_output(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk.folder / "in.jsonl").write_text('{"prompt": "a"}')
    assert main(["generate", "--prompts", f"{desk.folder}/in.jsonl"], open_engine=desk.open_engine) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["text"] == "a"
    assert shown.err == ""


def test_without_a_standard_output_a_file_is_needed(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert desk.generate('{"prompt": "a"}') == 0
    assert desk.output[0]["text"] == "a"
    desk.engines.clear()
    for arguments in (["generate", "--prompts", f"{desk.folder}/in.jsonl"], ["info"], ["demo"]):
        assert main(arguments, open_engine=desk.open_engine) == 2
        assert error_line(capsys) == "radixlm: standard output is closed: there is nowhere to write to"
    assert desk.engines == []


def test_a_refused_prompt_has_its_line_and_the_run_goes_on(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.generate('{"prompt": "a"}\n{"prompt": "too long"}\n{"prompt": "b"}') == 1
    assert [line["finish_reason"] for line in desk.output] == ["length", "error", "length"]
    assert desk.output[1]["error"] == "9 tokens of at most 4"
    assert "1 of 3 completions have an error; the first, 1: 9 tokens" in error_line(capsys)


# ---- what can be wrong: one line, a status, and no file


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bogus"], "unrecognized arguments: --bogus (see `radixlm generate --help`)"),
        (["--max-tok", "3"], "unrecognized arguments: --max-tok 3; did you mean --max-tokens? (see"),
        (["--temp=0"], "unrecognized arguments: --temp=0; did you mean --temperature? (see"),
        (
            ["--max", "3"],
            "unrecognized arguments: --max 3; did you mean --max-tokens or --max-running or "
            "--max-running-per-tenant? (see",
        ),
        (["--max_tokens", "3"], "unrecognized arguments: --max_tokens 3; did you mean --max-tokens? (see"),
        (["-n", "2"], "unrecognized arguments: -n 2; did you mean --n? (see"),
        (["more.jsonl"], "unrecognized arguments: more.jsonl (see `radixlm generate --help`)"),
        (["--temperature", "-1"], "--temperature must be"),
        (["--temperature", "nan"], "--temperature must be"),
        (["--temperature", "hot"], "argument --temperature: invalid float value: 'hot'"),
        (["--top-p", "0"], "--top-p must be"),
        (["--n", "0"], "--n must be"),
        (["--max-tokens", "-1"], "--max-tokens must be"),
        (
            ["--min-tokens", "9", "--max-tokens", "3"],
            "--min-tokens must be at most --max-tokens (3), got 9",
        ),
        (["--kv-memory", "0"], "--kv-memory must be a number of bytes from 1 to"),
        (["--page-size", "3"], "--page-size must be one of 1, 4, 8, 16, 32, 64, got 3"),
        (["--kv-memory", "2 giraffes"], "argument --kv-memory: must be a number of bytes"),
        (["--kv-memory", "9" * 400], "argument --kv-memory: may have at most 40 digits"),
        (
            ["--num-pages", "1" + "0" * 30],
            "--num-pages must be an integer from 1 to 281474976710656, got 1",
        ),
        (["--threads", "1000000000000"], "--threads must be an integer from 1 to 1024"),
        (["--stop", "\udcff"], "--stop is not valid Unicode"),
        (["--stats", "/tmp/" + "x" * 300], "--stats: cannot write '/tmp/xxx"),
        (["--eviction", "fifo"], "argument --eviction: invalid choice: 'fifo'"),
        (["--device", "abacus"], "argument --device: invalid choice: 'abacus'"),
        (["--stats", "/nowhere/stats.json"], "--stats: there is no folder '/nowhere'"),
        (["--prompts", "/nowhere/in.jsonl"], "cannot read /nowhere/in.jsonl: No such file or directory"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(
    desk: Desk, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert desk.generate('{"prompt": "a"}', *flags) == 2
    assert error_line(capsys).startswith(f"radixlm: {message}")
    assert desk.files == set()
    assert desk.engines == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["generate", "--promts", "x"],
            "unrecognized arguments: --promts x; did you mean --prompts? (see `radixlm generate --help`)",
        ),
        (
            ["generate", "x"],
            "unrecognized arguments: x; required: --prompts (see `radixlm generate --help`)",
        ),
        (["score"], "the following arguments are required: --prompts (see `radixlm score --help`)"),
        (["grammar", "check", "--relax"], "unrecognized arguments: --relax; did you mean --relaxed?"),
        (["grammar", "check", "--frob"], "unrecognized arguments: --frob; required: FILE"),
        (["--bogus"], "unrecognized arguments: --bogus; required: command (see `radixlm --help`)"),
    ],
)
def test_what_is_unknown_is_told_before_what_is_missing(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    assert error_line(capsys).startswith(f"radixlm: {message}")


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ('{"prompt": "a"}\n{"prompt"', "line 2: not valid JSON"),
        ('{"prompt": "a"}\n{"prompt": ""}', "line 2: the prompt is empty"),
        ('{"prompt": "a", "sampling": {"top_k": -9}}', "line 1: top_k must be"),
        ("", "holds no prompts"),
    ],
)
def test_a_wrong_prompts_file_is_one_line_and_status_2(
    desk: Desk, capsys: pytest.CaptureFixture[str], prompts: str, message: str
) -> None:
    assert desk.generate(prompts) == 2
    assert message in error_line(capsys)
    assert desk.files == set()
    assert desk.engines == []


def test_two_roles_for_one_file_are_refused(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.generate('{"prompt": "a"}', "--stats", f"{desk.folder}/./out.jsonl") == 2
    assert "--stats and --output are the same file" in error_line(capsys)
    assert desk.generate('{"prompt": "a"}', "--output", f"{desk.folder}/in.jsonl") == 2
    assert "--output and --prompts are the same file" in error_line(capsys)
    assert (desk.folder / "in.jsonl").read_text() == '{"prompt": "a"}'


def test_dev_null_may_take_both_files_and_stays_what_it_is(desk: Desk) -> None:
    assert desk.generate('{"prompt": "a"}', "--output", os.devnull, "--stats", os.devnull) == 0
    assert not Path(os.devnull).is_file()


def test_a_model_that_cannot_be_loaded_is_status_2(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(config: EngineConfig) -> EchoEngine:
        raise InvalidModel(f"no model {config.model!r}:\n  neither a file nor a folder")

    assert desk.generate('{"prompt": "a"}', "--model", "nope", open_engine=refuse) == 2
    assert error_line(capsys) == "radixlm: no model 'nope': neither a file nor a folder"
    assert desk.files == set()


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (EngineStopped("the engine is closed"), 1, "radixlm: the engine is closed"),
        (KeyboardInterrupt(), 130, "radixlm: interrupted"),
    ],
)
def test_a_run_that_breaks_off_writes_nothing(
    desk: Desk, capsys: pytest.CaptureFixture[str], failure: BaseException, status: int, message: str
) -> None:
    class Breaking(EchoEngine):
        def generate(self, *_: object, **__: object) -> list[Completion]:
            raise failure

    (desk.folder / "out.jsonl").write_text("old")
    assert desk.generate('{"prompt": "a"}', open_engine=Breaking) == status
    assert error_line(capsys) == message
    assert desk.files == {"out.jsonl"}
    assert (desk.folder / "out.jsonl").read_text() == "old"


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "command" in error_line(capsys)


# ---- info, demo, environment


def test_info_shows_model_memory_pool_and_threads(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"], open_engine=desk.open_engine) == 0
    shown = capsys.readouterr().out
    for fact in (
        "smollm2-135m (llama, 134.5 M parameters)",
        "513.1 MiB",
        "100 pages of 16 tokens",
        "2 GiB",
        "2,048",
    ):
        assert fact in shown
    assert "threads    2\n" in shown


def test_the_demo_prints_every_answer_then_reuse_and_speed(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--page-size", "4"], open_engine=desk.open_engine) == 0
    shown = capsys.readouterr().out
    positions = [shown.index(question) for question in QUESTIONS]
    assert positions == sorted(positions)
    assert "1,000 of 1,200 prompt tokens came from the cache: 83.3%, where 85.0% is the most" in shown
    assert "200 prompt tokens computed at 400 a second, 40 generated at 120 a second" in shown
    assert "a first run compiles its kernels, and these figures count that" in shown
    assert all(params.greedy for _, params in desk.engines[-1].asked)


def test_demo_questions_are_new_to_their_examples_and_share_all_of_them() -> None:
    assert not {asked for asked, _ in EXAMPLES} & set(QUESTIONS)
    beginnings = {few_shot_prompt(question).removesuffix(f"{question}\nAnswer:") for question in QUESTIONS}
    (shared,) = beginnings
    assert all(answer in shared for _, answer in EXAMPLES)


def test_the_environment_is_set_where_the_user_has_not() -> None:
    environment = {"OMP_WAIT_POLICY": "active"}
    prepare_environment(environment)
    assert environment["OMP_WAIT_POLICY"] == "active"
    assert environment["KMP_BLOCKTIME"] == "0"


def test_help_of_every_command_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["generate", "--help"], ["info", "--help"], ["demo", "--help"]):
        with pytest.raises(SystemExit) as caught:
            build_parser().parse_args(arguments)
        assert caught.value.code == 0
        assert capsys.readouterr().out.startswith("usage: radixlm")


def test_score_writes_a_line_for_each_item_in_order(desk: Desk) -> None:
    lines = [
        {"context": "Is it?", "continuations": [" yes", " no"], "id": 7, "namespace": "a", "priority": 2},
        {"context_ids": [1, 2], "continuations": [[3], [4, 5]]},
    ]
    assert desk.score("\n".join(map(json.dumps, lines))) == 0
    first, second = desk.output
    assert list(first) == ["id", "continuations", "best", "cached_tokens", "computed_tokens"]
    assert (first["id"], first["best"], first["cached_tokens"], first["computed_tokens"]) == (7, 1, 3, 4)
    assert first["continuations"] == [
        {
            "text": " yes",
            "logprob": -4.5,
            "mean_logprob": -1.0,
            "is_greedy": False,
            "token_logprobs": [-0.5, -4],
        },
        {
            "text": " no",
            "logprob": -3.5,
            "mean_logprob": -1.0,
            "is_greedy": False,
            "token_logprobs": [-0.5, -3],
        },
    ]
    assert (second["id"], second["best"]) == ("1", 0)
    [engine] = desk.engines
    assert engine.scored == [
        ScoreItem("Is it?", (" yes", " no"), salt="a", id="7", priority=2),
        ScoreItem((1, 2), ((3,), (4, 5)), id="1"),
    ]
    assert engine.closed


def test_score_writes_the_figures_of_the_run(desk: Desk) -> None:
    stats = desk.folder / "stats.json"
    assert desk.score('{"context": "a", "continuations": ["b"]}', "--stats", str(stats)) == 0
    figures = json.loads(stats.read_text())
    assert figures.keys() == {*(item.name for item in fields(EngineStats)), "items_per_s"}
    assert figures["computed_tokens"] == 200
    assert figures["items_per_s"] > 0


def test_a_refused_item_has_an_error_and_makes_the_status_1(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    items = '{"context": "a", "continuations": ["b"]}\n{"context": "too long", "continuations": ["b"]}'
    assert desk.score(items) == 1
    assert desk.output[1] == {
        "id": "1",
        "continuations": [],
        "best": None,
        "cached_tokens": 0,
        "computed_tokens": 0,
        "error": "9 tokens of at most 4",
    }
    assert error_line(capsys) == (
        "radixlm score: 1 of 2 items have an error; the first, 1: 9 tokens of at most 4"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{}", "line 1: needs exactly one of context, context_ids, got none of them"),
        (
            '{"context": "a", "context_ids": [1], "continuations": ["b"]}',
            "line 1: needs exactly one of context, context_ids, got context and context_ids",
        ),
        ('{"context": "a"}', "line 1: needs continuations, got none"),
        ('{"context": "a", "continuations": []}', "line 1: continuations must hold at least one, got none"),
        ('{"context": "a", "continuations": ["b", ""]}', "line 1: continuation 1 is empty"),
        ('{"context": 5, "continuations": ["b"]}', "line 1: context must be text, got 5"),
        (
            '{"context_ids": "a", "continuations": ["b"]}',
            "line 1: token ids must be a list of integers, got 'a'",
        ),
        ('{"context": "a", "continuations": ["b"], "choices": 1}', "line 1: unknown key 'choices'"),
        (
            '{"context": "a", "continuations": ["b"], "id": 1}\n' * 2,
            "line 2: id 1 is already the id of line 1",
        ),
        ("\n", "holds no items"),
    ],
)
def test_a_faulty_item_is_found_before_the_model_is_loaded(
    desk: Desk, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert desk.score(line) == 2
    assert message in error_line(capsys)
    assert desk.engines == []
    assert desk.files == set()
