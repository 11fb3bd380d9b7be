# `make demo`, `make test`, `make docs`: each sets up .venv by itself; a second call is quick.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
READY := .venv/ready

.PHONY: demo test lint docs clean

demo: $(INSTALLED)
	$(BIN)/lewel demo

test: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation in site/. A warning, a dead link or anything loaded from another host is an error.
docs: $(READY)
	rm -rf site
	$(BIN)/zensical build --clean --strict
	$(BIN)/python docs/check_links.py site

# What the product needs.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lewel needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing torch and the rest: some 5 GB, a few minutes, once."
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt -e .
	touch $(INSTALLED)

# And what tests, lint and documentation need beside it.
$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv runs dist build site .cache .pytest_cache .mypy_cache .ruff_cache
