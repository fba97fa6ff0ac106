"""What schedules keep, against the algorithms as they are written; and that decoding with them stays exact."""

import json
from functools import partial
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Law
from sdjax.decode.generate import generate
from sdjax.decode.schedule import Delayed, Fixed, Oracle, Prefix, Threshold, Throughput, needs
from sdjax.decode.state import Params
from sdjax.drafters.ngram import NGram
from sdjax.drafters.tree_model import TreeDraftModel
from sdjax.trees.hardware import CostCurve
from sdjax.trees.tree import Tree
from sdjax.verify.kseq import KSequential
from sdjax.verify.token import TokenRejection
from tests.decode.confident import SAMPLED, Sure, linear_costs
from tests.tiny import NEW, PROMPTS, SEEDS, TARGET, loop_of, plain, target_params

TREE_DRAFTER = TreeDraftModel.tiny(TARGET)
PARAMS = Params(target_params(), {})
BATCH, LENGTH = 4, 5
ROWS = BATCH * (LENGTH + 1)


def chains(seed, law=Law.IID, done=()):
    """Drafts of BATCH sequences with survivals on a coarse scale, so that ties are common; some nodes are absent."""
    rng = np.random.default_rng(seed)
    conditional = rng.choice([0.25, 0.5, 1.0], (BATCH, LENGTH + 1), p=[0.2, 0.4, 0.4])
    conditional[:, 0] = 1
    present = np.arange(LENGTH + 1) <= rng.integers(1, LENGTH + 1, (BATCH, 1))
    present[list(done)] = False
    draft = Tree.chain(LENGTH).draft(jnp.zeros((BATCH, LENGTH + 1), jnp.int32), law, valid=jnp.asarray(present))
    return draft.replace(survival=jnp.asarray(np.cumprod(conditional, 1).astype(np.float32)))


def candidates(draft):
    """(survival, depth, sequence) of every drafted node, in the order of Algorithm 1, ties as engines break them."""
    survival, valid = np.asarray(draft.survival), np.asarray(draft.valid)
    found = [(survival[b, j], j, b) for b in range(BATCH) for j in range(1, LENGTH + 1) if valid[b, j]]
    return sorted(found, key=lambda node: (-node[0], node[1], node[2]))


def algorithm_1(draft, sps):
    """DSpark's Algorithm 1 line by line: how many drafts of each sequence are verified."""
    lengths = np.zeros(BATCH, int)
    rows = tokens = int(np.asarray(draft.valid)[:, 0].sum())
    best = tokens * sps[rows]
    for survival, depth, sequence in candidates(draft):
        rows, tokens = rows + 1, tokens + survival
        if not tokens * sps[rows] > best:
            break
        best, lengths[sequence] = tokens * sps[rows], depth
    return lengths


def kept(draft):
    return np.asarray(draft.valid)[:, 1:].sum(1)


def uneven(seed):
    steps = np.random.default_rng(seed).uniform(0, 0.25, ROWS - 1)
    return Throughput(CostCurve(tuple(range(1, ROWS + 1)), (1.0, *(1 + np.cumsum(steps)).tolist()), 0.0))


@pytest.mark.parametrize("seed", range(12))
def test_prefix_is_algorithm_1(seed):
    draft, throughput = chains(seed, done=[seed % BATCH] if seed % 3 == 0 else []), uneven(seed)
    _, cut = Prefix(throughput).cut(None, None, draft, ())
    np.testing.assert_array_equal(kept(cut), algorithm_1(draft, throughput.rates(ROWS)))
    np.testing.assert_array_equal(cut.valid[:, 0], draft.valid[:, 0])


@pytest.mark.parametrize("seed", range(6))
def test_what_a_width_has_room_for_is_filled_in_order(seed):
    draft, throughput, pack = chains(seed), uneven(seed), (6, 9, 14)
    whole = int(Prefix(throughput).cut(None, None, draft, ())[1].valid.sum())
    room = next(width for width in (*pack, ROWS) if width >= whole) - BATCH
    wanted = np.bincount([sequence for *_, sequence in candidates(draft)[:room]], minlength=BATCH)
    np.testing.assert_array_equal(kept(Prefix(throughput).cut(None, None, draft, pack)[1]), wanted)


def test_the_delayed_rule_takes_its_budget_from_two_steps_ago():
    """The budget is the best of all sizes by the survivals then (1 at first), and goes to the likeliest now."""
    throughput, steps = uneven(3), [chains(seed) for seed in range(5)]
    sps, schedule = throughput.rates(ROWS), Delayed(throughput)
    state = schedule.empty(BATCH, LENGTH + 1)
    sizes = []
    for step, draft in enumerate(steps):
        state, cut = schedule.cut(state, None, draft, ())
        old = [1.0] * (BATCH * LENGTH) if step < 2 else [c[0] for c in candidates(steps[step - 2])]
        value = [(BATCH + sum(old[:k])) * sps[BATCH + k] for k in range(len(old) + 1)]
        best = int(np.argmax(np.float32(value)))
        wanted = np.bincount([sequence for *_, sequence in candidates(draft)[:best]], minlength=BATCH)
        np.testing.assert_array_equal(kept(cut), wanted)
        sizes.append(best)
    assert len(set(sizes)) > 2


def test_fixed_and_threshold_cut_each_sequence_apart():
    draft = chains(1)
    np.testing.assert_array_equal(kept(Fixed(2).cut(None, None, draft, ())[1]), np.minimum(kept(draft), 2))
    conditional = np.asarray(draft.survival)[:, 1:] / np.asarray(draft.survival)[:, :-1]
    stays = np.cumprod((conditional >= 0.5) & np.asarray(draft.valid)[:, 1:], 1).sum(1)
    np.testing.assert_array_equal(kept(Threshold(0.5).cut(None, None, draft, ())[1]), stays)


