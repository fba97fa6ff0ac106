"""Every named case of configs/aot keeps its promises, as the TPU compiler has it: half an hour on two cores.

make test-tpu
"""

import importlib.util

import pytest

from experiments.aot import examine
from experiments.aot_config import Given, configs

pytestmark = [
    pytest.mark.tpu,
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (the tpu extra)"),
]
CONFIGS = {config.name: config for config in configs(Given())}
NAMED = [(config, case) for config in CONFIGS for case in (*CONFIGS[config].cases, *CONFIGS[config].steps)]


def test_there_are_at_most_sixteen():
    assert len(NAMED) <= 16


@pytest.mark.parametrize("config, case", NAMED, ids=lambda name: name)
def test_a_named_case_keeps_its_promises(config, case):
    """One that is marked not to fit is answered by how much it is too large."""
    report = examine(CONFIGS[config], case)
    assert report["faults"] == []
    assert report["fits"] == ("flops" in report)
