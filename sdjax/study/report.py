"""From records to the table: one summary an arm, all of it derived from the run's raw lines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from rich.console import Console
from rich.table import Table
from scipy import stats

from sdjax.core.metrics import Acceptance, acceptance, predicted_speedup, ratio
from sdjax.study.equality import Mismatch, first_difference
from sdjax.study.methods import Arm, Promise
from sdjax.study.runs import Record
from sdjax.study.timing import Costs

RESAMPLES = 2000
SURVIVAL_SHOWN = 4
NAN = float("nan")


@dataclass(frozen=True)
class Speed:
    """Decoding speed. `speedup` compares seconds a token with the baseline's on the same prompts; where the outputs are
    equal that is Σ its time / Σ own time. `low`..`high` is a 95 % bootstrap interval over `samples` of prompts."""

    tokens_per_second: float
    prefill_seconds: float
    decode_seconds: float
    speedup: float
    low: float
    high: float


@dataclass(frozen=True)
class Equality:
    """Of `compared` outputs, `equal` are plain decoding's token for token; the rest are near-ties or failures.
    Nothing is compared (0) where the method does not promise the tokens, but for a lossy one at temperature 0: `shared` is its
    drift, the share of plain decoding's tokens that come before the first difference (else None)."""

    promise: Promise
    compared: int
    equal: int
    near_ties: int
    failures: int
    shared: float | None = None

    def __str__(self) -> str:
        if self.promise is not Promise.TOKENS:
            lossy = "lossy" if self.shared is None else f"lossy: {self.equal}/{self.compared}, {self.shared:.0%} shared"
            return "in law" if self.promise is Promise.LAW else lossy
        notes = [f"{self.near_ties} near-tie"] * bool(self.near_ties) + [f"{self.failures} FAILED"] * bool(self.failures)
        return ", ".join([f"{self.equal}/{self.compared}", *notes])


@dataclass(frozen=True)
class Summary:
    """Everything that the table says of one arm, and τ by category."""

    method: str
    rule: str
    temperature: float
    prompts: int
    tokens: int
    acceptance: Acceptance
    tau_by_category: Mapping[str, float]
    equality: Equality
    speed: Speed
    costs: Costs | None

    @property
    def predicted(self) -> float:
        """The speed-up that τ and the costs of a step predict."""
        if self.costs is None:
            return NAN
        return predicted_speedup(self.acceptance.tau, self.costs.draft, self.costs.verify, self.costs.overhead)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"predicted_speedup": self.predicted}


def summarise(
    groups: Sequence[Sequence[Arm]], records: Sequence[Record], costs: Mapping[str, Costs], faults: Sequence[Mismatch]
) -> list[Summary]:
    """One summary an arm, the baseline of each temperature first."""
    return [
        summary(arm, of_arm(arm, records), of_arm(arms[0], records), costs.get(arm.label), faults)
        for arms in groups
        for arm in arms
    ]


def of_arm(arm: Arm, records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.arm == arm.key]


def summary(
    arm: Arm, records: Sequence[Record], baseline: Sequence[Record], costs: Costs | None, faults: Sequence[Mismatch]
) -> Summary:
    """The figures of one arm."""
    depth = arm.loop.drafter.depth
    categories = sorted({record.category for record in records})
    tau = lambda category: acceptance([r.steps for r in records if r.category == category], depth).tau
    return Summary(
        method=arm.name,
        rule=type(arm.loop.rule).__name__,
        temperature=arm.warp.temperature,
        prompts=len(records),
        tokens=sum(len(record.tokens) for record in records),
        acceptance=acceptance([record.steps for record in records], depth),
        tau_by_category={category: tau(category) for category in categories},
        equality=equality(arm, records, baseline, faults),
        speed=speed(records, baseline),
        costs=costs,
    )


def equality(arm: Arm, records: Sequence[Record], baseline: Sequence[Record], faults: Sequence[Mismatch]) -> Equality:
    """How much of plain decoding's output is there, as far as that was looked at."""
    if arm.promise is Promise.NOTHING and arm.warp.greedy:
        return drift(records, baseline)
    if arm.promise is not Promise.TOKENS:
        return Equality(arm.promise, 0, 0, 0, 0)
    mine = [fault for fault in faults if (fault.method, fault.temperature) == arm.key]
    failures = sum(fault.fails for fault in mine)
    return Equality(arm.promise, len(records), len(records) - len(mine), len(mine) - failures, failures)


def drift(records: Sequence[Record], baseline: Sequence[Record]) -> Equality:
    """How far a lossy method's outputs are plain decoding's."""
    plain = {record.item: record.tokens for record in baseline}
    pairs = [(plain[record.item], record.tokens) for record in records]
    before = [len(a) if a == b else first_difference(a, b) for a, b in pairs]
    shared = ratio(sum(before), sum(len(a) for a, _ in pairs))
    return Equality(Promise.NOTHING, len(pairs), sum(a == b for a, b in pairs), 0, 0, shared)


