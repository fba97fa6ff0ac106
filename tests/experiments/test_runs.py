"""A run's folder: resume, truncation, and refusal of another run's folder."""

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from experiments.decode import decode
from sdjax.core.metrics import Steps
from sdjax.study.compare import Decoding
from sdjax.study.methods import Sampling
from sdjax.study.prompts import Prompts, load_prompts
from sdjax.study.runs import Record, open_run, plain_data
from tests.experiments.tiny_model import config, model, run


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "tiny" / "results.jsonl").read_text().splitlines()]


def tokens(tmp_path):
    return {(row["method"], row["temperature"], row["prompt"], row["turn"]): row["tokens"] for row in lines(tmp_path)}


def test_a_run_writes_everything(finished):
    folder, printed = finished
    assert len(lines(folder)) == 3 * (2 + 3)
    assert "9 of 9" not in printed and "6 of 6 outputs" in printed
    assert "in law: " not in printed and "sampled (T=1)" in printed
    summary = json.loads((folder / "tiny" / "summary.json").read_text())
    assert [arm["method"] for arm in summary["arms"]] == ["plain", "lookup", "plain", "lookup", "sampled"]
    assert summary["arms"][0]["acceptance"]["tau"] == 1
    resolved = json.loads((folder / "tiny" / "config.json").read_text())
    assert resolved["config"]["methods"]["lookup"]["drafter"] == {
        "class": "NGram", "length": 3, "longest": 3, "shortest": 1, "window": 0
    }  # fmt: skip
    launch = json.loads((folder / "tiny" / "launches.json").read_text())[0]
    assert {"command", "git", "versions", "device"} <= launch.keys()


def test_a_line_holds_every_step(finished):
    for row in lines(finished[0]):
        steps = row["steps"]
        assert set(steps) == {"l", "reach", "a", "e", "n"}
        assert len({len(values) for values in steps.values()}) == 1
        assert sum(steps["e"]) == len(row["tokens"]) - 1


def test_baseline_first_and_interleaved(finished):
    order = [(row["prompt"], row["temperature"], row["method"]) for row in lines(finished[0])]
    assert order[:5] == [
        ("text/0", t, m) for t, m in [(0, "plain"), (0, "lookup"), (1, "plain"), (1, "lookup"), (1, "sampled")]
    ]
    assert [prompt for prompt, *_ in order] == [f"text/{i}" for i in range(3) for _ in range(5)]


