"""Makes a corpus to train drafters on: text that the target writes itself, or text given, in its template.

    python -m experiments.rollout --config configs/rollout/smollm2_own.py --prompts.count 2000

The corpus is CORPORA/NAME, beside it NAME.work with the batches finished so far: the same command goes on from there.
It refuses what another config made, or other text in the files given.
Several processes share the work with --hosts N --host I; whichever finishes last writes the corpus. Exit codes: 0; 2 for a
mistake in config or input; 130 where stopped.
"""

import hashlib
import json
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from experiments.config import parse
from experiments.launch import decode_in_float32, folder_for, in_host_memory, mistakes_end_the_program
from experiments.rollout_config import Conversations, OwnText, RolloutConfig, Texts
from sdjax.core.plain import plain_data
from sdjax.core.sampling import Warp
from sdjax.decode.state import Loop, Params
from sdjax.mesh.layout import DECODE
from sdjax.mesh.place import spread
from sdjax.mesh.start import join_pod, speaks
from sdjax.study.prompts import Prompts, encode, load_prompts
from sdjax.study.runs import telling_differences
from sdjax.study.stdlib_prompts import StandardLibrary
from sdjax.targets.load import Model, file_identity
from sdjax.train.conversations import existing, files_of_tfds, read_conversations, read_tfds
from sdjax.train.corpus import Manifest, Origin, open_corpus, write_corpus
from sdjax.train.documents import Document
from sdjax.train.hosts import first_process_first, gather, meet
from sdjax.train.rollouts import Answers, OwnConversations, Request, Sampler, Work, Writer, collect, roll, user_turn
from sdjax.verify.walk import Walk

SECONDS = 30  # between two lines of progress


def main(arguments: Sequence[str]) -> int:
    with mistakes_end_the_program():
        join_pod()
        config = parse(arguments, "python -m experiments.rollout", "rollout", RolloutConfig)
        decode_in_float32()
        try:
            with in_host_memory() if jax.local_device_count() > 1 else nullcontext():
                model = config.target.load()
            rollout(config, model)
        except KeyboardInterrupt:
            print("stopped; the same command goes on from here", file=sys.stderr)
            return 130
    return 0


def rollout(config: RolloutConfig, model: Model, console: Console | None = None) -> Manifest | None:
    """Makes or finishes the corpus; its manifest, or None where other processes have work left.

    The processes of a pod end together, and the first of them writes the corpus.
    """
    console = console or Console(quiet=not speaks())
    folder_for(Path(config.corpora), "--corpora")
    if isinstance(config.prompts, (Conversations, Texts)):
        origin = Origin.of(model, None, config.seed, recipe(config, model, []) | {"given": fingerprint(config.prompts)})
        with first_process_first("corpus"):
            return finish(config, given(config.prompts, model), origin, config.prompts.longest or None, console)
    requests, sampler = plan(config, model, console)
    origin = Origin.of(model, config.warp.temperature, config.seed, recipe(config, model, requests))
    if in_every_process(config.folder):
        return finish(config, [], origin, None, console)
    host, hosts = config.place()
    work = Work(config.folder.with_name(f"{config.name}.work"), host)
    begun = any(gather(bool(work.read())))
    same_recipe(work, origin, nobodys=config.hosts == 1 and not begun)
    console.print(f"{model.name}: {len(requests)} documents, {work.folder} → {config.folder}", soft_wrap=True)
    roll(work, requests, sampler, config.batch, hosts, Progress(console))
    meet("rolled out")
    with first_process_first("corpus"):
        documents = collect(work, requests)
        if documents is None:
            console.print(f"this process's share is done; the corpus is made by the last of the {hosts} to finish")
            return None
        return finish(config, documents, origin, None, console)


def in_every_process(folder: Path) -> bool:
    """Whether it is there; ValueError where some of a pod's processes alone see it."""
    seen = gather(folder.exists())
    if any(seen) and not all(seen):
        lacking = [number for number, sees in enumerate(seen) if not sees]
        raise ValueError(f"{folder} is there, but processes {lacking} do not see it: bring it to their hosts, or share a disk")
    return all(seen)


def plan(config: RolloutConfig, model: Model, console: Console) -> tuple[list[Request], Sampler]:
    """What is asked, and how the target goes on from it."""
    layout, params = config.mesh.layout(DECODE, jax.local_devices()), model.params
    if layout is not None:
        params = spread(params, layout.params(model.target.specs()))

    def writer(warp: Warp, max_new: int) -> Writer:
        loop = Loop(model.target, config.drafter, Walk(), warp, model.tokenizer.stops, config.chunk)
        return Writer(loop, Params(params, {}), max_new, config.seed, layout)

    answer = writer(config.warp, config.max_new)
    if isinstance(config.prompts, OwnText):
        if min(config.prompts.count, config.prompts.max_user) < 1:
            raise ValueError(f"prompts is {config.prompts}; count and max_user must be ≥ 1")
        header, between = user_turn(model.tokenizer)
        user = writer(config.prompts.user, config.prompts.max_user)
        requests = [Request(f"own-{i}", "own", header) for i in range(config.prompts.count)]
        return requests, OwnConversations(user, answer, between)
    if isinstance(config.prompts, StandardLibrary):
        prompts, chat = config.prompts.prompts(), True
        if not prompts:
            raise ValueError(f"prompts.skip is {config.prompts.skip}, which leaves nothing of the standard library")
    elif isinstance(config.prompts, Prompts):
        prompts, chat = load_prompts(config.prompts), config.prompts.chat
    else:
        raise ValueError(f"prompts is {config.prompts!r}; nothing is sampled from it")
    requests = [Request(p.id, p.category, encode(model.tokenizer, p, [], chat)) for p in prompts]
    return short_enough(requests, config.longest_prompt, console), Answers(answer)