def speed(records: Sequence[Record], baseline: Sequence[Record]) -> Speed:
    """Speed over the prompts of both; the first token of each answer came with prefill and counts in neither."""
    plain = {record.item: record for record in baseline}
    paired = [(plain[r.item].decode_seconds, plain[r.item].decoded, r.decode_seconds, r.decoded) for r in records]
    columns = np.array(paired, float).reshape(-1, 4).T
    sample = samples(records, [plain[record.item] for record in records])
    low, high = interval(np.array([np.bincount(sample, column) for column in columns]))
    return Speed(
        tokens_per_second=ratio(columns[3].sum(), columns[2].sum()),
        prefill_seconds=sum(record.prefill_seconds for record in records),
        decode_seconds=float(columns[2].sum()),
        speedup=float(speedup(*columns)),
        low=low,
        high=high,
    )


def samples(records: Sequence[Record], baseline: Sequence[Record]) -> Int[np.ndarray, " n"]:
    """Which sample each record is of, numbered in their order: what shares a batch's time, its own or plain decoding's, was
    not drawn apart, nor were the turns of a conversation; resampled one by one they would seem to tell more than they do."""
    shared = ([r.prompt for r in records], [r.batch for r in records], [r.batch for r in baseline])
    first = np.arange(len(records))
    while True:
        found = first.copy()
        for groups in shared:
            least: dict[Any, int] = {}
            for group, sample in zip(groups, found.tolist(), strict=True):
                least[group] = min(sample, least.get(group, sample))
            found = np.array([least[group] for group in groups], int)
        if (found == first).all():
            return np.unique(found, return_inverse=True)[1]
        first = found


def speedup(
    plain_seconds: np.ndarray, plain_tokens: np.ndarray, seconds: np.ndarray, tokens: np.ndarray, axis: int = -1
) -> Any:
    """Seconds a token of plain decoding over seconds a token."""
    total = lambda x: np.sum(x, axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (total(plain_seconds) / total(plain_tokens)) / (total(seconds) / total(tokens))


def interval(columns: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of `speedup`, samples (columns) drawn anew; NaN for fewer than two of them or no spread at all."""
    if columns.shape[1] < 2 or not np.isfinite(speedup(*columns)) or (columns == columns[:, :1]).all():
        return NAN, NAN
    found = stats.bootstrap(
        tuple(columns),
        speedup,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def number(value: float, form: str = ".2f") -> str:
    return format(value, form) if math.isfinite(value) else "–"


def acceptance_columns(row: Summary) -> dict[str, str]:
    """What a method's drafts were worth, on any machine."""
    survival = " ".join(number(rate) for rate in row.acceptance.survival[:SURVIVAL_SHOWN])
    return {
        "method": row.method,
        "rule": row.rule,
        "T": f"{row.temperature:g}",
        "equal to plain": "baseline" if not row.acceptance.survival else str(row.equality),
        "τ": number(row.acceptance.tau),
        "τ macro": number(row.acceptance.tau_macro),
        "accepted/step": number(row.acceptance.accepted_per_step),
        "Σa/Σl": number(row.acceptance.draft_acceptance),
        "survival at 1, 2, …": survival + (" …" if len(row.acceptance.survival) > SURVIVAL_SHOWN else ""),
    }


def speed_columns(row: Summary) -> dict[str, str]:
    """What they were worth on this machine."""
    cost = row.costs or Costs(NAN, NAN, NAN)
    compared = math.isfinite(row.speed.low) and bool(row.acceptance.survival)
    spread = f" [{number(row.speed.low)}, {number(row.speed.high)}]" if compared else ""
    return {
        "method": row.method,
        "T": f"{row.temperature:g}",
        "tokens": str(row.tokens),
        "tok/s": number(row.speed.tokens_per_second, ".1f"),
        "speed-up [95 %]": number(row.speed.speedup) + spread,
        "draft/plain": number(cost.draft),
        "verify/plain": number(cost.verify),
        "overhead/plain": number(cost.overhead),
        "predicted": number(row.predicted),
    }


def show(console: Console, summaries: Sequence[Summary]) -> None:
    """Both tables: drawn on a terminal, aligned plain lines elsewhere."""
    titles = {"Acceptance (the same on any machine)": acceptance_columns, "Speed (of this machine)": speed_columns}
    for title, columns in titles.items():
        rows = [columns(row) for row in summaries]
        console.print(drawn(title, rows) if console.is_terminal else plain(title, rows), markup=False, soft_wrap=True)


def drawn(title: str, rows: Sequence[Mapping[str, str]]) -> Table:
    table = Table(*rows[0], title=title, title_justify="left")
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        table.add_row(*row.values(), end_section=after is not None and after["T"] != row["T"])
    return table


def plain(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([f"\n{title}", *aligned])
