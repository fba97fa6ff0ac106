"""The transcriptions agree with themselves: two ways to the same number, cases whose answer is known, and who sees what."""

import ast
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.parity.formulas import (
    deepseek_mtp,
    dflash,
    domino,
    dspark,
    eagle1,
    eagle3,
    gloeckle,
    hydra,
    layers,
    medusa,
    pard,
    tidar,
)
from tests.parity.formulas.layers import Geometry

V, E, T, M, HEADS, FFW, WIDTH = 11, 8, 7, 3, 3, 12, 4
G = Geometry(heads=4, kv_heads=2)
KEPT = np.array([0, 2, 3, 7, 10])  # the draft vocabulary
rng = np.random.default_rng(0)
EMBED, UNEMBED = rng.normal(size=(2, V, E))
NORM = rng.normal(size=E)
HIDDEN = rng.normal(size=(T, E))
FEATURES = rng.normal(size=(T, M, E))
TOKENS = rng.integers(0, V, T)
TARGET_LOGITS = HIDDEN @ UNEMBED.T
MASK = np.array([0, 0, 1, 1, 0, 1, 1])


def matrix(rows, columns):
    return rng.normal(size=(rows, columns)) / np.sqrt(columns)


def attention_and_mlp(name, width=E):
    """A layer's matrices; attention reads rows `width` wide."""
    sizes = {"q_proj": (4 * WIDTH, width), "k_proj": (2 * WIDTH, width), "v_proj": (2 * WIDTH, width), "o_proj": (E, 4 * WIDTH)}
    W = {f"{name}.self_attn.{part}.weight": matrix(*size) for part, size in sizes.items()}
    sizes = {"gate_proj": (FFW, E), "up_proj": (FFW, E), "down_proj": (E, FFW)}
    W |= {f"{name}.mlp.{part}.weight": matrix(*size) for part, size in sizes.items()}
    return W | {f"{name}.post_attention_layernorm.weight": rng.normal(size=E)}


def llama_layer(name):
    return attention_and_mlp(name) | {f"{name}.input_layernorm.weight": rng.normal(size=E)}


def affine(name, rows, columns):
    return {f"{name}.weight": matrix(rows, columns), f"{name}.bias": rng.normal(size=rows)}


def hydra_weights(prefixed):
    number = (lambda j: 2 * j + 1) if prefixed else (lambda j: j)
    W = {}
    for k in range(HEADS):
        W |= affine(f"hydra_mlp.{k}.{number(0)}.linear", E, (k + 2) * E)
        W |= affine(f"hydra_mlp.{k}.{number(0)}.res_connection", E, (k + 2) * E)
        W |= affine(f"hydra_mlp.{k}.{number(1)}.linear", E, E)
        W |= affine(f"hydra_lm_head.{k}.1" if prefixed else f"hydra_lm_head.{k}", V, E)
    if prefixed:
        W |= llama_layer("prefix_embeding_layer.layers.0") | {"prefix_embeding_layer.norm.weight": rng.normal(size=E)}
    return W


def medusa_weights(blocks=1):
    W = {}
    for k in range(HEADS):
        for j in range(blocks):
            W |= affine(f"medusa_head.{k}.{j}.linear", E, E)
        W[f"medusa_head.{k}.{blocks}.weight"] = matrix(V, E)
    return W


EAGLE1 = affine("fc", E, 2 * E) | attention_and_mlp("layers.0")
EAGLE3 = attention_and_mlp("midlayer", 2 * E) | {
    "fc.weight": matrix(E, M * E),
    "midlayer.input_layernorm.weight": rng.normal(size=E),
    "midlayer.hidden_norm.weight": rng.normal(size=E),
    "norm.weight": rng.normal(size=E),
    "lm_head.weight": 4 * matrix(len(KEPT), E),
    "d2t": KEPT - np.arange(len(KEPT)),
    "t2d": np.isin(np.arange(V), KEPT),
    "input_norm.weight": rng.normal(size=M * E),
    **{f"fc_norm.{m}.weight": rng.normal(size=E) for m in range(M)},
}
PLAIN = eagle3.Eagle3(G)
CONFIGS = [PLAIN] + [replace(PLAIN, **{f: True}) for f in ("norm_before_residual", "norm_output", "fc_norm", "norm_before_fc")]
CONFIGS.append(eagle3.Eagle3(G, True, True, True, True))
MTP = {}
for number in (5, 6):
    name = f"model.layers.{number}"
    MTP |= llama_layer(name) | {f"{name}.eh_proj.weight": matrix(E, 2 * E)}
    MTP |= {f"{name}.{norm}.weight": rng.normal(size=E) for norm in ("enorm", "hnorm", "shared_head.norm")}
EXTRA = llama_layer("extra_heads.0") | llama_layer("extra_heads.1")
HYDRA = {None: hydra_weights(False), G: hydra_weights(True)}


