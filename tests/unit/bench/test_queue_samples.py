"""The planner's targets on the four samples of Philly's trace, which is beside the simulator."""

import pytest
from report import targets
from simulate import POLICIES, compare
from workload import SAMPLES, philly

from mlplatform_gateway.queue.planner.queue import Rules


@pytest.mark.timeout(1800)
@pytest.mark.nightly
@pytest.mark.parametrize("sample", SAMPLES)
def test_planner_reaches_its_targets_on_sample(sample: int) -> None:
    rules = Rules()
    rows = compare(philly(sample), [policy() for policy in POLICIES.values()], rules)
    (judged,) = targets(rows, {}, rules.grace_s).values()
    print(f"\nsample {sample}", *map(str, judged), sep="\n  ")
    assert len(judged) == 3
    assert [str(target) for target in judged if not target.holds] == []
