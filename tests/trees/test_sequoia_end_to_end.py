"""Sequoia from decoding to the chosen tree: lossless, measured, searched, by the launchers themselves."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments import acceptance, costs, sequoia
from sdjax.core.sampling import Warp
from sdjax.decode.generate import generate
from sdjax.decode.state import Loop, Params
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.tree_model import TreeSelfDraft
from sdjax.study.methods import Arm
from sdjax.targets.decoder import truncate_params
from sdjax.trees.acceptance import expected_tokens
from sdjax.trees.sequoia import sequoia_tree
from sdjax.trees.tree import Tree
from sdjax.verify.walk import Walk
from tests.tiny import PROMPTS, SEEDS, TARGET, target_params

# A target that drafts for itself, under a law with two tokens: fewer than the tree has children.
SMALL = replace(TARGET, layers=1, windows=())
TREE = Tree.branching(3, 2)
NEW = 16


def arm(drafter):
    loop = Loop(SMALL, drafter, Walk(), Warp(1.0, top_k=2), chunk=32)
    return Arm(type(drafter).__name__, loop, Params(truncate_params(target_params(), 1), {}))


def test_surplus_children_are_absent_and_the_walk_equals_plain_decoding():
    made = [generate(a.loop, a.params, PROMPTS, NEW, SEEDS) for a in (arm(TreeSelfDraft(1, TREE)), arm(NoDraft()))]
    assert made[0].tokens == made[1].tokens
    assert {int(n) for steps in made[0].steps for n in steps.proposed} == {2 + 2 * 2}


def test_acceptance_is_measured():
    """Both tokens that can come are among the children, so one of the first two is always accepted."""
    found = acceptance.measure(arm(TreeSelfDraft(1, TREE)), PROMPTS, NEW, batch=3)
    hits, trials = np.array(found["hits"]), np.array(found["trials"])
    assert (hits[:, :2].sum(1) == trials[:, 0]).all() and (hits[:, 2] == 0).all()
    assert trials[0].tolist() == [found["steps"]] * 3 and trials[1].tolist() == [*[found["steps"]] * 2, 0]
    np.testing.assert_allclose(np.array(found["rates"]).sum(1), 1)
    json.dumps(found)


def test_a_method_without_a_static_tree_has_no_ranks():
    with pytest.raises(ValueError, match="'NGram' drafts no static tree"):
        acceptance.measure(arm(NGram()), PROMPTS, NEW, batch=3)


def test_costs_are_measured():
    found = costs.measure(arm(TreeSelfDraft(1, TREE)), PROMPTS[0], (1, 4), NEW)
    assert found["tokens"] == [1, 4] and found["verify"][0] == 1
    assert found["verify"][1] > 0 and found["draft"] > 0


def test_the_search_reads_both_and_prints_the_tree(tmp_path, capsys):
    rates = {"rates": [[0.6, 0.1, 0.15], [0.5, 0.2, 0.0]], "pooled": [0.55, 0.15, 0.1]}
    (tmp_path / "acceptance.json").write_text(json.dumps(rates))
    (tmp_path / "costs.json").write_text(json.dumps({"tokens": [1, 2, 4, 8], "verify": [1, 1.1, 1.2, 1.9], "draft": 0.1}))
    search = sequoia.Search(tmp_path / "acceptance.json", tmp_path / "costs.json")
    answer = sequoia.main(search)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == answer | {"parents": list(answer["parents"])}
    tree = Tree(answer["parents"])
    assert tree == sequoia_tree(answer["size"], rates["pooled"], answer["depth"])
    assert answer["expected"] == pytest.approx(expected_tokens(tree, rates["pooled"]))
    by_depth = sequoia.main(replace(search, per_depth=True, costs=None, sizes=(6,), draft=0.01))
    assert by_depth["expected"] == pytest.approx(1 + 0.6 + 0.125 * 2 + 0.3 + 0.12)
    assert "depth 2:" in capsys.readouterr().out


def test_the_search_says_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="is not there; make it with"):
        sequoia.main(sequoia.Search(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text(json.dumps({"pooled": [0.9, 0.3]}))
    with pytest.raises(ValueError, match=r"sum to 1\.2"):
        sequoia.main(sequoia.Search(tmp_path / "bad.json", smooth=False))
    with pytest.raises(ValueError, match="has no 'rates'; it has pooled"):
        sequoia.main(sequoia.Search(tmp_path / "bad.json", per_depth=True))
