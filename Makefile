# Every verb; `make` without arguments lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
COMPOSE = platform/compose.sh
CLI = .venv/bin/mlplatform
# The builder of Docker itself has the name of the context; others, such as `docker buildx create --use` makes, do not see
# the images that ours are built on.
export BUILDX_BUILDER := $(shell docker context show 2>/dev/null || echo default)
LIGHT = .venv/light/bin

# Arguments of verbs count on the command line of make only: shells export NAME, TO or FORCE for other programs.
ARGUMENTS = ADDRESS APPLY BRANCHES BUNDLE CHECK CHECKOUT FIX FORCE FROM JOB JSON KEEP LOGS NAME ONLY \
	PAIRS PERSON PYTEST QUICK REMOVE ROWS RUNNING SECRETS SERVICE SNAPSHOT SRC STACK TEAM TESTS TO UPGRADE
$(foreach name,$(ARGUMENTS),$(if $(filter environment,$(origin $(name))),$(eval unexport $(name))$(eval $(name) =)))

# With BUNDLE, images and packages come from that archive of `make bundle` instead of the network.
ifneq ($(BUNDLE),)
export PIP_NO_INDEX = 1
export PIP_FIND_LINKS = .venv/wheels
export UV_OFFLINE = 1
# Docker loads an image with its tag, but without the digest that it was pulled by.
$(foreach name,$(shell sed -n 's/^\([A-Z0-9_]*_DIGEST\)=.*/\1/p' compose/images.lock),$(eval export $(name) =))
endif

# Where Python may write no bytecode, as the environment of many images says, each process would compile all that it
# imports: 29 instead of 10 s for torch, Lightning, MLflow and Ray.
ifneq ($(PYTHONDONTWRITEBYTECODE),)
export UV_COMPILE_BYTECODE = 1
endif

help:  ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- Try it: one machine, no Docker ---

demo: .venv/train  ## Train a real model on a local platform and show everything it records
	$(CLI) local demo

# --- Run it: the stack of containers ---

env: .venv/cli  ## Write .env and secrets/; keeps what exists, except the version in .env
	@$(CLI) stack env

build: env  ## Build the images
	@.venv/bin/python -m mlplatform_stack.engine
	$(if $(BUNDLE),,$(COMPOSE) --profile '*' build storage-init $$($(COMPOSE) config --images | sed -n 's/^mlplatform-\(minio\):.*/\1/p') ray-head proxy)
	$(if $(BUNDLE),,$(COMPOSE) --profile '*' build hub)

up: build  ## Start the stack and print its addresses (ONLY=tracking or ray: one half; BUNDLE=file: without network)
	@$(CLI) stack up --only "$(ONLY)"

bundle: build  ## Write images and packages into one archive for a host without network (TO=mlplatform.bundle)
	@$(CLI) stack bundle "$(or $(TO),mlplatform.bundle)"

unbundle:
	platform/unbundle.sh "$(BUNDLE)"

down:  ## Stop the stack; data stays
	$(COMPOSE) --profile '*' down --remove-orphans

status: .venv/cli  ## Show the state of each container and the addresses
	@$(COMPOSE) --profile '*' ps --all --format 'table {{.Name}}\t{{.Status}}'
	@$(CLI) stack status

doctor: .venv/cli  ## Check the host and the running stack (FIX=1 applies the safe fixes, JSON=1 for programs)
	@$(CLI) doctor --only "$(ONLY)" $(if $(FIX),--fix) $(if $(JSON),--json)

logs:  ## Follow the last lines of every service (SERVICE=name for one)
	$(COMPOSE) --profile '*' logs --tail=100 --follow $(SERVICE)

data: env  ## Fill the volume food11 with Food-11 (SRC=URL or path of its archive, FORCE=1 replaces), or copy downloaded models to the caches (FROM=~/.cache)
	$(if $(FROM),@platform/cache.sh "$(FROM)",@docker volume create "$$(sed -n 's/^FOOD11_VOLUME=//p' .env)" >/dev/null)
	$(if $(FROM),,$(COMPOSE) build --quiet storage-init)
	$(if $(FROM),,@archive=$$(realpath -qe "$(SRC)"); $(COMPOSE) run --rm $${archive:+--volume "$$archive:/host$$archive:ro"} food11-data "$${archive:+/host}$${archive:-$(SRC)}" $(if $(FORCE),--force))

smoke:  ## Train the main job on the running stack, submitted from the notebook
	$(COMPOSE) --profile '*' exec -T notebook ray job submit --working-dir . -- python digits.py

