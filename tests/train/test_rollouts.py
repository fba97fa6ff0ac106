"""Rollouts: whatever stops them and however they are shared, the corpus is the same; its mask covers the target's own."""

import json
from itertools import pairwise

import pytest

from sdjax.decode.generate import generate
from sdjax.decode.state import Params
from sdjax.drafters.ngram import NGram
from sdjax.drafters.no_draft import NoDraft
from sdjax.train.corpus import open_corpus, write_corpus
from sdjax.train.rollouts import Answers, OwnConversations, Request, Work, Writer, plan, roll, seed_of, user_turn
from tests.experiments.tiny_model import model
from tests.tiny import loop_of, target_params
from tests.train.texts import ORIGIN, same, spaced_tokenizer

STOP = 27  # the full stop of the tiny tokenizer, with which its template ends a turn
NEW = 8
BATCH = 4
REQUESTS = [Request(f"r{i}", "letters", [(3 * i + j) % 26 for j in range(1 + i * 5 % 9)]) for i in range(10)]


def writer(drafter=None, temperature=1.0):
    return Writer(loop_of(drafter or NoDraft(), temperature, stop=(STOP,)), Params(target_params(), {}), NEW, seed=3)


ANSWERS = Answers(writer())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The work file of an undisturbed run, and its corpus's identity."""
    folder = tmp_path_factory.mktemp("rollouts")
    work = Work(folder / "work")
    documents = roll(work, REQUESTS, ANSWERS, BATCH)
    return work.path.read_bytes(), write_corpus(folder / "corpus", documents, ORIGIN).identity


def test_answers_are_plain_decoding_keyed_by_id(tmp_path):
    documents = roll(Work(tmp_path), REQUESTS, ANSWERS, BATCH)
    assert [d.id for d in documents] == [request.id for request in REQUESTS]
    w, seeds = ANSWERS.writer, [seed_of(3, request.id) for request in REQUESTS]
    answers = generate(w.loop, w.params, [request.tokens for request in REQUESTS], NEW, seeds=seeds).tokens
    for request, answer, d in zip(REQUESTS, answers, documents, strict=True):
        assert d.tokens.tolist() == [*request.tokens, *answer]
        assert d.tokens[d.loss_mask].tolist() == answer
    assert any(len(answer) < NEW for answer in answers), "some stop by themselves"


@pytest.mark.parametrize("batch, drafter", [(4, NGram(length=3)), (10, NoDraft())], ids=["drafter", "batch"])
def test_neither_batch_nor_drafter_matters(tmp_path, finished, batch, drafter):
    documents = roll(Work(tmp_path / "work"), list(reversed(REQUESTS)), Answers(writer(drafter)), batch)
    assert write_corpus(tmp_path / "corpus", reversed(documents), ORIGIN).identity == finished[1]


