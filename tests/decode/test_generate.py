"""What decoding promises to its caller: equality, stops, caps, batches, and errors before anything compiles."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdjax.core.sampling import Warp, target_choice
from sdjax.core.spec import check_params
from sdjax.core.types import Records
from sdjax.decode.generate import checked_prompts, generate, prefill, run, start
from sdjax.decode.state import Loop, Params
from sdjax.drafters.draft_model import DraftModel
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.drafters.self_draft import SelfDraft
from sdjax.targets.decoder import causal_mask
from sdjax.verify.approximate import ApproximateGreedy
from sdjax.verify.token import TokenRejection
from sdjax.verify.walk import Walk
from tests.crosscheck import Oracle, Recorder, Uniform
from tests.tiny import CHUNK, NEW, PROMPTS, SEEDS, TARGET, decode, loop_of, plain, target_params

both_temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


def recomputed(prompt, seed, warp, new):
    """Decoding without any cache: the whole text anew for every token."""
    size = len(prompt) + new

    @jax.jit
    def choose(tokens, at):
        positions = jnp.arange(size)[None]
        cache = TARGET.empty_cache(1, 1)
        out = TARGET.forward(target_params(), TARGET.embed(target_params(), tokens[None]), positions, cache, causal_mask(size))
        logits = TARGET.unembed(target_params(), out.hidden[0, at - 1])
        return target_choice(logits, warp, jnp.uint32(seed), at)

    tokens = jnp.zeros(size, jnp.int32).at[: len(prompt)].set(jnp.array(prompt))
    for at in range(len(prompt), size):
        tokens = tokens.at[at].set(choose(tokens, at))
    return tokens[len(prompt) :].tolist()


@pytest.mark.parametrize("warp", [Warp(0.0), Warp(1.0), Warp(0.7, top_k=5, top_p=0.9)], ids=str)
def test_plain_decoding_equals_recomputation_without_a_cache(warp):
    out = generate(loop_of(NoDraft(), 0.0, warp=warp), Params(target_params(), {}), PROMPTS, NEW, seeds=SEEDS)
    assert out.tokens[0] == recomputed(PROMPTS[0], SEEDS[0], warp, NEW)


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
    texts = [(*prompt, *new) for prompt, new in zip(PROMPTS, plain(temperature), strict=True)]
    answer = tuple((*text, *[0] * (128 - len(text))) for text in texts)
    for right in (0, 2, 4):
        out = decode(Oracle(answer, 4, right), temperature)
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


def test_the_caches_grow_with_a_sequence():
    prompt, before = [[3, 1, 4, 1, 5] * 20], run._cache_size()
    short = generate(loop_of(NGram(), 1.0), Params(target_params(), {}), prompt, 200)
    assert run._cache_size() == before + 2
    whole = generate(loop_of(NoDraft(), 1.0), Params(target_params(), {}), prompt, 200, capacity=1024)
    assert short.tokens == whole.tokens and len(short.tokens[0]) == 200


def test_the_cache_has_room_for_the_last_steps_overhang():
    """30 + 30 tokens and a draft of 3 need 64 rows: with them all goes well, with fewer it is refused."""
    loop, params = loop_of(SelfDraft(TARGET.layers, 3), 0.0), Params(target_params(), {})
    exact = generate(loop, params, PROMPTS[1:2], 30, seeds=SEEDS[1:2], capacity=64)
    assert exact.tokens == generate(loop, params, PROMPTS[1:2], 30, seeds=SEEDS[1:2]).tokens
    with pytest.raises(ValueError, match=r"needs 64 cache rows .* holds 48"):
        generate(loop, params, PROMPTS[1:2], 30, capacity=48)


def finished(drafter, prompts, new, stop=(), params=None):
    """The loop's own state once all is done."""
    loop = loop_of(drafter, 0.0, stop=stop)
    weights = Params(target_params(), {} if params is None else params)
    state, lengths = start(loop, prompts, new, SEEDS[: len(prompts)], 256)
    return run(loop, weights, prefill(loop, weights, state, lengths), jnp.int32(1000))


