"""One finished comparison, shared."""

import pytest

from tests.experiments.tiny_model import config, run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of runs, and what the run printed."""
    folder = tmp_path_factory.mktemp("runs")
    code, printed = run(config(folder))
    assert code == 0, printed
    return folder, printed