def cuts(content):
    """Where a killed run's file may end: behind each line, and within each."""
    ends = [0, *(i + 1 for i, byte in enumerate(content) if byte == ord("\n"))]
    return ends[:-1] + [(a + b) // 2 for a, b in pairwise(ends)] + [end - 1 for end in ends[1:]]


def test_resuming_after_a_kill_at_any_write_gives_the_same_corpus(tmp_path, finished):
    content, identity = finished
    for i, cut in enumerate(cuts(content)):
        work = Work(tmp_path / f"work{i}")
        work.folder.mkdir()
        work.path.write_bytes(content[:cut])
        documents = roll(work, REQUESTS, ANSWERS, BATCH)
        assert write_corpus(tmp_path / f"corpus{i}", documents, ORIGIN).identity == identity, f"cut at byte {cut}"


def test_an_interrupted_batch_leaves_the_finished_ones(tmp_path, finished):
    calls = []

    def interrupted(requests):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(requests)
        return ANSWERS(requests)

    work = Work(tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        roll(work, REQUESTS, interrupted, BATCH)
    assert len(work.read()) == 2 * BATCH
    sampled = []
    documents = roll(work, REQUESTS, lambda requests: sampled.append(requests) or ANSWERS(requests), BATCH)
    assert sampled == plan(REQUESTS, BATCH)[2:], "what is there is not sampled again"
    assert write_corpus(tmp_path / "corpus", documents, ORIGIN).identity == finished[1]


@pytest.mark.parametrize("hosts", [2, 3])
def test_several_hosts_make_the_corpus_of_one(tmp_path, finished, hosts):
    made = [roll(Work(tmp_path / "work", host), REQUESTS, ANSWERS, BATCH, hosts) for host in range(hosts)]
    assert made[:-1] == [None] * (hosts - 1), "only the last one finds all done"
    assert write_corpus(tmp_path / "corpus", made[-1], ORIGIN).identity == finished[1]
    files = [Work(tmp_path / "work", host).path.read_text().splitlines() for host in range(hosts)]
    assert all(files) and sum(map(len, files)) == len(REQUESTS)


def test_the_number_of_hosts_may_change(tmp_path, finished):
    roll(Work(tmp_path / "work", 1), REQUESTS, ANSWERS, BATCH, 2)
    with Work(tmp_path / "work", 1).path.open("ab") as file:
        file.write(b'{"id": "r')  # that host was killed
    documents = roll(Work(tmp_path / "work"), REQUESTS, ANSWERS, BATCH)
    assert write_corpus(tmp_path / "corpus", documents, ORIGIN).identity == finished[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_own_conversations_are_the_templates_with_what_was_sampled_supervised(tmp_path, temperature):
    t = model().tokenizer
    header, between = user_turn(t)
    assert (t.decode(header), t.decode(between)) == ("u ", ". a ")
    sampler = OwnConversations(writer(), writer(temperature=temperature), between)
    documents = roll(Work(tmp_path), [Request(f"own-{i}", "own", header) for i in range(6)], sampler, BATCH)
    talks = [d for d in documents if d.supervised]
    assert len({t.decode(d.tokens) for d in talks}) == len(talks) >= 4
    for d in talks:
        text = t.decode(d.tokens)
        user, _, answer = text.removeprefix("u ").partition(". a ")
        assert text == t.chat([{"role": "user", "content": user}], add_generation_prompt=True) + answer
        stopped = len(user) < NEW
        own = [False] * 2 + [True] * len(user) + [stopped] + [False] * 3 + [True] * len(answer)
        assert d.loss_mask.tolist() == own
        assert len(answer) == NEW or answer.endswith(".")


def test_a_silent_user_gives_nothing_to_learn_from():
    header, between = user_turn(model().tokenizer)
    sampler = OwnConversations(writer(), writer(), between)
    assert not any(learnt for _, learnt in sampler.asked(header, [STOP]))
    spans = sampler.asked(header, [5, 0])  # cut off by its length
    assert [token for ids, _ in spans for token in ids] == [*header, 5, 0, *between]
    assert [ids for ids, learnt in spans if learnt and ids] == [[5, 0]]


def test_the_users_turn_lies_between_whole_tokens():
    """As in the prompt that is served, where nothing is encoded by itself."""
    t = spaced_tokenizer("{{ bos_token }}{% for m in messages %}[{{ m.content }} -]{% endfor %}")
    header, between = user_turn(t)
    assert [t.backend.id_to_token(token) for token in between] == ["▁", "-", "]"]
    assert [*header, *t.encode("[hi", add_bos=False)[2:], *between] == t.encode(t.chat([{"role": "user", "content": "hi"}]))
    joined = spaced_tokenizer("{{ bos_token }}{% for m in messages %}[ {{ m.content }} -]{% endfor %}")
    with pytest.raises(ValueError, match=r"one token .* answers to prompts instead"):
        user_turn(joined)


def test_noise_is_keyed_by_seed_and_name_alone():
    assert seed_of(0, "a") == 0xD3216B8D
    assert len({seed_of(seed, name) for seed in range(3) for name in ("a", "b", "1/a")}) == 9


def test_a_damaged_line_is_named(tmp_path, finished):
    lines = finished[0].splitlines(keepends=True)
    work = Work(tmp_path)
    work.path.write_bytes(b"".join([*lines[:2], b'{"id": 1}\n', *lines[2:]]))
    with pytest.raises(ValueError, match=r"rollouts-00000.jsonl, line 3 is damaged.*remove the line"):
        roll(work, REQUESTS, ANSWERS, BATCH)


def test_lines_hold_ids_and_spans(finished):
    row = json.loads(finished[0].splitlines()[0])
    assert row.keys() == {"id", "source", "spans"} and [learnt for _, learnt in row["spans"]] == [False, True]


@pytest.mark.parametrize(
    "requests, host, hosts, batch, words",
    [
        ([], 0, 1, 4, "no requests"),
        ([REQUESTS[0]] * 2, 0, 1, 4, "two requests have the id 'r0'"),
        (REQUESTS, 2, 2, 4, "host is 2 of 2"),
        (REQUESTS, 0, 1, 0, "batch is 0"),
    ],
)
def test_bad_requests_are_refused(tmp_path, requests, host, hosts, batch, words):
    with pytest.raises(ValueError, match=words):
        roll(Work(tmp_path, host), requests, ANSWERS, batch, hosts)


def test_documents_survive_the_corpus(tmp_path):
    documents = roll(Work(tmp_path / "work"), REQUESTS, ANSWERS, BATCH)
    write_corpus(tmp_path / "corpus", documents, ORIGIN)
    assert all(map(same, open_corpus(tmp_path / "corpus"), documents))
