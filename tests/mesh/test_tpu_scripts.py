"""The launch scripts: what they would run, without running it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "tpu"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
RUNS = {
    "create.sh": [["vm"], ["queued"], ["spot"], ["wait"]],
    "install.sh": [[]],
    "run.sh": [["experiments.decode", "--config", "a b.py"]],
    "resume.sh": [["experiments.decode", "--config", "x.py"]],
    "follow.sh": [[]],
    "stop.sh": [[]],
    "fetch.sh": [[]],
    "delete.sh": [["vm"], ["queued"], ["spot"]],
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
        assert lines and all(line.split()[0] in ("gcloud", "git", "mkdir", "xpk", "bash") for line in lines)
        assert any("mine-1" in line and "--zone=europe-west4-a" in line for line in lines)


def asked(script, *words, folder):
    """Runs a script where each command of the cloud would leave a file."""
    for name in ("gcloud", "xpk"):
        (folder / name).write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
        (folder / name).chmod(0o755)
    environment = os.environ | {"BUCKET": "gs://mine", "IMAGE": "image", "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", FOLDER / script, *words], env=environment, capture_output=True, text=True, cwd=folder)
    assert not (folder / "ran").exists(), f"{script} {words} ran for real"
    return done


OWN_WORDS = [(script, words) for script in RUNS for words in RUNS[script] if not any("experiments" in word for word in words)]


@pytest.mark.parametrize("script, words", [*OWN_WORDS, ("fetch.sh", ["home"])])
def test_a_dry_run_is_asked_for_anywhere(script, words, tmp_path):
    """`delete.sh queued --dry-run` deleted the machine."""
    done = asked(script, *words, "--dry-run", folder=tmp_path)
    assert done.returncode == 0 and "sdjax" in done.stdout, done.stderr


@pytest.mark.parametrize("script, own", [("run.sh", []), ("resume.sh", []), ("gke.sh", ["run"])])
def test_a_dry_run_among_a_programs_words_is_refused(script, own, tmp_path):
    """The program would have started, and been told it."""
    done = asked(script, *own, "experiments.train", "--config", "x.py", "--dry-run", folder=tmp_path)
    assert done.returncode == 2 and f"it is for {script}, so put it before experiments.train" in done.stderr
    done = asked(script, *own, "--dry-run", "experiments.train", "--config", "x.py", folder=tmp_path)
    assert done.returncode == 0 and "experiments.train" in done.stdout


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("script", RUNS)
def test_help_says_what_a_script_does_and_does_nothing(script, flag, tmp_path):
    done = asked(script, flag, folder=tmp_path)
    assert done.returncode == 0 and f"  {script} [--dry-run]" in done.stdout and "BUCKET" in done.stdout
    assert "shellcheck" not in done.stdout and "#" not in done.stdout


@pytest.mark.parametrize(
    "script, words, said",
    [
        *((script, ["--dryrun"], "has no option '--dryrun'") for script in RUNS),
        ("stop.sh", ["now"], "takes no 'now'"),
        ("delete.sh", ["queued", "all"], "takes no 'all'"),
        ("gke.sh", ["cluster", "all"], "takes no 'all'"),
    ],
)
def test_words_that_a_script_does_not_know_are_refused(script, words, said, tmp_path):
    done = asked(script, *words, folder=tmp_path)
    assert done.returncode == 2 and said in done.stderr and f"{script} --help" in done.stderr


def test_what_runs_on_a_host_keeps_its_words():
    """Quoted once for the host's shell, and once for the line that is printed."""
    line = dry("run.sh", RUNS["run.sh"][0]).stdout.splitlines()[-1]
    echo = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True).stdout
    within = echo[echo.index("nohup bash -c ") :].split(" >> ~/sdjax.log")[0]
    again = subprocess.run(["bash", "-c", f"printf '%s\\n' {within}"], capture_output=True, text=True).stdout
    assert r"-m experiments.decode --config a\ b.py" in again


