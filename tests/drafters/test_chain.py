"""A drafted chain is drawn from the law it names, with coins that no round and no depth share."""

import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.sampling import Warp, warped_probs
from sdjax.core.types import Context
from sdjax.decode.generate import generate, prefill, start
from sdjax.decode.state import Params
from sdjax.drafters.chain import choose_sampled
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.head import DraftHead
from sdjax.drafters.self_draft import SelfDraft
from sdjax.targets.decoder import causal_mask
from sdjax.verify.token import TokenRejection
from tests.tiny import NEW, PROMPTS, SEEDS, TARGET, loop_of, target_params

WARP = Warp(0.7, top_k=5, top_p=0.9)
FEW = np.arange(1, 25, 2)


@pytest.mark.parametrize(
    "drafter, own, ids",
    [
        (SelfDraft(TARGET.layers, 3), {}, np.arange(TARGET.vocab)),
        (
            DraftModel(TARGET, 3, head=DraftHead(12)),
            target_params() | {"head": {"ids": jnp.array(FEW), "weight": target_params()["head"][FEW]}},
            FEW,
        ),
    ],
    ids=["whole", "few"],
)
def test_q_is_the_warped_law_behind_each_draft(drafter, own, ids):
    """Over the draft vocabulary, where there is one: the target's other tokens have no mass."""
    loop, params = loop_of(drafter, 1.0, warp=WARP), Params(target_params(), own)
    state, lengths = start(loop, PROMPTS, NEW, SEEDS, 256)
    state = prefill(loop, params, state, lengths)
    draft, _ = drafter.propose(loop.context(params, state), own, state.drafter)
    for b in range(3):
        text = jnp.concatenate([state.tokens[b, : state.p[b]], draft.tokens[b]])[None]
        size = text.shape[1]
        x = TARGET.embed(target_params(), text)
        out = TARGET.forward(target_params(), x, jnp.arange(size)[None], TARGET.empty_cache(1, 1), causal_mask(size))
        logits = TARGET.unembed(target_params(), out.hidden[0, -4:-1])
        law = np.zeros(logits.shape)
        law[:, ids] = warped_probs(logits[:, ids], WARP)
        np.testing.assert_allclose(draft.q[b], law, atol=1e-3)
        assert (jnp.take_along_axis(draft.q[b], draft.tokens[b, 1:, None], 1) > 0).all()


@pytest.mark.parametrize("drafter", [SelfDraft(TARGET.layers, 3), DraftModel(TARGET, 3)], ids=lambda d: type(d).__name__)
def test_q_equal_to_p_is_accepted_whole_under_any_warp(drafter):
    loop = loop_of(drafter, 1.0, TokenRejection(), warp=WARP)
    params = Params(target_params(), target_params() if isinstance(drafter, DraftModel) else {})
    for steps in generate(loop, params, PROMPTS, NEW, seeds=SEEDS).steps:
        np.testing.assert_array_equal(steps.accepted, steps.proposed)


def test_every_position_depth_and_sequence_has_its_own_coin():
    count, vocab = 300, 50
    ctx = Context({}, None, None, jnp.arange(count), jnp.zeros(count, jnp.uint32), target=TARGET, warp=Warp(1.0))
    flat = jnp.zeros((count, vocab))
    draws = [choose_sampled(flat, ctx, jnp.int32(depth))[0] for depth in (1, 2)]
    draws.append(choose_sampled(flat, ctx.replace(seed=ctx.seed + 1), jnp.int32(1))[0])
    for row in draws:
        assert len(np.unique(row)) > 40
        assert (row[1:] == row[:-1]).mean() < 0.1
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (draws[one] == draws[other]).mean() < 0.1
