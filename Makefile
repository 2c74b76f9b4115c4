# The commands of this project; `make help` lists them.
SHELL := /bin/bash
VENV ?= .venv
PYTHON ?= python3
DSPARK := $(VENV)/bin/dspark
PROMPTS ?= client/prompts/sample.jsonl
ARGS ?=
DEFAULT_MODEL := smollm2-135m-instruct
export VENV PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup engine serve test lossless bench gpu-check

help:
	@echo 'make serve     set up, prepare the default model, build its int8 engine, serve it on 127.0.0.1 (ARGS="--policy none")'
	@echo 'make test      set up, lint, type-check, run the tests'
	@echo 'make lossless  decode PROMPTS with and without speculation on both engines: 0 differences expected'
	@echo 'make bench     the server against the bare engine loop; many streams against one'
	@echo 'make gpu-check parse, check and build the GPU graphs of the default model with TensorRT-RTX; needs no GPU'
	@echo 'make setup     only the virtual environment (VENV=.venv, PYTHON=python3)'
	@echo 'Then, for one verb at a time: $(DSPARK) --help'

setup:
	@build/setup.sh

engine: setup
	@$(DSPARK) prepare
	@$(DSPARK) build --engine int8
	@$(DSPARK) profile --engine int8 --keep --minutes 2 || echo 'make: adaptive policies need this measurement: .venv/bin/dspark profile' >&2

serve: engine
	@exec $(DSPARK) serve $(ARGS)

test: engine
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest $(ARGS)

lossless: engine
	@$(DSPARK) build --engine fp32
	$(DSPARK) evaluate --lossless --engine fp32 --prompts $(PROMPTS) --limit 20 --max-tokens 128 --concurrency 1,16 $(ARGS)
	$(DSPARK) evaluate --lossless --engine int8 --prompts $(PROMPTS) --limit 20 --max-tokens 128 --concurrency 1,16 $(ARGS)

bench: engine
	$(DSPARK) bench --against-bare --engine int8 --prompts $(PROMPTS) $(ARGS)

gpu-check: setup
	@$(DSPARK) prepare
	$(VENV)/bin/python -W ignore -m dspark_build.gpu_check \
		--checkpoint $${DSPARK_HOME:-.dspark}/checkpoints/$(DEFAULT_MODEL) --drafter drafters/$(DEFAULT_MODEL) $(ARGS)
