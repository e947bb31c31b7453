SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK_ENV := build/lock-env
CODE := $(wildcard src tests tools bench examples experiments)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
COMPILED := build/compiled
# Everything but what takes longest; PYTEST_ARGS=tests/sim adds more.
COMPILED_TESTS := tests/test_compilation.py tests/protocol tests/wire tests/sim/scenario tests/sim/world \
  tests/sim/swarm tests/sim/sealing tests/sim/checkers tests/sim/test_group.py \
  --ignore tests/protocol/membership/test_merge.py --ignore tests/protocol/membership/test_broken_links.py \
  --ignore tests/protocol/test_hostile_frames.py --ignore tests/sim/swarm/test_swarm.py

# Name an interpreter here to use that one and no other: make setup PYTHON=python3.12
PYTHON ?=
WORKERS ?= 2
SEEDS ?= 20
PYTEST_ARGS ?=
BENCH_ARGS ?=

# A command of that name may exist and still fail (a pyenv shim of a version that is not active), and a
# distribution may ship python without venv, so each candidate has to prove itself by running.
FIND_PYTHON = found=""; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	  then found="$$candidate"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "gapless needs Python 3.11 or newer with the venv module; none of" \
	    "$(if $(PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11) is one." >&2; \
	  echo "Install one, or name it: make setup PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	fi

.PHONY: help setup test compiled lint format demo bench chaos docs wheel lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install the locked tools and the package

$(READY): requirements.lock pyproject.toml
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  $(FIND_PYTHON); \
	  echo "creating $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

test: setup ## run all tests
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

compiled: $(COMPILED)/.compiled ## compile the protocol, and run its tests in that form
	@GAPLESS_TEST_COMPILED=1 PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest -q -n $(WORKERS) \
	  --dist loadgroup $(COMPILED_TESTS) $(PYTEST_ARGS)

.PHONY: $(COMPILED)/.compiled  # the tool knows whether the folder is current
$(COMPILED)/.compiled: setup
	@$(BIN)/python tools/compiled.py $(COMPILED)

lint: setup ## ruff, formatting and types
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(CODE)

format: setup ## let ruff rewrite imports and layout
	@$(BIN)/ruff check --select I --fix $(CODE)
	@$(BIN)/ruff format $(CODE)

demo: setup ## the main job: a lossy group, a kill, tables on Spark, verified traces, a report
	@$(BIN)/gapless demo --output out/demo

bench: setup ## measure Gapless and its peers, in turns (BENCH_ARGS=--quick for a look)
	@$(BIN)/python bench/run.py $(BENCH_ARGS)

chaos: setup ## kill the pipeline on Spark part by part, with 20 seeds, then fill its spool
	@$(BIN)/gapless chaos --seeds $(SEEDS)
	@$(BIN)/gapless chaos --back-pressure

docs: setup ## regenerate the generated parts of the docs, check all links, build the site
	@$(BIN)/python tools/docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site: build/site/index.html"

wheel: setup ## build dist/: the sdist, a pure wheel and, with a C compiler, a compiled wheel
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist -t sdist -t wheel
	@GAPLESS_COMPILE=1 $(BIN)/python -m hatchling build -d dist -t wheel

lock: ## refresh requirements.lock to the newest versions that fit pyproject.toml
	@$(FIND_PYTHON); [ -x $(LOCK_ENV)/bin/uv ] || { "$$found" -m venv --clear $(LOCK_ENV) \
	  && $(LOCK_ENV)/bin/python -m pip --disable-pip-version-check --quiet install uv; }
	@$(LOCK_ENV)/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	  --upgrade --generate-hashes --no-emit-index-url --no-header --quiet -o requirements.lock

clean: ## remove everything that can be made again
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
