PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Some images turn it on, for smaller layers; here processes start again and again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all coverage lint bench bench-all chaos fuzz docs docs-serve up wheel lock lock-jars audit clean prerequisites

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

prerequisites:
	@PYTHON='$(PYTHON)' sh scripts/prerequisites.sh

# Installs a package in the version that the lock names, by its hash.
define INSTALL_LOCKED
@$(PYTHON) -m venv $(VENV)
@sed -n '/^$(1)==/,/[^\\]$$/p' requirements-dev.lock > $(VENV)/$(1).lock
@$(PIP) install --quiet --no-deps --require-hashes -r $(VENV)/$(1).lock
endef

$(READY): requirements-dev.lock pyproject.toml
	@$(MAKE) --no-print-directory prerequisites
	@echo "setting up $(VENV) (once; about a minute)"
	$(call INSTALL_LOCKED,uv)
# uv needs a third of pip's time. It does not know of pip's own settings: where those name another package index, pip does it.
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --no-deps --require-hashes -r requirements-dev.lock || \
	  { echo "uv could not install the packages, trying with pip" >&2; $(PIP) install --quiet --no-deps --require-hashes -r requirements-dev.lock; }
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -m game_events.jvm.jars
# The instance that `dagster dev` and `dg dev` share with this project's commands.
	@$(BIN)/python -m game_events.cli.dagster_run
	@touch $(READY)

setup: prerequisites $(READY)  ## Make .venv and fetch the Java parts (every other target does this by itself)

demo: setup  ## The main job on real parts: broker, registry, producer, Spark, Delta, Dagster; EXAMPLE=iot: of another domain, EXAMPLE=studio: two clusters, bare records
	@$(BIN)/game-events demo $(if $(EXAMPLE),--example $(EXAMPLE))

# Three processes that share the servers: two cores are busy while one process waits. File by file, the longest first.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: setup  ## Tests in minutes: all but the long scenarios; they start their own broker, registry, Spark
	@$(PYTEST) -m "not scenario"

test-all: test  ## All tests: those of make test, then the long scenarios
	@$(PYTEST) -m scenario

coverage: setup  ## Line and branch coverage of the unit tests: a table, and pages in build/coverage
	@$(PYTEST) -m unit game_events_tests/unit --cov --cov-report=term:skip-covered --cov-report=html

lint: setup  ## ruff (style, format), mypy (types), import-linter (which package imports which), and whether generated pages are up to date
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-logo && $(BIN)/python scripts/docs_pages.py --check && \
	  $(BIN)/python -m benchmarks.page --check

bench: setup  ## Benchmarks beside peers, in turns, without the long scenarios; table and JSON in benchmarks/results
	@$(BIN)/python -m benchmarks.run

bench-all: setup  ## All benchmarks; goes on where a run at this commit stopped
	@$(BIN)/python -m benchmarks.run --all --resume

chaos: setup  ## Kill every process at random, 50 times, then count every row: 20 to 30 minutes; KILLS, SEED
	@$(BIN)/python -m game_events_tests.scenarios.chaos --kills $(or $(KILLS),50) --seed $(or $(SEED),1)

fuzz: setup  ## Random steps against real Spark, every table compared with what was written: SEEDS=1-20, STEPS, MINUTES, SOURCE=kafka
	@$(BIN)/python -m game_events_tests.scenarios.fuzz --seeds $(or $(SEEDS),1-5) --source $(or $(SOURCE),files) \
	  $(if $(STEPS),--steps $(STEPS)) $(if $(MINUTES),--minutes $(MINUTES))

docs: setup  ## Write docs/reference and build the docs as a site, in site/; fails on broken links and on pages that the navigation lacks
	@$(BIN)/python scripts/docs_pages.py && $(BIN)/zensical build --strict --clean

docs-serve: docs  ## The same, to look at: http://127.0.0.1:8000, until Ctrl-C
	@$(BIN)/zensical serve --dev-addr 127.0.0.1:8000

up: setup  ## Local stack and Dagster UI; prints the address, Ctrl-C stops it
	@$(BIN)/game-events up

wheel:  ## This project as dist/*.whl, to be installed elsewhere (docs/cluster.md); needs Python alone, and seconds
	$(call INSTALL_LOCKED,setuptools)
# Else modules of an earlier version that were left in it would be in the wheel, too.
	@rm -rf build
	@$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

COMPILE := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-header \
  --no-annotate --quiet $(if $(UPGRADE),--upgrade)

lock:  ## Resolve requirements.lock (what it runs with) and requirements-dev.lock (what it is tested with); UPGRADE=1: to the newest
	$(call INSTALL_LOCKED,uv)
	@$(COMPILE) --extra all -o requirements.lock
	@$(COMPILE) --extra dev --constraint requirements.lock -o requirements-dev.lock

lock-jars: setup  ## Pin the Java parts by SHA-256, after a change of game_events/jvm/ivy.xml
	@$(BIN)/python scripts/pin_jars.py

audit: setup  ## Known holes in the Python packages of requirements-dev.lock and in the Java parts, asked of osv.dev: needs the network
	@$(BIN)/python scripts/audit.py

clean:  ## Remove what the targets made (.venv, local stack's data, site); ./lakehouse stays, as runs write there by default
	@rm -rf $(VENV) .game_events build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