def same(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def changed(f, array, t):
    """Which entries of f's output [steps, T, V] move with row t of an array: a set of (step, row)."""
    other = array.copy()
    other[t] = (other[t] + 1) % V if array.dtype.kind == "i" else other[t] + 1.0
    moved = ~np.isclose(f(array), f(other), rtol=0, atol=1e-9, equal_nan=True).all(axis=-1)
    return {(int(i), int(r)) for i, r in zip(*np.nonzero(moved), strict=True)}


def test_nothing_but_numpy_is_imported():
    for path in (Path(__file__).parent / "formulas").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.startswith("tests.parity.formulas") or name in (
                    "numpy", "dataclasses", "itertools", "collections.abc",
                ), f"{path.name} imports {name}"  # fmt: skip


# Layers


def test_only_differences_of_positions_matter():
    W, x = llama_layer("l"), HIDDEN
    near = layers.decoder_layer(W, "l", x, np.arange(T), G)
    same(near, layers.decoder_layer(W, "l", x, np.arange(T) + 9, G))
    assert not np.allclose(near, layers.decoder_layer(W, "l", x, 2 * np.arange(T), G))


def test_rope_turns_halves():
    """Pair (j, j + K/2) turns by position · θ^(−2j/K): checked as complex numbers."""
    x = rng.normal(size=(3, 6))
    turned = layers.rope(x, 5, 100.0)
    turn = np.exp(1j * 5 * 100.0 ** (-np.arange(3) / 3))
    same(turned[:, :3] + 1j * turned[:, 3:], (x[:, :3] + 1j * x[:, 3:]) * turn)


def test_grouped_attention_is_full_attention_on_repeated_heads():
    W = llama_layer("l")
    repeated = dict(W)
    for part in ("k_proj", "v_proj"):
        tensor = W[f"l.self_attn.{part}.weight"].reshape(2, WIDTH, E)
        repeated[f"l.self_attn.{part}.weight"] = np.repeat(tensor, 2, axis=0).reshape(-1, E)
    grouped = layers.decoder_layer(W, "l", HIDDEN, np.arange(T), G)
    same(grouped, layers.decoder_layer(repeated, "l", HIDDEN, np.arange(T), replace(G, kv_heads=4)))


def test_attention_by_matrices():
    """One dense softmax under a triangle, for one head."""
    W = {f"a.{part}_proj.weight": matrix(E, E) for part in "qkvo"}
    x, still = HIDDEN, np.zeros(T)
    q, k, v = (x @ W[f"a.{part}_proj.weight"].T for part in "qkv")
    scores = np.where(np.tril(np.ones((T, T))) > 0, q @ k.T / np.sqrt(E), -np.inf)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) @ v @ W["a.o_proj.weight"].T
    same(layers.causal_attention(W, "a", x, still, Geometry(1, 1)), expected)


def test_a_layer_adds_to_its_input():
    W = llama_layer("l")
    W["l.self_attn.o_proj.weight"] = np.zeros((E, 4 * WIDTH))
    mlp = layers.swiglu(W, "l.mlp", layers.rms_norm(HIDDEN, W["l.post_attention_layernorm.weight"], G.eps))
    same(layers.decoder_layer(W, "l", HIDDEN, np.arange(T), G), HIDDEN + mlp)
    W["l.mlp.down_proj.weight"] = np.zeros((E, FFW))
    same(layers.decoder_layer(W, "l", HIDDEN, np.arange(T), G), HIDDEN)


def test_optional_tensors_are_used():
    W, x = llama_layer("l"), HIDDEN
    plain = layers.decoder_layer(W, "l", x, np.arange(T), G)
    normed = W | {f"l.self_attn.{n}_norm.weight": np.ones(WIDTH) for n in "qk"}
    scaled = normed | {"l.self_attn.q_proj.weight": 3 * W["l.self_attn.q_proj.weight"]}
    biased = W | {"l.self_attn.q_proj.bias": rng.normal(size=4 * WIDTH)}
    first, second = (layers.decoder_layer(w, "l", x, np.arange(T), G) for w in (normed, scaled))
    np.testing.assert_allclose(first, second, atol=1e-4)
    assert not np.allclose(first, plain)
    assert not np.allclose(layers.decoder_layer(biased, "l", x, np.arange(T), G), plain)


def test_pointwise_losses():
    z, p = rng.normal(size=V), layers.softmax(rng.normal(size=V))
    same(layers.smooth_l1(np.array([0.5, 1.0, -3.0]), 0.0), [0.125, 0.5, 2.5])
    same(layers.soft_cross_entropy(np.eye(V)[4], z), layers.cross_entropy(z, 4))
    same(layers.kl_divergence(p, z), layers.soft_cross_entropy(p, z) + (p * np.log(p)).sum())
    same(layers.kl_divergence(p, np.log(p) + 3), 0)
    same(layers.kl_divergence(np.eye(V)[4], z), layers.cross_entropy(z, 4))
    assert np.isfinite(layers.log_softmax(z + 1e6)).all()


def test_denominators():
    values, weights = np.array([2.0, np.nan, 4.0, 6.0]), np.array([1, 0, 1, 0.5])
    expected = {"mask": 9 / 2.5, "mask+1e-5": 9 / 2.50001, "positions": 9 / 4, 3.0: 3.0}
    for denominator, value in expected.items():
        assert layers.average(values, weights, denominator) == pytest.approx(value)
    with pytest.raises(ValueError, match="tokens"):
        layers.average(values, weights, "tokens")


def test_a_row_is_weighed_by_the_token_it_predicts():
    """With flat logits each counted row costs log V; a sharp row shows which one it was."""
    flat = np.zeros((T, V))
    for ahead in (1, 2, 3):
        counted = MASK[ahead:].sum()
        assert layers.token_loss(flat, TOKENS, MASK, ahead, 1.0) == pytest.approx(counted * np.log(V))
        assert layers.token_loss(flat, TOKENS, MASK, ahead, "positions") == pytest.approx(counted / T * np.log(V))
        one = (np.arange(T) == 5).astype(int)
        sharp = flat.copy()
        sharp[5 - ahead, TOKENS[5]] = 50
        assert layers.token_loss(sharp, TOKENS, one, ahead, "mask") == pytest.approx(0, abs=1e-9)
        assert layers.token_loss(flat, TOKENS, MASK, ahead, 1.0, rows=0) == 0