def test_a_stopped_run_goes_on(finished, tmp_path):
    """Cut in the middle of a line: the rest is made again, with the same tokens."""
    source = finished[0] / "tiny"
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_bytes((source / "config.json").read_bytes())
    whole = (source / "results.jsonl").read_bytes()
    (tmp_path / "tiny" / "results.jsonl").write_bytes(whole[: len(whole) // 2])
    code, printed = run(config(tmp_path))
    assert code == 0
    assert "results are there already" in printed
    assert tokens(tmp_path) == tokens(finished[0])
    assert len(lines(tmp_path)) == len(lines(finished[0]))


def test_a_finished_run_only_reports(finished):
    before = (finished[0] / "tiny" / "results.jsonl").read_bytes()
    code, printed = run(config(finished[0]))
    assert code == 0 and "nothing was left to decode" in printed
    assert (finished[0] / "tiny" / "results.jsonl").read_bytes() == before


def test_another_config_is_refused(finished):
    other = config(finished[0], decode=Decoding(max_new=13, chunk=16, costs=False))
    with pytest.raises(ValueError, match=r"another config \(config.decode.max_new was 12, is 13\)"):
        run(other)
    other = config(finished[0], prompts=Prompts(text=("hello hello hel", "abc abc abc", "what?")))
    with pytest.raises(ValueError, match=r"config.prompts.text was") as refused:
        run(other)
    assert "inputs.prompts" not in str(refused.value), "a hash, which follows from the text"
    with pytest.raises(ValueError, match=r"inputs.prompts was .* is"):
        decode(config(finished[0]), load_prompts(other.prompts), model(), Console(quiet=True))


def test_a_mistake_leaves_no_folder_that_refuses_the_corrected_command(tmp_path):
    """`--decode.capacity 16` was found too small when the folder was its own already."""
    settings = config(tmp_path).decode
    with pytest.raises(ValueError, match="capacity is 16, but the prompts need"):
        run(config(tmp_path, decode=replace(settings, capacity=16)))
    (tmp_path / "tiny" / "costs.json").write_text("{}")
    code, _ = run(config(tmp_path))
    assert code == 0 and not (tmp_path / "tiny" / "costs.json").exists(), "what was measured under another config goes"
    with pytest.raises(ValueError, match=r"config\.decode\.capacity was 0, is 512"):
        run(config(tmp_path, decode=replace(settings, capacity=512)))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/x cannot be written \(.*\); give --runs a folder that can"):
        run(config(tmp_path / "file" / "x"))


def test_results_without_config_are_refused(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(ValueError, match="no config"):
        open_run(tmp_path, {})


def test_two_runs_do_not_mix_in_one_folder(tmp_path):
    """A folder without results is nobody's yet: while one run compiles, another may take it."""
    steps = Steps(*(np.arange(i, i + 3) for i in range(5)))
    records = [Record("m", 0.7, "p", 1, "c", 5, [1, 2], [3, 4], steps, 0.1, 0.2, "")]
    first, second = open_run(tmp_path, {"a": 1}), open_run(tmp_path, {"a": 2})
    with pytest.raises(ValueError, match=r"a run of another config has taken .* since this one began"):
        first.append(records)
    with pytest.raises(ValueError, match=r"a run of another config has taken .* since this one began"):
        first.write("costs.json", {})
    assert second.load("costs.json", None) is None
    second.append(records)
    assert len(second.read()) == 1


def test_a_damaged_line_is_named(tmp_path):
    folder = open_run(tmp_path, {})
    folder.results.write_text('{"method": "plain"}\n')
    with pytest.raises(ValueError, match=r"results.jsonl, line 1 is damaged"):
        folder.read()


def test_records_survive_the_file(tmp_path):
    steps = Steps(*(np.arange(i, i + 3) for i in range(5)))
    record = Record("m", 0.7, "p", 1, "c", 5, [1, 2], [3, 4], steps, 0.1, 0.2, "“é”")
    folder = open_run(tmp_path, {"a": float("nan")})
    folder.append([record, replace(record, turn=2)])
    back = folder.read()
    assert [plain_data(r.to_json()) for r in back] == [record.to_json(), replace(record, turn=2).to_json()]
    assert folder.load("config.json", None) == {"a": None}


def test_batches_and_turns(tmp_path):
    """Two turns in batches of two: the tokens of a batch are those of single prompts, and turn 2 follows the baseline."""
    path = tmp_path / "turns.jsonl"
    rows = [{"turns": ["hello hello", "again"]}, {"turns": ["abcabc"]}, {"turns": ["what", "why"]}]
    path.write_text("\n".join(map(json.dumps, rows)))
    prompts = Prompts(file=str(path), turns=0)
    for name, batch in (("single", 1), ("double", 2)):
        decoding = Decoding(max_new=12, chunk=16, batch=batch, costs=False)
        sampling = Sampling(temperature=(1.0,))
        code, printed = run(config(tmp_path, name=name, prompts=prompts, decode=decoding, rule=sampling))
        assert code == 0, printed
    read = lambda name: [json.loads(line) for line in (tmp_path / name / "results.jsonl").read_text().splitlines()]
    key = lambda row: (row["method"], row["temperature"], row["prompt"], row["turn"])
    single, double = ({key(row): (row["prompt_tokens"], row["tokens"]) for row in read(name)} for name in ("single", "double"))
    assert single == double
    assert len(single) == 3 * (3 + 2)
    text = next(row["text"] for row in read("single") if key(row) == ("plain", 1.0, "1", 0))
    second = "".join("abcdefghijklmnopqrstuvwxyz .?"[i] for i in single["sampled", 1.0, "1", 1][0])
    assert second.startswith("u hello hello. a ") and second.endswith(". u again. a ") and text not in ("",)


def test_streaming_prints_the_text(tmp_path, capsys):
    streamed = config(tmp_path, stream=True, prompts=Prompts(text=("abc abc",)))
    console = Console(width=200)
    assert decode(streamed, load_prompts(streamed.prompts), model(), console) == 0
    printed = capsys.readouterr().out
    for row in lines(tmp_path):
        assert f"── {row['method']} T={row['temperature']:g} on text/0\n{row['text']}\n" in printed
