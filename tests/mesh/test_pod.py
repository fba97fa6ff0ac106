"""Two processes with two devices each do what one does with one, and go on after a kill on a mesh of another shape.

make test-mesh
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sdjax.mesh.start import NAMED
from sdjax.study.runs import RunFolder
from sdjax.train.corpus import open_corpus
from sdjax.train.log import read
from tests.mesh.pod import STEPS

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "tests.mesh.pod"
LIMIT = 900  # seconds: far beyond what it takes, for machines that are busy

pytestmark = pytest.mark.mesh


def start(
    folders: Sequence[Path], mesh: tuple[int, ...], parts: str = "write,train,decode", checkpoints: Path | None = None
) -> list[subprocess.Popen]:
    """The processes of a pod, one for each folder, each with its part of the mesh's devices."""
    kept = str(checkpoints or folders[0] / "checkpoints")
    return together([["-m", PROGRAM, str(folder), kept, parts, *map(str, mesh)] for folder in folders], mesh)


def together(programs: Sequence[Sequence[str]], mesh: tuple[int, ...]) -> list[subprocess.Popen]:
    """Python with each of these words, as the processes of a pod."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = len(programs)
    devices = int(np.prod(mesh)) // processes
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    settings = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    names = [dict(zip(NAMED, (address, str(processes), str(i)), strict=True)) for i in range(processes)]
    return [
        subprocess.Popen(
            [sys.executable, *program],
            cwd=ROOT,
            env=os.environ | settings | (name if processes > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for program, name in zip(programs, names, strict=True)
    ]


def end(pod: list[subprocess.Popen]) -> list[str]:
    """What each said; all must end well."""
    said = [process.communicate(timeout=LIMIT)[0] for process in pod]
    assert [process.returncode for process in pod] == [0] * len(pod), "\n".join(said)[-6000:]
    return said


def kill_when(pod: list[subprocess.Popen], path: Path, lines: int) -> None:
    """Kills all processes, once a file has so many lines."""
    latest = time.monotonic() + LIMIT
    while time.monotonic() < latest and all(process.poll() is None for process in pod):
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.02)
    for process in pod:
        process.kill()
    said = [process.communicate()[0] for process in pod]
    assert [process.returncode for process in pod] == [-signal.SIGKILL] * len(pod), "\n".join(said)[-6000:]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process and one device, from beginning to end."""
    folder = tmp_path_factory.mktemp("alone")
    end(start([folder], (1, 1, 1)))
    return folder


def losses(folder):
    rows = [row for row in read(folder / "drafter" / "metrics.jsonl") if "loss" in row]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    return np.array([row["loss"] for row in rows])


def compared(folder):
    """What every method made of every prompt, and what was accepted."""
    records = RunFolder(folder / "compared").read()
    return [(record.method, record.prompt, record.tokens, record.steps.accepted.tolist()) for record in records]


def test_two_processes_killed_and_resumed_on_another_mesh_do_what_one_does(alone, tmp_path):
    pod = start([tmp_path, tmp_path], (4, 1, 1))
    kill_when(pod, tmp_path / "drafter" / "metrics.jsonl", 9)
    assert not (tmp_path / "compared").exists()
    first, second = end(start([tmp_path, tmp_path], (1, 2, 2)))
    assert "going on from step" in first and "survival" in first
    assert second.strip() == "", "only the first process speaks"
    assert open_corpus(tmp_path / "tiny").manifest.identity == open_corpus(alone / "tiny").manifest.identity
    shares = [path.read_bytes().count(b"\n") for path in sorted((tmp_path / "tiny.work").glob("*.jsonl"))]
    assert shares == [8, 8], "each host writes its own"
    same_results(tmp_path, alone)


def test_checkpoints_that_lie_apart_are_refused_at_once(tmp_path):
    """Orbax would wait ten minutes at the first save, and then fail."""
    program = "import sys, pathlib; from sdjax.mesh.start import join_pod; join_pod()\n"
    program += "from sdjax.train.checkpoint import Checkpoints; Checkpoints(pathlib.Path(sys.argv[1]), {}).close()"
    end(together([["-c", program, str(tmp_path / "shared")]] * 2, (2,)))
    pod = together([["-c", program, str(tmp_path / host)] for host in "01"], (2,))
    said = [process.communicate(timeout=LIMIT)[0] for process in pod]
    assert all(process.returncode for process in pod) and "give --checkpoints a folder in a bucket" in said[0]
    assert not list(tmp_path.glob("*/.seen*"))


def test_hosts_that_share_no_disk_do_what_one_does(alone, tmp_path):
    """Between two starts they get what the others have written, as from a bucket; checkpoints are there for all."""
    hosts = [tmp_path / "0", tmp_path / "1"]
    said = [
        end(start(hosts, (2, 1, 2), part, tmp_path / "bucket")) for part in tell(hosts, "write", "write", "train", "decode")
    ]
    assert "the corpus is made by the last" in said[0][0]
    same_results(hosts[0], alone)


def tell(hosts, *parts):
    """The parts; behind each of them, every host gets what others have and it lacks."""
    for part in parts:
        yield part
        for ours, theirs in (hosts, hosts[::-1]):
            lacking = [path for path in theirs.rglob("*") if path.is_file() and not (ours / path.relative_to(theirs)).exists()]
            for path in lacking:
                there = ours / path.relative_to(theirs)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, there)


def same_results(folder, alone):
    """Losses, weights, tokens and figures."""
    np.testing.assert_allclose(losses(folder), losses(alone), rtol=1e-5)
    ours, theirs = (load_file(f / "drafter" / "drafter" / "drafter.safetensors") for f in (folder, alone))
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-4)
    ours, theirs = (compared(f) for f in (folder, alone))
    assert ours == theirs and len(ours) == 8
    assert any(sum(accepted) for _, _, _, accepted in ours), "some drafts are accepted"
    finals = [json.loads((f / "drafter" / "final.json").read_text()) for f in (folder, alone)]
    assert finals[0] == finals[1]
