# Two commands do everything on a fresh machine: `make reproduce` and `make test`.
SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

.PHONY: help env reproduce test lint lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

env: $(STAMP) ## the environment alone (about 3 GB to download, 6 GB on disk)

reproduce: $(STAMP) ## everything at the quick scale: data, runs, tables, figures, the page (no download, no GPU)
	$(BIN)/snakemake --cores all
	@echo "open figures/quick/index.html"

test: $(STAMP) ## all tests
	$(BIN)/python -m pytest -q

lint: $(STAMP) ## ruff, mypy, snakemake --lint
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakemake --lint

# The environment, made from the locks; made again when these or pyproject.toml change. Two makes at once wait for one
# another.
$(STAMP): requirements.lock workflow/envs/uv.lock workflow/envs/fairseq-build.lock workflow/envs/fairseq.lock pyproject.toml
	@workflow/scripts/bootstrap.sh $(VENV)

lock: $(STAMP) ## write the locks anew from pyproject.toml and workflow/envs/*.in
	$(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	$(COMPILE) --output-file workflow/envs/uv.lock workflow/envs/uv.in
	$(COMPILE) --constraint requirements.lock --output-file workflow/envs/fairseq-build.lock workflow/envs/fairseq-build.in
	$(COMPILE) --no-deps --output-file workflow/envs/fairseq.lock workflow/envs/fairseq.in

clean: ## remove what was produced (runs, figures), keep the environment and downloads
	rm -rf results/quick results/standard results/paper results/data figures .snakemake
