"""MTP modules: what the loss sees is what drafting from every prefix sees, and drafts are the likeliest on their paths."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Committed, Law
from sdjax.drafters.deepseek_mtp import DeepSeekMTP
from sdjax.drafters.head import DraftHead
from sdjax.drafters.losses import cross_entropy
from sdjax.drafters.recursion import join
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.tree import Tree
from tests.drafters.packed_texts import (
    OTHER,
    TEXT,
    gradients,
    loss_of,
    pack,
    prefilled,
    propose,
    random_params,
    rows_that_predict,
    traced,
    unreached,
)
from tests.tiny import TARGET

pytestmark = pytest.mark.families

SHAPES = [(1, 3), (2, 5), (3, 4)]  # modules, steps


def drafter_of(modules, steps, **fields):
    return DeepSeekMTP(modules=modules, tree=Tree.chain(steps), steps=steps, **fields)


@partial(jax.jit, static_argnames="drafter")
def unroll(drafter, ctx, params, trace):
    return drafter.unroll(ctx, params, trace)


@partial(jax.jit, static_argnames="drafter")
def along(drafter, ctx, params, seen, text):
    """Each step's output behind every prefix, drafting token by token with the text's own tokens: [steps, B, E]."""
    state = drafter.observe(ctx, params, drafter.empty(TARGET, len(ctx.p), 32), seen)
    runner = drafter.node_runner(ctx, params, state.cache)
    hidden, scratch, outputs = state.last[:, None], None, []
    for depth in range(1, drafter.steps + 1):
        outputs.append(hidden[:, 0, 0])
        if depth == drafter.steps:
            return jnp.stack(outputs)
        token = jnp.take_along_axis(text, ctx.p[:, None] + depth, 1)
        hidden, staged = runner(token, hidden, ctx.p[:, None] + depth - 1, jnp.ones((1, 1, depth), bool), scratch)
        scratch = join(scratch, staged)


def behind_every_prefix(ctx, trace, steps):
    """A sequence for each prefix of the text: row r has r + 1 tokens observed, and token r + 1 as its anchor."""
    prefixes = len(TEXT) - steps
    every = lambda x: jnp.repeat(x, prefixes, 0)
    tokens, positions = every(trace.batch.tokens), every(trace.batch.positions)
    count = jnp.arange(prefixes) + 1
    seen = Committed(tokens, positions, jnp.roll(tokens, -1, 1), every(trace.features), positions, count)
    return ctx.replace(tokens=tokens, p=count, seed=jnp.zeros(prefixes, jnp.uint32)), seen


@pytest.mark.parametrize(("modules", "steps"), SHAPES)
def test_training_sees_what_drafting_behind_every_prefix_sees(modules, steps):
    drafter = drafter_of(modules, steps)
    params = random_params(drafter)
    ctx, trace = traced(drafter, pack([[TEXT]], len(TEXT)))
    trained = unroll(drafter, ctx, params, trace)
    decoded = along(drafter, *(lambda ctx, seen: (ctx, params, seen, ctx.tokens))(*behind_every_prefix(ctx, trace, steps)))
    for step, rows in enumerate(decoded):
        logits = [drafter.head.logits(ctx, {}, x) for x in (rows, trained[step][0, : len(rows)])]
        assert np.ptp(logits[1], -1).min() > 0.1
        np.testing.assert_allclose(*logits, atol=1e-4, err_msg=f"step {step}")


SPARSE = Tree((-1, 0, 1, 0, 1, 2, 5, 6))  # 5 deep, nodes out of level order


@pytest.mark.parametrize(
    ("modules", "tree"), [(3, SPARSE), (2, DynamicTree(depth=4, nodes=14, width=2))], ids=["static", "dynamic"]
)
def test_children_are_the_likeliest_along_their_own_path(modules, tree):
    """Of every node with children: theirs are the first choices of the step that its path has in training."""
    drafter = DeepSeekMTP(modules=modules, tree=tree, steps=5, law=Law.WITHOUT_REPLACEMENT)
    params = random_params(drafter)
    ctx, state = prefilled(drafter, params, 0.0)
    draft = jax.device_get(propose(drafter, ctx, params, state))
    texts, places, children = [], [], []
    for b in range(len(ctx.p)):
        for node in range(drafter.nodes):
            below = [i for i in range(drafter.nodes) if draft.parent[b, i] == node]
            if below:
                path = [node]
                while path[0]:
                    path.insert(0, draft.parent[b, path[0]])
                texts.append([*np.asarray(ctx.tokens[b, : ctx.p[b]]), *draft.tokens[b, path], 0])
                places.append((int(ctx.p[b]) - 1, len(path) - 1))
                children.append(draft.tokens[b, below].tolist())
    ctx, trace = traced(drafter, pack([[text] for text in texts], 64))
    trained = unroll(drafter, ctx, params, trace)
    assert max(step for _, step in places) >= 3
    for i, (row, step) in enumerate(places):
        best = np.argsort(-drafter.head.logits(ctx, {}, trained[step][i, row]))[: len(children[i])]
        assert sorted(children[i]) == sorted(best.tolist())


@cache
def packed_and_alone():
    drafter = drafter_of(2, 4, head=DraftHead(20))
    params = random_params(drafter)
    return drafter, params, [traced(drafter, pack(rows, 20)) for rows in ([[TEXT, OTHER]], [[TEXT]], [[OTHER]])]


def test_packed_documents_are_as_if_alone():
    drafter, params, (packed, *alone) = packed_and_alone()
    packed, *alone = (unroll(drafter, ctx, params, trace) for ctx, trace in (packed, *alone))
    for document, start, one in zip((TEXT, OTHER), (0, len(TEXT)), alone, strict=True):
        for step in range(drafter.steps):
            rows = len(document) - step - 1  # those whose token is of the document
            np.testing.assert_allclose(packed[step][0, start : start + rows], one[step][0, :rows], atol=1e-5)


@pytest.mark.parametrize("decay", [1.0, 0.6])
def test_step_k_at_row_i_is_asked_for_token_i_plus_k_plus_2(decay):
    drafter, params, ((ctx, trace), *_) = packed_and_alone()
    drafter = drafter_of(2, 4, head=DraftHead(20), decay=decay, weight=0.3)
    ids = params["head"]["ids"].tolist()
    total, share = 0.0, 0.0
    for k, hidden in enumerate(unroll(drafter, ctx, params, trace)):
        terms = []
        for start, document in ((0, TEXT), (len(TEXT), OTHER)):
            for i in range(len(document) - k - 2):
                if document[i + k + 2] in ids:
                    logits = drafter.head.logits(ctx, params["head"], hidden[0, start + i])
                    terms.append(cross_entropy(logits, jnp.int32(ids.index(document[i + k + 2]))))
        total, share = total + decay**k * np.mean(terms), share + decay**k
    np.testing.assert_allclose(loss_of(drafter, ctx, params, trace), 0.3 * total / share, rtol=1e-5)


@pytest.mark.parametrize("objective", ["text", "teacher"])
def test_gradients_reach_every_module_and_nothing_else(objective):
    drafter = drafter_of(3, 4, objective=objective, head=DraftHead(20, trained=True))
    ctx, trace = traced(drafter, pack([[TEXT, OTHER]], 20))
    got, _ = gradients(drafter, ctx, random_params(drafter), trace)
    assert unreached(got) == []
    assert {name.split("]")[1] for name in got if "modules" in name} == {"[0", "[1", "[2"}


def test_joint_training_reaches_the_target_through_its_states():
    _, params, ((ctx, trace), *_) = packed_and_alone()
    drafter = drafter_of(2, 4, head=DraftHead(20), objective="teacher")
    states = np.abs(gradients(drafter, ctx, params, trace)[1][0, :, 0]).max(-1)
    learnt = rows_that_predict(TEXT, OTHER)
    assert (states[learnt] > 0).all() and (np.delete(states, learnt) == 0).all()


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"modules": 4, "steps": 3}, "4 modules with 3"),
        ({"modules": 0}, "0 modules"),
        ({"decay": 0.0}, "decay"),
        ({"tree": Tree((-1,))}, "anchor alone"),
    ],
)
def test_bad_configs_are_named(fields, names):
    with pytest.raises(ValueError, match=names):
        DeepSeekMTP(**fields)


@pytest.mark.parametrize(("fields", "names"), [({"tap": 0}, "tap is 0"), ({"tree": Tree.branching(30)}, "30 children")])
def test_targets_that_do_not_fit_are_named(fields, names):
    with pytest.raises(ValueError, match=names):
        DeepSeekMTP(law=Law.ONE_HOT, **fields).specs(TARGET)
