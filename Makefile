# Every verb a person types; `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
COMPOSE = docker compose --env-file .env --file compose/compose.yaml
CLI = .venv/bin/mlplatform
ONLY ?=

help:  ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- Try it: one machine, no Docker ---

demo: .venv/train  ## Train a real model on a local platform and show what is kept of it
	$(CLI) local demo

# --- Run it: the stack of containers ---

env: .venv/cli  ## Write .env and secrets/, once; never overwrites
	@$(CLI) stack env

build: env  ## Build the images
	$(COMPOSE) --profile '*' build storage-init minio ray-head
	$(COMPOSE) --profile '*' build notebook

up: build  ## Start the stack and print its addresses (ONLY=tracking or ONLY=ray for a half)
	@$(CLI) stack up --only "$(ONLY)"

down:  ## Stop the stack; data stays
	$(COMPOSE) --profile '*' down --remove-orphans

status: .venv/cli  ## Show the state of each container and the addresses
	@$(COMPOSE) --profile '*' ps --all --format 'table {{.Name}}\t{{.Status}}'
	@$(CLI) stack status

logs:  ## Follow the last lines of every service (SERVICE=name for one)
	$(COMPOSE) --profile '*' logs --tail=100 --follow $(SERVICE)

data: env  ## Fill the volume food11 with Food-11 (SRC=address or path of its archive, FORCE=1 replaces)
	$(COMPOSE) build --quiet storage-init
	@$(CLI) stack data "$(SRC)" $(if $(FORCE),--force)

cache:  ## Copy downloaded models to where jobs look for them (SRC=~/.cache, from a machine that reaches the hubs)
	@[ -d $(SRC)/huggingface/hub ] || [ -d $(SRC)/torch ] || { echo "SRC='$(SRC)' holds neither huggingface/hub nor torch; give the folder of a machine that has downloaded models, such as SRC=~/.cache." >&2; exit 1; }
	cd $(SRC) && tar --create $$(ls -d huggingface/hub torch 2>/dev/null) | (cd $(CURDIR) && $(COMPOSE) exec -T ray-worker-0 sh -c 'mkdir -p /shared/cache && tar --extract --directory=/shared/cache')

smoke:  ## Train the main job on the running stack, submitted from the notebook
	$(COMPOSE) exec -T notebook ray job submit --working-dir . -- python digits.py

destroy:  ## Remove the stack with all of its data, after asking
	@read -rp "This deletes every run, model, checkpoint and notebook of the stack. Type 'destroy' to go on: " answer && [ "$$answer" = destroy ]
	$(COMPOSE) --profile '*' down --volumes --remove-orphans

# --- Work on it ---

lint: .venv/dev  ## Check style and types
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

test: lint  ## Lint, then unit and embedded tests; no Docker needed
	.venv/bin/pytest -m "not soak" tests/unit tests/embedded

test-stack: .venv/dev  ## Test the containers; installs Docker where it is missing (Debian)
	tests/stack/run.sh

bench: .venv/dev  ## Measure the running stack against what it is built on (QUICK=1 does not judge, ONLY="name ...", PAIRS=5)
	PYTHONPATH=tests/stack .venv/bin/python tests/bench/bench.py $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(PAIRS),--pairs $(PAIRS))

soak: .venv/dev  ## The long repetitions that CI leaves out
	.venv/bin/pytest -m soak tests/embedded
	tests/stack/run.sh -m soak tests/stack

tutorial: .venv/dev  ## Run the branches of the public gourmetgram-train on the running stack (SRC=checkout, BRANCHES="ray tune")
	PYTHONPATH=tests/stack .venv/bin/python tests/tutorial/tutorial.py "$(SRC)" $(if $(BRANCHES),--branches $(BRANCHES))

lock: .venv/cli  ## Pin the newest versions that the *.in files allow
	tests/lock.sh

# --- Set-up: one virtual environment that grows as verbs need it ---

.venv/cli: platform/requirements.txt platform/pyproject.toml
	platform/venv.sh .venv
	.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	.venv/bin/uv pip install --quiet --python .venv --no-deps --no-build-isolation --editable platform
	@touch $@

.venv/train: images/ray/requirements.txt .venv/cli
	.venv/bin/uv pip install --python .venv --require-hashes --requirement $<
	@touch $@

.venv/dev: tests/requirements.txt images/platform/requirements.txt .venv/train
	.venv/bin/uv pip install --quiet --python .venv --requirement $< --requirement images/platform/requirements.txt
	@touch $@

.PHONY: help demo env build up down status logs data cache smoke destroy lint test test-stack bench soak tutorial lock