ci: .venv/cli  ## Run a job on a small stack of its own, then a check (JOB="folder -- command" CHECK="command"; docs/operating.md)
	@$(if $(JOB),,$(error Set JOB="folder -- command"))$(CLI) stack ci "$$JOB" $(if $(CHECK),"$$CHECK") --logs "$(or $(LOGS),ci-logs)"

host-token: build  ## Write the file with which another machine joins (NAME=its name, ADDRESS=this host's, as it reaches it)
	@$(CLI) stack host-token "$(or $(NAME),$(error Set NAME= to a name for the other machine))" --address "$(ADDRESS)"

join: .venv/cli  ## Add this machine's workers to a stack on another host (FROM=file that `make host-token` wrote there)
	@$(CLI) stack join $(if $(FROM),"$(FROM)")

hosts: .venv/cli  ## List the hosts that have joined
	@$(CLI) stack hosts

remove-host: .venv/cli  ## Remove a host that has joined (NAME=)
	@$(CLI) stack remove-host "$(NAME)"

leave: .venv/cli  ## On a machine that has joined: stop and remove its workers
	@$(CLI) stack leave

backup: .venv/cli  ## Save the stack while it runs (TO=folder or s3:https://server/bucket; SECRETS=1 adds secrets/)
	@$(CLI) stack backup "$(or $(TO),$(error Set TO=folder or TO=s3:https://server/bucket/folder))" $(if $(SECRETS),--secrets)

restore: build  ## Replace the stack's data by a backup (FROM=folder or s3:...; SNAPSHOT=id; FORCE=1 if there is data)
	@$(CLI) stack restore "$(or $(FROM),$(error Set FROM= to what was TO= of the backup))" $(if $(SNAPSHOT),--snapshot "$(SNAPSHOT)") $(if $(FORCE),--force)

prune: .venv/cli  ## List what nobody needs any more: packages, and checkpoints and runs by retention (APPLY=1 removes it)
	@$(CLI) stack prune $(if $(APPLY),--apply)

upgrade: .venv/cli  ## Upgrade the running stack to this checkout's version; if a step fails, the former one runs again
	@$(CLI) stack upgrade

rotate: .venv/cli  ## Change secrets and certificates of the running stack; what reads them restarts (ONLY=store,mlflow,... for some)
	@$(CLI) stack rotate --only "$(ONLY)"

destroy:  ## Remove the stack with all of its data, after asking
	@read -rp "This deletes every run, model, checkpoint and notebook of the stack. Type 'destroy' to continue: " answer && [ "$$answer" = destroy ]
	$(COMPOSE) --profile '*' down --volumes --remove-orphans
	@rm -f .stack/restore

# --- Work on it: CONTRIBUTING.md has the details and how long each verb takes; PYTEST="..." adds options ---

format: .venv/light/ready  ## Format the code, apply safe fixes, and write .env.example and the README's table of pages
	$(LIGHT)/ruff check --quiet --fix-only . && $(LIGHT)/ruff format .
	$(LIGHT)/python platform/env_example.py .env.example
	$(LIGHT)/python tests/page_table.py

style: .venv/light/ready  ## Check style, structure, wording and import layers (seconds; without torch, Ray and MLflow)
	$(LIGHT)/ruff check . && $(LIGHT)/ruff format --check .
	$(LIGHT)/python platform/env_example.py .env.example --check
	$(LIGHT)/python tests/structure.py
	$(LIGHT)/python tests/official/facts.py
	$(LIGHT)/lint-imports --no-cache --no-logo

types: .venv/dev  ## Check types
	.venv/bin/mypy

lint: style types  ## Check style and types

unit: .venv/light/ready  ## Unit tests (six minutes; without torch, Ray and MLflow)
	$(LIGHT)/pytest -n 4 --dist worksteal -m "not nightly" $(PYTEST) tests/unit

embedded: .venv/dev  ## Embedded tests: jobs on a real Ray and MLflow, without Docker
	.venv/bin/pytest -m "not nightly" $(PYTEST) tests/embedded

test: lint unit embedded  ## Lint, then unit and embedded tests; no Docker needed

test-stack: .venv/dev  ## Test the containers; installs Docker if missing (Debian). KEEP=1, TESTS="file -k name", RUNNING=folder
	$(if $(RUNNING),.venv/bin/pytest --timeout=900 -m "not nightly" --running="$(RUNNING)",tests/stack/run.sh $(if $(KEEP),--keep)) $(PYTEST) $(or $(TESTS),tests/stack)

