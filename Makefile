# Two commands matter: `make demo` and `make test`. Everything else is a piece of them.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
UV_VERSION := 0.13.8
PARALLEL := --numprocesses auto --durations 20 --durations-min 5
# With servers, tests wait for much of their time: one more worker runs than there are cores.
WAITING := --numprocesses $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 ))) --durations 20 --durations-min 5
# The tests start hundreds of processes: each module is compiled by the first of them alone, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo docs check release sbom audit test test-core test-services test-compose test-kubernetes test-slurm test-compliance test-console up down doctor setup console servers lint generate bench fuzz clean

help: ## Show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

demo: setup ## Replay the Vela power-brake incident through the real servers and show what happened
	@$(BIN)/hindcast demo

# Two at a time, in this order, so that no core idles: mypy and the console's tests have use for one only.
test: setup servers ## Lint, types, unit tests, laws, docs, and integration tests on the real servers
	@$(MAKE) --no-print-directory -j2 lint test-core test-console test-services

test-services: setup servers ## The tests of the services and of the whole, on the real servers
	@$(BIN)/pytest services tests -m "not (compose or kubernetes or slurm or compliance)" $(WAITING)

check: setup lint ## Before a commit: format, lint, types, and the tests that need no server and no installation
	@HINDCAST_LAW_EXAMPLES=$${HINDCAST_LAW_EXAMPLES:-2} $(BIN)/pytest -m "not (integration or compose or kubernetes or slurm or compliance or install)" $(PARALLEL)

test-core: setup ## The detectors' tests and laws, where nothing but the core's dependencies is installed
	@PYTHONPATH=. $(BIN)/uv run --quiet --isolated --locked --only-group core-test pytest detectors $(PARALLEL)

test-compose: setup servers ## Bring docker-compose.yml up for real, on stand-in images (root; starts an engine if need be)
	@$(BIN)/pytest -m compose tests/compose

test-kubernetes: setup ## Install the Helm chart into a real control plane, built the first time (20 minutes), and look at it with hindcast live
	@$(BIN)/pytest -m kubernetes tests/kubernetes

test-slurm: setup ## Look at two versions of Slurm with hindcast live, of Debian's packages, fetched the first time (root)
	@$(BIN)/pytest -m slurm tests/slurm

test-compliance: setup ## Run Prometheus' own compliance tests of remote-write receivers on the gateway, fetched and built the first time
	@$(BIN)/pytest -m compliance tests/compliance

up: setup servers ## Start the stack and leave it running
	@$(BIN)/hindcast stack up

down: setup ## End the stack that `make up` started
	@$(BIN)/hindcast stack down

doctor: setup ## Say what this machine lacks, and how to get it
	@$(BIN)/hindcast doctor

setup: .venv/ready
	@$(MAKE) --no-print-directory console || echo "the web console could not be built: all else works. Remedy: see above, then make console"

CONSOLE := services/console
CONSOLE_BUILT := services/api/static/index.html

NODE := $(shell command -v npm >/dev/null && \
  node -p 'const [a, b] = process.versions.node.split("."); a > 20 || (a == 20 && b >= 19)' 2>/dev/null)

ifneq ($(NODE),true)
console: ## Build the web console (needs Node 20.19 or newer with npm; all else works without)
	@echo "no Node 20.19 or newer with npm here: all but the web console works. Remedy: install it, then make console"

test-console:
	@echo "no Node 20.19 or newer with npm here: the web console is not tested"
else
console: $(CONSOLE_BUILT)

$(CONSOLE)/node_modules/.package-lock.json: $(CONSOLE)/package.json $(CONSOLE)/package-lock.json
	@cd $(CONSOLE) && npm ci --loglevel=error --no-audit --no-fund

$(CONSOLE_BUILT): $(CONSOLE)/node_modules/.package-lock.json $(wildcard $(CONSOLE)/*.* $(CONSOLE)/src/* $(CONSOLE)/public/*)
	@cd $(CONSOLE) && npm run --silent build -- --logLevel warn

test-console: setup $(CONSOLE_BUILT) ## Types, lint and tests of the web console, in a browser too where Chromium is
	@cd $(CONSOLE) && npm run --silent check && npm run --silent test -- --reporter=dot && npm run --silent test:browser
endif

.venv/ready: pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hindcast needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1). Remedy: apt-get install python3 python3-venv, or make PYTHON=/path/to/python3.11 ..."; exit 2; }
	@echo "setting up .venv (the first time takes about half a minute)"
	@$(PYTHON) -m venv .venv || { echo "python3 -m venv failed. Remedy: apt-get install python3-venv"; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv sync --locked --quiet
	@touch $@

servers: setup ## Fetch and build Kafka, Prometheus, Alertmanager and Thanos into the user's cache
	@$(BIN)/hindcast stack build

lint: setup ## Format, lint, types, boundaries, lock file, generated files
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache 2>&1 | tail -n 12; exit $${PIPESTATUS[0]}
	@$(BIN)/uv lock --check --quiet

generate: setup ## Write the files that are made from the code (committed; `make test` checks them)
	@$(BIN)/hindcast generate

release: setup console ## Make the wheel and the source archive, in dist/
	@$(BIN)/uv build --quiet --clear --out-dir dist && $(MAKE) --no-print-directory sbom && ls dist

SBOM ?= dist
sbom: setup ## Write what the wheel and the console are made with, by version and hash, as CycloneDX: dist/*.cdx.json
	@mkdir -p $(SBOM)
	@$(BIN)/uv export --quiet --locked --no-dev --preview-features sbom-export --format cyclonedx1.5 -o $(SBOM)/hindcast.cdx.json >/dev/null
	@if command -v npm >/dev/null; then cd $(CONSOLE) && npm sbom --loglevel=error --package-lock-only --omit dev \
	  --sbom-format cyclonedx > $(abspath $(SBOM))/console.cdx.json; else echo "no npm here: no SBOM of the console"; fi

audit: setup ## Ask osv.dev and npm's registry for known holes in what the lock files name (needs the network)
	@audited=0; \
	$(BIN)/uv audit --locked --preview-features audit-command || { audited=$$?; \
	  [ $$audited = 1 ] || echo "Python: osv.dev could not be asked, NOTHING was looked at. Remedy: run it where it can be reached"; }; \
	if ! command -v npm >/dev/null; then echo "no npm here: the console's packages were NOT looked at"; audited=2; \
	elif ! (cd $(CONSOLE) && npm audit --package-lock-only); then audited=$$(( audited > 1 ? audited : 1 )); \
	  (cd $(CONSOLE) && npm audit --package-lock-only --json 2>/dev/null) | grep -q auditReportVersion || { audited=2; \
	  echo "console: npm's registry could not be asked, NOTHING was looked at. Remedy: run it where it can be reached"; }; fi; \
	exit $$audited

docs: setup ## Build the documents as a site: site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "site/index.html"

bench: setup servers ## Run every benchmark and print the ratios
	@$(BIN)/python -m benchmarks

MINUTES ?= 1
fuzz: setup ## Damage what each parser reads, for MINUTES=1 each, ONLY=those of this name; what is found becomes a test
	@$(BIN)/uv run --quiet --isolated --locked --group fuzz python -m tests.fuzz --minutes $(MINUTES) --only "$(ONLY)"

clean: ## Remove the environment and caches of this checkout (built servers and recordings stay in the user's cache)
	rm -rf $(CONSOLE)/node_modules services/api/static .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz
