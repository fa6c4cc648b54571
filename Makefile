# Everything this repository does from the command line. `make` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# How long `make fuzz` attacks each target, in seconds.
FUZZ_SECONDS ?= 60
# The longest input that it makes, in bytes; empty for that of the target's corpus. Shorter ones make more runs, which reach less far.
FUZZ_LENGTH ?=

FIRMWARE := --manifest-path lock-proto/firmware/Cargo.toml
BENCH := --manifest-path examples/bench/Cargo.toml
EMBEDDING := --manifest-path examples/embedding/Cargo.toml
PROOF := --manifest-path lock-proto/no-std-proof/Cargo.toml
STORES := --manifest-path lock-tokio/stores/Cargo.toml
HAS_FUZZ = $(CARGO) +nightly fuzz --version >/dev/null 2>&1

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Run the demonstration on five simulated servers: contenders, a dead server, a stalled holder. Needs nothing installed.
	$(CARGO) run --quiet --bin demo

# A first build gains nothing from incremental compilation.
test: export CARGO_INCREMENTAL := 0
# Most tests of programs and adapters wait for time to pass: more of them at once than there are processors.
test unit embedding stores test-stores: export RUST_TEST_THREADS ?= 8
# Some tests block a thread of async-std's executor, which all tests of a program share.
test unit: export ASYNC_STD_THREAD_COUNT ?= 8
.PHONY: test
test: servers lint unit doc no-std embedding stores bench-check fuzz-short ## Check everything but examples/bench, the firmware and examples/own-lock/fuzz. CI runs this. Installs the servers it needs if they are missing.
	@echo "make test: all passed"

# The server, and the peers of the tests: Curator, which is compiled against, and kazoo.
ZOOKEEPER := java javac $(addprefix /usr/share/java/,zookeeper.jar curator-recipes.jar) /usr/lib/python3/dist-packages/kazoo

.PHONY: servers
servers: ## Install redis-server, etcd, ZooKeeper, its peers, haproxy and Postgres from the system's packages if they are missing.
	@.ci/install redis-server redis-cli etcd etcdctl haproxy initdb $(ZOOKEEPER)

.PHONY: lint
lint: ## Formatting, clippy, file sizes, rules for the adapters, citations of the specification, links, licences.
	$(CARGO) fmt --all --check
	$(CARGO) fmt $(PROOF) --check
	$(CARGO) fmt $(FIRMWARE) --check
	$(CARGO) fmt $(BENCH) --check
	$(CARGO) fmt $(EMBEDDING) --check
	$(CARGO) fmt $(STORES) --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	@# All combinations: .github/workflows/ci.yml.
	for features in '' redis,etcd,zookeeper register; do \
		$(CARGO) clippy -p lock-proto --no-default-features --features "$$features" -- -D warnings; \
	done
	$(CARGO) clippy -p lock-driver --no-default-features -- -D warnings
	for features in redis etcd register zookeeper,tls; do \
		$(CARGO) clippy -p lock-driver -p lock-tokio -p lock-smol --no-default-features --features "$$features" -- -D warnings; \
	done
	.ci/check-lines
	.ci/check-adapters
	.ci/check-layers
	.ci/check-spec
	.ci/check-links
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --all-features check; \
	else echo "cargo-deny is not installed: licences and sources of the dependencies are not checked (cargo install cargo-deny)"; fi

.PHONY: unit
unit: servers ## All tests of all crates and features, and the examples in the documentation.
	$(CARGO) test --workspace --all-features --no-fail-fast
	@# The black-box scenarios of with-lock once more on each of the other runtimes.
	for runtime in smol async-std blocking; do \
		LOCK_RUNTIME=$$runtime $(CARGO) test --workspace --all-features --no-fail-fast --test with_lock; \
	done

# redis-6.2 redis-system valkey-9 etcd-system etcd-3.5 zookeeper-system zookeeper-3.9; empty for all.
VERSIONS ?=

.PHONY: matrix
matrix: export RUST_TEST_THREADS ?= 8
matrix: servers ## Run lock-tokio's tests on Redis 6.2, Valkey 9, etcd 3.5, ZooKeeper 3.9 and the system's servers. Installs Python packages under target.
	.ci/matrix $(VERSIONS)

# The commit to compare with, and how many seeds of each scenario.
BASE ?= HEAD
SEEDS ?= 1000
.PHONY: digests
digests:
	$(CARGO) test -p lock-sim --test scenarios -- --quiet --ignored --exact same::digests

