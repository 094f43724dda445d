# On a fresh machine: `make show` shows published results, `make reproduce` makes results, `make test` runs all tests.
SHELL := bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Locks are for the oldest Python that pyproject.toml allows, whichever runs here; 3.11 means 3.11.0. They are for every
# system (markers name those that need a package), with one version of each package for all of them.
COMPILE := $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

.PHONY: again help bench show env reproduce test picture headline docs gpu-check lint lock clean
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' Makefile

show: $(STAMP) ## make the environment and the site of the published results (prints first what it downloads)
	$(BIN)/snakemake --cores all --config scale=published
	@echo "now open figures/published/index.html"

env: $(STAMP) ## make the environment only (about 3 GB to download, 6.5 GB on disk)

reproduce: $(STAMP) ## make all results at the quick scale: runs, tables, figures, site, reports (no download, no GPU)
	$(BIN)/snakemake --cores all
	@echo "now open figures/quick/index.html, or the typeset report figures/quick/pipelag.pdf"

test: $(STAMP) ## run all tests, in two halves side by side
	@PYTHON=$(BIN)/python workflow/scripts/test_halves.sh

picture: $(STAMP) ## draw the README's picture from the published logs, and the zero-bubble schedules of docs/methods.md
	$(BIN)/python workflow/scripts/picture.py docs/images/staleness.svg
	$(BIN)/python workflow/scripts/schedules.py docs/images/zero_bubble.svg

headline: $(STAMP) ## draw the committed figures, figures/headline, from the published logs
	$(BIN)/python workflow/scripts/headline.py figures/headline

docs: $(STAMP) ## make the documentation as a site, site/index.html (its tools go to .cache/docs)
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .cache/docs
	$(BIN)/uv pip sync --quiet --require-hashes --python .cache/docs/bin/python workflow/envs/docs.lock
	NO_MKDOCS_2_WARNING=1 .cache/docs/bin/mkdocs build --strict --quiet
	@echo "now open site/index.html"

bench: $(STAMP) ## run all benchmarks (an hour or more, idle machine); writes results/benchmarks/, docs/benchmarks.md
	$(BIN)/python -m benchmarks.all --device $(or $(DEVICE),cpu) $(if $(NAME),--name $(NAME)) $(if $(ONLY),--only $(ONLY))

gpu-check: $(STAMP) ## check what only a GPU can show, in ten minutes; writes gpu-check.md (DEVICE=cpu: without a GPU)
	$(BIN)/python -m benchmarks.gpu_check --device $(or $(DEVICE),cuda:0)

lint: $(STAMP) ## run ruff, mypy and snakemake --lint
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakemake --lint

# The environment is made from the locks, and made again when they or pyproject.toml change, or when the system's Python
# from which it was made has gone. Two `make` at the same time wait for each other.
MADE_FROM := requirements.lock workflow/envs/uv.lock workflow/envs/fairseq-build.lock workflow/envs/fairseq.lock pyproject.toml
$(STAMP): $(MADE_FROM) $(if $(wildcard $(STAMP)),$(shell $(BIN)/python -c 'import pip' 2>/dev/null || echo again))
	@workflow/scripts/bootstrap.sh $(VENV)

lock: $(STAMP) ## write new locks from pyproject.toml and workflow/envs/*.in
	$(COMPILE) --extra dev --output-file requirements.lock pyproject.toml
	$(COMPILE) --output-file workflow/envs/uv.lock workflow/envs/uv.in
	$(COMPILE) --output-file workflow/envs/docs.lock workflow/envs/docs.in
	$(COMPILE) --constraint requirements.lock --output-file workflow/envs/fairseq-build.lock workflow/envs/fairseq-build.in
	$(COMPILE) --no-deps --output-file workflow/envs/fairseq.lock workflow/envs/fairseq.in

clean: ## remove what was produced (runs, figures); keep the environment and downloads
	rm -rf results/quick results/standard results/paper results/data site .snakemake
	find figures -mindepth 1 -maxdepth 1 ! -name README.md ! -name headline -exec rm -rf {} +
