"""The launch scripts: what they would run, without running it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "tpu"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
RUNS = {
    "create.sh": [["vm"], ["queued"], ["spot"]],
    "install.sh": [[]],
    "run.sh": [["experiments.decode", "--config", "a b.py"]],
    "resume.sh": [["experiments.decode", "--config", "x.py"]],
    "fetch.sh": [[]],
    "delete.sh": [["vm"], ["queued"]],
    "gke.sh": [["cluster"], ["run", "experiments.decode"]],
}


def dry(script, words, **changes):
    environment = os.environ | {"BUCKET": "gs://mine", "IMAGE": "image", "PATH": "/usr/bin:/bin"} | changes
    command = ["bash", FOLDER / script, "--dry-run", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_every_script_is_covered():
    assert {path.name for path in SCRIPTS} == RUNS.keys() | {"common.sh"}


@pytest.mark.parametrize("script", RUNS)
def test_a_dry_run_prints_commands_and_runs_none(script):
    """There is no gcloud here: had one been run, the script would have failed."""
    for words in RUNS[script]:
        done = dry(script, words, TPU="mine-1", ZONE="europe-west4-a")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines and all(line.split()[0] in ("gcloud", "git", "mkdir", "xpk") for line in lines)
        assert any("mine-1" in line and "--zone=europe-west4-a" in line for line in lines)


def test_what_runs_on_a_host_keeps_its_words():
    """Quoted once for the host's shell, and once for the line that is printed."""
    line = dry("run.sh", RUNS["run.sh"][0]).stdout
    echo = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True).stdout
    assert r"-m experiments.decode --config a\ b.py" in echo


def test_mistakes_are_named():
    for script, words, said in [
        ("create.sh", ["reserved"], "not 'reserved'"),
        ("run.sh", [], "say what to run"),
        ("gke.sh", [], "not ''"),
    ]:
        done = dry(script, words)
        assert done.returncode == 2 and said in done.stderr
    done = dry("run.sh", ["experiments.decode"], BUCKET="here")
    assert done.returncode == 2 and "BUCKET is 'here'" in done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say():
    done = subprocess.run(["shellcheck", "-x", *SCRIPTS], cwd=FOLDER.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
