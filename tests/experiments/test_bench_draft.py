"""What the drafting benchmark compares: each family that has a config, with its draft vocabulary and with the whole one."""

from dataclasses import replace

from experiments.bench_draft import vocabularies
from experiments.bench_train import configs_of
from sdjax.drafters.base import with_parts
from sdjax.drafters.head import DraftHead
from sdjax.targets.decoder import Decoder, types


def parts_of(whole, kind):
    found = []
    with_parts(whole, kind, lambda part: found.append(part) or part)
    return found


def test_every_family_with_either_vocabulary():
    for name, config in configs_of(()).items():
        found = vocabularies(config.drafter)
        assert list(found) == ["8192", "whole"], name
        assert found["8192"] == config.drafter
        assert {head.size for head in parts_of(found["whole"], DraftHead)} == {None}, name


def test_models_that_draft_are_in_float32():
    models = [model for config in configs_of(()).values() for model in parts_of(config.drafter, Decoder)]
    assert len(models) == 2
    assert all(replace(model, **types("float32")) == model for model in models)
