"""Gloeckle's heads: copies of the target's last layer are the target, training and drafting see the same, labels fit."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.types import Committed, Law
from sdjax.drafters.gloeckle import Gloeckle
from sdjax.drafters.head import DraftHead
from sdjax.drafters.losses import cross_entropy
from sdjax.targets.packed import packed_mask
from sdjax.trees.tree import Tree
from tests.drafters.packed_texts import (
    OTHER,
    TEXT,
    gradients,
    loss_of,
    observe,
    pack,
    prefilled,
    propose,
    random_params,
    rows_that_predict,
    traced,
    unreached,
)
from tests.tiny import TARGET, decode, plain, target_params

pytestmark = pytest.mark.families

WINDOWED = replace(TARGET, windows=(None, None, 4))
WHOLE, FEW = DraftHead(), DraftHead(14, trained=True)
every_variant = pytest.mark.parametrize("variant", ["parallel", "causal", "linear"])


def drafter_of(variant, **fields):
    return Gloeckle(layers=TARGET.layers, variant=variant, **fields)


@partial(jax.jit, static_argnames="drafter")
def outputs(drafter, ctx, params, trace):
    """Every head's output along the text: [K, B, T, E]."""
    cache = drafter.empty(ctx.target, len(ctx.p), 1).cache
    hidden, _ = drafter.run(ctx, params, trace.features[:, :, 0], trace.batch.positions, cache, packed_mask(trace.batch))
    return jnp.stack(hidden)


@cache
def packed(variant, head=WHOLE):
    drafter = drafter_of(variant, head=head)
    return drafter, random_params(drafter), *traced(drafter, pack([[TEXT, OTHER]], 20))


@pytest.mark.parametrize("target", [TARGET, WINDOWED], ids=["whole", "windowed"])
def test_a_copy_of_the_last_layer_is_the_target(target):
    drafter = drafter_of("parallel")
    params = drafter.initial(target, target_params(), np.ones(target.vocab, int), jax.random.key(0))
    ctx, trace = traced(drafter, pack([[TEXT, OTHER]], 20), target)
    for hidden in outputs(drafter, ctx, params, trace):
        np.testing.assert_allclose(
            target.unembed(ctx.target_params, hidden), target.unembed(ctx.target_params, trace.hidden), atol=1e-4
        )


@every_variant
def test_training_sees_what_drafting_behind_every_prefix_sees(variant):
    drafter, params, ctx, _ = packed(variant)
    _, trace = traced(drafter, pack([[TEXT]], len(TEXT)))
    trained = outputs(drafter, ctx, params, trace)[:, 0]
    every = lambda x: jnp.repeat(x, len(TEXT), 0)
    tokens, positions = every(trace.batch.tokens), every(trace.batch.positions)
    count = jnp.arange(len(TEXT)) + 1
    ctx = ctx.replace(tokens=tokens, p=count)
    states = drafter.empty(TARGET, len(TEXT), 32)
    for part in (slice(0, 5), slice(5, None)):  # a prefill of two chunks
        here = jnp.clip(count - part.start, 0, tokens[:, part].shape[1])
        chunk = (x[:, part] for x in (tokens, positions, tokens, every(trace.features), positions - part.start))
        states = observe(drafter, ctx, params, states, Committed(*chunk, here))
    for k in range(drafter.heads):
        decoded, seen = (TARGET.unembed(target_params(), x) for x in (states.last[:, k], trained[k]))
        np.testing.assert_allclose(decoded, seen, atol=1e-4, err_msg=f"head {k}")


@every_variant
def test_packed_documents_are_as_if_alone(variant):
    drafter, params, ctx, trace = packed(variant)
    together = outputs(drafter, ctx, params, trace)
    for document, start in ((TEXT, 0), (OTHER, len(TEXT))):
        alone = outputs(drafter, *(lambda ctx, trace: (ctx, params, trace))(*traced(drafter, pack([[document]], 20))))
        here = slice(start, start + len(document))
        np.testing.assert_allclose(together[:, :, here], alone[:, :, : len(document)], atol=1e-5)


