"""What is compared: named methods (a drafter and a rule), and the laws that they sample from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sdjax.core.sampling import Warp
from sdjax.core.spec import check_params
from sdjax.decode.place import params_shardings
from sdjax.decode.state import Loop, Params
from sdjax.mesh.layout import Layout
from sdjax.mesh.place import lay_out
from sdjax.targets.decoder import Decoder
from sdjax.targets.load import Model, load
from sdjax.train.saved import CONFIG, is_saved, load_drafter
from sdjax.verify.walk import Walk


@dataclass(frozen=True)
class Method:
    """A way of decoding: who guesses, who judges, and what of the guesses is judged."""

    drafter: Any = None
    """Who guesses; None: the saved drafter that `weights` names, as it was saved."""
    rule: Any = Walk()
    """Who judges."""
    weights: str = ""
    """A saved drafter (a folder, or a name in zoo/), or the name or path of an independent draft model, which gives the
    drafter its shape, too; empty: the drafter has no weights."""
    greedy: bool = True
    """Whether it also runs at temperature 0, where a sampled draft is the argmax like any other."""
    schedule: Any = None
    """Cuts drafts before they are verified (sdjax/decode/schedule.py); None: all of a draft is verified."""
    pack: tuple[int, ...] = ()
    """Runs a batch's nodes as one flat array, compiled for these numbers of rows and for all; empty: drafts run whole."""

    def __post_init__(self):
        if self.drafter is not None and not (hasattr(self.drafter, "propose") and hasattr(self.drafter, "nodes")):
            raise ValueError(
                f"drafter is {self.drafter!r}, which drafts nothing: give an object such as NGram(length=7), or leave it out "
                "and give weights, the folder of a saved drafter or its name in zoo/"
            )


@dataclass(frozen=True)
class Sampling:
    """How the target's law is sampled, by every method alike; several temperatures are several comparisons."""

    temperature: tuple[float, ...] = (0.0,)
    """0 is argmax."""
    top_k: int = 0
    """Only the k likeliest tokens; 0: all."""
    top_p: float = 1.0
    """Only the smallest set of tokens with this mass; 1: all."""
    min_p: float = 0.0
    """Only tokens with at least this share of the likeliest one's probability; 0: all."""

    def warps(self) -> tuple[Warp, ...]:
        """One law a temperature; ValueError for a setting out of range."""
        if not self.temperature or len(set(self.temperature)) < len(self.temperature):
            raise ValueError(f"rule.temperature is {self.temperature}; give one temperature or several different ones")
        return tuple(Warp(t, self.top_k, self.top_p, self.min_p) for t in self.temperature)


class Promise(StrEnum):
    """What of plain decoding's output a method keeps."""

    TOKENS = "tokens"
    LAW = "law"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Arm:
    """One method at one temperature, ready to run; with a `layout`, on its mesh, where the parameters are."""

    name: str
    loop: Loop
    params: Params
    layout: Layout | None = None

    @property
    def warp(self) -> Warp:
        return self.loop.warp

    @property
    def key(self) -> tuple[str, float]:
        return self.name, self.warp.temperature

    @property
    def label(self) -> str:
        return f"{self.name} T={self.warp.temperature:g}"

    @property
    def promise(self) -> Promise:
        """The very tokens, by rules that follow the target's own choices; else their law, if the rule is lossless."""
        rule = self.loop.rule
        if not rule.lossless:
            return Promise.NOTHING
        return Promise.TOKENS if self.warp.greedy or isinstance(rule, Walk) else Promise.LAW


def arms(
    methods: Mapping[str, Method], sampling: Sampling, model: Model, chunk: int, layout: Layout | None = None
) -> list[list[Arm]]:
    """For each temperature the arms to compare, the baseline first; a rule made for temperature 0 is in no other.

    ValueError where the first method drafts anything.
    """
    if not methods:
        raise ValueError("methods is empty; the first must be plain decoding (NoDraft), the baseline of the others")
    first, baseline = next(iter(methods.items()))
    if baseline.drafter is None or baseline.drafter.nodes != 1 or not baseline.greedy:
        raise ValueError(
            f"the first method, {first!r}, is the baseline of every speed-up and equality: it must be plain decoding (NoDraft)"
        )
    ready = {name: with_weights(name, method, model) for name, method in methods.items()}

    def arm(name: str, warp: Warp) -> Arm:
        drafter, params = ready[name]
        method, stops = methods[name], model.tokenizer.stops
        loop = Loop(model.target, drafter, method.rule, warp, stops, chunk, schedule=method.schedule, pack=method.pack)
        return Arm(name, loop, params if layout is None else lay_out(params, params_shardings(layout, loop)), layout)

    for_greedy_alone = lambda rule: getattr(rule, "greedy", False)
    takes_part = lambda name, warp: methods[name].greedy if warp.greedy else not for_greedy_alone(methods[name].rule)
    return [[arm(name, warp) for name in methods if takes_part(name, warp)] for warp in sampling.warps()]


def with_weights(name: str, method: Method, model: Model) -> tuple[Any, Params]:
    """The drafter and both models' weights; saved drafters and independent draft models are loaded here."""
    if is_saved(method.weights) or (method.weights and method.drafter is None):
        try:
            drafter, params = load_drafter(method.weights, model)
        except ValueError as error:
            raise ValueError(f"method {name!r}: {error}") from error
        drafter = method.drafter or drafter
        check_params(drafter.specs(model.target), params, f"method {name!r}'s drafter, {type(drafter).__name__}")
        return drafter, Params(model.params, params)
    if method.drafter is None:
        raise ValueError(f"method {name!r} names neither a drafter nor, by weights ({method.weights!r}), a saved one")
    if not method.weights:
        if method.drafter.specs(model.target):
            model_too = ", or a draft model" if takes_a_model(method.drafter) else ""
            raise ValueError(f"method {name!r} needs weights; give methods.{name}.weights a saved drafter{model_too}")
        return method.drafter, Params(model.params, {})
    kind = type(method.drafter).__name__
    unsaved = f"method {name!r}: {method.weights!r} is no saved drafter (no {CONFIG} there)"
    if not takes_a_model(method.drafter):
        raise ValueError(f"{unsaved}, and {kind} takes no other weights: train it, or give methods.{name}.weights its folder")
    try:
        draft = load(method.weights, model.target.precision)
    except ValueError as error:
        raise ValueError(f"{unsaved}, and as a draft model for {kind} it cannot be loaded either: {error}") from error
    return replace(method.drafter, model=draft.target), Params(model.params, draft.params)


def takes_a_model(drafter: Any) -> bool:
    """Whether it drafts by an independent model, which `weights` may bring."""
    return isinstance(getattr(drafter, "model", None), Decoder)
