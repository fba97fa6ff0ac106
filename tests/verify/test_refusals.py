"""Bad input gets a clear error before anything compiles; and the command answers."""

import json
import subprocess
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.law import Question, main
from sdjax.core.sampling import Warp
from sdjax.core.types import Law
from sdjax.decode.state import Loop
from sdjax.drafters.block import Block
from sdjax.drafters.block_tree import BlockTree
from sdjax.drafters.eagle import Eagle
from sdjax.trees.dynamic import DynamicTree
from sdjax.trees.grow import slot_tree
from sdjax.trees.tree import Tree
from sdjax.verify.approximate import ApproximateGreedy
from sdjax.verify.block import BlockVerification
from sdjax.verify.kseq import KSequential
from sdjax.verify.law import exact_law
from sdjax.verify.lenience import Lenience
from sdjax.verify.recursive import Recursive
from sdjax.verify.registry import RULES, refuse_lossy, rule_named
from sdjax.verify.tables import Tables, random_tables, read_tables
from sdjax.verify.typical import TypicalAcceptance
from tests.properties.models import FIXTURE
from tests.tiny import TARGET

CTX = SimpleNamespace(seed=jnp.zeros(1, jnp.uint32), p=jnp.zeros(1, jnp.int32), warp=Warp(1.0))


def judge(rule, tree, law, q=True):
    tokens = jnp.zeros((1, tree.nodes), jnp.int32)
    rows = jnp.full((1, len(tree.inner), 3), 1 / 3) if q else None
    return rule.judge(CTX, tree.draft(tokens, law, rows), jnp.zeros((1, tree.nodes, 3)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: judge(KSequential(), Tree.branching(2), Law.WITHOUT_REPLACEMENT),
            "KSequential is not lossless .* without-replacement",
        ),
        (lambda: judge(BlockVerification(), Tree.branching(2), Law.IID), "chains only, but this tree has 3 nodes"),
        (lambda: judge(Recursive(), Tree.branching(2), Law.IID, q=False), "must carry q"),
        (lambda: judge(ApproximateGreedy(), Tree.chain(2), Law.ONE_HOT, q=False), "temperature is 1.0"),
        (lambda: judge(ApproximateGreedy(), Tree.chain(2), Law.IID), "temperature is 1.0"),
        (lambda: rule_named("blok"), "no rule is called 'blok'.*lossless: walk.*lossy: approximate"),
        (lambda: refuse_lossy(TypicalAcceptance()), "TypicalAcceptance is lossy"),
        (lambda: Lenience(0), "must lie in"),
        (lambda: TypicalAcceptance(epsilon=2), "epsilon is 2"),
        (lambda: ApproximateGreedy(budget=-1), "budget is -1"),
    ],
)
def test_rules_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.chains_only])
def test_a_tree_of_as_many_nodes_as_a_chain_is_none(name):
    """Its shape is found as it grows, and may be a chain's today; with one child a node it is a chain always."""
    rule, ctx = RULES[name], SimpleNamespace(**vars(CTX) | {"warp": Warp(0.0)})

    def grown(width):
        logp = jnp.log(jnp.broadcast_to(jnp.array([0.55, 0.45])[:width], (1, 3, width)))
        return slot_tree(jnp.broadcast_to(jnp.arange(width), (1, 3, width)), logp, 4).draft(jnp.zeros(1, jnp.int32))

    assert grown(2).parent.tolist() != [[-1, 0, 1, 2]] and grown(1).parent.tolist() == [[-1, 0, 1, 2]]
    with pytest.raises(ValueError, match="chains only, but this tree has 4 nodes and is 3 deep"):
        rule.judge(ctx, grown(2), jnp.zeros((1, 4, 3)))
    rule.judge(ctx, grown(1), jnp.zeros((1, 4, 3)))
    for drafter in (lambda width: Eagle(DynamicTree(3, 4, width)), lambda width: BlockTree(Block((0, 2), 3), 4, width)):
        with pytest.raises(ValueError, match="judges chains only"):
            Loop(TARGET, drafter(2), rule, ctx.warp)
        Loop(TARGET, drafter(1), rule, ctx.warp)


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.lossless])
def test_lossless_rules_are_welcome(rule):
    refuse_lossy(rule)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: exact_law(KSequential(), t, Tree.branching(2), Law.ONE_HOT), "not lossless"),
        (lambda t: exact_law(BlockVerification(), t, Tree.branching(2), Law.IID), "chains only"),
        (lambda t: exact_law(Recursive(), t, Tree.chain(3), Law.IID), "3 deep, but the tables of p and q only allow 2"),
        (
            lambda t: exact_law(Recursive(), t, Tree.branching(3, 3), Law.IID),
            r"5\.314e\+05 drafts are too many .* smaller vocabulary",
        ),
        (lambda t: exact_law(Recursive(), t, Tree.branching(4), Law.WITHOUT_REPLACEMENT), "too few tokens"),
        (lambda t: Tables(tuple(x * 1.1 for x in t.p), t.q).check(), r"p\(\) is no law"),
    ],
)
def test_the_exact_law_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call(read_tables(FIXTURE))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["p"].pop("01"), "p lacks the prefix 01"),
        (lambda data: data["q"].pop(""), "q lacks the empty prefix"),
        (lambda data: data["p"].update({"0": [5, 5, 5]}), r"p\(0\) sums to 1.5"),
        (lambda data: data["p"].update({"0": [12, -1, -1]}), r"p\(0\) sums to 1"),
        (lambda data: data["q"].update({"1": [5, 5]}), r"q\(1\) has 2 entries, but q\(\) has 3"),
        (lambda data: data["p"].update({"x": [5, 2, 3]}), "key 'x'"),
        (lambda data: data.pop("q"), 'needs an object with "p" and "q"'),
    ],
)
def test_bad_tables(change, message, tmp_path):
    data = json.loads(FIXTURE.read_text())
    change(data)
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        read_tables(path)


def test_the_command(capsys, tmp_path):
    main(Question("traversal", "2x2", law=Law.WITHOUT_REPLACEMENT, tables=FIXTURE))
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["tv"] <= 1e-12 and round(last["expected_accepted"], 4) == 1.7862 and round(last["bound"], 4) == 2
    picture = tmp_path / "lenience.png"
    answer = main(Question("lenience", "1x1", tables=FIXTURE, plot=picture, models=2))
    assert round(answer["tv"], 3) == 0.21 and picture.stat().st_size > 5000
    assert main(Question("approximate", "1x1", knob=0.0))["tv"] == 0


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question("traversal", "2x"), "children per depth"),
        (Question("traversal", "0x2"), "at least one child"),
        (Question("traversal", "[[1]]"), "which the tree lacks"),
        (Question("traversal", "2", vocab=1), "at least two tokens"),
        (Question("token", "1", knob=0.5), "has none"),
        (Question("token", "1", plot="x.png"), "no knob"),
        (Question("recursive", "4x4x4"), "drafts are too many"),
    ],
)
def test_the_command_refuses(question, message):
    with pytest.raises(ValueError, match=message):
        main(question)


def test_the_command_line():
    """The exit status and the one line of an error, without a traceback."""
    command = [sys.executable, "-m", "experiments.law", "--rule", "block", "--tree", "2x2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.startswith("error: BlockVerification judges chains only")


def test_random_tables_are_laws():
    for zeros in (0.0, 0.9):
        random_tables(np.random.default_rng(0), 4, 2, (5,), zeros=zeros).check()