def short_enough(requests: Sequence[Request], longest: int, console: Console) -> list[Request]:
    """Those of at most so many tokens; where others are left out, a line says how many. ValueError where all are."""
    short = [request for request in requests if len(request.tokens) <= longest]
    if not short:
        least = min(len(request.tokens) for request in requests)
        raise ValueError(f"all {len(requests)} prompts are longer than {longest} tokens; --longest-prompt {least} takes one")
    if left_out := len(requests) - len(short):
        console.print(
            f"{left_out} of {len(requests)} prompts are longer than {longest} tokens and left out; --longest-prompt takes more",
            soft_wrap=True,
        )
    return short


def given(source: Conversations | Texts, model: Model) -> Iterable[Document]:
    """The documents of text that is there already."""
    if isinstance(source, Conversations):
        return read_conversations(source.file, model.tokenizer)
    return read_tfds(source.dataset, source.split, source.column, model.tokenizer, source.data_dir)


def fingerprint(source: Conversations | Texts) -> str:
    """A hash of the files that hold the text: their paths stay as they are where the text changes."""
    if isinstance(source, Conversations):
        return file_identity([existing(source.file)])
    return file_identity(files_of_tfds(source.dataset, source.split, source.data_dir))


def recipe(config: RolloutConfig, model: Model, requests: Sequence[Request]) -> dict[str, Any]:
    """All that decides the corpus's contents beside what its manifest names: the config, and a hash of what was asked."""
    fields = {key: value for key, value in plain_data(config).items() if key not in ("corpora", "mesh", "host", "hosts")}
    asked = json.dumps([[request.id, request.source, list(request.tokens)] for request in requests])
    stops = list(model.tokenizer.stops)
    return {"config": fields, "stops": stops, "requests": hashlib.sha256(asked.encode()).hexdigest()}


def same_recipe(work: Work, origin: Origin, nobodys: bool) -> None:
    """Notes what the work folder is of; ValueError naming what differs where it is of something else.

    It is nobody's yet where it holds no batch, on any host of a pod, and no process started apart may be sampling the first.
    """
    work.folder.mkdir(parents=True, exist_ok=True)
    path, wanted = work.folder / "origin.json", json.loads(json.dumps(asdict(origin)))
    if path.exists() and not nobodys:
        refuse_another(work.folder, json.loads(path.read_text(encoding="utf-8")), wanted)
        return
    hidden = work.folder / f".origin.part{work.host}"
    hidden.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    hidden.replace(path)


def refuse_another(folder: Path, known: dict[str, Any], wanted: dict[str, Any]) -> None:
    if known != wanted:
        changes = telling_differences(known, wanted)
        raise ValueError(
            f"{folder} is of another config ({changes}); a corpus is not extended: take another --name, or remove the folder"
        )


def finish(
    config: RolloutConfig, documents: Iterable[Document], origin: Origin, longest: int | None, console: Console
) -> Manifest:
    """The manifest of the corpus, which is written unless it is there."""
    if not config.folder.exists():
        try:
            write_corpus(config.folder, documents, origin, longest, config.place()[0])
        except OSError:
            if not config.folder.exists():  # else another process was the last to finish, too
                raise
    manifest = open_corpus(config.folder).manifest
    wanted = json.loads(json.dumps(asdict(origin)))
    refuse_another(config.folder, {key: value for key, value in asdict(manifest).items() if key in wanted}, wanted)
    console.print(
        f"{config.folder}: {manifest.documents} documents ({manifest.dropped} dropped), {manifest.tokens} tokens, "
        f"{manifest.supervised} of them supervised",
        soft_wrap=True,
    )
    return manifest


class Progress:
    """A line now and then: documents done, and tokens a second since the start."""

    def __init__(self, console: Console):
        self._console, self._tokens = console, 0
        self._begin = self._last = time.monotonic()

    def __call__(self, done: int, total: int, tokens: int) -> None:
        self._tokens += tokens
        now = time.monotonic()
        if now - self._last >= SECONDS or done == total:
            self._console.print(f"{done} of {total} documents, {self._tokens / (now - self._begin):.0f} tokens/s")
            self._last = now


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
