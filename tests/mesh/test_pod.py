"""Two processes with two devices each do what one does with one, and go on after a kill on a mesh of another shape.

make test-mesh
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
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


def start(folder: Path, mesh: tuple[int, ...], processes: int = 1) -> list[subprocess.Popen]:
    """The processes of a pod, each with its part of the mesh's devices."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    devices = int(np.prod(mesh)) // processes
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    settings = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", PROGRAM, str(folder), *map(str, mesh)]
    names = [dict(zip(NAMED, (address, str(processes), str(i)), strict=True)) for i in range(processes)]
    return [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | settings | (name if processes > 1 else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in names
    ]


def end(pod: list[subprocess.Popen]) -> list[str]:
    """What each said; all must end well."""
    said = [process.communicate(timeout=LIMIT)[0] for process in pod]
    assert [process.returncode for process in pod] == [0] * len(pod), "\n".join(said)[-6000:]
    return ["\n".join(line for line in text.splitlines() if "[Gloo]" not in line) for text in said]


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
    end(start(folder, (1, 1, 1)))
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
    pod = start(tmp_path, (4, 1, 1), processes=2)
    kill_when(pod, tmp_path / "drafter" / "metrics.jsonl", 9)
    assert not (tmp_path / "compared").exists()
    first, second = end(start(tmp_path, (1, 2, 2), processes=2))
    assert "going on from step" in first and "survival" in first
    assert second.strip() == "", "only the first process speaks"
    assert open_corpus(tmp_path / "tiny").manifest.identity == open_corpus(alone / "tiny").manifest.identity
    shares = [path.read_bytes().count(b"\n") for path in sorted((tmp_path / "tiny.work").glob("*.jsonl"))]
    assert shares == [8, 8], "each host writes its own"
    np.testing.assert_allclose(losses(tmp_path), losses(alone), rtol=1e-5)
    ours, theirs = (load_file(f / "drafter" / "drafter" / "drafter.safetensors") for f in (tmp_path, alone))
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-4)
    ours, theirs = (compared(f) for f in (tmp_path, alone))
    assert ours == theirs and len(ours) == 8
    assert any(sum(accepted) for _, _, _, accepted in ours), "some drafts are accepted"
    finals = [json.loads((folder / "drafter" / "final.json").read_text()) for folder in (tmp_path, alone)]
    assert finals[0] == finals[1]
