# `make demo` and `make test` set everything up by themselves: all they need is Python 3.11+, git and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS := $(VENV)/.docs
ENGINES := $(VENV)/.engines

.PHONY: demo docs engines test kernels-test oldest check fix mutants benchmarks clean

demo: $(READY)
	$(BIN)/grainline demo --out out/demo

# A file of tests goes to one process as a whole, so that what its tests share is made once. Compiled tests are
# cached, whatever the environment says: 8 seconds for each process.
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY) $(ENGINES)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

# Some tests with the oldest torch, in an environment of its own.
oldest:
	bash .ci/oldest

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fix: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Kernels in Triton's interpreter, and compiled for GPUs: two minutes, in an environment with the extra `kernels`.
kernels-test: $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,kernels]"
	GRAINLINE_KERNELS=interpret TRITON_INTERPRET=1 $(BIN)/python -m pytest -q -n 2 tests/test_kernels.py
	$(BIN)/python -m pytest -q -n 2 tests/test_kernels.py

# Plants faults one at a time; the tests must catch each. A quarter of an hour at most on two cores, and outside CI.
mutants: $(READY)
	$(BIN)/python tests/mutants.py

# The site in build/site; a broken link, or a notebook that fails, fails it.
docs: $(DOCS)
	$(BIN)/python -m mkdocs build --strict

benchmarks: $(READY)
	for file in benchmarks/bench_*.py; do $(BIN)/python -m benchmarks.$$(basename $$file .py) || exit 1; done

# Set up once, and again when a dependency changes. The marker is written last: a broken install is made anew.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "grainline needs Python 3.11 or newer; found $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

# What tests of engines use: an S3 server and Ray. It takes a minute, and is apart, for it changes python-dateutil.
engines: $(ENGINES)

$(ENGINES): $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev,remote,ray]" "moto[server]>=5.2,<6"
	@touch $@

$(DOCS): $(READY)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache
