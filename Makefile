# One-word entries to everything; each does its own set-up. The build itself is CMake's: see docs/build.md.
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PREFIX ?= /usr/local
CTEST_ARGS ?=
BUILD := build/release
CPP_FILES = $(shell scripts/list-sources)
LABELS := ^(cpu|mpi|emulated)$$
FUZZ_SECONDS ?= 60
FUZZ_TARGETS := hf_config hf_index index jsonl manifest safetensors tokenizer_json
TEST = ctest --output-on-failure --no-tests=error -j $(shell expr 2 \* $(JOBS)) -L "$(LABELS)" $(CTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help bootstrap quickstart build test slow asan-slow emulated-slow long-context debug asan tsan tsan-layouts fuzz lint format tidy bench-cpu install clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

bootstrap:
	@scripts/bootstrap

quickstart: bootstrap  ## from a bare machine to a trained small Llama, its loss curve and a sample
	@cmake --preset release
	@cmake --build $(BUILD) -j $(JOBS) --target tera_app
	@scripts/quickstart $(BUILD)/bin/tera

build: bootstrap  ## the program, the library and the tests, optimised
	@cmake --preset release
	@cmake --build $(BUILD) -j $(JOBS)

test: build  ## from a bare machine to a passed test suite
	@$(MAKE) --no-print-directory run-lint
	@$(TEST) --test-dir $(BUILD)

# MPI libraries are not built for this sanitizer.
tsan: LABELS := ^cpu$$
SLOW = ctest --output-on-failure --no-tests=error -j $(shell expr 2 \* $(JOBS)) -L '^slow$$' $(CTEST_ARGS)
slow: build asan-slow  ## what no change waits for: whole lists of layouts, long sequences, all tests under asan
	@$(SLOW) --test-dir $(BUILD)

asan-slow: bootstrap  ## the tests that make asan leaves out
	@cmake --preset asan
	@cmake --build build/asan -j $(JOBS)
	@$(SLOW) --test-dir build/asan

# Those of ThreadSanitizer begin with the op tables; `make emulated-slow CTEST_ARGS='-R Planted'` runs only some.
emulated-slow: build  ## the CUDA backend on the CPU: races, strict order of memory, what of the GPU's tests takes minutes
	@cmake --preset tsan
	@cmake --build build/tsan -j $(JOBS) --target emulated_tests
	@ctest --test-dir build/tsan --output-on-failure -j $(JOBS) -L '^emulated_slow$$' $(CTEST_ARGS)
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS) -L '^emulated_slow$$' $(CTEST_ARGS)

long-context: bootstrap  ## sequences of 32,768 tokens on four ranks: the training of one, in memory that falls as planned
	@cmake --preset release
	@cmake --build $(BUILD) -j $(JOBS) --target long_context_test
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -R '^long_context$$' $(CTEST_ARGS)

# Only what runs threads that talk much; `make tsan` builds and runs everything.
tsan-layouts: bootstrap  ## ranks as threads under ThreadSanitizer: a dozen layouts; preprocessing; checkpoints
	@cmake --preset tsan
	@cmake --build build/tsan -j $(JOBS) --target thread_tests thread_checkpoint_tests
	@build/tsan/bin/thread_tests --gtest_brief=1 --gtest_filter='-SelfComm.*:SweepDraw.OneLayoutPerValue:*SweepPairs*'
	@build/tsan/bin/thread_checkpoint_tests --gtest_brief=1 --gtest_filter='*IntervalAndKeepLast:CheckpointLayouts.*'

# Inputs that reach new branches are kept in build/fuzz/kept; what fails is left as crash-NAME.
fuzz: bootstrap  ## wrong files of every kind, for FUZZ_SECONDS (60) each, under AddressSanitizer
	@cmake --preset fuzz
	@cmake --build build/fuzz -j $(JOBS) --target $(FUZZ_TARGETS:%=%_fuzz)
	@for name in $(FUZZ_TARGETS); do \
	  mkdir -p build/fuzz/kept/$$name && \
	  build/fuzz/bin/$${name}_fuzz --seconds $(FUZZ_SECONDS) --keep build/fuzz/kept/$$name fuzz/corpus/$$name build/fuzz/kept/$$name || exit 1; \
	done

debug asan tsan: bootstrap
	@cmake --preset $@
	@cmake --build build/$@ -j $(JOBS)
	@$(TEST) --test-dir build/$@
debug:  ## build without optimisation, poisoned arenas; test
asan:  ## build with AddressSanitizer and UndefinedBehaviorSanitizer; test
tsan:  ## build with ThreadSanitizer; test

.PHONY: run-lint
run-lint:
	@$(BUILD)/bin/tera_lint .
	@scripts/check-format
	@scripts/gpu-runs

lint: bootstrap  ## include order, house rules and formatting
	@cmake --preset release
	@cmake --build $(BUILD) -j $(JOBS) --target tera_lint
	@$(MAKE) --no-print-directory run-lint

format:  ## rewrite the sources as .clang-format says
	@scripts/bootstrap --dev
	@clang-format-14 -i $(CPP_FILES)

tidy:  ## clang-tidy over everything (slow)
	@scripts/bootstrap --dev
	@cmake --preset release
	@printf '%s\n' $(filter %.cpp,$(CPP_FILES)) | xargs -P $(JOBS) -n 4 clang-tidy-14 -p $(BUILD) --quiet

bench-cpu: build  ## time a training step against PyTorch on this machine's CPU
	@bench/cpu_vs_torch

install: build  ## into PREFIX (default /usr/local)
	@cmake --install $(BUILD) --prefix $(PREFIX)

clean:  ## remove everything that was built
	@rm -rf build
