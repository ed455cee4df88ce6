# The two commands of a newcomer are `make serve` and `make test`. `make help` lists the others.
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PYTHONS ?=
JOBS ?= auto
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help serve test test-full check lint types imports wheel docs deploy-check clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

serve: $(VENV)/.serve ## install, fetch the default model, serve on 127.0.0.1:8000 (flags: ARGS="--port 9000")
	@exec $(BIN)/baton serve $(ARGS)

test: $(VENV)/.dev ## the tests; ARGS="-k name" narrows them, JOBS=0 runs them one by one
	$(PYTEST) -m "not full" $(ARGS)

test-full: $(VENV)/.dev ## the tests that take longer, too
	$(PYTEST) $(ARGS)

check: lint types imports wheel ## lint, format, types, import contracts, wheel

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev
	$(BIN)/pyright

imports: $(VENV)/.dev
	$(BIN)/lint-imports --no-cache

wheel: $(VENV)/.dev ## wheels in dist/; PYTHONS="python3.11 python3.12" builds both that are published
	@scripts/wheel.sh $(VENV) $(PYTHONS)

docs: $(VENV)/.docs ## the documentation as a site, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

deploy-check: $(VENV)/.deploy ## deploy/ by the tools of those who read it (systemd's and kubectl where there are any)
	$(BIN)/hadolint deploy/Dockerfile
	scripts/check_deploy.sh $(BIN)

clean: ## remove what make made, the virtual environment included
	rm -rf $(VENV) .venv-clients build dist *.egg-info .hypothesis .ruff_cache common/kernels/cpu/*.so

# One stamp per set of packages: a run with nothing changed installs nothing.
INSTALLED := pyproject.toml setup.py scripts/setup.sh scripts/install_torch.py $(wildcard common/kernels/cpu/*.cpp common/kernels/cpu/*.h)

$(VENV)/.serve: $(INSTALLED)
	scripts/setup.sh $(VENV)
	@touch $@

$(VENV)/.docs: $(INSTALLED)
	scripts/setup.sh $(VENV) docs
	@touch $@ $(VENV)/.serve

$(VENV)/.deploy: $(INSTALLED)
	scripts/setup.sh $(VENV) deploy
	@touch $@ $(VENV)/.serve

$(VENV)/.dev: $(INSTALLED)
	scripts/setup.sh $(VENV) dev
	@touch $@ $(VENV)/.serve