# Medusa


@pytest.mark.parametrize("blocks", [1, 2])
def test_zero_medusa_heads_are_the_target(blocks):
    W = {name: np.zeros_like(tensor) if "linear" in name else UNEMBED for name, tensor in medusa_weights(blocks).items()}
    shared = {name: tensor for name, tensor in W.items() if "linear" in name}
    for weights in (W, shared):
        for head in medusa.logits(weights, UNEMBED, HIDDEN):
            same(head, TARGET_LOGITS)


def test_medusa_heads_read_one_row_each():
    W = medusa_weights()
    assert changed(lambda h: medusa.logits(W, UNEMBED, h), HIDDEN, 3) == {(k, 3) for k in range(HEADS)}
    tokens, logits = medusa.draft(W, UNEMBED, HIDDEN[3])
    same(logits, medusa.logits(W, UNEMBED, HIDDEN)[:, 3])
    assert (tokens == logits.argmax(-1)).all()


def test_medusa_loss():
    total, parts = medusa.loss(np.zeros((HEADS, T, V)), TOKENS, MASK, denominator="mask", coefficient=0.2)
    same(parts, np.full(HEADS, np.log(V)))
    assert total == pytest.approx(0.2 * (0.8 + 0.64 + 0.512) * np.log(V))
    perfect = np.zeros((HEADS, T, V))
    for k in range(HEADS):
        for t in range(T - k - 2):
            perfect[k, t, TOKENS[t + k + 2]] = 50
    assert medusa.loss(perfect, TOKENS, MASK, denominator="mask")[0] == pytest.approx(0, abs=1e-9)


def test_medusa_joint_loss():
    kept = {"tokens": TOKENS, "mask": MASK, "denominator": "mask"}
    assert medusa.joint_loss(2.0, np.zeros((T, V)), **kept) == pytest.approx(np.log(V) + 0.4)
    distilled = medusa.joint_loss(2.0, TARGET_LOGITS, original_logits=TARGET_LOGITS + 1, weight=0.01, **kept)
    assert distilled == pytest.approx(0.02)
    moved = TARGET_LOGITS + np.outer(np.arange(T) == 3, np.arange(V))  # row 3 predicts x_4, which is not supervised
    assert medusa.joint_loss(2.0, moved, original_logits=TARGET_LOGITS, **kept) == pytest.approx(0.4)
    assert [medusa.sine_ramp(s, 8) for s in (0, 8)] == pytest.approx([0, 1])


# Hydra


@pytest.mark.parametrize("prefix", HYDRA, ids=["plain", "prefix"])
def test_hydra_row_is_a_draft(prefix):
    W = HYDRA[prefix]
    rows = hydra.logits(W, prefix, EMBED, HIDDEN, TOKENS)
    assert rows.shape == (HEADS, T, V)
    for t in range(T - HEADS):
        _, logits = hydra.draft(W, prefix, EMBED, HIDDEN[: t + 1], TOKENS[t + 1], HEADS, forced=TOKENS[t + 2 :])
        same(logits, rows[:, t])
        drafted, logits = hydra.draft(W, prefix, EMBED, HIDDEN[: t + 1], TOKENS[t + 1], HEADS)
        text = np.concatenate([TOKENS[: t + 2], drafted])
        states = np.concatenate([HIDDEN[: t + 1], rng.normal(size=(len(text) - t - 1, E))])
        same(logits, hydra.logits(W, prefix, EMBED, states, text)[:, t])


@pytest.mark.parametrize("prefix", HYDRA, ids=["plain", "prefix"])
def test_hydra_sees_its_path_and_no_further(prefix):
    """x_5 is read by head k in rows 5 − k … 4; h_3 by row 3 alone, or through the prefix by all later rows."""
    W = HYDRA[prefix]
    moved = changed(lambda x: hydra.logits(W, prefix, EMBED, HIDDEN, x), TOKENS, 5)
    assert moved == {(k, r) for k in range(HEADS) for r in range(5 - (k + 1), 5) if r + k + 1 < T}
    moved = changed(lambda h: hydra.logits(W, prefix, EMBED, h, TOKENS), HIDDEN, 3)
    later = range(3, 4 if prefix is None else T)
    assert moved == {(k, r) for k in range(HEADS) for r in later if r + k + 1 < T}


def test_hydra_reads_the_state_first():
    W = {name: np.zeros_like(tensor) for name, tensor in HYDRA[None].items()}
    for k in range(HEADS):
        W[f"hydra_lm_head.{k}.weight"] = UNEMBED
        for part in range(k + 2):
            blocks = [np.eye(E) if p == part else np.zeros((E, E)) for p in range(k + 2)]
            W[f"hydra_mlp.{k}.0.res_connection.weight"] = np.concatenate(blocks, axis=1)
            state = hydra.outputs(W, None, EMBED, HIDDEN, TOKENS)[0][k, 2]
            same(state, HIDDEN[2] if part == 0 else EMBED[TOKENS[2 + part]])


