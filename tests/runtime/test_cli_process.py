"""The installed command as a process of its own: what it loads and prints, and a real model end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).with_name("radixlm"))
LINE_FIELDS = {
    "id", "text", "output_ids", "prompt_tokens", "cached_tokens", "completion_tokens", "finish_reason",
}  # fmt: skip
STATS_FIELDS = {
    "prompt_tokens", "cached_tokens", "hit_rate", "optimal_hit_rate", "hit_rate_of_optimal",
    "generated_tokens", "wall_s", "prefill_tok_s", "decode_tok_s", "steps", "preemptions", "evicted_pages",
    "peak_pages", "num_pages", "page_size", "page_fill", "radix_s", "schedule_s", "forward_s",
    "kv_read_bytes", "kv_tile_bytes", "kv_unshared_bytes",
    "computed_tokens", "forced_tokens", "mask_s", "mask_wait_s", "filled_masks",
    "attention_segments", "segment_queries",
    "waiting", "running", "free_pages", "evictable_pages", "held_pages", "saved_pages",
    "holds", "holds_granted", "holds_refused", "holds_broken",
}  # fmt: skip


def radixlm(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [COMMAND, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def in_child(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("module", ["radixlm", "radixlm.runtime.cli"])
def test_the_command_runs_as_a_module_too(module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", module, "--help"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == radixlm("--help", cwd=tmp_path).stdout


def test_a_module_run_gives_the_commands_status(tmp_path: Path) -> None:
    arguments = [sys.executable, "-P", "-m", "radixlm", "generate"]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("radixlm: ")


def test_the_environment_is_prepared_before_torch_is_loaded() -> None:
    code = """
import os, sys
os.environ.pop("OMP_WAIT_POLICY", None)
from radixlm.runtime.cli import main
def open_engine(config):
    print("torch" in sys.modules, os.environ["OMP_WAIT_POLICY"])
    raise SystemExit(0)
main(["info"], open_engine=open_engine)
"""
    assert in_child(code).split() == ["False", "passive"]


def test_what_the_user_set_is_left_alone() -> None:
    code = 'import os; from radixlm.runtime.cli import main; main([]); print(os.environ["OMP_WAIT_POLICY"])'
    assert in_child(code, OMP_WAIT_POLICY="active").strip() == "active"


ECHO = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from radixlm.runtime.cli import main
from test_cli import EchoEngine
sys.exit(main(sys.argv[1:], open_engine=EchoEngine))
"""


def echo(tmp_path: Path, redirection: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """`radixlm generate` of one prompt, by an engine that needs no model, in a shell of its own."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "\u65e5"}', encoding="utf-8")
    command = [sys.executable, "-P", "-c", ECHO, str(Path(__file__).parent), "generate", "--prompts=in.jsonl"]
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *command],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"PYTHONUNBUFFERED": "1"},
    ],
)
def test_output_is_utf_8_whatever_the_locale(tmp_path: Path, environment: dict[str, str]) -> None:
    done = echo(tmp_path, **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.decode("utf-8"))["text"] == "\u65e5"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_line_and_status_1(tmp_path: Path) -> None:
    done = echo(tmp_path, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr == b"radixlm: cannot write to standard output: No space left on device\n"


def test_a_closed_standard_output_is_one_line_and_status_2(tmp_path: Path) -> None:
    done = echo(tmp_path, ">&-")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"standard output is closed" in done.stderr


def test_without_a_standard_error_the_output_stays_clean(tmp_path: Path) -> None:
    done = echo(tmp_path, "2>&-")
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: command"),
        (("generate",), "the following arguments are required: --prompts"),
        (("generate", "--prompts", "absent.jsonl"), "cannot read absent.jsonl: No such file or directory"),
        (("info", "--frobnicate"), "unrecognized arguments: --frobnicate"),
        (("info", "--page-size", "0"), "--page-size must be one of"),
        (
            ("info", "--max-context", "100000"),
            "--max-context must be at most 8192, got 100000: the model was trained for no more",
        ),
    ],
)
def test_a_mistake_is_one_line_and_status_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = radixlm(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"radixlm: {message}")
    assert done.stderr.count("\n") == 1


def test_a_model_that_does_not_exist_is_one_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}')
    done = radixlm(
        "generate", "--prompts", "in.jsonl", "--output", "out.jsonl", "--model", "./absent", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "absent" in done.stderr
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_generate_answers_every_form_of_prompt_with_the_default_model(tmp_path: Path) -> None:
    lines = [
        {"prompt": "The capital of France is", "id": "text", "sampling": {"n": 2}},
        {"prompt_ids": [504, 3575, 282], "id": "ids", "namespace": "other"},
        {"messages": [{"role": "user", "content": "What is the capital of France?"}], "id": 3},
        {"prompt_ids": [1] * 5000, "id": "large"},
        {"prompt": "The capital of France is", "sampling": {"max_tokens": 2}},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ("--prompts=in.jsonl", "--output=out.jsonl", "--stats=stats.json")
    done = radixlm("generate", *files, "--max-tokens=8", "--temperature=0", "--num-pages=64", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "1 of 6 completions have an error; the first, large: " in done.stderr
    assert set(os.listdir(tmp_path)) == {"in.jsonl", "out.jsonl", "stats.json"}

    output = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["id"], line["index"]) for line in output] == [
        ("text", 0), ("text", 1), ("ids", 0), (3, 0), ("large", 0), ("4", 0),
    ]  # fmt: skip
    assert all(line.keys() >= LINE_FIELDS for line in output)
    assert [line["finish_reason"] == "error" for line in output] == [False, False, False, False, True, False]
    assert "Paris" in output[0]["text"]
    assert output[0]["text"] == output[1]["text"]
    assert "The capital of France is Paris." in output[3]["text"]
    assert len(output[5]["output_ids"]) == output[5]["completion_tokens"] == 2
    assert output[5]["output_ids"] == output[0]["output_ids"][:2]

    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats.keys() == STATS_FIELDS
    assert (stats["num_pages"], stats["page_size"]) == (64, 16)


def test_a_truncated_model_file_is_one_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    done = radixlm("info", "--model", "broken.gguf", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "broken.gguf" in done.stderr
    assert done.stderr.count("\n") == 1


def test_info_and_demo_run_with_the_default_model(tmp_path: Path) -> None:
    info = radixlm("info", "--kv-memory", "64MiB", cwd=tmp_path)
    assert info.returncode == 0, info.stderr
    assert "smollm2-135m" in info.stdout
    demo = radixlm("demo", cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr
    assert "What is the capital of France?\n    Paris" in demo.stdout
    assert "came from the cache" in demo.stdout
