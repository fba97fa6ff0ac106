"""From records to figures, and the equality check with planted faults."""

import io
from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from sdjax.core.metrics import Steps
from sdjax.core.sampling import Warp, target_choice
from sdjax.study.equality import NEAR_TIE, Mismatch, choice_scores, first_difference, gap_of, mismatches, next_logits
from sdjax.study.methods import arms
from sdjax.study.report import interval, plain, show, speed, speed_columns, summarise
from sdjax.study.runs import RunFolder
from sdjax.study.timing import Costs, Shapes, measure, no_compilation, shapes_of, warm_up
from tests.experiments.tiny_model import config, model


@pytest.fixture(scope="module")
def decoded(finished):
    """The arms of a comparison and its records."""
    folder, _ = finished
    settings = config(folder)
    groups = arms(settings.methods, settings.rule, model(), settings.decode.chunk)
    return groups, RunFolder(folder / "tiny").read()


def planted(records, arm, position, token=None):
    """The records with one token of one of the arm's outputs changed, or the output cut there."""
    at = next(i for i, record in enumerate(records) if record.arm == arm.key)
    tokens = list(records[at].tokens)
    tokens = tokens[:position] if token is None else [*tokens[:position], token, *tokens[position + 1 :]]
    return [*records[:at], replace(records[at], tokens=tokens), *records[at + 1 :]]


def test_nothing_differs(decoded):
    assert mismatches(*decoded) == []


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("position", [0, 1, 7])
def test_a_planted_mismatch_is_found(decoded, group, position):
    """Its gap is that between plain decoding's choice and the planted token, in plain decoding's own scores."""
    groups, records = decoded
    lookup = groups[group][1]
    right = next(record for record in records if record.arm == lookup.key).tokens[position]
    (fault,) = mismatches(groups, planted(records, lookup, position, (right + 1) % 29))
    assert (fault.method, fault.temperature, fault.prompt) == (*lookup.key, "text/0")
    assert (fault.position, fault.expected, fault.found) == (position, right, (right + 1) % 29)
    assert fault.gap > fault.near_tie and fault.fails and "FAILURE" in str(fault)


def test_plain_decoding_chose_the_best_score(decoded):
    """The scores that gaps are measured in are those that plain decoding takes the argmax of."""
    groups, records = decoded
    for baseline, *_ in groups:
        record = next(record for record in records if record.arm == baseline.key)
        for position in (0, 3, 11):
            context = [*record.prompt_tokens, *record.tokens[:position]]
            scores = choice_scores(next_logits(baseline, context), baseline.warp, record.seed, len(context))
            assert scores.argmax() == record.tokens[position]


WARPS = [
    Warp(),
    Warp(1.0),
    Warp(1.0, top_k=5),
    Warp(0.7, top_p=0.6),
    Warp(1.0, min_p=0.1),
    Warp(0.7, top_k=8, top_p=0.8, min_p=0.05),
]


@pytest.mark.parametrize("warp", WARPS, ids=str)
def test_what_rounding_moves_is_a_near_tie_and_a_fault_is_none(warp):
    """Noise of e moves two logits by 2 e from each other, whether they tie or stand at the edge of what is kept."""
    rng, e, seeds = np.random.default_rng(0), 0.01, jnp.arange(1500, dtype=jnp.uint32)
    logits = (2 * rng.standard_normal((1500, 40))).astype(np.float32)
    chosen = lambda x, warp: np.asarray(jax.vmap(lambda x, seed: target_choice(x, warp, seed, jnp.int32(7)))(x, seeds))
    plain, noisy = (chosen(x, warp) for x in (logits, logits + rng.uniform(-e, e, logits.shape).astype(np.float32)))
    gap = lambda i, token: gap_of((token, plain[i]), logits[i], warp, i, 7)
    flipped = np.flatnonzero(plain != noisy)
    assert len(flipped) and all(gap(i, noisy[i]) < 2.01 * e for i in flipped)
    unwarped = chosen(logits, Warp(warp.temperature))
    faults = [gap(i, token) for i, token in enumerate(unwarped) if token != plain[i]] + [
        gap(i, (plain[i] + 1) % 40) for i in range(50)
    ]
    assert np.mean(np.array(faults) < 2 * e) < 0.03