def test_hydra_loss():
    """Heads that know the target's row t + k, state and law: SmoothL1 is 0, the teacher term is the entropy."""
    states, logits = np.full((HEADS, T, E), np.nan), np.full((HEADS, T, V), np.nan)
    for k in range(1, HEADS + 1):
        states[k - 1, : T - k], logits[k - 1, : T - k] = HIDDEN[k:], TARGET_LOGITS[k:]
    args = (states, logits, HIDDEN, TARGET_LOGITS, TOKENS, MASK)
    total, parts = hydra.loss(*args, denominator="mask")
    p = layers.softmax(TARGET_LOGITS)
    entropy, hard = -(p * np.log(p)).sum(-1), -np.log(p[np.arange(T - 1), TOKENS[1:]])
    for k in range(1, HEADS + 1):
        rows = [t for t in range(T - k - 1) if MASK[t + k + 1]]
        same(parts[k - 1], [hard[[t + k for t in rows]].mean(), entropy[[t + k for t in rows]].mean(), 0])
    assert total == pytest.approx(parts[:, 1].sum())
    assert hydra.loss(*args, denominator="mask", lm=1, teacher=0)[0] == pytest.approx(parts[:, 0].sum())
    shifted = (states + 3, *args[1:])
    for k in range(1, HEADS + 1):  # only the state that stands for row 4, whose token is not supervised, is wrong
        shifted_row = states + 3.0 * (np.arange(T) == 4 - k)[:, None]
        assert hydra.loss(shifted_row, *args[1:], denominator="mask")[1][k - 1, 2] == 0
    assert hydra.loss(*shifted, denominator="mask", teacher=0, reconstruction=1)[0] == pytest.approx(2.5 * HEADS)


# EAGLE-1


def test_eagle1_row_is_a_draft():
    rows = eagle1.logits(EAGLE1, G, EMBED, UNEMBED, HIDDEN, TOKENS)
    assert np.isnan(rows[-1]).all() and not np.isnan(rows[:-1]).any()
    for t in range(T - 1):
        _, logits = eagle1.draft(EAGLE1, G, EMBED, UNEMBED, HIDDEN[: t + 1], TOKENS[: t + 2], 3)
        same(logits[0], rows[t])


def test_eagle1_draft_is_teacher_forcing_on_its_own_states():
    """What was drafted, put into a text together with the states that were fed back, gives the same logits in one pass."""
    tokens, logits = eagle1.draft(EAGLE1, G, EMBED, UNEMBED, HIDDEN[:4], TOKENS[:5], 3)
    text, states = np.concatenate([TOKENS[:5], tokens]), np.concatenate([HIDDEN[:4], np.zeros((4, E))])
    for r in range(4, 6):
        states[r] = eagle1.outputs(EAGLE1, G, EMBED, UNEMBED, states, text)[0][r - 1]
    same(eagle1.logits(EAGLE1, G, EMBED, UNEMBED, states, text)[3:6], logits)


def test_eagle1_alignment():
    """The embedding of x_t is read from row t − 1 on, the feature of row t from t on; x_0 never."""
    run = lambda hidden, tokens: eagle1.logits(EAGLE1, G, EMBED, UNEMBED, hidden, tokens)[None]
    assert changed(lambda x: run(HIDDEN, x), TOKENS, 3) == {(0, r) for r in range(2, T - 1)}
    assert changed(lambda h: run(h, TOKENS), HIDDEN, 3) == {(0, r) for r in range(3, T - 1)}
    assert changed(lambda x: run(HIDDEN, x), TOKENS, 0) == set()


def test_eagle1_concatenates_the_embedding_first():
    silent = {name: np.zeros_like(tensor) for name, tensor in EAGLE1.items()}
    for part, expected in enumerate((EMBED[TOKENS[1:]], HIDDEN[:-1])):
        blocks = [np.eye(E) if p == part else np.zeros((E, E)) for p in range(2)]
        W = silent | {"fc.weight": np.concatenate(blocks, axis=1)}
        same(eagle1.outputs(W, G, EMBED, UNEMBED, HIDDEN, TOKENS)[0][:-1], expected)


def test_eagle1_loss():
    states, noisy = eagle1.outputs(EAGLE1, G, EMBED, UNEMBED, HIDDEN, TOKENS, noise=0.1)
    assert not np.allclose(noisy[0], eagle1.logits(EAGLE1, G, EMBED, UNEMBED, HIDDEN, TOKENS)[0])
    states[:-1] = HIDDEN[1:]
    p = layers.softmax(TARGET_LOGITS)
    entropy = -(p * np.log(p)).sum(-1)
    for shift, rows in ((0, [2, 3, 5]), (1, [1, 2, 4, 5]), (2, [0, 1, 3, 4])):
        total, parts = eagle1.loss(states, UNEMBED, HIDDEN, MASK, denominator="mask", mask_shift=shift)
        same(parts, [0, entropy[[r + 1 for r in rows]].mean()])
        assert total == pytest.approx(0.1 * parts[1])
    off = eagle1.loss(states + 3, UNEMBED, HIDDEN, MASK, denominator="mask", probability_weight=0)[0]
    assert off == pytest.approx(2.5)


# EAGLE-3


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_eagle3_row_of_the_test_is_a_sequential_draft(config):
    steps = 4
    one_by_one = eagle3.logits(EAGLE3, config, EMBED, FEATURES, TOKENS, steps)
    assert [int((~np.isnan(z[:, 0])).sum()) for z in one_by_one] == [T - 1 - i for i in range(steps)]
    same(one_by_one, eagle3.diagonal_logits(EAGLE3, config, EMBED, FEATURES, TOKENS, steps))


def test_eagle3_flags_matter():
    results = [eagle3.logits(EAGLE3, config, EMBED, FEATURES, TOKENS, 2) for config in CONFIGS]
    for i, a in enumerate(results):
        for b in results[:i]:
            assert not np.allclose(a[1], b[1], equal_nan=True)
    same(results[0][0], results[2][0])  # norm_output changes what is fed back, not the first step


def test_eagle3_layer_in_parts():
    """A silent layer returns the residual; attention reads the normed embedding first, the feature second."""
    embedded, positions = EMBED[TOKENS], np.arange(T)
    silent = EAGLE3 | {"midlayer.mlp.down_proj.weight": np.zeros((E, FFW))}
    deaf = silent | {"midlayer.self_attn.o_proj.weight": np.zeros((E, 4 * WIDTH))}
    normed = layers.rms_norm(HIDDEN, EAGLE3["midlayer.hidden_norm.weight"], G.eps)
    same(eagle3.layer(deaf, PLAIN, HIDDEN, embedded, positions), HIDDEN)
    same(eagle3.layer(deaf, CONFIGS[1], HIDDEN, embedded, positions), normed)
    for half in (0, 1):
        W = dict(silent)
        for part in "qkv":
            name = f"midlayer.self_attn.{part}_proj.weight"
            W[name] = np.where(np.arange(2 * E) // E == half, W[name], 0)
        added = lambda h, e, W=W: eagle3.layer(W, PLAIN, h, e, positions) - h
        deltas = [added(HIDDEN, embedded + 1), added(HIDDEN + 1, embedded)]
        same(deltas[1 - half], added(HIDDEN, embedded))
        assert not np.allclose(deltas[half], added(HIDDEN, embedded))


def test_eagle3_alignment():
    """Row r of step i reads x_1 … x_{r+1+i} and features up to r."""
    steps = 3
    run = lambda features, tokens: eagle3.logits(EAGLE3, PLAIN, EMBED, features, tokens, steps)
    exists = lambda i, r: r + 1 + i < T
    moved = changed(lambda x: run(FEATURES, x), TOKENS, 4)
    assert moved == {(i, r) for i in range(steps) for r in range(T) if exists(i, r) and r + 1 + i >= 4}
    moved = changed(lambda f: run(f, TOKENS), FEATURES, 2)
    assert moved == {(i, r) for i in range(steps) for r in range(2, T) if exists(i, r)}
    assert changed(lambda x: run(FEATURES, x), TOKENS, 0) == set()


@pytest.mark.parametrize("family", ["eagle1", "eagle3"])
def test_worked_example(family, monkeypatch):
    """The specification's round: prompt x0..x4 and anchor x5, three drafts, two of them accepted, the next round."""
    module = {"eagle1": eagle1, "eagle3": eagle3}[family]
    calls, layer = [], module.layer
    record = lambda W, config, hidden, embedded, positions: (
        calls.append((hidden.copy(), embedded.copy(), list(positions))) or layer(W, config, hidden, embedded, positions)
    )
    monkeypatch.setattr(module, "layer", record)
    long = np.random.default_rng(1)
    hidden, features = long.normal(size=(8, E)), long.normal(size=(8, M, E))

    def draft(n, tokens):
        calls.clear()
        if family == "eagle1":
            return eagle1.draft(EAGLE1, G, EMBED, UNEMBED, hidden[:n], tokens, 3)[0]
        return eagle3.draft(EAGLE3, PLAIN, EMBED, features[:n], tokens, 3)[0]

    prompt = np.array([3, 1, 4, 1, 5, 9])  # x0..x4 and the sampled x5
    drafted = draft(5, prompt)  # x̂6, x̂7, x̂8
    assert [positions for _, _, positions in calls] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6]]
    same(calls[-1][1], EMBED[[1, 4, 1, 5, 9, drafted[0], drafted[1]]])
    truth = hidden if family == "eagle1" else eagle3.fuse(EAGLE3, PLAIN, features)
    same(calls[-1][0][:5], truth[:5])
    assert not np.isclose(calls[-1][0][5], truth[5]).any()
    bonus = (drafted[2] + 1) % V
    draft(8, np.concatenate([prompt, drafted[:2], [bonus]]))  # rows 5, 6, 7: (g5, x6), (g6, x7), (g7, x8*)
    same(calls[0][0], truth[:8])
    same(calls[0][1][5:], EMBED[[drafted[0], drafted[1], bonus]])
    assert calls[0][2] == list(range(8)) and calls[1][2] == list(range(9))


def test_eagle3_drafts_in_the_draft_vocabulary():
    tokens, logits = eagle3.draft(EAGLE3, PLAIN, EMBED, FEATURES[:3], TOKENS[:4], 4)
    assert (tokens == KEPT[logits.argmax(-1)]).all() and EAGLE3["t2d"][tokens].all()
    whole = {name: tensor for name, tensor in EAGLE3.items() if name not in ("d2t", "t2d")} | {"lm_head.weight": UNEMBED}
    tokens, logits = eagle3.draft(whole, PLAIN, EMBED, FEATURES[:3], TOKENS[:4], 4)
    assert (tokens == logits.argmax(-1)).all() and logits.shape == (4, V)