PYTHON = """#!/bin/bash
case $4 in
saves) trap 'echo saving; sleep 0.3; echo step 7 > ~/sdjax/runs/checkpoint; exit 75' TERM ;;
stubborn) trap '' TERM ;;
esac
echo "$SDJAX_POD runs $*"
while [ -e ~/busy ]; do sleep 0.05; done
[ "$4" != wrong ]
"""
GCLOUD = """#!/bin/bash
case "$1 $2" in
"compute tpus") [[ $4 == scp ]] && cp "$5" ~/"${6#*:}" && echo "$5" >> ~/packed ;;
"storage rsync")
    for folder; do from=$to to=$folder; done
    if grep -sqx "$from" ~/refused; then echo "403: not allowed to read $from" >&2; exit 1; fi
    if [[ $to == gs://* ]]; then mkdir -p ~/bucket; cp -r "$from/." ~/bucket; fi ;;
esac
for word; do [[ $word == --command=* ]] && exec bash -c "${word#--command=}"; done
exit 0
"""
UV = """#!/bin/bash
case "$*" in
"-m pip install"*) exit 0 ;;
"-m uv venv"*) [ ! -e .venv ] || { echo "A virtual environment already exists" >&2; exit 2; } ;;
*) exec /usr/bin/env python3 "$@" ;;
esac
mkdir -p .venv/bin
echo made >> ~/made
[ ! -e ~/broken ] || exit 1
printf '#!/bin/bash\\necho "$*" >> ~/told\\n[ "$3" != install ] || [ ! -e ~/unreached ]\\n' > .venv/bin/python
chmod +x .venv/bin/python
"""
XPK = """#!/bin/bash
echo $$ > ~/container
while [[ $1 != --command ]]; do shift; done
eval "exec $(sed "s: /sdjax: $HOME/sdjax:" <<< "$2")"
"""


@pytest.fixture
def host(tmp_path):
    """Runs a script against one host: this machine, with a home, a bucket and a Python of its own that says its words, waits,
    and does what its case is. The same serves as a container on GKE."""
    home = tmp_path / "home"
    (home / "sdjax" / ".venv" / "bin").mkdir(parents=True)
    python = home / "sdjax" / ".venv" / "bin" / "python"
    for path, text in [(python, PYTHON), (tmp_path / "python", PYTHON), (tmp_path / "gcloud", GCLOUD), (tmp_path / "xpk", XPK)]:
        path.write_text(text)
        path.chmod(0o755)

    def begun(script, *words, **changes):
        environment = os.environ | {"BUCKET": "gs://mine", "IMAGE": "image", "HOME": str(home)}
        environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | changes
        command = ["bash", FOLDER / script, *words]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    begun.home = home
    yield begun
    (home / "busy").unlink(missing_ok=True)
    subprocess.run(["bash", "-c", f"kill -KILL -- -$(cat {home}/sdjax.pid)"], capture_output=True)


def test_a_program_is_shown_to_its_end_and_its_failure_is_the_scripts(host):
    for word, code in [("right", 0), ("wrong", 1)]:
        said, _ = (done := host("run.sh", "experiments.decode", "--case", word)).communicate(timeout=60)
        assert f"1 runs -m experiments.decode --case {word}" in said and done.returncode == code


def test_a_program_goes_on_where_the_connection_breaks(host):
    busy = host.home / "busy"
    busy.touch()
    first = host("run.sh", "experiments.decode")
    assert "runs -m experiments.decode" in first.stdout.readline()
    first.kill()
    second = host("run.sh", "experiments.decode")
    assert "follow.sh shows it" in second.communicate(timeout=60)[1] and second.returncode == 1
    follower = host("follow.sh")
    assert "runs -m experiments.decode" in follower.stdout.readline()
    busy.unlink()
    assert follower.wait(timeout=60) == 0 and (host.home / "sdjax.code").read_text() == "0\n"