@pytest.mark.parametrize(
    ("warp", "p"), [(Warp(1.0, top_p=0.5), (0.5, 0.3, 0.2)), (Warp(1.0, top_k=1), (0.4, 0.4, 0.2))], ids=str
)
def test_the_edge_of_what_is_kept_is_no_abyss(warp, p):
    """The second token is dropped by a hair: rounding may keep it, but the third it may not."""
    logits = np.log(np.array(p, np.float32)) + np.array([4e-6, 0, 0], np.float32)
    gaps = np.array([[gap_of((token,), logits, warp, seed, 7) for token in range(3)] for seed in range(20)])
    assert (gaps[:, 1] < 1e-4).any() and (gaps[:, 0] == 0).all() and (gaps[:, 2] > 0.3).all()


def test_more_rounding_is_allowed_more():
    assert NEAR_TIE["float32"] < NEAR_TIE["mixed"] < NEAR_TIE["bfloat16"]


def test_an_output_cut_short_fails(decoded):
    groups, records = decoded
    (fault,) = mismatches(groups, planted(records, groups[0][1], 5))
    assert (fault.position, fault.found, fault.gap) == (5, None, float("inf")) and fault.fails


def test_a_near_tie_is_counted_not_failed(decoded):
    groups, records = decoded
    fault = Mismatch("lookup", 0.0, "text/0", 0, 3, 1, 2, gap=5e-4, near_tie=1e-3)
    assert not fault.fails
    lookup = summarise(groups, records, {}, [fault])[1]
    assert str(lookup.equality) == "2/3, 1 near-tie"
    assert replace(fault, gap=float("nan")).fails


def test_rejection_promises_the_law_alone(decoded):
    groups, records = decoded
    sampled = groups[1][2]
    assert mismatches(groups, planted(records, sampled, 0)) == []
    equality = summarise(groups, records, {}, [])[-1].equality
    assert str(equality) == "in law" and (equality.compared, equality.equal) == (0, 0), "nothing was compared"


def test_first_difference():
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_speed_is_the_ratio_of_sums(decoded):
    """Twice as fast on a long prompt, half as fast on a short one: the long one weighs more."""
    _, records = decoded
    baseline = [replace(r, decode_seconds=s) for r, s in zip(records[:2], (10.0, 1.0), strict=True)]
    baseline = [
        replace(r, prompt=f"p{i}", tokens=list(range(n))) for i, (r, n) in enumerate(zip(baseline, (101, 11), strict=True))
    ]
    method = [replace(r, decode_seconds=s) for r, s in zip(baseline, (5.0, 2.0), strict=True)]
    found = speed(method, baseline)
    assert found.speedup == pytest.approx(11 / 7)
    assert found.tokens_per_second == pytest.approx(110 / 7)
    assert found.low == pytest.approx(0.5) and found.high == pytest.approx(2)


