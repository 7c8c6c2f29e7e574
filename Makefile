# The only task runner. `make help` lists the targets; each sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SOURCES := proto server client experiments deploy examples tests website
OUT    ?= demo-results

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-faults test-attacks test-mutations test-fuzz test-soak lte setup proto sync-client format gates lint types contracts \
	generated lock audit dist docs docs-check screenshots deploy-check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.demo $(VENV)/.sources ## Run the service, learn through it, kill it halfway, and check that nothing is lost
	@$(BIN)/safe-psrl demo --out $(OUT)

test: ## Check a change: ruff, mypy, import contracts, generated code, fast tests; some minutes (tests/README.md)
	@$(MAKE) --no-print-directory $(VENV)/.installed
	@$(MAKE) --no-print-directory -j 2 setup gates
	$(BIN)/pytest -n 2 -m "not slow"

test-slow: setup ## Run the slow tests: faults, damage, replicas, browser, Prometheus, Envoy, soak; at most 25 minutes
	$(BIN)/pytest -n 2 -m slow

gates: lint types contracts generated

FUZZ_INPUTS ?= 100000
FUZZ_SEED   ?= 1

test-fuzz: setup ## Send FUZZ_INPUTS inputs (100000) of FUZZ_SEED to every interface of the server: some minutes
	$(BIN)/python -m tests.fuzz.fuzz --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED)

SOAK_MINUTES  ?= 60
SOAK_RESIDENT ?= 0

test-soak: setup ## Mixed load with kills for SOAK_MINUTES (60), thrice SOAK_RESIDENT agents if set: memory, files and latency must be flat; draws soak.png
	SOAK_MINUTES=$(SOAK_MINUTES) SOAK_RESIDENT=$(SOAK_RESIDENT) $(BIN)/pytest -n 0 -s -rP tests/soak/test_soak.py -k an_hour

# Rounds of each fault, the seed, and the only fault to run.
ROUNDS ?= 20
SEED   ?= 2026
FAULT  ?=
ROWS    = $(VENV)/fault-rows
FAULTS  = tests/faults/test_faults.py$(if $(FAULT),::test_nothing_acknowledged_is_lost_and_nothing_is_done_twice[$(FAULT)])

test-faults: setup ## Inject every fault, ROUNDS times each, and write the table of docs/reliability.md
	@rm -rf $(ROWS) && mkdir -p $(ROWS)
	SAFE_PSRL_FAULT_ROUNDS=$(ROUNDS) SAFE_PSRL_FAULT_SEED=$(SEED) SAFE_PSRL_FAULT_ROWS=$(ROWS) $(BIN)/pytest -n 2 '$(FAULTS)'
	$(if $(FAULT),,$(BIN)/python -m tests.faults.report $(ROWS) docs/reliability.md)

test-attacks: setup ## Attack a server in every way that is known beside a bystander, and write the table of docs/security.md
	@rm -rf $(ROWS) && mkdir -p $(ROWS)
	SAFE_PSRL_ATTACK_ROWS=$(ROWS) $(BIN)/pytest -n 0 tests/attacks; code=$$?; \
		$(BIN)/python -m tests.attacks.report $(ROWS) docs/security.md; exit $$code

test-mutations: setup ## Mutate copies of the sources, and show that the fault suite catches each mutation
	@rm -rf $(ROWS) && mkdir -p $(ROWS)
	$(BIN)/python -m tests.faults.mutations --rows $(ROWS)
	$(BIN)/python -m tests.faults.report $(ROWS) docs/reliability.md

lte: setup ## Install ns-3 for the simulated LTE cell and play it for a minute; `make test` does so too from then on
	$(call install,--editable '.[lte]')
	$(BIN)/pytest tests/system/test_lte_cell.py

setup: $(VENV)/.installed $(VENV)/.kernels ## Create the virtual environment and install the locked dependencies

# uv installs in seconds what takes pip a minute. pip installs where uv cannot.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt $(1) 2>/dev/null || \
	{ $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --constraint constraints.txt $(1); }

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Safe PSRL needs Python 3.11 or newer: set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "creating $(VENV): 5 s"
	@$(PYTHON) -m venv --without-pip $(VENV)
	@$(PYTHON) -m pip --python $@ install --quiet uv 2>/dev/null || true

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the demo needs: 10 s"
	@$(call install,--editable '.[demo]')
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the locked dependencies of all parts and of the tests: 30 s"
	@$(call install,pip --editable '.[dev]')
	@touch $(VENV)/.demo $@

