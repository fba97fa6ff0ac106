"""Rollouts: the target writes the text that its drafters learn from, in batches that a stopped run need not sample again.

Each process appends its finished batches to a file of its own in a work folder that all share. Noise is keyed by the
request's id, and batches are planned from all requests before any is run, so neither a kill nor the number of processes
changes a token.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdjax.decode.generate import generate
from sdjax.decode.state import Loop, Params
from sdjax.mesh.layout import Layout
from sdjax.targets.tokenizer import Tokenizer
from sdjax.train.documents import Document, Span

PLACEHOLDER = "SDJAX-USER-TURN"


@dataclass(frozen=True)
class Request:
    """What the target goes on from; the id keys its noise."""

    id: str
    source: str
    tokens: Sequence[int]


Sampler = Callable[[Sequence[Request]], list[list[Span]]]
Watch = Callable[[int, int, int], None]  # documents done, documents in all, tokens sampled just now


@dataclass(frozen=True)
class Writer:
    """The target, decoding by any loop whose rule keeps its law; at most `max_new` tokens, keyed by `seed` and a name.

    A `layout` says on what mesh, of this process's own devices; the parameters are there.
    """

    loop: Loop
    params: Params
    max_new: int
    seed: int
    layout: Layout | None = None

    def __call__(self, prompts: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[int]]:
        seeds = [seed_of(self.seed, name) for name in names]
        return generate(self.loop, self.params, prompts, self.max_new, seeds=seeds, layout=self.layout).tokens


@dataclass(frozen=True)
class Answers:
    """Each request is a prompt; the target's answer is supervised."""

    writer: Writer

    def __call__(self, requests: Sequence[Request]) -> list[list[Span]]:
        answers = self.writer([request.tokens for request in requests], [request.id for request in requests])
        return [[(request.tokens, False), (answer, True)] for request, answer in zip(requests, answers, strict=True)]


@dataclass(frozen=True)
class OwnConversations:
    """Each request ends at the user's header: the target writes the user's turn too, then answers it; both are supervised.

    `between` is what the template puts between the turns. A conversation whose user says nothing has nothing supervised.
    """

    user: Writer
    answer: Writer
    between: tuple[int, ...]

    def __call__(self, requests: Sequence[Request]) -> list[list[Span]]:
        turns = self.user([request.tokens for request in requests], [f"{request.id}/user" for request in requests])
        asked = [self.asked(request.tokens, turn) for request, turn in zip(requests, turns, strict=True)]
        prompts = [[token for ids, _ in spans for token in ids] for spans in asked]
        answers = self.answer(prompts, [request.id for request in requests])
        return [
            [*spans, (answer, True)] if any(learnt for _, learnt in spans) else [(prompt, False)]
            for spans, prompt, answer in zip(asked, prompts, answers, strict=True)
        ]

    def asked(self, header: Sequence[int], turn: Sequence[int]) -> list[Span]:
        """The template around the user's turn; the end of turn is supervised where the target chose it itself."""
        stopped = turn[-1] in self.user.loop.stop
        said = turn[:-1] if stopped else turn
        if not said:
            return [(header, False), (self.between, False)]
        own = 1 if stopped and turn[-1] == self.between[0] else 0
        return [(header, False), (said, True), (self.between[:own], True), (self.between[own:], False)]


def user_turn(tokenizer: Tokenizer) -> tuple[list[int], tuple[int, ...]]:
    """The template's tokens up to and including the user's header, and those between a user's turn and its answer."""
    text = tokenizer.chat([{"role": "user", "content": PLACEHOLDER}], add_generation_prompt=True)
    if text.count(PLACEHOLDER) != 1:
        raise ValueError("the chat template does not print the user's turn once; roll out answers to prompts instead")
    start = text.index(PLACEHOLDER)
    pieces = tokenizer.pieces(text, [start, start + len(PLACEHOLDER)])
    if pieces is None:
        raise ValueError(
            "the user's turn makes one token with what the chat template puts around it, so that it cannot be written by "
            "itself; roll out answers to prompts instead"
        )
    header, _, between = pieces
    if not header or not between:
        raise ValueError("the chat template has no header before the user's turn or nothing behind it; take prompts instead")
    return header, tuple(between)


