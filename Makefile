# Every target does the set-up it needs.

# A rustup of this user may not be in PATH yet.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo install package package-test publish-check test compat miri soft-roce cluster hardware-check bench compare compare-transports performance-docs gpu-bundle usage header-time explore cross fmt clean

help: ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 26

setup: ## Install what building needs: system packages, Rust, the CUDA compiler (idempotent)
	@scripts/setup

# Without an NVIDIA GPU neither its compiler is fetched nor device code compiled that could not run.
demo: export OXSHMEM_CUDA := $(or $(OXSHMEM_CUDA),$(if $(wildcard /proc/driver/nvidia/version /dev/dxg),,0))
demo: setup ## Two PEs on this machine: bandwidth and message rate through P2P, IBGDA and IBRC, data verified
	@cargo run --release -p oxshmem-perftest --bin demo

install: setup ## Libraries, headers, programs and packages, and what programs for NVSHMEM build against: PREFIX=FOLDER
	@scripts/install "$(or $(PREFIX),$(error install needs a folder: make install PREFIX=FOLDER))"

package: setup ## A tarball and a .deb, with a bill of materials and the licences; in target/package/out
	@scripts/package

package-test: ## Those packages, installed, used, upgraded and removed in a clean Debian; as root
	@scripts/package-test

publish-check: setup ## The crates packed, and built from their packages, as publishing does; uploads nothing
	@scripts/publish-check

test: setup ## Formatting, lints, docs, all tests, a few seconds of fuzzing
	@scripts/test

compat: setup ## Programs written for NVSHMEM, built by NVSHMEM_HOME alone, and run where there are GPUs: PES of them (2)
	@scripts/compat $(PES)

miri: setup ## What miri can run of the unit tests, under it
	@scripts/miri

soft-roce: setup ## On real verbs without RDMA hardware: IBRC in a QEMU guest with Soft-RoCE, with lost packets and a cut cable too
	@scripts/soft-roce-test

cross: setup ## Everything cross-compiled for aarch64, and conformance on the cpu device under qemu-user
	@scripts/aarch64

cluster: setup ## On a cluster in a box: four nodes in namespaces, under Slurm, Open MPI, MPICH and oxrun, over IBGDA and IBRC, with PEs that die
	@scripts/cluster --install
	@scripts/cluster-test

hardware-check: setup ## What this machine can do: the doctor, five questions to a card, conformance, figures, a verdict; results/hardware-check.tar.gz
	@cargo build --release --quiet -p oxshmem -p oxshmem-info -p oxshmem-tests -p oxshmem-perftest --bins
	@# Not by cargo run, which would compile the library once more, with the features of one package.
	@"$$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')"/release/gpu-bundle-run \
		hardware-check --out results/hardware-check

bench: setup ## All benchmarks; results in results/
	@scripts/bench

compare: setup ## Side by side with NVSHMEM on this machine's GPUs, collectives with NCCL and torch, too; JSON and plots in results/
	@mkdir -p results
	@scripts/compare --json results/compare.jsonl --plot results/compare.svg
	@scripts/compare --collectives --json results/collectives.jsonl --plot results/collectives.svg

compare-transports: setup ## IBGDA beside IBRC on this machine; JSON and a plot in results/
	@mkdir -p results
	@cargo run --release --quiet -p oxshmem-perftest --bin compare_transports -- --json results/transports.jsonl --plot results/transports.svg

performance-docs: setup ## Make the tables and plots of docs/performance.md and docs/notes/figures.md from perftest/baselines
	@cargo run --release --quiet -p oxshmem-perftest --bin performance_docs

gpu-bundle: setup ## Build and pack what a machine with GPUs needs; there: ./gpu-bundle/run
	@scripts/gpu-bundle

usage: setup ## Registers, stack and spills of the library's device functions
	@scripts/usage

header-time: setup ## How long a kernel with the device headers takes to compile
	@scripts/header-time

explore: setup ## The device headers under many schedules: SECONDS for each program (20), seeds from SEED on (1)
	@OXSHMEM_CUDA=0 cargo run --release --quiet -p oxshmem-explore -- --seconds $(or $(SECONDS),20) --seed $(or $(SEED),1)

fmt: ## Format Rust, C++ and CUDA sources, and fold long paragraphs of comments and Markdown
	@cargo run --quiet -p oxshmem-prose
	@cargo fmt --all
	@scripts/clang-format -i

clean: ## Remove what was built; the CUDA compiler in .toolchain stays
	@cargo clean
