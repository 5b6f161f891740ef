# What people do here, by name; `make` alone lists it. Everything runs from .venv in
# this checkout, which the first target that needs it makes.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.tollgate-ready
EXTRAS := server,load,baseline,door,edge,stream,fleet,traces,docs,dev

# The distributions, and the folders that setuptools leaves where it builds them.
PARTS := . ./clients/python ./converters
COMPILED := ./tollgate/_compiled
LEFTOVERS := $(foreach folder,$(PARTS) $(COMPILED),$(folder)/build $(folder)/*.egg-info)

# Processes that run tests. A file's tests run in one; half of them wait for servers.
WORKERS ?= 3

# What else `make locust` is told: ARGS="--scenario soak --autostart".
ARGS ?=

# The Python that .venv is made with; empty takes the first that fits of these.
PYTHON ?=
PYTHONS := python3.12 python3.11 python3.10 python3.13 python3

.PHONY: help setup demo up test test-quick test-system check rules dashboards \
  chart check-images bench locust docs lock wheels clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Make .venv with everything; a second call installs nothing
	@echo "setup: $(VENV) is ready"

demo: $(READY) ## Simulate, train, publish, serve, and decide 5,000 purchases
	@$(BIN)/tollgate demo

up: $(READY) ## Serve model_repository on 127.0.0.1:8001 until Ctrl-C
	@$(BIN)/tollgate up

test: check ## Run the checks and every test; minutes
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m "not system"

test-quick: $(READY) ## Run the tests that need no server; minutes
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile \
	  -m "not slow and not system"

test-system: $(READY) ## Run the tests with programs of Debian, such as nginx
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m system

check: $(READY) ## Check style, format, types and who imports whom
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || \
	  { echo "make check: not formatted; $(BIN)/ruff format . does it" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@said=$$($(BIN)/lint-imports --no-logo) || { echo "$$said"; exit 1; }

rules: $(READY) ## Check and test the alerts with promtool (Debian: prometheus)
	@CI=true $(BIN)/python -m pytest -q tests/tollgate/observability/test_alerts.py \
	  tests/system/test_alert_rules.py

dashboards: $(READY) ## Write the dashboards, ask a live Prometheus every query
	@$(BIN)/python tools/chart_files.py
	@CI=true $(BIN)/python -m pytest -q tests/tollgate/observability/test_boards.py \
	  tests/system/test_dashboards.py

check-images: ## Lint and validate docker/ and the pipelines; needs no engine
	@TOOLS=.tollgate/lint sh docker/lint.sh

bench: $(READY) ## Measure the whole path with h2load (Debian: nghttp2-client)
	@$(BIN)/python -m loadtests.h2load

locust: $(READY) ## Users of the server that `tollgate up` runs, with a page to steer them
	@$(BIN)/locust -f loadtests/locustfile.py --web-host 127.0.0.1 $(ARGS)

chart: $(READY) ## Render, lint and validate the Helm chart for two Kubernetes versions
	@$(BIN)/python tools/chart.py

docs: $(READY) ## Build the documentation site into .tollgate/docs/site
	@$(BIN)/python tools/docs_site.py

lock: $(READY) ## Renew the pins in constraints.txt (needs uv)
	@$(BIN)/python tools/lock.py

wheels: $(READY) ## Build the wheels of library, client, converters and loops into dist
	@rm -rf $(LEFTOVERS) dist
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps \
	  --wheel-dir dist $(PARTS) $(COMPILED)
	@rm -rf $(LEFTOVERS)
	@ls dist/*.whl

clean: ## Remove .venv, .tollgate (data, logs, the demo's models) and caches
	@rm -rf $(VENV) .tollgate dist $(LEFTOVERS)
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .grimp_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made again when a dependency or a pin changed. pip's own words go to a log: what a
# person needs is the end of it, and only when it failed. pip may compile packages, whose
# makefiles need make's built-in rules: they do not get our flags.
$(READY): $(PARTS:%=%/pyproject.toml) constraints.txt $(wildcard $(COMPILED)/*.py*)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || sh tools/make-venv.sh \
	  $(VENV) $(if $(PYTHON),"$(PYTHON)",$(PYTHONS))
	@echo "setup: installing into $(VENV); the first time takes some minutes and 1.9 GB"
	@MAKEFLAGS= $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable ".[$(EXTRAS)]" \
	  --editable ./clients/python --editable ./converters \
	  >$(VENV)/setup.log 2>&1 || { tail -n 5 $(VENV)/setup.log >&2; \
	  echo "make setup: pip failed (network? disk full?); all it said is in" \
	  "$(VENV)/setup.log" >&2; exit 2; }
	@cd $(COMPILED) && $(abspath $(BIN))/python setup.py --quiet build_ext --inplace \
	  >>$(abspath $(VENV))/setup.log 2>&1 || \
	  echo "setup: no compiled loops (no compiler?); NumPy does their work, slower"
	@touch $@
