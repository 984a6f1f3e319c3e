"""Machine code for GPUs that are not here: it exists, fits, keeps everything in registers, and moves 16 bytes
at a time. A few cases in every run, all of them in the nightly one."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from testkit.compile_cases import CASES, FEW, STREAMING
from testkit.compile_only import MATRIX, SHARED_LIMIT, Compiled, compiled

CHOSEN = tuple(CASES) if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else FEW
ATTENTION = [case for case in CHOSEN if case.startswith("attention")]
WIDE, NARROW = 0, 1

every_case = pytest.mark.parametrize("case", CHOSEN)
every_target = pytest.mark.parametrize("arch", SHARED_LIMIT)

pytestmark = [pytest.mark.timeout(1800), pytest.mark.thorough]


@pytest.fixture(scope="module")
def built() -> Mapping[tuple[str, int], list[Compiled]]:
    found: dict[tuple[str, int], list[Compiled]] = {}
    for one in compiled(CHOSEN, list(SHARED_LIMIT)):
        found.setdefault((one.case, one.arch), []).append(one)
    return found


Built = Mapping[tuple[str, int], list[Compiled]]


@every_target
@every_case
def test_it_compiles_within_the_memory_of_the_target(built: Built, case: str, arch: int) -> None:
    for one in built[case, arch]:
        assert not one.error
        assert 0 < one.registers <= 255
        assert one.shared <= SHARED_LIMIT[arch]


@every_target
@every_case
def test_nothing_is_spilled_to_memory(built: Built, case: str, arch: int) -> None:
    spilled = {one.kernel: (one.local, one.counts) for one in built[case, arch] if one.spills}
    assert not spilled


@every_target
@pytest.mark.parametrize("case", [case for case in CHOSEN if case.startswith(STREAMING)])
def test_numbers_are_read_and_written_16_bytes_at_a_time(built: Built, case: str, arch: int) -> None:
    for one in built[case, arch]:
        assert one.counts.get("16-byte loads", 0) >= 2
        assert one.counts.get("16-byte stores", 0) >= 1
        assert "2-byte loads" not in one.counts
        assert "2-byte stores" not in one.counts


@every_target
@pytest.mark.parametrize("case", ATTENTION)
def test_keys_and_values_are_read_16_bytes_at_a_time(built: Built, case: str, arch: int) -> None:
    for kind in (WIDE, NARROW):
        counts = of_kind(built[case, arch], kind).counts
        assert counts["16-byte copies to shared memory"] >= 4
        assert "2-byte loads" not in counts


@every_target
@pytest.mark.parametrize("case", [case for case in ATTENTION if "fp32" not in case])
def test_scores_and_sums_are_made_by_matrix_units(built: Built, case: str, arch: int) -> None:
    large, *_ = MATRIX[arch]
    assert of_kind(built[case, arch], WIDE).counts[large] >= 8
    assert of_kind(built[case, arch], NARROW).counts["HMMA"] >= 8


def test_a_launch_that_cannot_be_compiled_is_told() -> None:
    found = compiled(["a launcher that refuses"], [90])
    assert [one.error for one in found] == ["KeyError: 'a launcher that refuses'"]


def of_kind(kernels: list[Compiled], kind: int) -> Compiled:
    found = [one for one in kernels if one.options.get("KIND") == kind]
    assert len(found) == 1
    return found[0]
