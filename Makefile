# Every target sets itself up. PYTHON chooses the interpreter, MODEL what to serve, ARGS further options:
#   make serve MODEL=path/to/model.gguf ARGS="--port 8080"

PYTHON ?= python3
MODEL  ?=
ARGS   ?=
BIN    := .venv/bin
STAMP  := .venv/.set-up

.PHONY: setup serve test test-fast lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Mobula needs Python 3.11 or newer as $(PYTHON); name another with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

serve: setup
	@$(BIN)/mobula serve $(MODEL) $(ARGS)

test: setup
	$(BIN)/pytest $(ARGS)

test-fast: setup
	$(BIN)/pytest -m "not slow" $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