@pytest.mark.parametrize("new", [6, 7, 8, 9])
def test_a_drafter_is_told_what_was_committed_not_what_was_accepted(new):
    """At a cap or a stop inside an accepted block, for sequences that end at different steps."""
    drafter = DraftModel(TARGET, 3)
    for stop in ((), (plain(0.0)[0][4],)):
        state = finished(drafter, PROMPTS, new, stop, target_params())
        np.testing.assert_array_equal(state.drafter.length, state.p)
        np.testing.assert_array_equal(state.cache.length, state.p)
        for mine, theirs in zip(jax.tree.leaves(state.drafter.layers), jax.tree.leaves(state.cache.layers), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=2e-5)


def test_observe_is_fed_the_targets_true_features_and_next_tokens_once_each():
    state = finished(Recorder(SelfDraft(2, 3)), PROMPTS, NEW)
    assert int(state.records.accepted.sum()) > 5
    for b, p in enumerate(np.asarray(state.p)):
        tokens = state.tokens[b : b + 1, :p]
        x, nothing = TARGET.embed(target_params(), tokens), TARGET.empty_cache(1, 1)
        out = TARGET.forward(target_params(), x, jnp.arange(p)[None], nothing, causal_mask(p), taps=Recorder.taps)
        np.testing.assert_allclose(state.drafter.features[b, :p], out.features[0], atol=2e-4)
        np.testing.assert_array_equal(state.drafter.next_tokens[b, :p], state.tokens[b, 1 : p + 1])
        np.testing.assert_array_equal(state.drafter.times[b], np.arange(256) < p)


def test_records_say_what_happened():
    """Ragged drafts: a lookup that hits or misses, sequences that are done early."""
    loop, params = loop_of(NGram(length=3, longest=2), 0.0), Params(target_params(), {})
    state, lengths = start(loop, PROMPTS, NEW, SEEDS, 256)
    state = prefill(loop, params, state.replace(last=state.last - jnp.array([0, 9, 18])), lengths)
    for step in range(NEW):
        draft, _ = loop.drafter.propose(loop.context(params, state), {}, None)
        running, before = ~np.asarray(state.done), np.asarray(state.p)
        present = np.asarray(draft.valid[:, 1:].sum(1)) * running
        if not running.any():
            break
        state = run(loop, params, state, jnp.int32(1))
        row = {name: np.asarray(getattr(state.records, name))[:, step] for name in Records.__dataclass_fields__}
        np.testing.assert_array_equal(row["proposed"], present)
        np.testing.assert_array_equal(row["reach"], present)
        np.testing.assert_array_equal(row["verified"], 4 * running)
        np.testing.assert_array_equal(row["committed"], np.asarray(state.p) - before)
        paths = [[i + 1 if i < accepted else -1 for i in range(3)] for accepted in row["accepted"]]
        np.testing.assert_array_equal(row["node"], paths)
        assert (row["accepted"] <= present).all()
    assert not running.any()


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


def test_bfloat16_speculates_as_it_decodes_plainly_but_for_near_ties():
    target = replace(TARGET, dtype="bfloat16")
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), target_params())
    plainly, ahead = (
        generate(Loop(target, drafter, Walk(), chunk=CHUNK), Params(params, {}), PROMPTS, 8).tokens
        for drafter in (NoDraft(), NGram())
    )
    same = [a == b for one, other in zip(plainly, ahead, strict=True) for a, b in zip(one, other, strict=True)]
    assert np.mean(same) > 0.6


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
        ([[1]], {"seeds": [1.7]}, "a seed is 1.7"),
        ([[1.9, 2]], {}, "a token of prompt 0 is 1.9"),
        (["abc"], {}, "prompt 0 is 'abc'"),
        ([7], {}, "prompt 0 is 7"),
        ([[1]], {"max_new": 4.0}, "max_new is 4.0"),
        ([[1]], {"max_rounds": 0}, "max_rounds is 0"),
    ],
)
def test_bad_prompts_are_named_before_anything_compiles(prompts, options, says):
    refused(says, loop_of(NoDraft(), 0.0), Params(target_params(), {}), prompts, **options)