@pytest.mark.parametrize("case, code, said", [("", 143, ""), ("saves", 75, "saving\n"), ("stubborn", 137, "")])
def test_a_program_is_ended_and_nothing_of_it_stays(host, case, code, said):
    """Its own way of leaving is waited for, what it has written then is sent, and what does not leave is killed."""
    (host.home / "busy").touch()
    program = host("run.sh", "experiments.train", "--case", case)
    assert "runs" in program.stdout.readline()
    stop = host("stop.sh", PATIENCE="2" if case == "stubborn" else "60")
    out, err = stop.communicate(timeout=60)
    assert stop.returncode == 0 and (("was killed" in err) if case == "stubborn" else (f"with code {code}" in out)), (out, err)
    assert said in program.communicate(timeout=60)[0] and program.returncode == code
    assert (host.home / "bucket" / "checkpoint").exists() == (case == "saves")
    for _ in range(600):  # a container's first process may take its time to note what has ended
        if subprocess.run(["bash", "-c", f"kill -0 -- -$(cat {host.home}/sdjax.pid)"], capture_output=True).returncode:
            break
        time.sleep(0.1)
    assert "no program is running" in host("stop.sh").communicate(timeout=60)[0]
    (host.home / "busy").unlink()
    assert host("run.sh", "experiments.decode").wait(timeout=60) == 0


def test_a_program_that_outlives_its_shell_is_still_the_one_that_runs(host):
    (host.home / "busy").touch()
    first = host("run.sh", "experiments.decode")
    assert "runs" in first.stdout.readline()
    os.kill(int((host.home / "sdjax.pid").read_text()), signal.SIGKILL)
    assert first.wait(timeout=60) != 0
    second = host("run.sh", "experiments.decode")
    assert "stop.sh ends it" in second.communicate(timeout=60)[1] and second.returncode == 1
    assert host("stop.sh").wait(timeout=60) == 0


def test_on_gke_the_programs_shell_alone_is_asked_and_hands_it_on(host):
    (host.home / "busy").touch()
    container = host("gke.sh", "run", "experiments.train", "--case", "saves")
    assert "runs" in container.stdout.readline()
    os.kill(int((host.home / "container").read_text()), signal.SIGTERM)
    assert "saving" in container.communicate(timeout=60)[0] and container.returncode == 75
    assert (host.home / "bucket" / "checkpoint").exists()


@pytest.mark.parametrize("refused, runs", [("gs://mine/runs", False), ("runs", True)])
def test_a_bucket_that_refuses_is_an_error_that_is_shown(host, refused, runs):
    (host.home / "refused").write_text(refused)
    said, _ = (done := host("run.sh", "experiments.decode")).communicate(timeout=60)
    assert done.returncode == 1 and "403: not allowed" in said and ("experiments.decode" in said) == runs


def test_it_is_installed_again_over_what_is_there(host, tmp_path):
    """Over an environment that was half made, one that lacks packages, and one that is whole, which is kept."""
    home = host.home
    (tmp_path / "python3").write_text(UV)
    (tmp_path / "python3").chmod(0o755)
    (home / "sdjax" / ".venv" / "bin" / "python").unlink()
    made = home / "made"
    for hindrance, code, times in [("broken", 1, 1), ("unreached", 1, 2), ("", 0, 2), ("", 0, 2)]:
        if hindrance:
            (home / hindrance).touch()
        done = host("install.sh")
        err = done.communicate(timeout=60)[1]
        assert done.returncode == code and len(made.read_text().split()) == times, err
        if hindrance:
            (home / hindrance).unlink()
    packed = (home / "packed").read_text().split()
    assert len(set(packed)) == 4 and not any(Path(path).exists() for path in packed)
    assert (home / "sdjax" / "pyproject.toml").exists() and "etils[epath-gcs]" in (home / "told").read_text()


def test_files_that_a_commit_lacks_leave_the_hosts(host, tmp_path):
    """Of those that the installation before brought, in whatever order its locale had, and no others: results stay."""
    folder = host.home / "sdjax"
    (tmp_path / "python3").write_text(UV)
    (tmp_path / "python3").chmod(0o755)
    (folder / ".venv" / "bin" / "python").unlink()
    (folder / "runs").mkdir()
    for name in ("old of it.py", "own.py", "runs/results"):
        (folder / name).touch()
    (folder / ".installed").write_text("old of it.py\nMakefile\n")
    for _ in range(2):
        done = host("install.sh")
        err = done.communicate(timeout=60)[1]
        assert done.returncode == 0, err
    assert not (folder / "old of it.py").exists()
    assert all((folder / name).exists() for name in ("Makefile", "own.py", "runs/results"))
    installed = (folder / ".installed").read_text().splitlines()
    assert "Makefile" in installed and "sdjax/core/plain.py" in installed and "old of it.py" not in installed


