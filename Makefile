# Two commands do everything on a fresh machine with Python >= 3.11, a C++ compiler and make:
#   make quickstart    set up, then run the main job on synthetic click data
#   make test          set up, then run the tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The editable install lists the modules it finds: a new one, or a change of the native code, installs it again.
NATIVE := CMakeLists.txt pyproject.toml $(wildcard csrc/*.* csrc/kernels/*)
MODULES := $(shell find hybridrec -name '*.py' | LC_ALL=C sort | cksum | cut -d' ' -f1)
EDITABLE := $(PIP) --no-build-isolation --editable

.PHONY: quickstart test test-slow test-native test-gpu lint format bench bench-gpu clean

quickstart: $(VENV)/installed-$(MODULES)
	$(BIN)/python -m recipes.quickstart

# Two processes share the tests, and take them from each other at the end. Threads of one that wait leave it the core:
# by default those of OpenMP spin, which takes half of the time of two processes on two cores.
PYTEST := OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest
SHARED := --numprocesses 2 --dist worksteal

test: $(VENV)/developed-$(MODULES)
	$(PYTEST) -m "not slow and not gpu" $(SHARED)

test-slow: $(VENV)/developed-$(MODULES)
	HYBRIDREC_LONG=1 $(PYTEST) -m "slow and not gpu" $(SHARED)
	$(MAKE) test-native

# The C++ core under sanitizers: its own tests (threads, addresses), then the Python tests that lean on it.
test-native: $(VENV)/developed-$(MODULES)
	$(BIN)/python -m tests.native
	$(BIN)/python -m tests.sanitized

# What needs a CUDA device; its kernels once more under compute-sanitizer.
test-gpu: $(VENV)/developed-$(MODULES)
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python tests/sanitized_gpu.py

lint: $(VENV)/developed-$(MODULES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/developed-$(MODULES)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/developed-$(MODULES)
	$(BIN)/python benchmarks/data.py --json --save
	$(BIN)/python benchmarks/embedding_cpu.py --json --save
	$(BIN)/python benchmarks/train_cpu.py --json --save
	$(BIN)/python benchmarks/disk.py --json --save
	$(BIN)/python benchmarks/planner.py --json --save
	$(BIN)/python benchmarks/parallel.py --json --save

bench-gpu: $(VENV)/developed-$(MODULES)
	$(BIN)/python benchmarks/embedding_gpu.py --json --save
	$(BIN)/python benchmarks/tiers_gpu.py --json --save
	$(BIN)/python benchmarks/train_gpu.py --json --save

# torch first and by its exact version, so that nothing else pulls another build of it.
$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	touch $@

$(VENV)/installed-$(MODULES): $(VENV)/torch $(NATIVE)
	$(PIP) scikit-build-core nanobind cmake ninja
	$(EDITABLE) .
	touch $@

$(VENV)/developed-$(MODULES): $(VENV)/torch $(NATIVE)
	$(PIP) scikit-build-core nanobind cmake ninja
	$(EDITABLE) '.[dev]'
	touch $@ $(VENV)/installed-$(MODULES)

clean:
	rm -rf $(VENV) build dist quickstart