def test_eagle3_loss_of_a_perfect_drafter_is_the_entropy():
    steps = 3
    logits = np.full((steps, T, len(KEPT)), np.nan)
    for i in range(steps):
        logits[i, : T - 1 - i] = TARGET_LOGITS[1 + i :, KEPT]
    p = layers.softmax(TARGET_LOGITS[:, KEPT])
    entropy = -(p * np.log(p)).sum(-1)
    inside = np.isin(TARGET_LOGITS.argmax(-1), KEPT)
    assert 0 < inside.sum() < T, "the vocabulary mask must have something to do"
    assert eagle3.loss(EAGLE3, logits, TARGET_LOGITS, MASK, denominator="mask", divergence="kl")[0] == pytest.approx(
        0, abs=1e-9
    )
    for shift in (0, 1, 2):
        for masked in (True, False):
            options = {"mask_shift": shift, "vocabulary_mask": masked}
            total, parts = eagle3.loss(EAGLE3, logits, TARGET_LOGITS, MASK, denominator="mask", **options)
            sums = eagle3.loss(EAGLE3, logits, TARGET_LOGITS, MASK, denominator="positions", **options)[1] * T
            for i in range(steps):
                rows = [r for r in range(T - 1 - i) if r + i + shift < T and MASK[r + i + shift]]
                labels = [r + 1 + i for r in rows if inside[r + 1 + i] or not masked]
                assert parts[i] * max(len(labels), 1) == pytest.approx(entropy[labels].sum())
                assert sums[i] == pytest.approx(entropy[labels].sum())
            assert total == pytest.approx(parts @ [1, 0.8, 0.64])


# DeepSeek


def test_mtp_row_is_a_draft():
    """A chain of two modules; one recursive module; the first depth is common to both."""
    common = (G, EMBED, UNEMBED)
    chain = deepseek_mtp.logits(MTP, (5, 6), *common, HIDDEN, TOKENS)
    recursive = deepseek_mtp.recursive_logits(MTP, 5, *common, HIDDEN, TOKENS, 3)
    same(chain[0], recursive[0])
    for t in range(T - 2):
        forced = TOKENS[t + 2 :]
        same(deepseek_mtp.draft(MTP, (5, 6), *common, HIDDEN[: t + 1], TOKENS[: t + 2], forced=forced)[1], chain[:, t])
        tokens, logits = deepseek_mtp.draft(MTP, (5, 6), *common, HIDDEN[: t + 1], TOKENS[: t + 2])
        text = np.concatenate([TOKENS[: t + 2], tokens])
        states = np.concatenate([HIDDEN[: t + 1], np.zeros((3, E))])
        same(deepseek_mtp.logits(MTP, (5, 6), *common, states, text)[:, t], logits)


def test_mtp_recursion_is_eagles_diagonal():
    """Its step 1 as EAGLE's mask has it: the first step's rows up to t, and the row's own output at position t + 1."""
    common = (G, EMBED, UNEMBED)
    recursive = deepseek_mtp.recursive_logits(MTP, 5, *common, HIDDEN, TOKENS, 2)
    chain = deepseek_mtp.logits(MTP, (5, 5), *common, HIDDEN, TOKENS)
    first = deepseek_mtp.module(MTP, 5, G, HIDDEN[:-1], EMBED[TOKENS[1:]], np.arange(T - 1))[1]
    for t in range(T - 2):
        states = np.concatenate([HIDDEN[: t + 1], first[t : t + 1]])
        normed = deepseek_mtp.module(MTP, 5, G, states, EMBED[TOKENS[1 : t + 3]], np.arange(t + 2))[1]
        same(recursive[1, t], UNEMBED @ normed[-1])
        assert not np.allclose(recursive[1, t], chain[1, t])
    raw = deepseek_mtp.recursive_logits(MTP, 5, *common, HIDDEN, TOKENS, 2, feed_normed=False)
    same(raw[0], recursive[0])
    assert not np.allclose(raw[1, 0], recursive[1, 0])


def test_mtp_alignment():
    run = lambda hidden, tokens: deepseek_mtp.logits(MTP, (5, 6), G, EMBED, UNEMBED, hidden, tokens)
    exists = lambda i, r: r + 1 + i < T
    moved = changed(lambda x: run(HIDDEN, x), TOKENS, 4)
    assert moved == {(i, r) for i in range(2) for r in range(T) if exists(i, r) and r + 1 + i >= 4}
    moved = changed(lambda h: run(h, TOKENS), HIDDEN, 2)
    assert moved == {(i, r) for i in range(2) for r in range(2, T) if exists(i, r)}


def test_mtp_concatenates_the_embedding_first():
    name = "model.layers.5.eh_proj.weight"
    hidden_only = MTP | {name: np.concatenate([np.zeros((E, E)), np.eye(E)], axis=1)}
    embedding_only = MTP | {name: np.concatenate([np.eye(E), np.zeros((E, E))], axis=1)}
    run = lambda W, h, x: deepseek_mtp.logits(W, (5,), G, EMBED, UNEMBED, h, x)
    assert changed(lambda x: run(hidden_only, HIDDEN, x), TOKENS, 3) == set()
    assert changed(lambda h: run(embedding_only, h, TOKENS), HIDDEN, 3) == set()
    zeroed = deepseek_mtp.logits(MTP, (5,), G, EMBED, UNEMBED, HIDDEN, TOKENS, zero_first=True)
    other = np.append(EMBED, np.zeros((1, E)), axis=0)
    text = np.concatenate([[0, V], TOKENS[2:]])
    same(zeroed, deepseek_mtp.logits(MTP, (5,), G, other, UNEMBED, HIDDEN, text))