def refused(says, loop, params, prompts=PROMPTS, **options):
    """`generate` raises a ValueError that says so, and no program has been compiled."""
    before = prefill._cache_size(), run._cache_size()
    with pytest.raises(ValueError, match=says):
        generate(loop, params, prompts, **({"max_new": NEW} | options))
    assert (prefill._cache_size(), run._cache_size()) == before


junk = st.one_of(st.integers(-5, 40), st.floats(), st.none(), st.text(max_size=2), st.lists(st.integers(-2, 31), max_size=3))


@given(st.lists(st.one_of(st.lists(junk, max_size=4), junk), max_size=3), st.lists(junk, max_size=3), junk)
def test_junk_is_refused_by_a_value_error_or_is_fine(prompts, seeds, max_new):
    loop = loop_of(NoDraft(), 0.0)
    try:
        start(loop, checked_prompts(loop, prompts, max_new), max_new, seeds, 64)
    except ValueError as error:
        assert len(str(error)) > 15


@pytest.mark.parametrize("as_array", [np.array, jnp.array])
def test_arrays_are_as_good_as_lists(as_array):
    loop, params = loop_of(NoDraft(), 0.0), Params(target_params(), {})
    seeds = np.array(SEEDS[:1], np.uint32)
    assert generate(loop, params, as_array(PROMPTS[:1]), NEW, seeds=seeds).tokens == plain(0.0)[:1]


def test_weights_that_do_not_fit_are_refused():
    params, loop = target_params(), loop_of(NoDraft(), 0.0)
    wrong = {
        "unexpected": params | {"extra": jnp.zeros(3)},
        "missing": {name: leaf for name, leaf in params.items() if name != "norm"},
        "norm.* has shape": params | {"norm": jnp.zeros(1)},
        "head.* has shape": params | {"head": jnp.zeros((40, TARGET.width))},
    }
    for says, weights in wrong.items():
        refused(says, loop, Params(weights, {}))
    refused("the drafter DraftModel: missing", loop_of(DraftModel(TARGET, 3), 0.0), Params(params, {}))


def test_a_capacity_that_is_no_integer_is_refused():
    refused(r"capacity is 64\.0; it must be an integer", loop_of(NoDraft(), 0.0), Params(target_params(), {}), capacity=64.0)


def test_a_rule_refuses_before_prefill_compiles():
    refused("greedy decoding only", loop_of(SelfDraft(1, 2), 1.0, ApproximateGreedy()), Params(target_params(), {}))


def test_bad_loops_are_named():
    with pytest.raises(ValueError, match="stop id 29 is outside"):
        loop_of(NoDraft(), 0.0, stop=(29,))
    with pytest.raises(ValueError, match="vocabulary has 30 entries, the target's 29"):
        loop_of(DraftModel(replace(TARGET, vocab=30)), 0.0)
    with pytest.raises(ValueError, match="cannot keep 9 layers"):
        loop_of(SelfDraft(9), 0.0)
    with pytest.raises(ValueError, match="shortest ≤ longest"):
        NGram(longest=2, shortest=3)
    with pytest.raises(ValueError, match="window is -1"):
        NGram(window=-1)
    for drafter in (NGram, partial(SelfDraft, 1), partial(DraftModel, TARGET)):
        with pytest.raises(ValueError, match="length is 0"):
            drafter(length=0)
    with pytest.raises(ValueError, match=r"a stop id is 2\.5"):
        loop_of(NoDraft(), 0.0, stop=(2.5,))
    assert loop_of(NoDraft(), 0.0, stop=[3, 2, 3]) == loop_of(NoDraft(), 0.0, stop=(2, 3))
    for fields, says in (
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"windows": (0, 1, 1)}, "windows are"),
        ({"layers": 0}, "layers"),
    ):
        with pytest.raises(ValueError, match=says):
            replace(TARGET, **fields)


def test_parameters_that_do_not_fit_are_named():
    params = dict(target_params())
    norm = params.pop("norm")
    with pytest.raises(ValueError, match=r"missing \['norm'\] \(16,\); unexpected \['extra'\]"):
        check_params(TARGET.specs(), params | {"extra": norm}, "the target")
    with pytest.raises(ValueError, match=r"\['norm'\] has shape \(3,\), expected \(16,\)"):
        check_params(TARGET.specs(), params | {"norm": jnp.zeros(3)}, "the target")
