# The entry point for everything. `make demo` and `make test` need Python 3.11 or newer, pip and make.
SUITS := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for one in python3.11 python3.12 python3.13 python3; do \
  $$one $(SUITS) 2>/dev/null && echo $$one && break; done)
BIN := .venv/bin
# To compile every module of every package takes a minute, and a run uses a sixth of them: they are
# compiled at first use, and kept.
export PIP_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE

# The rows of benchmarks/README.md's table, a target each: `make bench-update_smollm2`.
ROWS := bench-update_smollm2 bench-optimization_floor
GENERATION := bench-generation_smollm2 bench-generation_chain
WHOLE_RUN := bench-whole_run_schedule bench-whole_run_accuracy
# A worker a core, and no threads beside it: the models of tests are tiny.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest --numprocesses auto --dist worksteal
NEED_NOTHING := not vllm and not verifiers and not ray and not slurm and not wheel
BENCH_OPTIONS ?=
CHAOS_OPTIONS ?= --kills 1000

.PHONY: demo help test lint types unit chaos smollm2 addition picture \
  chain-model letters-model carry-model example-pictures golden wheel release notebooks site clean benchmarks \
  benchmark-picture bench-gpu vllm-env verifiers-env test-vllm test-verifiers test-ray test-slurm \
  test-wheel test-all test-trl $(ROWS) $(GENERATION) $(WHOLE_RUN)

demo: .venv/installed  ## the default method on the embedded task, from start to finish
	$(BIN)/mugrpo demo

help:  ## these targets
	@awk -F ':.*  ## ' '/^[a-z]/ && NF == 2 { printf "%-38s %s\n", $$1, $$2 }' Makefile

test: lint types unit  ## what continuous integration runs

lint: .venv/installed-test  ## ruff's checks and its formatter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-test  ## mypy, strict
	$(BIN)/mypy

unit: .venv/installed-test  ## the tests
	$(PYTEST) --durations 10

chaos: .venv/installed-test  ## 1,000 faults at random moments of runs of all kinds (hours; goes on if called again)
	$(BIN)/python -m tests.chaos $(CHAOS_OPTIONS)

.venv-vllm/installed: src/mugrpo/tools/vllm_env.py | .venv/installed
	rm -rf .venv-vllm
	$(BIN)/mugrpo vllm-env .venv-vllm

vllm-env: .venv-vllm/installed  ## an environment with vLLM, for engine.python (a few minutes)

.venv-verifiers/installed:
	rm -rf .venv-verifiers
	$(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/pip install --quiet 'verifiers==0.4.0'
	touch $@

verifiers-env: .venv-verifiers/installed  ## an environment with verifiers, for environment.python (a minute or two)

test-vllm: .venv/installed-test vllm-env  ## tests with the real vLLM (about five minutes)
	$(BIN)/pytest -m vllm tests/targets

test-verifiers: .venv/installed-test verifiers-env  ## tests with the real verifiers (about a minute)
	$(BIN)/pytest -m verifiers tests/targets

.venv/installed-ray: .venv/installed-test
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,ray]'
	touch $@

test-ray: .venv/installed-ray  ## tests on Ray, on this machine (about ten minutes)
	$(BIN)/pytest -m ray tests/targets

test-slurm: .venv/installed-test  ## tests on a Slurm cluster on this machine (about twenty minutes; as root)
	@PATH="$$PATH:/usr/sbin" && command -v slurmctld > /dev/null && command -v munged > /dev/null || \
	  echo "These tests are skipped: slurmctld or munged is missing (apt-get install slurm-wlm munge)"
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 0 -m slurm tests/targets

test-wheel: .venv/installed-test  ## the wheel alone, in an environment of its own (minutes; WHEEL=FILE takes that one)
	WHEEL=$(WHEEL) $(BIN)/pytest -m wheel tests/targets

build/trl_tests/packages: .venv/installed-test
	$(BIN)/pip install --quiet --no-deps --target $@ dashscope jmespath tiktoken

test-trl: build/trl_tests/packages  ## TRL's own tests with mugrpo.extensions.trl (TRL_TESTS=.../test_grpo_trainer.py)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/trl_tests.py $(TRL_TESTS) build/trl_tests

.venv/installed-notebooks: .venv/installed-test
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test,notebooks,qlora]'
	touch $@

