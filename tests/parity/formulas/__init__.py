"""The papers' formulas in float64 numpy, written from papers and published code: what sdjax's drafters are
compared with.

Nothing here imports sdjax, jax or torch; nothing is batched, packed, cached or fast: one sequence, explicit loops.

Names
    W              the drafter's own tensors under their published names, matrices [out, in]; `name.bias` is used where it is
                   there, and so are `q_norm.weight` and `k_norm.weight` (RMSNorm over the head width, before RoPE)
    embed, unembed, norm   the target's embedding [V, E], output matrix [V, E] and final RMSNorm [E]: borrowed, never in W
    geometry       layers.Geometry: heads, kv_heads, theta, eps. RoPE rotates halves (pairs j, j + K/2) by theta^(−2j/K)
    tokens         int [T]: x_0 … x_{T−1}
    mask           [T]: mask[t] = 1 where the *token* x_t is supervised, whatever predicts it
    hidden         [T, E]: the target's state after its final norm
    features       [T, M, E]: EAGLE-3's taps, in the order low, mid, high
    target_logits  [T, V]: row t is the target's prediction of x_{t+1}

Alignment: row t holds what the target knows after x_t. What row t reads, and which token it predicts:

    module        step             inputs of row t                    predicts   RoPE position       rows
    medusa        head k = 1..K    hidden_t                           x_{t+k+1}  none                0 … T−1
    hydra         head k = 1..K    hidden_t, x_{t+1} … x_{t+k}        x_{t+k+1}  t (prefix layer)    0 … T−1−k
    eagle1        one              hidden_t, x_{t+1}                  x_{t+2}    t                   0 … T−2
    eagle3        i = 0..N−1       features_t or, from i = 1 on,      x_{t+2+i}  t+i                 0 … T−2−i
                                   own output; x_{t+1+i}
    deepseek_mtp  depth k = 1..D   h^{k−1}_t, x_{t+k}                 x_{t+k+1}  t (chain),          0 … T−1−k
                                                                                 t+k−1 (recursive)
    gloeckle      head i = 1..n    trunk_t                            x_{t+i}    t                   0 … T−1
    pard          segment i        x_0 … x_{t−i}, then i masks        x_{t+1}    t                   i … T−1

Blocks stand behind a prefix instead: n rows of the target's features and the anchor x_n (dflash, dspark, domino), or n tokens
(tidar). Slot j has RoPE position n+j:

    module        inputs of slot j                                    predicts
    dflash        features_0 … features_{n−1}, x_n, all masks         x_{n+j} (fill-in), x_{n+j+1} (anchor-first)
    dspark        the same, and x_{n+j}; rnn: x_n … x_{n+j}           x_{n+j+1}
    domino        the same, and all tokens from x_n to the last one   as dflash
                  before the token it predicts
    tidar         x_0 … x_{n−1}, all masks                            x_{n+j}

Arrays are 0-based: logits[0] is the first head, depth or step of its family. A row that lacks an input is NaN, so that
it cannot be compared by accident; a row whose label or mask would lie behind the end has weight 0.

Losses take logits from the same module and return (total, parts): parts[i] is head, depth or step i before its weight.
`denominator` is always explicit: "mask" (Σ of the term's weights, at least 1), "mask+1e-5", "positions" (all T rows), or a
number.

Drafting takes the target's states of a prefix of n rows and n + 1 tokens, the last of which is the anchor (known, not yet run
by the target); it returns (tokens [k], logits [k, V]): greedy argmax, as target ids. `forced` replaces the drafted tokens on
the way.
"""