def seed_of(seed: int, name: str) -> int:
    """A uint32 that depends on nothing but the seed and the name."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4])


def plan(requests: Sequence[Request], size: int) -> list[list[Request]]:
    """Batches of like lengths, all of one size: the last is filled up by repeating its last request."""
    if size < 1:
        raise ValueError(f"batch is {size}; it must be ≥ 1")
    by_length = sorted(requests, key=lambda request: (len(request.tokens), request.id))
    batches = [by_length[start : start + size] for start in range(0, len(by_length), size)]
    return [batch + batch[-1:] * (size - len(batch)) for batch in batches]


@dataclass(frozen=True)
class Work:
    """The folder of finished batches; `host` is the process that appends."""

    folder: Path
    host: int = 0

    @property
    def path(self) -> Path:
        return self.folder / f"rollouts-{self.host:05}.jsonl"

    def append(self, requests: Sequence[Request], texts: Sequence[Sequence[Span]]) -> None:
        """Adds a line for each, and waits until they are on the disk."""
        with self.path.open("ab") as file:
            for request, spans in zip(requests, texts, strict=True):
                plain = [[[int(token) for token in ids], bool(learnt)] for ids, learnt in spans]
                line = json.dumps({"id": request.id, "source": request.source, "spans": plain})
                file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def mend(self) -> None:
        """Cuts a half-written last line off this process's own file."""
        if self.path.exists():
            content = self.path.read_bytes()
            os.truncate(self.path, content.rfind(b"\n") + 1)

    def read(self) -> dict[str, Document]:
        """What all processes have finished so far, by id; another's half-written last line does not count yet."""
        return {document.id: document for path in sorted(self.folder.glob("rollouts-*.jsonl")) for document in lines(path)}


def lines(path: Path) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
                yield Document.of_spans(row["spans"], row["id"], row["source"])
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}, line {number} is damaged ({error!r}); remove the line to sample it again") from error


def roll(
    work: Work, requests: Sequence[Request], sampler: Sampler, batch: int, hosts: int = 1, watch: Watch | None = None
) -> list[Document] | None:
    """Samples this process's share of what the work folder lacks: every `hosts`-th batch.

    The documents in the order of the requests; None where other processes are not done yet.
    """
    check(requests, work.host, hosts)
    work.folder.mkdir(parents=True, exist_ok=True)
    work.mend()
    done = set(work.read())
    for group in plan(requests, batch)[work.host :: hosts]:
        missing = {request.id: i for i, request in reversed(list(enumerate(group))) if request.id not in done}
        if not missing:
            continue
        # A batch is sampled whole even where part of it is there: other widths round otherwise.
        texts = sampler(group)
        work.append([group[i] for i in missing.values()], [texts[i] for i in missing.values()])
        done |= missing.keys()
        if watch:
            watch(len(done), len(requests), sum(len(ids) for i in missing.values() for ids, learnt in texts[i] if learnt))
    return collect(work, requests)


def collect(work: Work, requests: Sequence[Request]) -> list[Document] | None:
    """The documents in the order of the requests; None where some are not done, or not in this folder."""
    found = work.read()
    return [found[request.id] for request in requests] if all(request.id in found for request in requests) else None


def check(requests: Sequence[Request], host: int, hosts: int) -> None:
    if not requests:
        raise ValueError("there is nothing to roll out: no requests were given")
    if not 0 <= host < hosts:
        raise ValueError(f"host is {host} of {hosts}; it must lie in 0..hosts - 1")
    seen: set[str] = set()
    for request in requests:
        if request.id in seen:
            raise ValueError(f"two requests have the id {request.id!r}; ids key results and noise, so make them differ")
        seen.add(request.id)
