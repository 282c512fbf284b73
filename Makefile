# All commands set up everything they need on a bare machine with Python >= 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo reproduce check lint test tests docs clean

# The documentation theme announces its successor on stderr unless told not to.
export NO_MKDOCS_2_WARNING := 1
# Tests start many processes, which would compile the same files again and again.
unexport PYTHONDONTWRITEBYTECODE

demo: $(VENV)/.installed
	$(BIN)/carvy run --preset demo --out runs/demo

# For example: make reproduce ARGS='all --preset both --engine batched'
reproduce: $(VENV)/.installed-dev
	$(BIN)/python -m reproduction $(ARGS)

# Everything. The tests also build the documentation, strictly.
test: $(VENV)/.browser $(VENV)/.nginx
	$(MAKE) --no-print-directory --jobs=2 lint tests

# What can be said in about two minutes on two cores.
check: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory --jobs=2 lint tests \
	  ONLY='-m "not slow and not flower and not ray and not browser"'

tests: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(ONLY)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs serve

# The dev install contains the plain one, so `make demo` after `make test` installs nothing.
# Python compiles a module when it is first imported; most of 18,000 never are.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	test -e $(VENV)/.installed-dev || $(BIN)/pip install --quiet --no-compile -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	touch $@

# Tried once; where no browser can be had, the tests that need one are skipped and say so.
$(VENV)/.browser: | $(VENV)/.installed-dev
	sh scripts/browser.sh $(BIN)/python
	touch $@

# After the browser: both may ask for the same lock of the package manager.
$(VENV)/.nginx: | $(VENV)/.browser
	sh scripts/nginx.sh
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build runs site
