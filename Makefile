# One command each: `make demo` runs the main job, `make test` proves it. Both set up whatever is missing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PY := .venv/bin/python
BUNDLE := build/bundles/smollm2
BUNDLE_F32 := build/bundles/smollm2-f32

.PHONY: help setup demo test check soak bench bench-setup protos clean native

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 13

setup: ## virtual environment, Bones in release mode, Triton's files, the SmolLM2 bundle
	@.ci/setup.sh

demo: setup ## starts a node, asks it a question, shows what happened, stops it
	@$(PY) -m tie.node.demo

test: setup ## everything that this machine can run
	@.ci/setup.sh --tests
	@.ci/tests.sh

check: setup ## lint, types and unit tests: the inner loop
	@$(PY) -m pytest tests/style tests/unit -n 2 -q

soak: setup ## the full counts of what `make test` samples
	@.ci/setup.sh --tests
	@TIE_SOAK=1 $(PY) -m pytest tests/integration tests/security -q

bench: setup bench-setup ## the cost of path and serving, then Bones beside other engines and the machine's limits
	@$(PY) bench/path.py
	@$(PY) bench/serving.py
	@$(PY) bench/engine.py

bench-setup: setup ## the engines that Bones is measured against, in build/bench-venv
	@.ci/bench-setup.sh

protos: ## writes src/tie/api anew from protos/
	@.ci/protos.sh

clean: ## removes what setup made
	rm -rf .venv build target