test-gpu: .venv/dev  ## Test this machine's GPUs and report what was seen (STACK=folder: also the stack that `make up` started there)
	.venv/bin/pytest -rfE $(if $(STACK),--running="$(STACK)") tests/gpu

bench: .venv/dev  ## Compare the running stack with what it is built on (ROWS="name ...", PAIRS=5, TEAM=name: as a person of it, QUICK=1 does not judge)
	PYTHONPATH=tests/stack .venv/bin/python tests/bench/bench.py $(if $(QUICK),--quick) $(if $(ROWS),--rows $(ROWS)) $(if $(PAIRS),--pairs $(PAIRS)) $(if $(TEAM),--team $(TEAM))

nightly: .venv/light/ready .venv/dev  ## Run the long tests, which CI leaves out (three to four hours on two cores with nothing else to do)
	$(MAKE) --keep-going --jobs=2 nightly-host nightly-stack

# Beside the stack's tests, which leave a third of two cores idle.
nightly-host:
	$(MAKE) nightly-unit; first=$$?; $(MAKE) nightly-embedded && exit $$first

nightly-stack:
	tests/stack/run.sh -m nightly $(PYTEST) tests/stack; first=$$?; \
	tests/stack/run.sh --store=versitygw $(PYTEST) tests/stack && exit $$first

nightly-unit:
	$(LIGHT)/pytest -n 4 --dist worksteal -m nightly $(PYTEST) tests/unit

nightly-embedded:
	.venv/bin/pytest -m nightly $(PYTEST) tests/embedded

tutorial: .venv/dev  ## Run the branches of the public gourmetgram-train on the running stack (CHECKOUT=folder, BRANCHES="ray tune")
	PYTHONPATH=tests/stack .venv/bin/python tests/tutorial/tutorial.py "$(CHECKOUT)" $(if $(BRANCHES),--branches $(BRANCHES))

lock: .venv/cli  ## Pin packages and images with hashes (ONLY=extra: those of extra-requirements.in, ONLY=images: pull those of others and compare them with tests/official/facts.toml; UPGRADE=1: newest versions)
	$(if $(filter images,$(ONLY)),.venv/bin/python tests/official/compare.py --pull,ONLY="$(ONLY)" images/lock.sh $(if $(UPGRADE),--upgrade))
	$(if $(filter-out images,$(ONLY)),,@.venv/bin/python -m mlplatform_stack.image_lock $(if $(UPGRADE),--upgrade))

# --- Set-up: one virtual environment that grows as verbs need it, and a light one for style and unit tests ---

DISTRIBUTIONS = mlplatform gateway stack warm
EDITABLE = --no-deps --no-build-isolation $(DISTRIBUTIONS:%=--editable platform/%)
.venv/cli: platform/requirements.txt platform/pyproject.toml $(DISTRIBUTIONS:%=platform/%/pyproject.toml) platform/mlplatform/mlplatform.pth $(if $(BUNDLE),| unbundle)
	platform/venv.sh .venv
	.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	.venv/bin/uv pip install --quiet --python .venv $(EDITABLE)
	$(if $(PYTHONDONTWRITEBYTECODE),.venv/bin/python -m compileall -q $(DISTRIBUTIONS:%=platform/%))
	@touch $@

.venv/train: images/ray/requirements.txt .venv/cli
	.venv/bin/uv pip install --python .venv --require-hashes --requirement $<
	@touch $@

.venv/dev: tests/requirements.txt images/platform/requirements.txt .venv/train
	.venv/bin/uv pip install --quiet --python .venv --requirement $< --requirement images/platform/requirements.txt
	@touch $@

# The lock files together have the version and the hashes of each package in unit/requirements.in and of what these need.
LIGHT_LOCKS = images/platform/requirements.txt tests/requirements.txt tests/unit/requirements.txt
.venv/light/ready: tests/unit/requirements.in $(LIGHT_LOCKS) .venv/cli
	platform/venv.sh .venv/light
	.venv/bin/uv pip install --quiet --python .venv/light --requirement $< $(LIGHT_LOCKS:%=--constraint %)
	.venv/bin/uv pip install --quiet --python .venv/light $(EDITABLE)
	@touch $@

.PHONY: help demo env build up bundle unbundle down status doctor logs data smoke ci backup restore rotate host-token join hosts remove-host leave prune upgrade destroy format style types lint unit embedded test test-stack test-gpu bench nightly nightly-host nightly-stack nightly-unit nightly-embedded tutorial lock
