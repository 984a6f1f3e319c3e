"""What the documents show is what happens: Python runs, help is the command's own, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMAND = str(Path(sys.executable).with_name("radixlm"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIALS = ("dsl.md",)
"""Pages whose Python goes on from block to block."""
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def blocks(language: str) -> list[object]:
    """Every block of the language, named by its page and its place among them; those of a tutorial as one."""
    found: list[object] = []
    for page in PAGES:
        texts = [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]
        if language == "python" and page.name in TUTORIALS:
            texts = ["\n".join(texts)]
        marks = [pytest.mark.thorough] if language == "python" and page.name != "README.md" else []
        found += [
            pytest.param(text, id=f"{page.name}-{place}", marks=marks) for place, text in enumerate(texts)
        ]
    return found


def run(*command: str, cwd: Path) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", blocks("python"))
def test_python_in_the_documents_runs(code: str, tmp_path: Path) -> None:
    assert run(sys.executable, "-P", "-c", code, cwd=tmp_path) != ""


@pytest.mark.parametrize(
    "text", [block for block in blocks("text") if block.values[0].startswith("$ radixlm")]
)
def test_a_help_text_in_the_documents_is_the_commands_own(text: str, tmp_path: Path) -> None:
    first, shown = text.split("\n", 1)
    assert run(COMMAND, *first.split()[2:], cwd=tmp_path) == shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_of_the_project(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("code", blocks("sh"))
def test_commands_in_the_documents_exist(code: str, tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in code.splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["make"]:
            assert re.search(rf"^{words[1]}: ", makefile, re.MULTILINE), line
        elif words[:1] == ["radixlm"]:
            known = run(COMMAND, words[1], "--help", cwd=tmp_path)
            assert all(f"  {word} " in known for word in words[2:] if word.startswith("--")), line


def test_the_design_has_a_line_for_each_module() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    modules = [
        path.relative_to(ROOT).as_posix()
        for part in ("radix", "kernels", "runtime", "frontend", "programs")
        for path in (ROOT / part).rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert [module for module in modules if f"`{module}`" not in design] == []
