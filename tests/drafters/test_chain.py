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
from sdjax.drafters.self_draft import SelfDraft
from sdjax.targets.decoder import causal_mask
from sdjax.verify.token import TokenRejection
from tests.tiny import NEW, PROMPTS, SEEDS, TARGET, loop_of, target_params

WARP = Warp(0.7, top_k=5, top_p=0.9)


def test_q_is_the_warped_law_behind_each_draft():
    loop, params = loop_of(SelfDraft(TARGET.layers, 3), 1.0, warp=WARP), Params(target_params(), {})
    state, lengths = start(loop, PROMPTS, NEW, SEEDS, 256)
    state = prefill(loop, params, state, lengths)
    draft, _ = loop.drafter.propose(loop.context(params, state), {}, None)
    for b in range(3):
        text = jnp.concatenate([state.tokens[b, : state.p[b]], draft.tokens[b]])[None]
        size = text.shape[1]
        x = TARGET.embed(target_params(), text)
        out = TARGET.forward(target_params(), x, jnp.arange(size)[None], TARGET.empty_cache(1, 1), causal_mask(size))
        logits = TARGET.unembed(target_params(), out.hidden[0, -4:-1])
        np.testing.assert_allclose(draft.q[b], warped_probs(logits, WARP), atol=1e-3)
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
