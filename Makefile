# Every target sets up what it needs in .venv; given are only Python 3.10 to 3.14 and a package index.
#   make demo      compile, run and check a small model          make lint    ruff and mypy
#   make test      lint and the test suite                       make bench   race against other runtimes
#   make test-all  the test suite with more sizes and seeds
#   make conformance   ONNX's own 2,000 tests       make mutations   500 damaged ONNX files
#   make work      500 random chains of operators: what their kernels execute
#   make conformance-open   the node tests of ONNX, each compiled once for a range of sizes
#   make conformance-opencl, conformance-vulkan   the node tests on a device
#   make bench-gpu the models on every GPU that has a driver, kernels beside cuBLAS and FlashAttention on NVIDIA's
#   make open-dims 300 random graphs with open dimensions against ONNX Runtime
#   make hard-numbers 100,000 random chains on NaN, infinities, ties and ends of types, then each operator of ONNX and PyTorch
#   make fuzz-open 1,000 random models of NNSmith with open batch against ONNX Runtime
#   make rtl-test  100 random layers on the RTL of systolic32 at 32x32 (needs verilator)
#   make rtl-fpga  that RTL at 4x4 placed and routed for an ECP5 (needs yosys)
#   make docs      the site of the documentation, into out/site
#   make llm-interleavings   3 x 10,000 random interleavings of the engine of language models: fake, dense, hybrid
#   make fuzz      3,000 random models against ONNX Runtime (which can run two thirds of them)
# Variables: PYTHON (the interpreter that makes .venv), CONSTRAINTS (a file with the builds to install), PYTEST_ARGS,
# BENCH_ARGS, FUZZ_COUNT, FUZZ_SECONDS, HARD_ARGS.

PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
PYTEST_ARGS ?=
BENCH_ARGS ?= --short
FUZZ_COUNT ?= 3000
FUZZ_SECONDS ?= 3600
HARD_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --no-compile -c $(CONSTRAINTS)
# bytecode of what is installed, on all cores. A third of it, transformers' models and the tests of packages, is left to
# whoever imports it. Modules for other versions of Python do not compile: no fault
BYTECODE := $(BIN)/python -m compileall -qq -j 0 -x '/transformers/models/|/tests/' $(VENV)/lib || true
# kernels that the tests compile stay out of the user's cache
TEST_CACHE := $(CURDIR)/$(VENV)/test-cache
# the tests run in a process a core, two to four of them: each compiles and computes with one thread
TEST_WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 2 ? 2 : n > 4 ? 4 : n)))
TEST_ENV := TILEWRIGHT_CACHE=$(TEST_CACHE) TILEWRIGHT_JOBS=1 OMP_NUM_THREADS=1

# hundreds of processes of the tests import the package: its modules are compiled to bytecode once
unexport PYTHONDONTWRITEBYTECODE

.PHONY: llm-interleavings demo test test-all test-models test-boards lint format docs conformance conformance-open conformance-opencl conformance-vulkan mutations fuzz fuzz-open hard-numbers work open-dims rtl-test rtl-fpga bench bench-gpu models wheel clean
.DEFAULT_GOAL := demo

demo: $(VENV)/with-demo
	@$(BIN)/python examples/digits/demo.py

lint: $(VENV)/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/with-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# a link that leads nowhere is an error
docs: $(VENV)/with-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# mypy, which takes a minute of one core, runs beside the tests
test: $(VENV)/with-models
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@rm -rf $(TEST_CACHE)
	@$(BIN)/mypy >$(VENV)/mypy.txt & types=$$!; \
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(TEST_WORKERS) --thinned $(PYTEST_ARGS); failed=$$?; \
	wait $$types || { cat $(VENV)/mypy.txt; failed=1; }; exit $$failed

# with the sizes, seeds and models that `make test` leaves out (tests/support/thinned.py)
test-all: $(VENV)/with-models
	@rm -rf $(TEST_CACHE)
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(TEST_WORKERS) $(PYTEST_ARGS)

# the large models too (3 GB of files, 8 GB of memory)
test-models: $(VENV)/with-models
	$(TEST_ENV) $(BIN)/python -m pytest -q -m "big or not big" tests/models $(PYTEST_ARGS)

# models on the simulated boards of QEMU (minutes; needs qemu and lld)
test-boards: $(VENV)/with-models
	$(TEST_ENV) $(BIN)/python -m pytest -q -m "qemu or not qemu" tests/targets $(PYTEST_ARGS)

# ONNX's own tests, all of them, with an empty kernel cache; writes docs/onnx_conformance.md
conformance: $(VENV)/with-dev
	$(BIN)/python tests/conformance/onnx/run.py --report docs/onnx_conformance.md