.PHONY: same-runs
same-runs: ## Run SEEDS (1000) seeds of each scenario here and at BASE (HEAD): "facts" are requests and events, "log" every line.
	@mkdir -p target/same
	rm -rf target/same/base && git worktree prune && git worktree add --quiet --detach target/same/base $(BASE)
	LOCK_SEEDS=$(SEEDS) LOCK_DIGESTS=$(CURDIR)/target/same/here.txt $(MAKE) digests
	LOCK_SEEDS=$(SEEDS) LOCK_DIGESTS=$(CURDIR)/target/same/base.txt CARGO_TARGET_DIR=$(CURDIR)/target $(MAKE) -C target/same/base digests
	git worktree remove --force target/same/base
	diff target/same/base.txt target/same/here.txt && echo "the same: $$(wc -l <target/same/here.txt) scenarios of $(SEEDS) seeds, requests, events and logs"

.PHONY: doc
doc: ## Build the documentation; a warning is an error.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --all-features

.PHONY: no-std
no-std: ## Prove that the machines need no std.
	RUSTFLAGS="--cfg lock_bare_metal" $(CARGO) build $(PROOF) --target-dir target/bare

.PHONY: embedding
embedding: servers ## Run the programs that embed a machine under other clients, on real servers. Installs protoc.
	@.ci/install protoc /usr/include/google/protobuf
	$(CARGO) test $(EMBEDDING) --target-dir target

# Their libraries take minutes to build.
LATER := --exclude lock-kubernetes --exclude lock-nats --exclude lock-tools

.PHONY: stores
stores: servers ## Clippy and tests of what runs on databases: Postgres, SQLite, an object store in memory, Redis.
	$(CARGO) clippy $(STORES) --target-dir target --workspace $(LATER) --all-targets -- -D warnings
	$(CARGO) test $(STORES) --target-dir target --workspace $(LATER)

# Python packages with an S3.
MOTO := target/moto

.PHONY: test-stores
test-stores: stores ## The same, and on MariaDB, NATS, Leases of Kubernetes, an S3 in Python and behind PgBouncer, which are installed; with-lock and leader on these.
	@.ci/install mariadbd my_print_defaults pgbouncer nats-server
	@[[ -d $(MOTO)/moto ]] || python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target $(MOTO) 'moto[s3,server]==5.2.5'
	$(CARGO) clippy $(STORES) --target-dir target --workspace --all-targets --all-features -- -D warnings
	MOTO=$(CURDIR)/$(MOTO) $(CARGO) test $(STORES) --target-dir target --workspace --all-features -- --include-ignored

.PHONY: corpus
corpus: ## Replay what fuzzing has found so far.
	$(CARGO) test -p lock-fuzz

.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZ_SECONDS (60), with FUZZ_LENGTH bytes at most. Needs a nightly toolchain and cargo-fuzz.
	@$(HAS_FUZZ) || { echo "needs: rustup toolchain install nightly && cargo install cargo-fuzz" >&2; exit 1; }
	targets=$$($(CARGO) +nightly fuzz list); \
	for target in $$targets; do CARGO=$(CARGO) .ci/fuzz "$$target" $(FUZZ_SECONDS) $(FUZZ_LENGTH); done

# A file in a folder of fuzz/corpus or fuzz/artifacts; FLAW=redis-deletes-anything plants a flaw, SHRINK=1 makes the run smaller first.
INPUT ?=
FLAW ?=
SHRINK ?=
TIMELINE ?= target/timeline.html

.PHONY: replay
replay: ## Play the fuzz input INPUT: as text, and for worlds as a picture in target/timeline.html. FLAW and SHRINK: see fuzz/README.md.
	@[[ -n "$(INPUT)" ]] || { echo "usage: make replay INPUT=fuzz/artifacts/TARGET/crash-… [FLAW=NAME] [SHRINK=1]" >&2; exit 1; }
	@shown=$$($(if $(FLAW),LOCK_FLAW=$(FLAW)) $(if $(SHRINK),LOCK_SHRINK=1) $(CARGO) run --quiet -p lock-fuzz --bin replay -- "$(INPUT)") || [[ $$? -eq 1 ]]; \
	echo "$$shown"; \
	draw=$$(sed -n 's/^draw it: cargo //p' <<<"$$shown"); \
	if [[ -n $$draw ]]; then $(CARGO) $${draw/run /run --quiet } --out $(TIMELINE) | tail -1 || [[ $$? -eq 1 ]]; fi

