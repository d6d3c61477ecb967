# For users: `make demo`, `make demo-llm` and `make test`. All make .venv themselves; only python3 (3.10+) is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for servers: files run side by side, three at least. `make test PARALLEL=` runs them one after the other.
WORKERS := $(shell n=`getconf _NPROCESSORS_ONLN`; echo $$((n < 3 ? 3 : n > 4 ? 4 : n)))
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder
# Hundreds of servers are started from this checkout: without bytecode each would compile all of it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo demo-llm test quick check bench bench-llm changelog proto clean

# The demonstrations need a fraction of what the tests do, which is most of their time on a fresh machine.
$(VENV)/.ready-demo $(VENV)/.ready-dev: $(VENV)/.ready-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "naiad needs Python 3.10 or newer to run its host; $(PYTHON) is `$(PYTHON) -V`. Set PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group $*
	touch $@

demo: $(VENV)/.ready-demo  ## The main job on real input, in under five minutes
	$(BIN)/python examples/demo/demo.py

demo-llm: $(VENV)/.ready-demo  ## Language models, asked by OpenAI's client, in under three minutes
	$(BIN)/python examples/demo/demo_llm.py

test: $(VENV)/.ready-dev  ## Every test; TESTS='-m "not slow"' leaves some out
	$(BIN)/python -m pytest $(PARALLEL) $(TESTS)

quick: $(VENV)/.ready-dev  ## The tests that start no server process, and a few that do
	$(BIN)/python -m pytest $(PARALLEL) -m "smoke or not (slow or server)"

check: $(VENV)/.ready-dev  ## Linter, formatter and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready-dev  ## Beside the real Triton; writes docs/benchmarks.md
	$(BIN)/python -m bench

bench-llm: $(VENV)/.ready-dev  ## Language models beside their engine and Triton; writes a section of that page
	$(BIN)/python -m bench.llm

changelog: $(VENV)/.ready-dev  ## Join docs/changes into CHANGELOG.md: make changelog VERSION=1.2.3
	$(BIN)/towncrier build --yes --version $(VERSION)

proto:  ## Regenerate *_pb2.py from our .proto files (protoc 25, which every protobuf >= 4.25 can load)
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/pip install --quiet "grpcio-tools==1.62.3" "mypy-protobuf==3.6.0" "setuptools<80"
	cd platform && PATH=$(CURDIR)/.venv-proto/bin:$$PATH ../.venv-proto/bin/python -m grpc_tools.protoc -I. --python_out=. --mypy_out=. `find naiad -name '*.proto'`
	rm -rf .venv-proto

clean:
	rm -rf $(VENV) .venv-proto .demo .bench build dist