# the same tests of operators on a device of OpenCL or Vulkan (its driver must be there: see docs/gpu.md)
conformance-opencl: $(VENV)/with-dev
	$(BIN)/python tests/conformance/onnx/run.py --kinds node --target opencl --report docs/onnx_opencl.md

conformance-vulkan: $(VENV)/with-dev
	$(BIN)/python tests/conformance/onnx/run.py --kinds node --target vulkan --report docs/onnx_vulkan.md

# ONNX's node tests with open dimensions; writes docs/onnx_open_dimensions.md
conformance-open: $(VENV)/with-fuzz
	$(BIN)/python tests/conformance/onnx/run_open.py --report docs/onnx_open_dimensions.md

# damaged ONNX files: each must end in a clear error, or work
mutations: $(VENV)/with-dev
	$(BIN)/python tests/conformance/onnx/mutations.py

# random models of NNSmith, always the same ones, against ONNX Runtime
fuzz: $(VENV)/with-fuzz
	$(BIN)/python tests/fuzz/nnsmith_models.py out/fuzz --count $(FUZZ_COUNT) --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/differential.py out/fuzz --seconds $(FUZZ_SECONDS)

# random chains of operators, always the same ones: what their kernels execute beside what was asked
work: $(VENV)/with-dev
	$(BIN)/python tests/fuzz/random_chains.py --count 500

# prefix reuse, drafts, preemption, cancellation in random order: tokens must be those of plain decoding
llm-interleavings: $(VENV)/with-dev
	$(BIN)/python tests/llm/interleavings.py 10000
	$(BIN)/python tests/llm/interleavings.py 10000 --model dense
	$(BIN)/python tests/llm/interleavings.py 10000 --model hybrid

# random graphs with open dimensions, always the same ones, against ONNX Runtime
open-dims: $(VENV)/with-fuzz
	$(BIN)/python tests/fuzz/open_dimensions.py --count 300

# NNSmith's models with their first dimensions open, always the same ones, against ONNX Runtime
fuzz-open: $(VENV)/with-fuzz
	$(BIN)/python tests/fuzz/nnsmith_models.py out/fuzz --count 1000 --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/nnsmith_open.py out/fuzz --count 1000 --seconds $(FUZZ_SECONDS)

# chains on hard numbers against NumPy, always the same ones; it goes on where it was stopped (100,000 take two hours of a
# core; FUZZ_SECONDS=20000 HARD_ARGS="--target cpu c opencl vulkan" runs them on devices too)
hard-numbers: $(VENV)/with-fuzz
	mkdir -p out
	$(BIN)/python tests/fuzz/hard_numbers.py --count 100000 --seconds $(FUZZ_SECONDS) --save out/hard_numbers --resume out/hard_numbers.jsonl $(HARD_ARGS)
	$(BIN)/python tests/fuzz/hard_operators.py --seconds $(FUZZ_SECONDS)
	$(BIN)/python tests/fuzz/hard_op_db.py --seconds $(FUZZ_SECONDS)

# random layers and programs on the RTL of systolic32, against the simulators
rtl-test: $(VENV)/with-dev
	$(BIN)/python tests/fuzz/systolic_rtl.py --array 32 --layers 100 --programs 50 --folder out/rtl

# the RTL at 4x4 on an FPGA; writes docs/chips/systolic32_fpga.md
rtl-fpga: $(VENV)/with-rtl
	$(BIN)/python rtl/systolic32/fpga/place.py --array 4 --report docs/chips/systolic32_fpga.md

bench: $(VENV)/with-bench
	$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

bench-gpu: $(VENV)/with-bench
	$(BIN)/python benchmarks/gpu.py $(BENCH_ARGS)

models: $(VENV)/with-models
	$(BIN)/python benchmarks/models.py

wheel: $(VENV)/python-ok
	$(PIP) wheel --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist out *.egg-info benchmarks/models .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the environment ----

$(VENV)/python-ok:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' || { \
	  echo "Tilewright needs Python 3.10 to 3.14; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# .venv/with-EXTRA: the project itself (editable) with one extra of pyproject.toml
$(VENV)/with-demo $(VENV)/with-dev $(VENV)/with-docs: $(VENV)/with-%: pyproject.toml $(CONSTRAINTS) | $(VENV)/python-ok
	@echo "installing tilewright and its extra '$*' into $(VENV) ..."
	@$(INSTALL) -e '.[$*]'
	@$(BYTECODE)
	@touch $@

$(VENV)/with-models $(VENV)/with-bench $(VENV)/with-fuzz $(VENV)/with-rtl: $(VENV)/with-%: pyproject.toml $(CONSTRAINTS) | $(VENV)/python-ok
	@echo "installing tilewright and its extras 'dev' and '$*' into $(VENV) ..."
	@$(INSTALL) -e '.[dev,$*]'
	@$(BYTECODE)
	@touch $@
