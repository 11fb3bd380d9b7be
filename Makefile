# `make demo`, `make test`, `make docs`: each sets up .venv by itself; a second call is quick.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test lint docs clean

# Its network is so small that threads wait for each other: one trains, and a process reads beside it.
demo: export OMP_NUM_THREADS = 1
demo: $(READY)
	$(BIN)/lewel pretrain scenes --recipe scenes_demo --limit 16000 --workers 1 --out runs/demo
	$(BIN)/lewel finetune runs/demo --data scenes --recipe scenes_few_labels
	$(BIN)/lewel finetune runs/demo --data scenes --recipe scenes_few_labels --scratch
	$(BIN)/lewel maps runs/demo scenes
	$(BIN)/lewel results runs/demo
	$(BIN)/lewel report runs/demo

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

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lewel needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing torch and the rest: some 5 GB, a few minutes, once."
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv runs dist build site .cache .pytest_cache .mypy_cache .ruff_cache
