# Everything here does its own set-up on a machine that has Python (3.11 or newer) and make.
#
#   ARGS=...          more arguments for pytest or the demo
#   SHORT=1           sets PGQUEUE_SHORT=1 for test-faults and bench: fewer rounds
#   FULL=1            sets PGQUEUE_FULL=1 for test-faults: every scenario of the laboratory, three rounds, about an hour
#   DATABASE_URL=...  a server of yours instead of the embedded one
#   PYTHON=...        which Python makes .venv; by default the first of these that is new enough
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(python) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(python))))
BIN := .venv/bin
READY := .venv/.installed
WITH_POSTGRES = $(BIN)/python -m demo_project.postgres
PYTEST = $(BIN)/python -m pytest
export PGQUEUE_SHORT := $(SHORT)
export PGQUEUE_FULL := $(FULL)

.DEFAULT_GOAL := help
.PHONY: help test test-faults laboratory-tools browser screenshots bench sitting demo-scale test-matrix lint format demo demo-broken docs build clean

help:
	@echo "make demo | demo-broken | demo-scale | test | test-faults | laboratory-tools | browser | screenshots | bench | sitting | test-matrix | lint | format | docs | build | clean"

.venv: $(READY)

$(READY): pyproject.toml
	@test -n "$(PYTHON)" && "$(PYTHON)" -c '$(NEW_ENOUGH)' \
		|| { echo "Python 3.11 or newer is needed (found: '$(PYTHON)'). Say which: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Setting up .venv with $(PYTHON)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo,test,dev]'
	@touch $(READY)

test: $(READY)
	$(WITH_POSTGRES) --name tests --no-fsync --run $(PYTEST) -n 2 $(ARGS)

# pytest answers 5 when no test is marked so; that is said, and is no failure.
NONE_YET = || { status=$$?; test $$status -eq 5 && echo "$@: no such tests yet" || exit $$status; }

test-faults: $(READY)
	$(WITH_POSTGRES) --name faults --run $(PYTEST) -m faults $(ARGS) $(NONE_YET)

# Some scenarios of the laboratory need these; without them, their lines say SKIPPED.
laboratory-tools:
	apt-get install -y -q --no-install-recommends pgbouncer libfaketime || echo "$@: apt could not install them"

# Debian's Chromium, or the one that PGQUEUE_CHROMIUM names. Without any, and without a way to get one, that is said.
CHROMIUM = $(or $(PGQUEUE_CHROMIUM),$(shell command -v chromium || command -v chromium-browser || command -v google-chrome))
BROWSE = PGQUEUE_CHROMIUM="$(CHROMIUM)" $(WITH_POSTGRES) --name browser --no-fsync --run $(PYTEST) -m browser -p no:randomly tests/browser

browser: .venv/.browser-installed
	@test -n "$(CHROMIUM)" || apt-get install -y -q chromium >/dev/null 2>&1 || true
	@if command -v "$(or $(CHROMIUM),chromium)" >/dev/null; then PGQUEUE_SHORT=$(SHORT) $(BROWSE) $(ARGS); \
		else echo "browser: SKIPPED, there is no Chromium and apt could not install one"; fi

# Into docs/images, light and dark.
screenshots: .venv/.browser-installed
	PGQUEUE_SCREENSHOTS=docs/images $(BROWSE) -k screenshots $(ARGS)

.venv/.browser-installed: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[browser]'
	@touch $@

bench: $(READY)
	$(WITH_POSTGRES) --name bench --run $(PYTEST) -m bench -p no:randomly -s $(ARGS) tests $(wildcard benchmarks) $(NONE_YET)

# Beside other queues, in a harness with a server of its own: make sitting QUEUE_HARNESS=directory ARGS='--passes 1'
sitting: $(READY)
	QUEUE_HARNESS="$(QUEUE_HARNESS)" $(BIN)/python benchmarks/sitting.py $(ARGS)

test-matrix:
	.ci/matrix $(ARGS)

# The type checker's plugin loads the demo's settings, and connects to nothing.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	DATABASE_URL=$${DATABASE_URL:-postgresql:///unused} $(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Fills the demo's own database, where it stays, and measures each screen of the console: make demo-scale ROWS=10000000
# CHECK=1 fails where a screen costs more than it may; CHECK=3 lets a slow machine take three times as long.
ROWS ?= 1000000
demo-scale: $(READY)
	$(WITH_POSTGRES) --name scale --no-fsync --run sh -c '$(BIN)/python manage.py migrate --verbosity 0 && \
		$(BIN)/python manage.py demo_scale --rows $(ROWS) $(if $(CHECK),--check $(CHECK))'

demo: $(READY)
	$(BIN)/python -m demo_project.demo $(ARGS)

# A shop in trouble, to practise on: the mail provider is down, a worker was killed, another one is frozen.
demo-broken: $(READY)
	$(BIN)/python -m demo_project.broken $(ARGS)

# Into build/docs. Rewrites the generated pages first; a warning, such as a dead link, is an error.
docs: .venv/.docs-installed
	$(BIN)/python docs/reference/generate.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env -d build/doctrees docs build/docs

.venv/.docs-installed: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

build: $(READY)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf .venv .matrix build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
