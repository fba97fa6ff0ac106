"""The comparison: every method answers the same prompts, interleaved, so that a drift of the machine hits all alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

from sdjax.decode.generate import MAX_ROUNDS, Generation, bucket, checked_prompts, generate, round_up, rows_needed
from sdjax.study.methods import Arm
from sdjax.study.prompts import Prompt, encode
from sdjax.study.runs import Record, RunFolder
from sdjax.study.screen import Screen
from sdjax.study.timing import Costs, measure, no_compilation, shapes_of, warm_up
from sdjax.targets.load import Model
from sdjax.targets.tokenizer import TextStream, Tokenizer

STREAM_ROUNDS = 4  # steps between two looks of the terminal


@dataclass(frozen=True)
class Decoding:
    """How much is decoded, and in what batches."""

    max_new: int = 96
    """At most so many new tokens a prompt."""
    batch: int = 1
    """Prompts decoded together."""
    capacity: int = 0
    """Cache rows a sequence; 0: the power of two that all prompts need."""
    chunk: int = 128
    """Tokens of a prompt that prefill runs at once."""
    seed: int = 0
    """Keys all noise, together with each prompt's id."""
    costs: bool = True
    """Whether the costs of a step are measured, apart from decoding."""

    def __post_init__(self):
        for name in ("max_new", "batch", "chunk"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be ≥ 1")
        if self.capacity < 0:
            raise ValueError(f"capacity is {self.capacity}; it must be ≥ 0 (0: as many cache rows as the prompts need)")


@dataclass(frozen=True)
class Item:
    """One turn of one conversation, as token ids."""

    prompt: Prompt
    turn: int
    tokens: list[int]
    seed: int

    @property
    def key(self) -> tuple[str, int]:
        return self.prompt.id, self.turn


Batch = Sequence[Item]
Results = dict[tuple[tuple[str, float], tuple[str, int]], Record]


@dataclass(frozen=True)
class Comparison:
    """What is compared on what: `groups` holds the arms of each temperature, its baseline first."""

    model: Model
    groups: Sequence[Sequence[Arm]]
    prompts: Sequence[Prompt]
    turns: int
    chat: bool
    settings: Decoding

    def run(self, folder: RunFolder, screen: Screen) -> tuple[list[Record], dict[str, Costs]]:
        """Decodes what the folder does not hold yet; all records, and the costs of each arm's step."""
        results: Results = {(record.arm, record.item): record for record in folder.read()}
        for turn in range(self.turns or max(len(prompt.turns) for prompt in self.prompts)):
            self.wave(turn, results, folder, screen)
        costs = {label: Costs(**cost) for label, cost in folder.load("costs.json", {}).items()}
        return list(results.values()), costs

    def wave(self, turn: int, results: Results, folder: RunFolder, screen: Screen) -> None:
        """One turn of every conversation that has it."""
        plan = list(self.plan(turn, results))
        left = [(arm, batch) for arm, batch in plan if any((arm.key, item.key) not in results for item in batch)]
        screen.count(done=sum(len(batch) for _, batch in plan) - sum(len(batch) for _, batch in left), left=left)
        if not left:
            return
        capacity = self.capacity(plan)
        self.prepare(left, capacity, screen)
        if self.settings.costs:
            self.measure_costs(plan, capacity, folder, screen)
        for arm, batch in left:
            screen.begin(arm, batch)
            fresh = [record for record in self.decode(arm, batch, capacity, screen) if (record.arm, record.item) not in results]
            folder.append(fresh)
            results |= {(record.arm, record.item): record for record in fresh}
            screen.end(fresh)

    def plan(self, turn: int, results: Results) -> Iterator[tuple[Arm, Batch]]:
        """Batch by batch, each temperature's arms, the baseline first."""
        by_group = [list(in_batches(self.items(turn, arms[0], results), self.settings.batch)) for arms in self.groups]
        for batches in zip(*by_group, strict=True):
            for arms, batch in zip(self.groups, batches, strict=True):
                yield from ((arm, batch) for arm in arms)

    def items(self, turn: int, baseline: Arm, results: Results) -> list[Item]:
        """The conversations that have this turn, behind the answers of the baseline."""
        items = []
        for prompt in self.prompts:
            if turn < len(prompt.turns):
                answers = [results[baseline.key, (prompt.id, before)].text for before in range(turn)]
                tokens = encode(self.model.tokenizer, prompt, answers, self.chat)
                items.append(Item(prompt, turn, tokens, seed_of(self.settings.seed, prompt.id, turn)))
        return items

    def capacity(self, plan: Sequence[tuple[Arm, Batch]]) -> int:
        """Cache rows that serve all of the plan, so that one set of programs does; checks every prompt first."""
        for arm, batch in plan:
            try:
                checked_prompts(arm.loop, [item.tokens for item in batch], self.settings.max_new)
            except ValueError as error:
                raise ValueError(f"prompts {[item.prompt.id for item in batch]}: {error}") from error
        needed = max(rows_needed(arm.loop, [item.tokens for item in batch], self.settings.max_new) for arm, batch in plan)
        if self.settings.capacity and self.settings.capacity < needed:
            raise ValueError(f"capacity is {self.settings.capacity}, but the prompts need {needed} cache rows; 0 finds it out")
        return round_up(self.settings.capacity or bucket(needed), self.settings.chunk)

    def prepare(self, left: Sequence[tuple[Arm, Batch]], capacity: int, screen: Screen) -> None:
        """Compiles and runs every program once, before any clock starts."""
        for arm in {arm.key: arm for arm, _ in left}.values():
            screen.status(f"compiling {arm.label}")
            mine = [[item.tokens for item in batch] for other, batch in left if other.key == arm.key]
            for shapes in shapes_of(arm.loop, mine, capacity, self.settings.max_new):
                warm_up(arm, shapes)

    def measure_costs(self, plan: Sequence[tuple[Arm, Batch]], capacity: int, folder: RunFolder, screen: Screen) -> None:
        """Once a run, behind the batch of middle length."""
        known = folder.load("costs.json", {})
        for arms in self.groups:
            if not all(arm.label in known for arm in arms):
                screen.status(f"measuring the costs of a step at T={arms[0].warp.temperature:g}")
                batches = sorted(([item.tokens for item in batch] for arm, batch in plan if arm is arms[0]), key=longest)
                costs = measure(arms, batches[len(batches) // 2], capacity, self.settings.max_new)
                known |= {label: cost.to_json() for label, cost in costs.items()}
                folder.write("costs.json", known)

    def decode(self, arm: Arm, batch: Batch, capacity: int, screen: Screen) -> list[Record]:
        """One timed call."""
        stream = TextStream(self.model.tokenizer) if screen.streams else None
        with no_compilation(arm.label):
            made = generate(
                arm.loop,
                arm.params,
                [item.tokens for item in batch],
                self.settings.max_new,
                seeds=[item.seed for item in batch],
                capacity=capacity,
                max_rounds=STREAM_ROUNDS if stream else MAX_ROUNDS,
                watch=(lambda tokens: screen.show(stream, tokens[0])) if stream else None,
                layout=arm.layout,
            )
        if stream:
            screen.show(stream, made.tokens[0], end=True)
        return [record(arm, item, made, row, len(batch), self.model.tokenizer) for row, item in enumerate(batch)]


def record(arm: Arm, item: Item, made: Generation, row: int, rows: int, tokenizer: Tokenizer) -> Record:
    """The result of one row of a batch."""
    return Record(
        method=arm.name,
        temperature=arm.warp.temperature,
        prompt=item.prompt.id,
        turn=item.turn,
        category=item.prompt.category,
        seed=item.seed,
        prompt_tokens=item.tokens,
        tokens=made.tokens[row],
        steps=made.steps[row],
        prefill_seconds=made.prefill_seconds / rows,
        decode_seconds=made.decode_seconds / rows,
        text=tokenizer.decode(made.tokens[row], skip_special=True),
    )


def seed_of(seed: int, prompt: str, turn: int) -> int:
    """A sequence's seed: the same whatever else is decoded, in whatever order or batch."""
    return crc32(f"{seed}/{prompt}/{turn}".encode())


def in_batches(items: Sequence[Item], size: int) -> Iterator[Batch]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def longest(prompts: Sequence[Sequence[int]]) -> int:
    return max(map(len, prompts))
