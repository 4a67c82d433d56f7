# Every target sets up what it needs in .venv, always under constraints.txt.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test test-slow test-all check docs dist notebook bench bench-compare clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      a provably robust Bayesian network beside one that is not, in about two minutes"
	@echo "make test      the test suite, without its slowest tests"
	@echo "make test-all  all of it"
	@echo "make check     formatting, lint, types, the import contract, and names and words"
	@echo "make docs      the documentation site, in site/"
	@echo "make dist      wheel and source distribution, in dist/, installed and tried in an environment of their own"
	@echo "make notebook  run the notebook again and store its pictures"
	@echo "make bench     the benchmarks, beside their bars; ARGS=\"steps --device cuda\" for some of them, on a GPU"
	@echo "make bench-compare  the same against the figures in benchmarks/results"
	@echo "make clean     remove .venv and everything that was built"

# A stamp per set of dependencies; it is redone when what is asked for has changed. torch goes first: under the
# constraint it resolves to the tested build, and nothing after it can pull another.
$(VENV)/.base: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "certibayes needs Python 3.11 or newer: make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) --editable .
	@touch $@

$(VENV)/.figures: $(VENV)/.base
	$(PIP) --editable ".[figures]"
	@touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) --editable ".[test]"
	@touch $@

$(VENV)/.check: $(VENV)/.base
	$(PIP) --editable ".[check,test]"
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) --editable ".[docs]"
	@touch $@

demo: $(VENV)/.figures
	$(BIN)/certibayes demo

# Bytecode is kept whatever the environment says: every process would otherwise compile all tests again.
test test-slow: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

test-all: test test-slow

check: $(VENV)/.check
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_rooms.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel is made from the source distribution, so that what one of them forgets is missed here. The environment in
# which it is tried has the tested torch and the core alone; it stays, since torch takes most of the time.
SMOKE := build/smoke

dist: $(VENV)/.check
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	test -x $(SMOKE)/bin/python || $(PYTHON) -m venv $(SMOKE)
	$(SMOKE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(SMOKE)/bin/python -m pip uninstall --quiet --yes certibayes
	$(SMOKE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd $(SMOKE) && bin/python -P $(CURDIR)/tests/smoke.py

notebook: $(VENV)/.docs
	$(BIN)/python -m nbconvert --to notebook --execute --inplace docs/notebooks/two-dimensions.ipynb

bench: $(VENV)/.figures
	$(BIN)/python -m benchmarks $(ARGS)

# Three runs, so that the range of the new figures is known as well.
bench-compare: $(VENV)/.figures
	$(BIN)/python -m benchmarks --compare --runs 3 $(ARGS)

clean:
	rm -rf $(VENV) site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
