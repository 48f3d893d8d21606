# Two commands are enough on a fresh Debian machine with Python 3.11+:
#   make run     set up and run the main job on embedded defaults
#   make test    set up and run lint, types and every test
# The rest is for people who work on the project. Everything in Python goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP_INPUTS := pyproject.toml constraints.txt
# What else `make run` says to the demonstration, for instance ARGS='--seconds 10'.
ARGS ?=
# Where `make bench` leaves its runs and its report.
BENCH ?= var/bench
# What `make unit` runs: the packages below the gateway, and what of the gateway is rules and tables.
UNIT := tests/identifiers tests/storage tests/serving tests/exchange tests/psirp_stack tests/push_hub \
  tests/gateway/access/test_access_rules.py tests/gateway/bootstrapping/test_bootstrapping_tables.py \
  tests/gateway/discovery tests/gateway/test_config.py $(wildcard tests/test_*.py)
# Plots show the first four runs of a report.
BENCH_FIRST := payload-steady payload-first load hops

.DEFAULT_GOAL := help
.PHONY: help run test quick unit bench lint format pytest debian-packages npm-packages docs sbom clean constraints constraint-hashes

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

run: $(VENV)/.runtime ## set up and show a feed crossing between two domains
	$(BIN)/psph demo $(ARGS)

test: $(VENV)/.dev debian-packages npm-packages lint pytest ## set up, then lint, types and every test

bench: $(VENV)/.dev ## a quick suite of workloads and one report of it, in under ten minutes
	@test ! -e $(BENCH)/runs || { echo "make: $(BENCH)/runs is there already: move it away, or give BENCH=DIR" >&2; exit 2; }
	@mkdir -p $(BENCH)
	$(BIN)/psph bench matching --quick --out $(BENCH)/matching.json
	$(BIN)/psph bench traces --quick --out $(BENCH)/traces.json
	$(BIN)/psph bench workload suite --quick --run $(BENCH)/runs --out $(BENCH)/workloads.json
	$(BIN)/psph report $(BENCH_FIRST:%=$(BENCH)/runs/%) $$(ls -d $(BENCH)/runs/* | grep -v $(BENCH_FIRST:%=-e /%$$)) \
	  --matching $(BENCH)/matching.json --out $(BENCH)/report

lint: $(VENV)/.dev ## ruff (lint and format) and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: $(VENV)/.dev ## every test
	$(BIN)/pytest

quick: $(VENV)/.dev ## lint, types and the tests that start no program: an answer within 90 seconds
	@$(MAKE) --no-print-directory -j2 --output-sync lint unit

unit: $(VENV)/.dev ## the tests that start no program, without those that take long
	$(BIN)/pytest --quick $(UNIT)

format: $(VENV)/.dev ## let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Debian splits ensurepip out of python3, so a fresh machine may need one package before `venv` works.
$(BIN)/python:
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3-venv; \
	  else echo "make: Python has no ensurepip: install python3-venv (or set PYTHON=...)" >&2; exit 2; fi; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: $(SETUP_INPUTS) | $(BIN)/python
	@if [ ! -e $(VENV)/.dev ] || [ $(VENV)/.dev -ot pyproject.toml ] || [ $(VENV)/.dev -ot constraints.txt ]; then \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .; fi
	@touch $@

$(VENV)/.dev: $(SETUP_INPUTS) | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

npm-packages: | $(BIN)/python
	@.ci/npm-packages

debian-packages: tests/debian-packages.txt | $(BIN)/python
	@.ci/debian-packages tests/debian-packages.txt

docs: $(VENV)/.dev ## the documentation as a site, with a reference made of docstrings: var/site/index.html
	$(BIN)/python -m mkdocs build --quiet

sbom: $(VENV)/.dev ## a CycloneDX list of what the gateway needs, with the pinned versions and hashes
	@mkdir -p var
	$(BIN)/python .ci/sbom > var/sbom.cdx.json

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

constraint-hashes: $(VENV)/.dev ## write the hashes of the constraints' files to constraints-hashes.txt
	$(BIN)/python .ci/constraint-hashes

constraints: $(VENV)/.dev ## write the installed versions to constraints.txt
	{ head -n 1 constraints.txt; $(BIN)/pip freeze --exclude-editable; } > constraints.new && mv constraints.new constraints.txt
