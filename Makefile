# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up; `make help` lists them.
#
# RESURGO_DEPS      where Python environments and sources are or go (default: .deps here)
# CARGO_TARGET_DIR  where cargo builds (default: target)

export RESURGO_DEPS := $(abspath $(or $(RESURGO_DEPS),.deps))
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export PATH := $(PATH):$(HOME)/.cargo/bin

export PREFIX ?= /usr/local
export DESTDIR ?=
PYTHON := $(RESURGO_DEPS)/mpich/bin/python
PROGRAMS := $(MAKE) --no-print-directory -C tests/programs BUILD=$(CURDIR)/build/programs DEPS=$(RESURGO_DEPS)

# put FILE AS: by a rename, and only what has changed: whoever runs the old file keeps it.
put = cmp -s $(1) $(2) || { cp $(1) $(2).new.$$$$ && chmod 755 $(2).new.$$$$ && mv -f $(2).new.$$$$ $(2); }

build: toolchain ## build/bin/resurgo and build/lib/resurgo/libresurgo-fi.so
	cargo build --release --locked
	@mkdir -p build/bin build/lib/resurgo
	@$(call put,$(CARGO_TARGET_DIR)/release/libresurgo_fi.so,build/lib/resurgo/libresurgo-fi.so)
	@$(call put,$(CARGO_TARGET_DIR)/release/resurgo,build/bin/resurgo)
	@$(call put,$(CARGO_TARGET_DIR)/release/resurgo-sim,build/lib/resurgo/resurgo-sim)
	@mkdir -p build/share && ln -sfn ../.. build/share/resurgo

install: build ## into PREFIX (default /usr/local); DESTDIR is put before it
	@scripts/install.sh install

uninstall: ## what is installed in PREFIX, with DESTDIR before it, is removed
	@scripts/install.sh uninstall

# A C compiler, to link with, and cargo are all that building needs; the set-up brings the one and names the other.
toolchain:
	@scripts/setup.sh toolchain

setup: ## packages (as root on Debian), Python environments with MPI libraries, test suites
	scripts/setup.sh

programs: setup
	$(PROGRAMS)

# The set-up goes first, also with -j: it brings the linker.
demo: ## a real program under plain MPICH and under resurgo; a rank is killed
	@scripts/setup.sh demo
	@$(MAKE) --no-print-directory build
	@$(PROGRAMS) $(CURDIR)/build/programs/heat
	scripts/demo.sh

test: setup ## all tests but the long ones
	@$(MAKE) --no-print-directory build
	cargo test --locked --workspace
	$(PROGRAMS)
	$(PYTHON) -m pytest tests

SEEDS ?= 200000
# Of image files, of each of four kinds.
MUTANTS ?= 300000
FUZZ ?= 20000
# Of the jobs with random kills; nothing: the tests' own.
KILLS ?=
SEED ?=
ROUNDS ?=
soak: setup ## the long tests: SEEDS=200000 of the simulator; MUTANTS=300000 of image files; FUZZ=20000 inputs a protocol; KILLS= a job, SEED=, ROUNDS=
	@$(MAKE) --no-print-directory build
	cargo run --release --locked -p resurgo-sim -- --seeds $(SEEDS)
	cargo run --release --locked -p resurgo-sim -- --mutations --seeds 30000
	MUTANTS=$(MUTANTS) SEED=$(or $(SEED),7) cargo test --locked -p resurgo-image -- --ignored many_mutants
	FUZZ=$(FUZZ) SEED=$(or $(SEED),7) cargo test --locked -p resurgo-runtime fuzz
	$(PROGRAMS)
	$(PYTHON) -m pytest tests -m soak $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(ROUNDS),--rounds $(ROUNDS))

bench: setup ## the figures: ratios to plain MPICH, and time against the number of kills
	@$(MAKE) --no-print-directory build
	$(PROGRAMS)
	$(PYTHON) bench/run.py all

lint: toolchain ## formatting and lints
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

clean: ## remove what was built; what set-up has brought stays in .deps
	cargo clean
	rm -rf build bench/out tests/.pytest_cache

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile | expand -t 10

.PHONY: build install uninstall toolchain setup programs demo test soak bench lint clean help
