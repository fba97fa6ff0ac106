"""Schedules, proved exact by enumeration where drafts are sampled; and cuts that know too much, found out by it."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.law import Question, appendix_confidence, appendix_tables, best_of_all, main, snapped_down
from sdjax.core.types import Law
from sdjax.decode.schedule import Delayed, Fixed, Prefix, Threshold, Throughput
from sdjax.trees.hardware import CostCurve
from sdjax.trees.tree import Tree
from sdjax.verify.block import BlockVerification
from sdjax.verify.kseq import KSequential
from sdjax.verify.multipath import BestPath
from sdjax.verify.recursive import Recursive
from sdjax.verify.schedule_law import scheduled_law
from sdjax.verify.tables import random_tables
from sdjax.verify.token import TokenRejection
from sdjax.verify.traversal import Traversal

EXACT = 1e-12
CHAIN, TREE = Tree.chain(2), Tree.branching(2, 1)
CASES = [
    (TokenRejection(), CHAIN, Law.IID),
    (BlockVerification(), CHAIN, Law.IID),
    (Recursive(), TREE, Law.IID),
    (Recursive(), TREE, Law.WITHOUT_REPLACEMENT),
    (Recursive(), TREE, Law.MIXED),
    (Traversal(), TREE, Law.WITHOUT_REPLACEMENT),
]
every_case = pytest.mark.parametrize(("rule", "tree", "law"), CASES, ids=lambda x: str(getattr(x, "value", type(x).__name__)))


def drawn(seed):
    """A confidence that differs with all that stands before a node."""
    return lambda path, elders: float(np.random.default_rng([seed, *path, 7, *elders]).choice([0.15, 0.5, 0.85, 1.0]))


def curve(seed, most):
    """A step's time grows with its rows, unevenly."""
    steps = np.random.default_rng(seed).uniform(0.02, 0.5, most - 1)
    return Throughput(CostCurve(tuple(range(1, most + 1)), (1.0, *(1 + np.cumsum(steps)).tolist()), 0.0))


def cut_by(schedule, pack=(), state=None):
    return lambda draft: schedule.cut(state, None, draft, pack)[1].valid


def schedules(seed, nodes):
    """Every rule, with and without widths to fill; the delayed one behind survivals of another day."""
    throughput = curve(seed, nodes)
    old = jnp.asarray(np.random.default_rng(seed).choice([0.0, 0.3, 0.6, 0.9], (1, 2, nodes)).astype(np.float32))
    yield "fixed", cut_by(Fixed(1))
    yield "threshold", cut_by(Threshold(0.5))
    for pack in ((), (1, 3)):
        yield f"prefix {pack}", cut_by(Prefix(throughput), pack)
        yield f"delayed {pack}", cut_by(Delayed(throughput), pack, old)


@every_case
def test_schedules_are_exact(rule, tree, law):
    tables, lengths = random_tables(np.random.default_rng(3), 3, tree.depth), set()
    for seed in range(2):
        for name, cut in schedules(seed, tree.nodes):
            found = scheduled_law(rule, [tables], tree, law, drawn(seed), cut)
            assert found.tv <= EXACT, (name, seed)
            lengths.add(round(float(found.expected_accepted), 6))
    assert len(lengths) > 2, "schedules that all cut alike prove little"


def test_sequences_that_share_a_budget_stay_independent_and_exact():
    """What one sequence drafts decides how much of the other is verified, and yet their joint law is the product."""
    sequences = [random_tables(np.random.default_rng(seed), 2, 2) for seed in (5, 6)]
    for seed in range(2):
        throughput = curve(seed, 6)
        for pack in ((), (3, 4)):
            for schedule, state in ((Prefix(throughput), None), (Delayed(throughput), jnp.full((2, 2, 3), 0.6))):
                cut = cut_by(schedule, pack, state)
                assert scheduled_law(TokenRejection(), sequences, CHAIN, Law.IID, drawn(seed), cut).tv <= EXACT


