"""What zoo/ ships loads by its name, fits its target, says what it is, and stays small."""

import json

import pytest

import sdjax
from configs.smollm2 import SHIPPED
from experiments.publish import ALL, LARGEST
from sdjax.core.spec import check_params
from sdjax.train.saved import ZOO

NAMES = sorted(path.parent.name for path in ZOO.glob("*/drafter.json"))


def bytes_of(name):
    return sum(path.stat().st_size for path in (ZOO / name).iterdir())


def test_what_configs_name_is_there_and_small():
    assert set(SHIPPED.values()) == set(NAMES)
    assert max(map(bytes_of, NAMES)) <= LARGEST and sum(map(bytes_of, NAMES)) <= ALL


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_it_is(name):
    card = (ZOO / name / "README.md").read_text(encoding="utf-8")
    notes = json.loads((ZOO / name / "drafter.json").read_text(encoding="utf-8"))["notes"]
    assert card.startswith(f"# {name}\n") and f"Licence: {notes['licence']}" in card and "## Recipe" in card


@pytest.mark.model
def test_they_load_by_name():
    model = sdjax.load("smollm2-135m")
    for name in NAMES:
        drafter, params = sdjax.load_drafter(name, model)
        check_params(drafter.specs(model.target), params, name)