notebooks: .venv/installed-notebooks  ## run the notebooks and keep their outputs (minutes)
	$(BIN)/python scripts/run_notebooks.py

test-all: lint types .venv/installed-notebooks  ## the tests of `make test` and those marked long: ranks, notebooks, pages, fuzzing, 100 faults (hours)
	$(PYTEST) -m "$(NEED_NOTHING)"

smollm2:  ## SmolLM2-135M-Instruct as a model directory in the cache, made with .venv, which keeps its versions
	@test -x $(BIN)/mugrpo || $(MAKE) .venv/installed
	$(BIN)/pip install --quiet 'accelerate>=1.10' 'gguf>=0.10'
	$(BIN)/python scripts/make_smollm2.py

addition: smollm2  ## a real model learns one-digit addition (about ten minutes)
	$(BIN)/mugrpo train configs/smollm2_addition.toml
	$(BIN)/mugrpo report runs/smollm2_addition

picture: demo  ## docs/report.png, the report of the demo (needs Chromium)
	$(BIN)/mugrpo report runs/demo --out build/report.html
	$(BIN)/python scripts/report_screenshot.py build/report.html docs/report.png --height 840

EXAMPLES := own_problems one_liners guessing
example-pictures: smollm2 demo  ## docs/examples.svg: train the examples (a quarter of an hour) and draw their accuracy
	$(foreach one,$(EXAMPLES),cd examples/$(one) && $(CURDIR)/$(BIN)/mugrpo train *.toml --run-dir $(CURDIR)/runs/$(one) && cd ../.. &&) true
	$(BIN)/mugrpo train configs/smollm2_addition.toml --run-dir runs/addition
	$(BIN)/mugrpo train configs/offline.toml --run-dir runs/offline
	$(BIN)/python scripts/example_pictures.py runs/demo runs/own_problems runs/addition runs/one_liners runs/guessing runs/offline

study-%: .venv/installed  ## studies/%.toml: `make study-dilemma` (about half an hour each)
	$(BIN)/mugrpo study run studies/$*.toml

.venv/installed-bench: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[math,smollm2,bench]'
	touch $@

$(GENERATION): bench-generation_%: .venv/installed-bench smollm2
	$(BIN)/python benchmarks/generation.py $* $(BENCH_OPTIONS)

$(ROWS): bench-%: .venv/installed-bench smollm2
	$(BIN)/python benchmarks/$*.py $(BENCH_OPTIONS)

$(WHOLE_RUN): bench-whole_run_%: .venv/installed-bench
	$(BIN)/python benchmarks/whole_run.py $* $(BENCH_OPTIONS)

PARTS ?= look right decode update
bench-gpu: .venv/installed-bench  ## one GPU: is it right, decoding, updates (ten minutes; PARTS="big refresh")
	$(BIN)/python benchmarks/card/run.py $(PARTS) $(BENCH_OPTIONS)

benchmarks: $(ROWS) $(GENERATION) $(WHOLE_RUN) benchmark-picture  ## every row, one after another (hours)

benchmark-picture: .venv/installed  ## docs/benchmarks.svg from benchmarks/results
	$(BIN)/python benchmarks/plot.py

chain-model letters-model carry-model: %-model: .venv/installed  ## make an embedded model's weights again
	$(BIN)/python scripts/make_embedded_model.py $*

golden: .venv/installed-test  ## record the golden traces again
	$(BIN)/python -m tests.golden_trace --record

.venv/installed-site: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[site]'
	touch $@

site: .venv/installed-site  ## the documentation as a site that works offline, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: .venv/installed  ## build the wheel into dist/
	$(BIN)/pip wheel --no-deps --wheel-dir dist .

release: .venv/installed-test  ## wheel and source archive in dist/, checked as a package index will
	rm -rf dist
	$(BIN)/pip install --quiet build twine
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	WHEEL=$$(ls dist/*.whl) $(BIN)/pytest tests/test_release.py

clean:  ## remove the environment and what was built
	rm -rf .venv build dist

# An environment is marked only once it is complete, so the next call finishes an incomplete one. One that
# could never be completed must not be left to it: of an old Python, or without pip (Debian's python3-venv).
.venv/bin/python:
	@$(or $(PYTHON),false) $(SUITS) || { echo "PYTHON=$(PYTHON) is not Python 3.11 or newer; name one" \
	  "that this machine has, as in: make demo PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/installed-test: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@