def test_mtp_loss():
    same(deepseek_mtp.step_weights(3).round(2), [0.51, 0.31, 0.18])
    same(deepseek_mtp.depth_weights(2), [0.15, 0.15])
    flat, every = np.zeros((2, T, V)), np.ones(T)
    total, parts = deepseek_mtp.loss(flat, TOKENS, every, deepseek_mtp.depth_weights(2), denominator="positions")
    same(parts, [(T - 2) / T * np.log(V), (T - 3) / T * np.log(V)])
    assert total == pytest.approx(0.15 * parts.sum())
    rows = deepseek_mtp.loss(flat, TOKENS, every, np.ones(2), denominator=1.0, same_rows=True)[1]
    same(rows, np.full(2, (T - 3) * np.log(V)))


# Gloeckle


def test_gloeckle_variants():
    """Layers as transforms: the parallel heads read z, the causal ones the head before, the linear ones a matrix on z."""
    trunk, first = HIDDEN, layers.decoder_layer(EXTRA, "extra_heads.0", HIDDEN, np.arange(T), G)
    run = lambda W, variant: gloeckle.logits(W, G, NORM, UNEMBED, trunk, first, variant)
    parallel, causal = run(EXTRA, "parallel"), run(EXTRA, "causal")
    same(parallel[0], layers.rms_norm(first, NORM, G.eps) @ UNEMBED.T)
    same(parallel[1], parallel[0])  # head 2 is a copy of head 1's layer
    repeated = {k.replace("heads.0", "heads.1"): v for k, v in EXTRA.items() if "heads.0" in k}
    same(run(EXTRA | repeated, "parallel")[2], parallel[0])
    second = layers.decoder_layer(EXTRA, "extra_heads.0", first, np.arange(T), G)
    same(causal[1], layers.rms_norm(second, NORM, G.eps) @ UNEMBED.T)
    third = layers.decoder_layer(EXTRA, "extra_heads.1", second, np.arange(T), G)
    same(causal[2], layers.rms_norm(third, NORM, G.eps) @ UNEMBED.T)
    linear = run({"extra_heads.0.weight": 3 * np.eye(E)}, "linear")
    np.testing.assert_allclose(linear[1], layers.rms_norm(trunk, NORM, G.eps) @ UNEMBED.T, atol=1e-4)
    with pytest.raises(ValueError, match="anticausal"):
        run(EXTRA, "anticausal")


def test_gloeckle_draft_and_causality():
    run = lambda h: gloeckle.logits(EXTRA, G, NORM, UNEMBED, h, h)
    moved = changed(run, HIDDEN, 3)
    assert moved == {(0, 3)} | {(i, r) for i in (1, 2) for r in range(3, T)}
    for n in range(1, T + 1):
        tokens, logits = gloeckle.draft(EXTRA, G, NORM, UNEMBED, HIDDEN[:n], HIDDEN[:n])
        same(logits, run(HIDDEN)[1:, n - 1])
        assert (tokens == logits.argmax(-1)).all()


def test_gloeckle_loss_is_a_plain_sum():
    flat = np.zeros((3, T, V))
    terms = [MASK[i:].sum() for i in (1, 2, 3)]
    total, parts = gloeckle.loss(flat, TOKENS, MASK, denominator=1.0)
    same(parts, np.array(terms) * np.log(V))
    assert total == pytest.approx(sum(terms) * np.log(V))
    assert gloeckle.loss(flat, TOKENS, MASK, denominator="mask", with_first=False)[0] == pytest.approx(2 * np.log(V))


# Blocks behind an anchor


@cache
def block():
    W = llama_layer("layers.0") | llama_layer("layers.1") | {"fc.weight": matrix(E, M * E)}
    return W | {f"{name}.weight": rng.normal(size=E) for name in ("hidden_norm", "norm")}


@cache
def causal_model():
    W = llama_layer("model.layers.0") | llama_layer("model.layers.1")
    return W | {"model.embed_tokens.weight": EMBED, "model.norm.weight": NORM}


def test_a_causal_block_is_the_beginning_of_a_longer_one():
    """A full one is not; tokens that are shown behind the anchor are seen by those that see them."""
    run = lambda causal, slots, clean=TOKENS[4:5]: dflash.states(
        block(), dflash.DFlash(G, causal=causal), EMBED, FEATURES[:4], clean, 10, slots
    )
    same(run(True, 5)[:2], run(True, 2))
    assert not np.allclose(run(False, 5)[:2], run(False, 2))
    shown = TOKENS[4:7]
    assert not np.allclose(run(False, 3, shown), run(False, 3))
    assert not np.allclose(run(True, 3, shown)[1:], run(True, 3)[1:])
    same(run(True, 3, shown)[0], run(True, 3)[0])


def test_the_layouts_read_one_block_differently():
    """As many slots draft one token more where the anchor's own predicts."""
    fill_in, first = (
        dflash.draft(block(), dflash.DFlash(G, anchor_first), EMBED, UNEMBED, FEATURES[:4], 3, 10, 4)
        for anchor_first in (False, True)
    )
    assert len(fill_in[0]) == 3 and len(first[0]) == 4
    same(first[1][1:], fill_in[1])