.PHONY: fuzz-coverage
fuzz-coverage: ## Lines that the corpora execute, by file: target/fuzz-coverage and docs/notes/fuzz-coverage.md. Needs nightly and cargo-fuzz.
	@$(HAS_FUZZ) || { echo "needs: rustup toolchain install nightly && cargo install cargo-fuzz" >&2; exit 1; }
	.ci/fuzz-coverage --page docs/notes/fuzz-coverage.md

.PHONY: fuzz-short
fuzz-short:
	@if $(HAS_FUZZ); then $(MAKE) fuzz FUZZ_SECONDS=5; \
	else echo "no nightly toolchain with cargo-fuzz: the bounded fuzz run is skipped, the corpora were replayed"; fi

# One of 16 parts, every sixteenth mutant; empty for all, which takes a day.
MUTANTS_SHARD ?= 0/16
MUTANTS_OUT ?= target/mutants
# More for cargo-mutants: `--in-place`, `--re NAME`.
MUTANTS_ARGS ?=

.PHONY: mutants
mutants: ## Change the machines in one place at a time: does a test fail? Part MUTANTS_SHARD (0/16; empty for all). Needs cargo-mutants.
	@$(CARGO) mutants --version >/dev/null 2>&1 || { echo "needs: cargo install cargo-mutants" >&2; exit 1; }
	mkdir -p $(MUTANTS_OUT)
	@# Processor time in seconds and memory in bytes, of each test binary: so ends a mutant that loops for ever, and counts as caught.
	env CARGO_TARGET_$$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER="prlimit --cpu=120 --as=4000000000" \
		nice -n 19 $(CARGO) mutants --package lock-proto --output $(MUTANTS_OUT) $(MUTANTS_ARGS) \
		$(if $(MUTANTS_SHARD),--sharding round-robin --shard $(MUTANTS_SHARD))

.PHONY: bench
bench: servers ## Measure: the pure machines, the adapters, locks on Redis, etcd and ZooKeeper beside others, 100 000 locks. Some minutes.
	$(CARGO) bench -p lock-proto --bench machine --bench resp --bench timers --bench etcd_queue
	$(CARGO) bench -p lock-tokio -p lock-smol --features etcd --bench cycle
	$(CARGO) run --release $(BENCH) --bin uncontended
	$(CARGO) run --release $(BENCH) --bin many
	$(CARGO) run --release $(BENCH) --bin etcd
	$(CARGO) run --release $(BENCH) --bin zookeeper
	$(CARGO) run --release $(BENCH) --bin tls

# CLIENTS:HOLD[:SECONDS[:ROUNDS]] …, the hold in milliseconds; empty for all.
WAITERS ?=

.PHONY: bench-waiters
bench-waiters: servers ## Measure 100 to 1 000 clients that want one etcd lock beside etcd's own Go mutex. Installs Go. Some minutes.
	@.ci/install go /usr/share/gocode/src/go.etcd.io/etcd/clientv3
	$(CARGO) run --release $(BENCH) --bin waiters -- $(WAITERS)

GAUGE := run --quiet -p lock-gauge --profile gauge --bin

.PHONY: bench-check
bench-check: ## Count instructions (by valgrind) and allocations of the machines; more than the limits allow is an error.
	@.ci/install valgrind
	@# Run both, so that every raised figure is reported.
	failed=; for figures in allocations instructions; do $(CARGO) $(GAUGE) $$figures || failed=yes; done; [[ -z $$failed ]]

.PHONY: sizes
sizes: ## Measure the machines: flash on a Cortex-M4, memory of a lock, stack. Downloads Debian's rustc if the toolchain lacks the target.
	@.ci/install valgrind
	@.ci/sizes

.PHONY: bench-limits
bench-limits: ## Set the limits of bench-check to what is counted now, and a little room.
	@.ci/install valgrind
	$(CARGO) $(GAUGE) allocations -- set
	$(CARGO) $(GAUGE) instructions -- set

# The crate etcd-client is compiled with protoc; without it the report is made without that crate.
REPORT_FEATURES := $(shell command -v protoc >/dev/null 2>&1 && echo --features etcd-client)

.PHONY: report
report: servers ## Measure locks under contention, ours and other libraries', into target/report/report.html. Some minutes.
	$(CARGO) run --release $(BENCH) $(REPORT_FEATURES) --bin contention -- report --out target/report
