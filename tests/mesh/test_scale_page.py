"""docs/scale.md is what its files say, and names what they lack; whoever chooses trees or schedules can read the curves."""

import json

import pytest

from experiments.aot_config import Given, configs, curve_name
from experiments.aot_page import not_compiled, page
from sdjax.decode.schedule import Throughput
from sdjax.mesh.chips import chip_of
from sdjax.trees.hardware import CostCurve, choices

GIVEN = Given()


def test_the_page_is_written_from_its_files():
    assert GIVEN.reports.with_suffix(".md").read_text(encoding="utf-8") == page(GIVEN)


def test_every_case_and_curve_has_its_file_and_no_other_is_there():
    assert not_compiled(GIVEN) == []
    cases = {f"{config.name}-{case}" for config in configs(GIVEN) for case in (*config.cases, *config.steps)}
    curves = {curve_name(config, topology) for config in configs(GIVEN) for topology in config.curves}
    assert {path.stem for path in GIVEN.reports.glob("*.json")} == cases
    assert {path.stem for path in GIVEN.curves.glob("*.json")} == curves


def test_files_are_of_the_chips_that_are_known_today():
    """A case is compiled anew where what its chip holds has changed; none breaks a promise."""
    for path in GIVEN.reports.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["hbm"] == chip_of(found["topology"]).hbm, path
        assert found["faults"] == [], path


@pytest.mark.parametrize("path", sorted(GIVEN.curves.glob("*.json")), ids=lambda path: path.stem)
def test_a_curve_chooses_trees_and_schedules_batches(path):
    costs = CostCurve.read(path)
    rates = Throughput(costs, levels=1).rates(costs.tokens[-1] * costs.groups)
    assert costs.verify[0] == 1 and all(rates[1:] <= rates[:-1]) and rates[-1] < rates[1]
    best = choices([0.7, 0.12, 0.05], costs, depths=range(1, 9))[0]
    assert best.size > 1 and best.speedup > 1
