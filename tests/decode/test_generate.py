"""What decoding promises to its caller: equality, stops, caps, batches, and errors before anything compiles."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sdjax.core.sampling import Warp
from sdjax.core.spec import check_params
from sdjax.decode.generate import generate
from sdjax.decode.state import Loop, Params
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.self_draft import SelfDraft
from sdjax.verify.token import TokenRejection
from sdjax.verify.walk import Walk
from tests.crosscheck import Oracle, Uniform
from tests.tiny import CHUNK, NEW, PROMPTS, SEEDS, TARGET, decode, loop_of, plain, target_params

both_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


def recomputed(prompt, seed, temperature, new):
    """Decoding without any cache: the whole text anew for every token."""
    from sdjax.core.sampling import target_choice
    from sdjax.targets.decoder import causal_mask

    size = len(prompt) + new

    @jax.jit
    def choose(tokens, at):
        positions = jnp.arange(size)[None]
        cache = TARGET.empty_cache(1, 1)
        out = TARGET.forward(target_params(), TARGET.embed(target_params(), tokens[None]), positions, cache, causal_mask(size))
        logits = TARGET.unembed(target_params(), out.hidden[0, at - 1])
        return target_choice(logits, Warp(temperature), jnp.uint32(seed), at)

    tokens = jnp.zeros(size, jnp.int32).at[: len(prompt)].set(jnp.array(prompt))
    for at in range(len(prompt), size):
        tokens = tokens.at[at].set(choose(tokens, at))
    return tokens[len(prompt) :].tolist()


@both_temperatures
def test_plain_decoding_equals_recomputation_without_a_cache(temperature):
    assert plain(temperature)[0] == recomputed(PROMPTS[0], SEEDS[0], temperature, NEW)


@both_temperatures
def test_the_target_as_its_own_drafter_is_accepted_whole(temperature):
    """Greedy under the walk; sampled with q = p under rejection: not one refusal, whatever the coins."""
    rule = TokenRejection() if temperature else Walk()
    for drafter, params in ((SelfDraft(TARGET.layers, 3), {}), (DraftModel(TARGET, 3), target_params())):
        for steps in decode(drafter, temperature, rule, params=params).steps:
            np.testing.assert_array_equal(steps.accepted, steps.proposed)
            assert steps.proposed.min() == 3


@both_temperatures
def test_an_oracle_is_accepted_as_far_as_it_is_right(temperature):
    answer = np.zeros((3, 128), np.int32)
    for row, prompt, new in zip(answer, PROMPTS, plain(temperature), strict=True):
        row[: len(prompt) + NEW] = prompt + new
    for right in (0, 2, 4):
        out = decode(Oracle(4, right), temperature, params={"answer": jnp.array(answer)})
        assert out.tokens == plain(temperature)
        for steps in out.steps:
            np.testing.assert_array_equal(steps.accepted[:-2], right)


def test_a_drafter_that_knows_nothing_costs_nothing_wrong():
    assert decode(Uniform(3), 1.0).tokens == plain(1.0)
    assert decode(Uniform(3), 0.0).tokens == plain(0.0)


@both_temperatures
def test_a_batch_of_eight_gives_each_sequence_its_own_output(temperature):
    prompts = [[i + 1] * (3 * i + 1) for i in range(5)] + PROMPTS
    seeds = [*range(5), *SEEDS]
    assert decode(NGram(), temperature, prompts=prompts, seeds=seeds).tokens[5:] == plain(temperature)


def test_prefill_in_any_chunks_is_the_same():
    loop = loop_of(NoDraft(), 0.0, chunk=64)
    assert generate(loop, Params(target_params(), {}), PROMPTS, NEW, seeds=SEEDS).tokens == plain(0.0)


def test_watching_in_rounds_changes_nothing_and_shows_growing_text():
    seen = []
    out = decode(NGram(), 0.0, max_rounds=3, watch=seen.append)
    assert out.tokens == plain(0.0) and seen[-1] == out.tokens
    for early, late in pairwise(seen):
        assert all(b[: len(a)] == a for a, b in zip(early, late, strict=True))


def test_a_sequence_outgrows_its_prefix_bucket():
    long = [[3, 1, 4] * 80]
    short = generate(loop_of(NGram(), 0.0), Params(target_params(), {}), long, 60)
    whole = generate(loop_of(NoDraft(), 0.0), Params(target_params(), {}), long, 60, capacity=512)
    assert short.tokens == whole.tokens and len(short.tokens[0]) == 60


@both_temperatures
def test_stop_tokens_cut_inside_an_accepted_block(temperature):
    """Every position a stop can take in a block: text and counts end with the stop token."""
    expected = plain(temperature)
    for stop in sorted(set(expected[0][:12]))[:6]:
        cut = [new[: new.index(stop) + 1] if stop in new else new for new in expected]
        for drafter in (NoDraft(), SelfDraft(TARGET.layers, 3)):
            loop = loop_of(drafter, temperature, stop=(stop, TARGET.vocab - 1) if stop != TARGET.vocab - 1 else (stop,))
            also = [new[: new.index(TARGET.vocab - 1) + 1] if TARGET.vocab - 1 in new else new for new in cut]
            out = generate(loop, Params(target_params(), {}), PROMPTS, NEW, seeds=SEEDS)
            assert out.tokens == also
            assert [1 + steps.committed.sum() for steps in out.steps] == [len(new) for new in also]


@pytest.mark.parametrize("new", [1, 2, 5])
def test_the_cap_ends_mid_block(new):
    loop = loop_of(SelfDraft(TARGET.layers, 3), 0.0)
    out = generate(loop, Params(target_params(), {}), PROMPTS, new, seeds=SEEDS)
    assert out.tokens == [tokens[:new] for tokens in plain(0.0)]


def test_bfloat16_decodes_to_the_same_length():
    from dataclasses import replace

    target = replace(TARGET, dtype="bfloat16")
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), target_params())
    out = generate(Loop(target, NGram(), Walk(), chunk=CHUNK), Params(params, {}), PROMPTS, 8)
    assert [len(tokens) for tokens in out.tokens] == [8, 8, 8]


@pytest.mark.parametrize(
    ("prompts", "options", "says"),
    [
        ([], {}, "no prompts"),
        ([[1], []], {}, "prompt 1 is empty"),
        ([[1, 29]], {}, "outside the vocabulary"),
        ([[-1]], {}, "outside the vocabulary"),
        ([[1]], {"max_new": 0}, "max_new is 0"),
        ([[1] * 60], {"capacity": 64}, "has 60 tokens and needs .* cache holds 64"),
        ([[1] * 500], {}, "exceeds the 512"),
        ([[1], [2]], {"seeds": [1]}, "2 prompts, but 1 seeds"),
    ],
)
def test_bad_prompts_are_named_before_anything_compiles(prompts, options, says):
    options = {"max_new": NEW} | options
    with jax.log_compiles(False), pytest.raises(ValueError, match=says):
        generate(loop_of(NoDraft(), 0.0), Params(target_params(), {}), prompts, **options)


def test_bad_loops_are_named():
    from dataclasses import replace

    with pytest.raises(ValueError, match="stop id 29 is outside"):
        loop_of(NoDraft(), 0.0, stop=(29,))
    with pytest.raises(ValueError, match="vocabulary has 30 entries, the target's 29"):
        loop_of(DraftModel(replace(TARGET, vocab=30)), 0.0)
    with pytest.raises(ValueError, match="cannot keep 9 layers"):
        loop_of(SelfDraft(9), 0.0)
    with pytest.raises(ValueError, match="shortest ≤ longest"):
        NGram(longest=2, shortest=3)


def test_parameters_that_do_not_fit_are_named():
    params = dict(target_params())
    norm = params.pop("norm")
    with pytest.raises(ValueError, match=r"missing \['norm'\] \(16,\); unexpected \['extra'\]"):
        check_params(TARGET.specs(), params | {"extra": norm}, "the target")
    with pytest.raises(ValueError, match=r"\['norm'\] has shape \(3,\), expected \(16,\)"):
        check_params(TARGET.specs(), params | {"norm": jnp.zeros(3)}, "the target")
