"""The package as a whole: what importing it brings along, and what it must not bring along."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import radixlm

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("radix", "kernels", "runtime", "frontend", "programs", "tests", "testkit")
HEAVY = ("torch", "triton", "transformers", "numpy")
TORCH_FREE = (
    "radixlm",
    "radixlm.radix.cache",
    "radixlm.runtime.cli",
    "radixlm.runtime.commands.demo",
    "radixlm.runtime.commands.generate",
    "radixlm.runtime.commands.info",
    "radixlm.runtime.config",
    "radixlm.runtime.environment",
    "radixlm.runtime.errors",
    "radixlm.runtime.metrics",
    "radixlm.runtime.policy",
    "radixlm.runtime.prompts",
    "radixlm.runtime.prompts_file",
    "radixlm.runtime.results_file",
    "radixlm.runtime.sampling_params",
    "radixlm.runtime.scheduler",
    "radixlm.runtime.sequence",
    "radixlm.runtime.text",
    "radixlm.runtime.types",
)


def in_child(code: str, *arguments: str) -> str:
    """What `code` prints in a fresh interpreter whose path holds no folder of this checkout."""
    command = [sys.executable, "-P", "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_part_of_the_package_can_be_imported_by_its_bare_name() -> None:
    code = (
        "import sys, importlib.util, radixlm\n"
        "for name in sys.argv[1:]:\n"
        "    spec = importlib.util.find_spec(name)\n"
        "    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []\n"
        "    print(*(place for place in places if place and not place.startswith(sys.prefix)), end='')\n"
    )
    assert in_child(code, *PARTS) == ""


def test_all_is_sorted_and_every_name_in_it_can_be_had() -> None:
    assert radixlm.__all__ == sorted(radixlm.__all__)
    for name in radixlm.__all__:
        own = getattr(getattr(radixlm, name), "__name__", name)
        assert own == name or (name, own) == ("program", "function")  # two names of one decorator


def test_all_is_what_the_package_shows() -> None:
    public = {name for name in dir(radixlm) if not name.startswith("_")}
    folders = {part for part in PARTS if (ROOT / part / "__init__.py").exists()}
    modules = {"annotations", "import_module", "TYPE_CHECKING"}
    assert public - folders - modules == set(radixlm.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'engine_of_doubt'"):
        _ = radixlm.engine_of_doubt


@pytest.mark.parametrize("module", TORCH_FREE)
def test_a_module_that_only_plans_or_describes_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([name for name in sys.argv[1:] if name in sys.modules])"
    assert in_child(code, *HEAVY).strip() == "[]"


def test_importing_a_folder_of_the_package_brings_nothing_along() -> None:
    for part in ("radix", "kernels", "runtime"):
        for path in (ROOT / part).rglob("__init__.py"):
            statements = ast.parse(path.read_text()).body
            assert not [one for one in statements if not isinstance(one, ast.Expr)], path


def test_the_package_list_names_every_folder_of_the_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        path.parent.relative_to(ROOT)
        for part in ("radix", "kernels", "runtime", "frontend", "programs")
        for path in (ROOT / part).rglob("__init__.py")
    }
    assert set(listed) == {"radixlm", *(".".join(("radixlm", *folder.parts)) for folder in folders)}


def test_the_version_is_the_one_of_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert radixlm.__version__ == project["version"]


def test_the_engine_of_the_package_is_loaded_with_threads_that_wait_quietly() -> None:
    code = (
        "import os; os.environ.pop('OMP_WAIT_POLICY', None)\n"
        "import radixlm; radixlm.Engine; print(os.environ['OMP_WAIT_POLICY'])"
    )
    assert in_child(code).strip() == "passive"
