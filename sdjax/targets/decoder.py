"""One decoder-only transformer, bent by a frozen config into Llama-2/3, SmolLM2, Mistral, Qwen2/2.5 and Qwen3.

Pre-norm blocks of grouped-query attention and SwiGLU. A forward pass reads its cache and returns what it would
add: it never writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from sdjax.core.attention import attend, block_mask, cache_mask
from sdjax.core.cache import KV, Cache, Staged, empty_cache
from sdjax.core.flash import attend_wide
from sdjax.core.linear import linear, product, table_rows
from sdjax.core.pack import Pack
from sdjax.core.spec import Spec, normal, ones, zeros
from sdjax.targets.rope import Rope, rotate

PRECISIONS = ("float32", "bfloat16", "mixed")
Tap = int | str  # i: the residual stream after layer i; "embed"; "final": after the final norm


@struct.dataclass
class Forward:
    """`features` holds the tapped states in the order of `taps`; `staged` is for `commit`."""

    hidden: Float[Array, "B T E"]
    features: Float[Array, "B T M E"]
    staged: Staged


@dataclass(frozen=True)
class Decoder:
    """The shape of a model; its parameters are a separate pytree, laid out by `specs`.

    `windows` holds a sliding window per layer (None: all positions); empty means no layer has one.
    `dtype` is that of weights, activations and caches; norms, softmax and logits are float32. `weights`, where given, is
    the matrices' own type: bfloat16 ones among float32 activations, which are rounded for each product, are what CPUs with
    matrix units run fastest. `flash` lets wide passes on a TPU read long caches by a kernel (`core.flash`); on a mesh it asks
    for `jax.set_mesh`.
    """

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffw: int
    rope: Rope = field(default_factory=Rope)
    norm_eps: float = 1e-5
    tied: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    max_position: int = 8192
    dtype: str = "float32"
    weights: str | None = None
    flash: bool = False

    def __post_init__(self):
        for name in ("vocab", "width", "layers", "heads", "kv_heads", "head_width", "ffw", "max_position"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"windows are {self.windows}; a window must hold at least the token itself (None: no window)")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.head_width % 2:
            raise ValueError(f"head_width is {self.head_width}; rotary embedding needs an even number")
        if self.windows and len(self.windows) != self.layers:
            raise ValueError(f"windows has {len(self.windows)} entries for {self.layers} layers")
        if {"dtype": self.dtype, "weights": self.weights} not in map(types, PRECISIONS):
            raise ValueError(
                f"dtype is {self.dtype!r} and weights {self.weights!r}; they must be those of `types` for one of "
                f"{', '.join(PRECISIONS)}"
            )

    @property
    def precision(self) -> str:
        """The name of its types: "mixed" is bfloat16 matrices and float32 else."""
        return "mixed" if self.weights else self.dtype

    @property
    def matrix_dtype(self) -> jnp.dtype:
        """The type of the matrices, a drafter's too."""
        return jnp.dtype(self.weights or self.dtype)

    def specs(self) -> dict[str, Any]:
        """The abstract parameter tree: {embed, layers: [...], norm, head unless tied}."""
        e, h, g, k, f = self.width, self.heads, self.kv_heads, self.head_width, self.ffw

        def grain(axes: tuple[str | None, ...]) -> tuple[int, ...]:
            return tuple(k if axis in ("heads", "kv_heads") else 1 for axis in axes)

        def matrix(out: int, into: int, axes: tuple[str, str]) -> Spec:
            return Spec((out, into), self.matrix_dtype, axes, normal(), grain=grain(axes))

        def vector(size: int, axis: str | None, init=ones) -> Spec:
            return Spec((size,), jnp.dtype(self.dtype), (axis,), init, grain=grain((axis,)))

        def layer() -> dict[str, Spec]:
            block = {
                "attn_norm": vector(e, "embed"),
                "q": matrix(h * k, e, ("heads", "embed")),
                "k": matrix(g * k, e, ("kv_heads", "embed")),
                "v": matrix(g * k, e, ("kv_heads", "embed")),
                "o": matrix(e, h * k, ("embed", "heads")),
                "mlp_norm": vector(e, "embed"),
                "gate": matrix(f, e, ("ffw", "embed")),
                "up": matrix(f, e, ("ffw", "embed")),
                "down": matrix(e, f, ("embed", "ffw")),
            }
            if self.qkv_bias:
                block |= {"q_bias": vector(h * k, "heads", zeros)}
                block |= {name: vector(g * k, "kv_heads", zeros) for name in ("k_bias", "v_bias")}
            if self.o_bias:
                block |= {"o_bias": vector(e, "embed", zeros)}
            if self.mlp_bias:
                block |= {name: vector(f, "ffw", zeros) for name in ("gate_bias", "up_bias")}
                block |= {"down_bias": vector(e, "embed", zeros)}
            if self.qk_norm:
                block |= {name: vector(k, None) for name in ("q_norm", "k_norm")}
            return block

        specs = {
            "embed": matrix(self.vocab, e, ("vocab", "embed")),
            "layers": [layer() for _ in range(self.layers)],
            "norm": vector(e, "embed"),
        }
        return specs if self.tied else specs | {"head": matrix(self.vocab, e, ("vocab", "embed"))}

    def empty_cache(self, batch: int, capacity: int) -> Cache:
        return empty_cache(self.layers, batch, self.kv_heads, capacity, self.head_width, jnp.dtype(self.dtype))

    def embed(self, params: Any, tokens: Int[Array, "B T"]) -> Float[Array, "B T E"]:
        return table_rows(params["embed"], tokens).astype(self.dtype)

    def unembed(self, params: Any, hidden: Float[Array, "... E"]) -> Float[Array, "... V"]:
        """Logits, float32. Apart from `forward`, so that prefill has no vocabulary product for every position."""
        return product(hidden, params["embed"] if self.tied else params["head"])

    def forward(
        self,
        params: Any,
        x: Float[Array, "B T E"],
        positions: Int[Array, "B T"],
        cache: Cache,
        mask: Bool[Array, "b T U"],
        *,
        scratch: Staged | None = None,
        taps: Sequence[Tap] = (),
        pack: Pack | None = None,
    ) -> Forward:
        """Runs T new tokens against the cache and U = R + T rows: R of `scratch` (staged earlier), then themselves.

        With `pack`, dense layers run its rows alone; the states of all others, and their keys and values, are zeros.
        """
        take, spread = (pack.take, pack.spread) if pack else (same, same)
        x, angles = take(x), self.rope.angles(take(positions), self.head_width)
        block_positions = positions if scratch is None else jnp.concatenate([scratch.positions, positions], 1)
        masks = {
            window: (
                cache_mask(cache.length, cache.capacity, positions, window),
                block_mask(mask, positions, block_positions, window),
            )
            for window in set(self.windows or (None,))
        }
        states: dict[Tap, Array] = {"embed": x}
        staged = []
        for i in range(self.layers):
            before = None if scratch is None else scratch.layers[i]
            window = self.windows[i] if self.windows else None
            x, kv = self.block(params["layers"][i], x, angles, cache.layers[i], before, masks[window], pack)
            staged.append(kv)
            states[i] = x
        hidden = rms_norm(x, params["norm"], self.norm_eps)
        states["final"] = hidden
        # Commits of these rows wait for every read of the cache: were they free to run earlier, XLA would copy the
        # whole cache for the reads that are still to come.
        positions = known_after(positions, hidden[:, :1, 0])
        return Forward(spread(hidden), spread(stack_taps(states, taps, x)), Staged(staged, positions))

    def block(
        self,
        p: dict[str, Array],
        x: Float[Array, "B T E"],
        angles: Any,
        cache: KV,
        scratch: KV | None,
        masks: tuple[Array, Array],
        pack: Pack | None = None,
    ) -> tuple[Float[Array, "B T E"], KV]:
        """One layer: its output, and the keys and values of the T new rows."""
        mixed, kv = self.attention(p, rms_norm(x, p["attn_norm"], self.norm_eps), angles, cache, scratch, masks, pack)
        x = x + mixed
        return x + swiglu(p, rms_norm(x, p["mlp_norm"], self.norm_eps)), kv

    def attention(
        self,
        p: dict[str, Array],
        x: Float[Array, "B T E"],
        angles: Any,
        cache: KV,
        scratch: KV | None,
        masks: tuple[Array, Array],
        pack: Pack | None = None,
    ) -> tuple[Float[Array, "B T E"], KV]:
        """Grouped-query attention over cache and block; of packed rows, each sequence's own in their places."""
        q, new = self.project(p, x, angles)
        if pack:
            q, new = pack.spread(q), jax.tree.map(lambda x: jnp.swapaxes(pack.spread(jnp.swapaxes(x, 1, 2)), 1, 2), new)
        block = new if scratch is None else jax.tree.map(lambda old, new: jnp.concatenate([old, new], 2), scratch, new)
        mixed = (attend_wide if self.flash else attend)(q, cache, masks[0], block, masks[1], self.head_width**-0.5)
        mixed = mixed.reshape(*q.shape[:2], -1)
        return linear(pack.take(mixed) if pack else mixed, p["o"], p.get("o_bias")), new

    def project(self, p: dict[str, Array], x: Float[Array, "B T i"], angles: Any) -> tuple[Float[Array, "B T H K"], KV]:
        """Queries, keys and values of T rows, turned to their positions."""
        q = linear(x, p["q"], p.get("q_bias")).reshape(*x.shape[:2], self.heads, self.head_width)
        if self.qk_norm:
            q = rms_norm(q, p["q_norm"], self.norm_eps)
        return rotate(q, angles), self.keys_and_values(p, x, angles)

    def keys_and_values(self, p: dict[str, Array], x: Float[Array, "B T i"], angles: Any) -> KV:
        """What T rows are to the queries of others."""
        b, t, _ = x.shape
        k = linear(x, p["k"], p.get("k_bias")).reshape(b, t, self.kv_heads, self.head_width)
        v = linear(x, p["v"], p.get("v_bias")).reshape(b, t, self.kv_heads, self.head_width)
        if self.qk_norm:
            k = rms_norm(k, p["k_norm"], self.norm_eps)
        return KV(jnp.swapaxes(rotate(k, angles), 1, 2), jnp.swapaxes(v, 1, 2))

    def truncate(self, layers: int) -> "Decoder":
        """The same model cut after its first `layers` layers (final norm and head kept)."""
        if not 0 < layers <= self.layers:
            raise ValueError(f"cannot keep {layers} layers of a model that has {self.layers}")
        return replace(self, layers=layers, windows=self.windows[:layers])