def test_the_best_of_all_is_biased_by_the_papers_numbers():
    """Appendix A: p_t = (.7, .3), p_d = (.5, .5), a₁ = .8, SPS = 1, .5, .45 emits (.85, .15); stopping emits (.7, .3)."""
    throughput = Throughput(CostCurve((1, 2, 3), (1, 1 / 0.5, 1 / 0.45), 0.0))
    first = lambda cut: scheduled_law(TokenRejection(), [appendix_tables()], CHAIN, Law.IID, appendix_confidence, cut).law.sum(
        (1, 2)
    )
    np.testing.assert_allclose(first(best_of_all(throughput)), (0.85, 0.15), atol=1e-12)
    np.testing.assert_allclose(first(cut_by(Prefix(throughput))), (0.7, 0.3), atol=1e-12)


def test_snapping_down_is_biased_and_snapping_up_is_not():
    """The second draft joins only where the first was the likely token; rounded down to one row, so does the first."""
    throughput, pack = Throughput(CostCurve((1, 2, 3), (1, 1 / 0.6, 1 / 0.55), 0.0)), (1,)
    law = lambda cut: scheduled_law(TokenRejection(), [appendix_tables()], CHAIN, Law.IID, appendix_confidence, cut)
    np.testing.assert_allclose(law(snapped_down(throughput, pack)).law.sum((1, 2)), (0.85, 0.15), atol=1e-12)
    assert law(cut_by(Prefix(throughput), pack)).tv <= EXACT


def test_looking_ahead_to_the_end_of_a_width_is_biased():
    """Θ compared at the ends of compiled widths, as a staircase invites to: the second survival has seen the first token."""

    def cut(draft):
        both = 1 + 0.8 + draft.survival[0, 2]
        keep = both * 0.45 > 1
        return draft.valid & (keep | (jnp.arange(3) == 0))

    found = scheduled_law(TokenRejection(), [appendix_tables()], CHAIN, Law.IID, appendix_confidence, cut)
    assert abs(float(found.tv_of_first(1)) - 0.15) < 1e-12


def test_a_later_sibling_may_not_outlive_an_earlier_one():
    """Cut by its own survival alone, a sibling is dropped for what it is followed by: the law is lost."""
    said = lambda path, elders: 0.9 if elders else 0.3 if not path else 0.5  # the younger is likelier
    tables = random_tables(np.random.default_rng(1), 3, 2)
    by_token = lambda draft: draft.valid & ((jnp.arange(draft.tokens.shape[1]) == 0) | (draft.tokens != 0))
    assert scheduled_law(Recursive(), [tables], TREE, Law.WITHOUT_REPLACEMENT, said, by_token).tv > 1e-3
    cut = cut_by(Threshold(0.5))
    assert scheduled_law(Recursive(), [tables], TREE, Law.WITHOUT_REPLACEMENT, said, cut).tv <= EXACT


@pytest.mark.parametrize("rule", [KSequential(), KSequential(best=False), BestPath(), Recursive(), Traversal()], ids=repr)
def test_rules_that_reckon_with_the_number_of_siblings_are_exact_behind_fixed_cuts_alone(rule):
    """Whether the younger is there tells of the elder's token: `Loop` refuses those rules with such a schedule."""
    said = lambda path, elders: 0.1 if elders and elders[0] else 0.9
    tables, tree = random_tables(np.random.default_rng(5), 3, 1), Tree.branching(2)
    law = lambda cut: scheduled_law(rule, [tables], tree, Law.IID, said, cut)
    assert (law(cut_by(Threshold(0.5))).tv > 1e-2) == isinstance(rule, KSequential | BestPath)
    assert law(cut_by(Fixed(1))).tv <= EXACT


def test_the_command(capsys):
    answers = {
        name: main(Question("token", "1x1", schedule=name)) for name in ("prefix", "delayed", "best-of-all", "snap-down")
    }
    assert answers["prefix"]["tv"] <= EXACT and answers["delayed"]["tv"] <= EXACT
    np.testing.assert_allclose(answers["delayed"]["expected_accepted"], 0.8)  # one draft of two is verified
    np.testing.assert_allclose(answers["best-of-all"]["first"], (0.85, 0.15), atol=1e-12)
    assert answers["snap-down"]["tv"] > 0.1
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == answers["snap-down"]


def test_too_many_sequences_are_refused():
    tables = random_tables(np.random.default_rng(1), 3, 2)
    with pytest.raises(ValueError, match="too many to enumerate"):
        scheduled_law(TokenRejection(), [tables] * 6, CHAIN, Law.IID, drawn(0), cut_by(Fixed(1)))
