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

# put_all FROM TO: what cargo has built, as it is installed.
define put_all
@mkdir -p $(2)/bin $(2)/lib/resurgo
@$(call put,$(1)/libresurgo_fi.so,$(2)/lib/resurgo/libresurgo-fi.so)
@$(call put,$(1)/libresurgo_ft.so,$(2)/lib/resurgo/libresurgo-ft.so)
@$(call put,$(1)/libresurgo_pmpi.so,$(2)/lib/resurgo/libresurgo-pmpi.so)
@$(call put,$(1)/resurgo,$(2)/bin/resurgo)
@$(call put,$(1)/resurgo-sim,$(2)/lib/resurgo/resurgo-sim)
endef

build: toolchain ## build/bin/resurgo and build/lib/resurgo/libresurgo-fi.so
	cargo build --release --locked
	$(call put_all,$(CARGO_TARGET_DIR)/release,build)
	@mkdir -p build/include && ln -sfn ../../crates/ft/include build/include/resurgo
	@ln -sfn ../../../python build/lib/resurgo/python
	@mkdir -p build/share && ln -sfn ../.. build/share/resurgo
	@scripts/install.sh pages

# glibc 2.28 is what MPICH's wheel needs. The programs are stripped; a list of what is linked into them is in them.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
TRIPLE := x86_64-unknown-linux-gnu
wheel: export PATH := $(RESURGO_DEPS)/tools/bin:$(RESURGO_DEPS)/wheel/bin:$(PATH)
wheel: export CARGO_PROFILE_RELEASE_STRIP := symbols
wheel: export CARGO_PROFILE_RELEASE_DEBUG := 0
wheel: ## dist/resurgo-VERSION-py3-none-manylinux_2_28_x86_64.whl, for pip install
	@scripts/setup.sh wheel
	cargo auditable zigbuild --release --locked --target $(TRIPLE).2.28
	$(call put_all,$(CARGO_TARGET_DIR)/$(TRIPLE)/release,build/wheel)
	@scripts/notices.sh $(TRIPLE) build/wheel
	scripts/wheel.py --build build/wheel --notices build/wheel/THIRD-PARTY --sbom build/wheel/sbom.json
	auditwheel show dist/resurgo-*-manylinux_2_28_x86_64.whl

deb: build ## dist/resurgo_VERSION_amd64.deb, for Debian and its relatives
	packaging/deb.sh

tarball: ## dist/resurgo-VERSION.tar.gz: the sources as committed, for Spack and EasyBuild
	@mkdir -p dist
	git archive --prefix=resurgo-$(VERSION)/ -o dist/resurgo-$(VERSION).tar.gz HEAD

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
	@VIRTUAL_ENV=$(RESURGO_DEPS)/mpich PATH="$(RESURGO_DEPS)/mpich/bin:$$PATH" build/bin/resurgo demo $(if $(STEPS),--steps $(STEPS))

test: setup ## all tests but the long ones
	@$(MAKE) --no-print-directory build
	cargo test --locked --workspace
	$(PROGRAMS)
	$(PYTHON) tests/gate.py

SEEDS ?= 200000
# Of image files, of each of four kinds.
MUTANTS ?= 300000
FUZZ ?= 20000
# Of each long test, drawn at random by SEED; nothing: all of them, which takes a day.
CASES ?= 4
# Of the jobs with random kills; nothing: the tests' own.
KILLS ?=
SEED ?=
ROUNDS ?=
soak: ## the long tests: SEEDS=200000 of the simulator; MUTANTS=300000 of image files; FUZZ=20000 inputs a protocol; CASES=4 of each long test; KILLS= a job, SEED=, ROUNDS=
	scripts/setup.sh s3
	[ "$$(id -u)" -ne 0 ] || { scripts/setup.sh web && scripts/setup.sh packaging; }
	@$(MAKE) --no-print-directory build
	cargo run --release --locked -p resurgo-sim -- --seeds $(SEEDS)
	cargo run --release --locked -p resurgo-sim -- --mutations --seeds 30000
	MUTANTS=$(MUTANTS) SEED=$(or $(SEED),7) cargo test --locked -p resurgo-image -- --ignored many_mutants
	FUZZ=$(FUZZ) SEED=$(or $(SEED),7) cargo test --locked -p resurgo-runtime fuzz
	$(PROGRAMS)
	$(PYTHON) -m pytest -n 2 --dist loadfile tests -m soak $(if $(CASES),--cases $(CASES)) \
		$(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench: setup ## the figures: ratios to plain MPICH, and time against the number of kills
	@$(MAKE) --no-print-directory build
	$(PROGRAMS)
	$(PYTHON) bench/run.py all

lint: toolchain ## formatting and lints
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

docs: ## build/site: the documentation as a site that needs no server; every link is checked
	@scripts/setup.sh docs
	NO_MKDOCS_2_WARNING=1 $(RESURGO_DEPS)/docs/bin/mkdocs --quiet build --strict
	@echo "open build/site/index.html"

clean: ## remove what was built; what set-up has brought stays in .deps
	cargo clean
	rm -rf build dist bench/out tests/.pytest_cache

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## /\1\t/p' Makefile | expand -t 10

.PHONY: build wheel deb tarball install uninstall toolchain setup programs demo test soak bench docs lint clean help
