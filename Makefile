# Every target sets itself up. PYTHON chooses the interpreter, MODEL what to serve, FAULTS how many replicas `make soak`
# kills or stops, SECONDS how long `make fuzz` asks, ARGS further options:
#   make serve MODEL=path/to/model.gguf ARGS="--port 8080"

PYTHON ?= python3
MODEL  ?=
ARGS   ?=
FAULTS ?= 12
SECONDS ?= 300
BIN    := .venv/bin
STAMP  := .venv/.set-up
FUZZER := .venv/fuzzer/bin
CHECKS := not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,negative_data_rejection

.PHONY: setup serve test test-fast soak fuzz lint docs clean

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

soak: setup
	MOBULA_SOAK=$(FAULTS) $(BIN)/pytest -s tests/cluster/test_failover.py
	for round in 1 2 3 4 5 6 7 8 9 10; do MOBULA_SOAK=$(FAULTS) $(BIN)/pytest tests/cluster/test_serve_ranks.py -k lost_rank || exit 1; done

fuzz: setup
	@test -x $(FUZZER)/schemathesis || { $(PYTHON) -m venv .venv/fuzzer && $(FUZZER)/pip install 'schemathesis>=4.32,<5'; }
	$(BIN)/python -m tests.support.tiny_server $(FUZZER)/schemathesis run {url}/openapi.json --max-time $(SECONDS) \
	  --request-timeout 60 --checks $(CHECKS) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/python -m cluster.gateway.field_table docs/api.md

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
