# Everything sets itself up: a virtual environment in .venv, pinned dependencies, the package in place.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup score test check format bench clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(READY) ## Make .venv with everything installed

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mapo needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

score: setup ## Score the example dialogues shipped with the package
	@$(BIN)/mapo score

test: check ## Run all checks and tests

check: setup ## ruff, mypy, pytest with coverage
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --cov --cov-report=term:skip-covered --cov-fail-under=95

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## Run the benchmarks
	$(BIN)/python benchmarks/advantage.py

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