@pytest.fixture
def clouded(tmp_path):
    """Runs a script with a gcloud that notes what it is told, says its states one by one, and fails where its words match."""
    gcloud, noted, states = (tmp_path / name for name in ("gcloud", "noted", "states"))
    gcloud.write_text(
        '#!/bin/sh\necho "$*" >> "$NOTED"\n[ -n "$FAILS" ] && echo "$*" | grep -q "$FAILS" && exit 1\n'
        'case "$*" in *describe*) head -n 1 "$STATES"; sed -i 1d "$STATES" ;; esac\n'
    )
    gcloud.chmod(0o755)

    def run(script, *words, fails="", seen=(), **changes):
        noted.write_text("")
        states.write_text("".join(f"{state}\n" for state in [*seen, "ACTIVE"]))
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = os.environ | {"BUCKET": "gs://mine", "PATH": path, "NOTED": str(noted), "FAILS": fails}
        environment |= {"STATES": str(states), "EVERY": "0"} | changes
        done = subprocess.run(["bash", FOLDER / script, *words], env=environment, capture_output=True, text=True, cwd=tmp_path)
        return done, noted.read_text().splitlines()

    return run


@pytest.mark.parametrize(
    "kind, made, again", [("vm", "tpu-vm", "tpu-vm"), ("queued", "queued", "queued"), ("spot", "queued", "spot")]
)
@pytest.mark.parametrize("fails", ["", "delete"])
def test_a_machine_is_asked_for_again_as_it_was(clouded, kind, made, again, fails):
    """Whether or not anything was left of it to delete."""
    done, noted = clouded("resume.sh", "experiments.decode", fails=fails, KIND=kind)
    assert done.returncode == 0, done.stderr
    assert made in noted[0] and "delete" in noted[0]
    assert "create" in noted[1] and again in noted[1] and ("--spot" in noted[1]) == (kind == "spot")
    assert "experiments.decode" in noted[-1]


@pytest.mark.parametrize("kind", ["queued", "spot"])
def test_a_machine_that_is_asked_for_is_waited_for(clouded, kind):
    done, noted = clouded("create.sh", kind, seen=["WAITING_FOR_RESOURCES", "", "PROVISIONING", "PROVISIONING"])
    assert done.returncode == 0, done.stderr
    assert "create" in noted[0] and len(noted) == 6 and all("describe" in line for line in noted[1:])
    assert done.stderr.count("PROVISIONING") == 1
    for state in ("FAILED", "SUSPENDED"):
        done, noted = clouded("create.sh", kind, seen=["WAITING_FOR_RESOURCES", state])
        assert done.returncode == 2 and f"is {state}" in done.stderr and len(noted) == 3
    done, _ = clouded("create.sh", kind, fails="describe")
    assert done.returncode == 2 and "cannot be read" in done.stderr
    done, noted = clouded("resume.sh", "experiments.decode", seen=["FAILED"], KIND=kind)
    assert done.returncode == 2 and not any("ssh" in line for line in noted)


def test_results_of_a_machine_that_is_gone_are_fetched(clouded):
    done, noted = clouded("fetch.sh", fails="tpu-vm ssh")
    assert done.returncode == 0 and "sends nothing" in done.stderr
    assert any(line.startswith("storage rsync --recursive --exclude=^(models|corpora)/ gs://mine/runs runs") for line in noted)


def test_mistakes_are_named():
    for script, words, said in [
        ("create.sh", ["reserved"], "not 'reserved'"),
        ("run.sh", [], "say what to run"),
        ("gke.sh", [], "not ''"),
    ]:
        done = dry(script, words)
        assert done.returncode == 2 and said in done.stderr
    for bucket in ["here", "gs://mine/", "gs://mine/a b", "gs://mine/$(date)"]:
        done = dry("run.sh", ["experiments.decode"], BUCKET=bucket)
        assert done.returncode == 2 and f"BUCKET is '{bucket}'" in done.stderr
    assert dry("run.sh", ["experiments.decode"], BUCKET="gs://my-own.bucket_1/a/b-c").returncode == 0


def test_shellcheck_has_nothing_to_say():
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run([shellcheck, "-x", *SCRIPTS], cwd=FOLDER.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