def test_a_block_reads_its_context_and_nothing_else_of_it():
    """Context rows are no stream: what one of them holds changes no other's key, so their order lies in RoPE alone."""
    run = lambda features: dflash.states(block(), dflash.DFlash(G), EMBED, features, TOKENS[4:5], 10, 3)[None]
    for t in range(4):
        assert changed(run, FEATURES[:4], t) == {(0, j) for j in range(3)}
    still = dflash.DFlash(replace(G, theta=1e30))  # only the first pair of each head turns
    flat = dict(block())
    for i in range(2):
        for part in ("q_proj", "k_proj"):
            weight = flat[f"layers.{i}.self_attn.{part}.weight"].reshape(-1, WIDTH, E).copy()
            weight[:, [0, WIDTH // 2]] = 0
            flat[f"layers.{i}.self_attn.{part}.weight"] = weight.reshape(-1, E)
    turned = lambda features: dflash.states(flat, still, EMBED, features, TOKENS[4:5], 10, 3)
    same(turned(FEATURES[:4]), turned(FEATURES[:4][::-1]))


def test_weights_of_blocks():
    same(dflash.pace_weights(np.array([0.3, 2.0, 1.0]), 1.0), [3, 2, 1])
    same(dflash.pace_weights(-np.log([0.5, 0.25]), 0.0), [0.625, 0.125])
    c = np.array([0.9, 0.5, 0.8, 0.99])
    same(dflash.boundary_rates(c).sum() + c.prod(), 1)
    assert dflash.boundaries(c, 2) == [0, 1]
    same(dflash.visible_prefix_weights(4, 1, 2.0), np.array([0, 0, 1, np.exp(-0.5)]) / (1 + np.exp(-0.5)))
    same(dflash.supervised([1, 0, 1], cut=True), [1, 0, 0])
    same(dflash.loss(np.zeros((2, 3, V)), TOKENS[:6].reshape(2, 3), np.ones((2, 3)), 4.0, cut=True), np.log(V))


def test_dspark_heads_and_loss():
    heads = {f"markov_head.markov_{w}.weight": matrix(V, 4) for w in ("w1", "w2")} | affine("confidence_head.proj", 1, E + 4)
    gate, joint = affine("markov_head.gate_proj", 4, E + 4), affine("markov_head.joint_proj", 12, 8 + E)
    previous = TOKENS[:3]
    run = lambda W: dspark.biases(W, HIDDEN[:3], previous)
    same(
        run(heads),
        np.array([heads["markov_head.markov_w2.weight"] @ heads["markov_head.markov_w1.weight"][x] for x in previous]),
    )
    same(run(heads | {name: 0 * tensor for name, tensor in gate.items()}), run(heads) / 2)
    same(run(heads | {name: 0 * tensor for name, tensor in joint.items()}), np.zeros((3, V)))
    for W, told in ((heads, {(0, 1)}), (heads | gate, {(0, 1)}), (heads | joint, {(0, 1), (0, 2)})):
        assert changed(lambda x, W=W: dspark.biases(W, HIDDEN[:3], x)[None], previous, 1) == told
        tokens, logits = dspark.draft(W, UNEMBED, HIDDEN[:3], 7)
        assert (tokens == logits.argmax(-1)).all()
    perfect = np.array([TARGET_LOGITS[:3]])
    total, parts = dspark.loss(perfect, np.full((1, 3), 40.0), perfect.argmax(-1), perfect, np.ones((1, 3)), 4.0)
    assert parts[1] == 0 and parts[2] < 1e-9 and total == pytest.approx(0.1 * parts[0])
    opposite = np.eye(2)[None] * 1e3
    assert dspark.loss(opposite, np.zeros((1, 2)), [[0, 1]], -opposite, np.ones((1, 2)), 4.0)[1][1] == pytest.approx(2)


def test_domino_remembers():
    W = {"prefix_gru.weight_ih_l0": matrix(15, E), "prefix_gru.weight_hh_l0": matrix(15, 5)}
    W |= {"embed_proj.0.weight": matrix(6, E + 5), "embed_proj.2.weight": matrix(V, 6)}
    run = lambda previous: domino.logits(W, EMBED, UNEMBED, HIDDEN[:4], previous)[None]
    assert changed(run, TOKENS[:4], 1) == {(0, 1), (0, 2), (0, 3)}
    same(run(TOKENS[:4])[0, :2], domino.logits(W, EMBED, UNEMBED, HIDDEN[:2], TOKENS[:2]))
    tokens, logits = domino.draft(W, EMBED, UNEMBED, HIDDEN[:4], 7)
    assert (tokens == logits.argmax(-1)).all()
    assert [domino.loss(3.0, 5.0, mixture) for mixture in (0, 0.5, 1)] == [3, 4, 5]


def test_masks_behind_a_text():
    """One mask is alike to both; more of them see each other in TiDAR alone; the text sees none."""
    segments = pard.segment_logits(causal_model(), G, TOKENS, 10, 3)
    same(segments[0], pard.causal_logits(causal_model(), G, TOKENS))
    for n in range(1, T):
        drafted = pard.draft(causal_model(), G, TOKENS[:n], 10, 3)[1]
        same(drafted[1], tidar.block_logits(causal_model(), G, TOKENS[:n], 10, 1)[0])
        same(drafted[:2], [segments[i, n - 1 + i] for i in range(2)])
        assert not np.allclose(drafted[1], tidar.block_logits(causal_model(), G, TOKENS[:n], 10, 2)[0])
    same(tidar.causal_logits(causal_model(), G, TOKENS), segments[0])
    assert [pard.keep_rate(i) for i in (0, 1, 5, 7)] == pytest.approx([1, 0.7, 0.2, 0.2])
    assert tidar.loss(3.0, 5.0) == 4 and tidar.loss(3.0, 5.0, alpha=0) == 5