@pytest.mark.parametrize("law", [Law.ONE_HOT, Law.WITHOUT_REPLACEMENT])
def test_trees_are_cut_from_their_ends(law):
    """What stays holds its parents and, where siblings were sampled, their elders; one-hot siblings go by merit."""
    tree, throughput, rng = Tree.branching(3, 2), linear_costs(20, 0.2), np.random.default_rng(1)
    younger = [(child, elder) for siblings in tree.children for elder, child in pairwise(siblings)]
    outlived = False
    for schedule in 3 * (Threshold(0.5), Prefix(throughput), Delayed(throughput)):
        survival = np.ones((2, tree.nodes), np.float32)
        for node, parent in enumerate(tree.parents[1:], 1):
            survival[:, node] = survival[:, parent] * rng.uniform(0.2, 1, 2)
        draft = tree.draft(jnp.zeros((2, tree.nodes), jnp.int32), law).replace(survival=jnp.asarray(survival))
        state = schedule.empty(2, tree.nodes)
        state = state if state is None else jnp.asarray(rng.uniform(0, 0.8, state.shape).astype(np.float32))
        valid = np.asarray(schedule.cut(state, None, draft, ())[1].valid)
        assert 2 < valid.sum() < valid.size
        assert (valid[:, None] | ~np.asarray(needs(draft)) | ~valid[:, :, None]).all()
        outlived |= any(valid[b, child] and not valid[b, elder] for b in range(2) for child, elder in younger)
    assert outlived == (law is Law.ONE_HOT)


def test_siblings_need_their_elders_however_few_nodes_there_are():
    """A drafted tree of as many nodes as a chain of its greatest depth has, whose siblings were sampled."""
    draft = Tree((-1, 0, 0, 1)).draft(jnp.zeros((1, 4), jnp.int32), Law.IID).replace(max_depth=3)
    np.testing.assert_array_equal(needs(draft)[0, 2], [True, True, True, False])


def test_the_walk_emits_plain_decodings_tokens_behind_a_schedule():
    loop = loop_of(Sure(), 1.0, schedule=Delayed(linear_costs(12)))
    made = generate(loop, PARAMS, PROMPTS, NEW, seeds=SEEDS)
    assert made.tokens == plain(1.0)
    active = np.asarray(made.records.committed) > 0
    assert 0 < np.asarray(made.records.proposed)[active].mean() < 3
    np.testing.assert_array_equal(np.asarray(made.records.verified)[active], 4)  # without `pack` all rows run


def test_the_oracle_keeps_what_is_accepted_alone():
    answer = tuple((*prompt, *new) for prompt, new in zip(PROMPTS, plain(1.0), strict=True))
    made = generate(loop_of(SAMPLED, 1.0, schedule=Oracle(answer)), PARAMS, PROMPTS, NEW, seeds=SEEDS)
    assert made.tokens == plain(1.0)
    np.testing.assert_array_equal(made.records.proposed, made.records.accepted)
    assert int(made.records.accepted.sum()) > 0


def test_an_oracle_that_knows_too_little_never_cuts_an_anchor():
    answer = tuple((*prompt, *new[: len(new) // 2]) for prompt, new in zip(PROMPTS, plain(0.0), strict=True))
    for pack in ((), (4, 8)):
        made = generate(loop_of(SAMPLED, 0.0, schedule=Oracle(answer), pack=pack), PARAMS, PROMPTS, NEW, seeds=SEEDS)
        assert made.tokens == plain(0.0) and int(made.records.proposed.min()) == 0


def test_rows_are_shared_by_the_groups_of_chips_that_a_curve_is_of(tmp_path):
    """Eight rows are two for each of four groups, seven are two for the fullest."""
    data = {"tokens": [1, 2, 4], "verify": [1.0, 1.25, 2.0], "draft": 0.0}
    (tmp_path / "one").write_text(json.dumps(data))
    (tmp_path / "four").write_text(json.dumps(data | {"data": 4}))
    alone, shared = (Throughput(CostCurve.read(tmp_path / name)) for name in ("one", "four"))
    assert shared.rates(16)[[4, 7, 8, 16]].tolist() == alone.rates(4)[[1, 2, 2, 4]].tolist()
    with pytest.raises(ValueError, match="not 5"):
        shared.rates(17)


decode = partial(generate, params=PARAMS, prompts=PROMPTS, max_new=NEW)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decode(loop_of(NGram(3), 0.0, schedule=Threshold(0.5))), "this drafter does not say"),
        (lambda: decode(loop_of(Sure(), 0.0, schedule=Prefix(linear_costs(8)))), "covers 1 to 8 tokens, not 12"),
        (lambda: loop_of(SAMPLED, 1.0, TokenRejection(), schedule=Oracle(((1,),))), "Oracle knows what will be accepted"),
        (lambda: decode(loop_of(SAMPLED, 0.0, schedule=Oracle(((1,),)))), "knows 1 texts, but the batch has 3"),
        (lambda: loop_of(TREE_DRAFTER, 1.0, KSequential(), schedule=Threshold(0.5)), "reckons with how many paths there are"),
        (lambda: Prefix(Throughput(CostCurve((8, 16), (1.0, 1.5), 0.0))).throughput.rates(16), "covers 8 to 16 tokens, not 1"),
        (lambda: Threshold(1.5), "least is 1.5"),
        (lambda: Fixed(-1), "length is -1"),
        (lambda: Delayed(linear_costs(8), delay=0), "delay is 0"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