def types(precision: str) -> dict[str, Any]:
    """The fields of a Decoder that make its `precision` this."""
    mixed = precision == "mixed"
    return {"dtype": "float32" if mixed else precision, "weights": "bfloat16" if mixed else None}


def same(x: Array) -> Array:
    return x


def known_after(value: Int[Array, "..."], event: Array) -> Int[Array, "..."]:
    """`value`, by arithmetic that the compiler cannot finish before `event` is computed (barriers do not last)."""
    return jnp.minimum(value, value + jnp.isnan(event))


def truncate_params(params: Any, layers: int) -> Any:
    """The parameters of `Decoder.truncate(layers)`: the same arrays, not copies."""
    return params | {"layers": params["layers"][:layers]}


def rms_norm(x: Float[Array, "... E"], weight: Float[Array, " E"], eps: float) -> Float[Array, "... E"]:
    """x / rms(x) · weight, in float32."""
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return (y * weight.astype(jnp.float32)).astype(x.dtype)


def swiglu(p: dict[str, Array], x: Float[Array, "B T E"]) -> Float[Array, "B T E"]:
    """down(silu(gate x) · up x)."""
    gated = jax.nn.silu(product(x, p["gate"], p.get("gate_bias"))) * product(x, p["up"], p.get("up_bias"))
    return linear(gated.astype(x.dtype), p["down"], p.get("down_bias"))


def stack_taps(states: dict[Tap, Array], taps: Sequence[Tap], like: Float[Array, "B T E"]) -> Float[Array, "B T M E"]:
    """The tapped states side by side; a tap that the model lacks is an error."""
    lacking = [tap for tap in taps if tap not in states]
    if lacking:
        raise ValueError(f"the model has no taps {lacking}; it has {list(states)}")
    if not taps:
        return jnp.zeros((*like.shape[:2], 0, like.shape[2]), like.dtype)
    return jnp.stack([states[tap] for tap in taps], 2)


def causal_mask(length: int) -> Bool[Array, "1 T T"]:
    """Each of `length` new tokens sees itself and those before it."""
    return jnp.tril(jnp.ones((length, length), bool))[None]
