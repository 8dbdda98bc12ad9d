# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
WORKERS ?= 2

.PHONY: demo test test-all check bench docs clean

demo: $(READY)  ## the guard at work on a small transformer, with and without faults (about 2 minutes)
	$(BIN)/guard demo --out demo-out

test: $(READY) check  ## the whole suite but what is marked slow
	$(BIN)/pytest -m "not slow" -n $(WORKERS)

test-all: $(READY) check
	$(BIN)/pytest -n $(WORKERS)

check: $(READY)  ## style, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy guard
	$(BIN)/lint-imports

bench: $(READY)  ## overhead of the guard's own time in a healthy step; prints, asserts nothing
	$(BIN)/python benchmarks/overhead.py

docs: $(READY)  ## docs/detectors.md, actions.md and policies.md from the code
	$(BIN)/python docs/generate.py

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv demo-out