@pytest.mark.parametrize("head", [WHOLE, FEW], ids=["whole", "few"])
def test_head_k_at_row_t_is_asked_for_token_t_plus_k_plus_2(head):
    """But for tokens outside the draft vocabulary."""
    drafter, params, ctx, trace = packed("causal", head)
    own = params.get("head", {})
    ids = own.get("ids", jnp.arange(TARGET.vocab)).tolist()
    total = 0.0
    for k, hidden in enumerate(outputs(drafter, ctx, params, trace)):
        pairs = [
            (start + t, ids.index(document[t + k + 2]))
            for start, document in ((0, TEXT), (len(TEXT), OTHER))
            for t in range(len(document) - k - 2)
            if document[t + k + 2] in ids
        ]
        rows, labels = (jnp.array(x) for x in zip(*pairs, strict=True))
        total += cross_entropy(head.logits(ctx, own, hidden[0, rows]), labels).mean()
    np.testing.assert_allclose(loss_of(drafter, ctx, params, trace), total, rtol=1e-5)


@every_variant
def test_gradients_reach_every_head_and_the_trunk(variant):
    drafter, params, ctx, trace = packed(variant)
    heads, trunk = gradients(drafter, ctx, params, trace)
    assert unreached(heads) == []
    states, learnt = np.abs(trunk[0, :, 0]).max(-1), rows_that_predict(TEXT, OTHER)
    assert (states[learnt] > 0).all() and (np.delete(states, learnt) == 0).all()


@pytest.mark.parametrize(("law", "temperature"), [(Law.ONE_HOT, 1.0), (Law.IID, 0.0), (Law.WITHOUT_REPLACEMENT, 1.0)])
def test_a_depth_is_filled_by_its_head(law, temperature):
    """First choices in rank order, the same below every parent; or draws from the head's law, which is then q."""
    tree = Tree((-1, 0, 1, 0, 1, 2))
    drafter = drafter_of("parallel", tree=tree, law=law)
    params = random_params(drafter)
    ctx, state = prefilled(drafter, params, temperature)
    draft = propose(drafter, ctx, params, state)
    logits = TARGET.unembed(target_params(), state.last)
    if draft.q is not None:
        for row, node in enumerate(tree.inner):
            np.testing.assert_allclose(draft.q[:, row], jax.nn.softmax(logits[:, tree.depths[node]]), atol=1e-6)
        assert draft.law == law
        return
    best = np.argsort(-logits, -1)
    for node in range(1, tree.nodes):
        np.testing.assert_array_equal(draft.tokens[:, node], best[:, tree.depths[node] - 1, tree.ranks[node]])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_vocabulary_changes_no_token(temperature):
    drafter = drafter_of("parallel", tree=Tree((-1, 0, 1, 0, 1, 2)), law=Law.WITHOUT_REPLACEMENT, head=FEW)
    assert decode(drafter, temperature).tokens == plain(temperature)


def test_a_head_of_its_own_starts_as_the_targets_rows():
    counts = np.arange(TARGET.vocab)
    params = drafter_of("linear", head=FEW).initial(TARGET, target_params(), counts, jax.random.key(0))
    np.testing.assert_array_equal(params["head"]["ids"], counts[-14:])
    np.testing.assert_array_equal(params["head"]["weight"], target_params()["head"][-14:])
    assert drafter_of("linear").specs(TARGET).keys() == {"heads"}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"layers": 1}, "1 layers"),
        ({"layers": 3, "heads": 2}, "2 heads"),
        ({"layers": 3, "variant": "anticausal"}, "anticausal"),
    ],
)
def test_bad_configs_are_named(fields, names):
    with pytest.raises(ValueError, match=names):
        Gloeckle(**fields)


def test_another_target_is_named():
    with pytest.raises(ValueError, match="this one has 3"):
        Gloeckle(layers=4).specs(TARGET)
