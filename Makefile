# For users: `make demo`, `make demo-llm`, `make demo-ray` and `make test`. All make .venv themselves; only python3 (3.10+) is needed.
PYTHON ?= python3
# `make quick VENV=.venv-other PYTHON=/path/to/python3.13`: another Python, in an environment of its own.
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for servers: files run side by side, three at least. `make test PARALLEL=` runs them one after the other.
WORKERS := $(shell n=`getconf _NPROCESSORS_ONLN`; echo $$((n < 3 ? 3 : n > 4 ? 4 : n)))
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder
# Hundreds of servers are started from this checkout: without bytecode each would compile all of it.
export PYTHONDONTWRITEBYTECODE :=
# `make test PROCESSES=2`: servers under test serve their ports by so many processes.
export NAIAD_TEST_PROCESSES := $(PROCESSES)

.PHONY: demo demo-llm demo-ray quick test endurance system-packages mutation check docs bench bench-llm bench-scaling bench-declared bench-others gpu-check changelog proto clean

# The demonstrations need a fraction of what the tests do, which is most of their time on a fresh machine.
# What is there already is installed along, so that pip keeps versions that suit all: Ray alone would replace protobuf.
READY = $(patsubst $(VENV)/.ready-%,%,$(wildcard $(VENV)/.ready-*))
$(VENV)/.ready-demo $(VENV)/.ready-demo-ray $(VENV)/.ready-docs $(VENV)/.ready-dev: $(VENV)/.ready-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "naiad needs Python 3.10 or newer to run its host; $(PYTHON) is `$(PYTHON) -V`. Set PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . $(addprefix --group ,$(sort $* $(READY)))
	touch $@

demo: $(VENV)/.ready-demo  ## The main job on real input, in under five minutes
	$(BIN)/python examples/demo/demo.py

demo-llm: $(VENV)/.ready-demo  ## Language models, asked by OpenAI's client, in under three minutes
	$(BIN)/python examples/demo/demo_llm.py

demo-ray: $(VENV)/.ready-demo-ray  ## Two nodes of a Ray cluster under load: updates and a killed node; installs Ray (490 MB) first, and prints how long it took
	$(BIN)/python examples/demo/demo_ray.py

quick: $(VENV)/.ready-dev  ## The tests that start no process and build no environment
	$(BIN)/python -m pytest $(PARALLEL) -m "not (slow or server or builds or endurance)" $(TESTS)

test: $(VENV)/.ready-dev  ## Everything that says whether naiad works, the tests of `make quick` included
	@$(PYTHON) tests/support/system_packages.py --where-possible
	$(BIN)/python -m pytest $(PARALLEL) -m "not endurance" $(TESTS)

# WITHIN=300 skips tests that would begin after so many seconds; TURN=N begins at another file for each N.
endurance: $(VENV)/.ready-dev  ## Soaks, kill loops, floods, clusters, large environments, matrices of interpreters: before a release
	@$(PYTHON) tests/support/system_packages.py --where-possible
	$(BIN)/python -m pytest $(PARALLEL) -m "endurance or hypothesis" --hypothesis-profile=new $(if $(WITHIN),--within=$(WITHIN)) $(if $(TURN),--turn=$(TURN)) $(TESTS)

system-packages:  ## Programs of the system that some tests need (root and apt); without them these tests are skipped
	$(PYTHON) tests/support/system_packages.py

mutation: $(VENV)/.ready-dev  ## Faults that unit tests do not notice; ARGUMENTS="memory --count 40" chooses
	PYTHONPATH=tests $(BIN)/python -m mutation $(ARGUMENTS)

docs: $(VENV)/.ready-docs  ## The documentation as a site: build/site
	$(BIN)/python docs/make_site.py

check: $(VENV)/.ready-dev  ## Linter, formatter, spelling and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs examples backends envs platform stubs
	$(BIN)/mypy

bench: $(VENV)/.ready-dev  ## Beside the real Triton; writes bench/results.md
	$(BIN)/python -m bench

bench-llm: $(VENV)/.ready-dev  ## Language models beside their engine and Triton; writes a section of that page
	$(BIN)/python -m bench.llm

bench-scaling: $(VENV)/.ready-dev  ## Over the number of processes; writes a section of that page and a picture
	$(BIN)/python -m bench.scaling

bench-others: $(VENV)/.ready-dev  ## Beside FastAPI, LitServe, mosec, BentoML, MLServer and Ray Serve; writes a section of that page
	$(BIN)/python -m bench.others --write

# Without .venv, as on a borrowed machine that packages cannot be installed on, PYTHON must have naiad's dependencies.
gpu-check:  ## Tensors in GPU memory on this machine's GPU, in less than four minutes; prints a table
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m bench.gpu $(ARGUMENTS)

bench-declared: $(VENV)/.ready-dev  ## Environments that models declare: starts and disk space; prints tables
	$(BIN)/python -m bench.declared

changelog: $(VENV)/.ready-dev  ## Join docs/changes into CHANGELOG.md: make changelog VERSION=1.2.3
	$(BIN)/towncrier build --yes --version $(VERSION)

proto:  ## Regenerate *_pb2.py from our .proto files (protoc 25, which every protobuf >= 4.25 can load)
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/pip install --quiet "grpcio-tools==1.62.3" "mypy-protobuf==3.6.0" "setuptools<80"
	cd platform && PATH=$(CURDIR)/.venv-proto/bin:$$PATH ../.venv-proto/bin/python -m grpc_tools.protoc -I. --python_out=. --mypy_out=. `find naiad -name '*.proto'`
	rm -rf .venv-proto

clean:
	rm -rf $(VENV) .venv-* .demo .bench build dist