# numba's cache notices a change in a kernel's own file, not in the kernels that it calls: drop it when any of them changes.
KERNELS = $(wildcard server/safe_psrl/*.py server/safe_psrl/*/*.py experiments/safe_psrl_experiments/*.py \
	experiments/safe_psrl_experiments/*/*.py)

$(VENV)/.sources: $(KERNELS) | $(BIN)/python
	@find server experiments -name '*.nb[ic]' -delete
	@touch $@

$(VENV)/.kernels: $(VENV)/.installed $(VENV)/.sources
	@echo "compiling the kernels: about two minutes, once"
	@$(BIN)/python -c 'from safe_psrl_experiments.algorithms import load_kernels; load_kernels()'
	@touch $@

format: $(VENV)/.installed ## Format the code
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

lint: $(VENV)/.installed
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)

types: $(VENV)/.installed
	$(BIN)/mypy
	MYPYPATH=examples $(BIN)/mypy examples/*.py
	$(BIN)/mypy --explicit-package-bases website/*.py

contracts: $(VENV)/.installed
	$(BIN)/lint-imports

PROTOC = $(BIN)/python -m grpc_tools.protoc -I proto \
	--plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc
MESSAGES = $(wildcard proto/safe_psrl_proto/v1/*.proto)
SERVICES = proto/safe_psrl_proto/v1/admin.proto proto/safe_psrl_proto/v1/control.proto
GENERATED ?= proto

proto: $(VENV)/.installed ## Generate Python code from the .proto files
	@mkdir -p $(GENERATED)
	@$(PROTOC) --python_out=$(GENERATED) --mypy_out=quiet:$(GENERATED) $(MESSAGES)
	@$(PROTOC) --grpc_python_out=$(GENERATED) --mypy_grpc_out=quiet:$(GENERATED) $(SERVICES)

sync-client: $(VENV)/.installed ## Generate the synchronous client from the asyncio client
	@$(BIN)/python client/generate_sync_client.py

generated: $(VENV)/.installed
	@rm -rf $(VENV)/generated
	@$(BIN)/python client/generate_sync_client.py $(VENV)/generated/sync
	@diff -r --exclude='__pycache__' client/safe_psrl_client/sync $(VENV)/generated/sync \
		|| { echo "the synchronous client differs from the asyncio client: run 'make sync-client' and commit"; exit 1; }
	@$(MAKE) --no-print-directory proto GENERATED=$(VENV)/generated
	@diff -r --exclude='*.proto' --exclude='__pycache__' --exclude='__init__.py' --exclude='py.typed' proto/safe_psrl_proto $(VENV)/generated/safe_psrl_proto \
		|| { echo "generated code differs from the .proto files: run 'make proto' and commit"; exit 1; }

lock: setup ## Resolve the dependencies anew into constraints.txt
	$(call install,uv)
	$(BIN)/uv pip compile --quiet --universal --all-extras --upgrade --no-header --no-annotate --output-file constraints.txt pyproject.toml

audit: setup ## Look for known vulnerabilities in the locked dependencies
	$(call install,pip-audit)
	$(BIN)/pip-audit --strict --progress-spinner off --disable-pip --no-deps -r constraints.txt

dist: $(VENV)/.installed ## Build the wheel and the source distribution into dist/
	$(BIN)/python -m build --outdir dist

docs: setup ## Build the documentation site into site/, without a network; broken links fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html; for search: $(BIN)/python -m http.server --directory site"

screenshots: setup ## Take the screenshots of the console in docs/images, with a real service: four minutes
	$(BIN)/python -m tests.safe_psrl_console.take_screenshots

docs-check: setup ## Check every link of the documentation, and run its snippets
	$(BIN)/pytest -n 2 tests/docs tests/test_readme.py -k "not commands_of_a_block"

deploy-check: setup ## Execute the Dockerfile's steps in an empty directory and start what comes of it: a few minutes
	SAFE_PSRL_DEPLOY_CHECK=1 $(BIN)/pytest tests/deploy/test_docker.py

clean: ## Remove the virtual environment, caches and results
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache $(OUT) site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
