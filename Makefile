# Two commands do everything on a fresh machine: `make reproduce` and `make test`.
SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help reproduce test lint lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

reproduce: $(STAMP) ## everything at the quick scale: data, runs, tables, figures, the page (no download, no GPU)
	$(BIN)/snakemake --cores all
	@echo "open figures/quick/index.html"

test: $(STAMP) ## all tests
	$(BIN)/python -m pytest -q

lint: $(STAMP) ## ruff, mypy, snakemake --lint
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakemake --lint

# The environment, made from requirements.lock; made again when that or pyproject.toml changes. Two makes at once wait
# for one another.
$(STAMP): requirements.lock pyproject.toml
	@workflow/scripts/bootstrap.sh $(VENV)

lock: ## write requirements.lock anew from pyproject.toml (needs pip-tools)
	$(BIN)/pip-compile --quiet --extra dev --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url \
	  --no-emit-find-links --no-emit-trusted-host --no-header --no-annotate --output-file requirements.lock pyproject.toml

clean: ## remove what was produced (runs, figures), keep the environment and downloads
	rm -rf results/quick results/standard results/paper results/data figures .snakemake