def eight(decoded, batch=1, turns=1):
    """Records of eight answers, turn by turn in batches, and of plain decoding's: all of a batch have its time."""
    record, rng = decoded[1][0], np.random.default_rng(0)

    def made(seconds):
        return [
            replace(record, prompt=f"p{p}", turn=turn, tokens=[0] * (9 + 4 * i), decode_seconds=seconds[i // batch])
            for i, (turn, p) in enumerate(product(range(turns), range(8 // turns)))
        ]

    return made(rng.uniform(1, 2, 8)), made(rng.uniform(2, 4, 8))


@pytest.mark.parametrize(
    ("batch", "turns", "drawn"), [(1, 1, "01234567"), (2, 1, "00112233"), (1, 2, "01230123"), (2, 2, "00110011")]
)
def test_what_was_not_drawn_apart_is_not_resampled_apart(decoded, batch, turns, drawn):
    """Prompts of one batch share its time, turns of one conversation are alike: together they are one sample."""
    method, baseline = eight(decoded, batch, turns)
    columns = [(s.decode_seconds, s.decoded, r.decode_seconds, r.decoded) for r, s in zip(method, baseline, strict=True)]
    found = speed(method, baseline)
    together = [np.sum([x for x, sample in zip(columns, drawn, strict=True) if sample == s], 0) for s in sorted(set(drawn))]
    assert (found.low, found.high) == interval(np.array(together).T)
    assert found.low < found.speedup < found.high


def test_a_single_sample_has_no_interval(decoded):
    groups, records = decoded
    shared = [replace(r, tokens=r.tokens[: 5 + i % 3], prefill_seconds=1.0, decode_seconds=1.0) for i, r in enumerate(records)]
    row = summarise(groups, shared, {}, [])[1]
    assert row.prompts == 3 and np.isnan(row.speed.low) and np.isnan(row.speed.high)
    assert speed_columns(row)["speed-up [95 %]"] == f"{row.speed.speedup:.2f}"


def test_figures_and_table(decoded):
    groups, records = decoded
    steps = Steps(*(np.array(x) for x in ([3, 3], [3, 3], [3, 0], [4, 1], [4, 4])))
    records = [replace(r, steps=steps) if r.method == "lookup" else r for r in records]
    rows = summarise(groups, records, {"lookup T=0": Costs(0.1, 1.2, 0.2)}, [])
    assert rows[1].acceptance.tau == 2.5 and rows[1].predicted == pytest.approx(2.5 / 1.5)
    assert np.isnan(rows[0].predicted)
    printed = io.StringIO()
    show(Console(file=printed, width=300), rows)
    assert "2.50" in printed.getvalue() and "1.67" in printed.getvalue() and "3/3" in printed.getvalue()
    terminal = io.StringIO()
    show(Console(file=terminal, width=300, force_terminal=True), rows)
    assert "┃" in terminal.getvalue()


def test_plain_lines_are_aligned():
    text = plain("title", [{"a": "1", "bb": "x"}, {"a": "100", "bb": "y"}])
    assert text == "\ntitle\na    bb\n1    x\n100  y"


def test_a_lossy_rule_promises_nothing_and_its_drift_is_counted(decoded):
    groups, records = decoded
    baseline, lookup = groups[0]

    class Lossy(type(lookup.loop.rule)):
        lossless = False

    lossy = replace(lookup, loop=replace(lookup.loop, rule=Lossy()))
    changed = planted(records, lookup, 0, 3)
    assert mismatches([[baseline, lossy]], changed) == []
    assert str(summarise([[baseline, lossy]], changed, {}, [])[1].equality) == "lossy: 2/3, 67% shared"


def test_costs_are_measured_behind_a_prompt(decoded):
    """A random machine's figures are not known, but they are finite, positive, and plain decoding's parts fill its step."""
    arms = decoded[0][0]
    costs = measure(arms, [[1, 2, 3]], 256, 12)
    assert costs.keys() == {"plain T=0", "lookup T=0"}
    plain_step = costs["plain T=0"]
    assert plain_step.draft > 0 and plain_step.verify > 0
    assert plain_step.draft + plain_step.verify + plain_step.overhead == pytest.approx(1)


def test_warm_up_covers_what_decoding_meets(decoded):
    """All the rows that caches can have in `generate`, for each size of batch, and no compilation inside the clock."""
    shapes = lambda batches, capacity, new: shapes_of(decoded[0][0][0].loop, batches, capacity, new)
    short, long = shapes([[[0] * 100], [[0] * 200, [0] * 300]], 1024, 100)
    assert (short.batch, short.prefill_rows, short.run_rows) == (1, {256}, {256})
    assert (long.batch, long.prefill_rows, long.run_rows) == (2, {512}, {512})
    assert shapes([[[0] * 200]], 1024, 600)[0].run_rows == {512, 1024}
    assert shapes([[[0] * 200]], 700, 600)[0].run_rows == {512, 700}


def test_a_compilation_inside_the_clock_is_an_error(decoded):
    arm = decoded[0][0][0]
    with pytest.raises(RuntimeError, match="while the clock ran"), no_compilation("here"):
        warm_up(arm, Shapes(3, 256, 5, frozenset({256}), frozenset()))
