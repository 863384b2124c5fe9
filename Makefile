# trueup's vocabulary: demo, demo-guide, demo-rl, demo-migration, demo-mindspore, test, check, fuzz, bench, zoo, realworld, rl, docs. Each sets up what it needs in .venv, once.
# MindSpore needs an older numpy than the rest: what runs with it has an environment of its own.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := scripts/setup.sh
RUN_STAMP := $(VENV)/.ready-run
DEV_STAMP := $(VENV)/.ready-dev
MINDSPORE_VENV := .venv-mindspore
MINDSPORE_STAMP := $(MINDSPORE_VENV)/.ready-mindspore
INPUTS := pyproject.toml constraints.txt $(wildcard src/trueup/numerics/*.[ch]) src/trueup/curves/readers/_scan.c $(SETUP)

.PHONY: demo demo-guide demo-rl demo-migration demo-mindspore test check fuzz bench zoo realworld rl docs mindspore clean

demo: $(RUN_STAMP)
	@$(BIN)/python examples/demo.py

demo-guide: $(RUN_STAMP)
	@$(BIN)/python examples/demo_guide.py

demo-rl: $(DEV_STAMP)
	@$(BIN)/python examples/demo_rl.py

demo-migration: $(MINDSPORE_STAMP)
	@$(MINDSPORE_VENV)/bin/python examples/migration/story.py

demo-mindspore: $(MINDSPORE_STAMP)
	@$(MINDSPORE_VENV)/bin/python examples/demo_mindspore.py

test: $(DEV_STAMP) $(MINDSPORE_STAMP)
	@$(BIN)/python scripts/check.py --test

check: $(DEV_STAMP)
	@$(BIN)/python scripts/check.py

fuzz: $(DEV_STAMP)
	@$(BIN)/python -m tests.fuzz.harness --num 10000 $(if $(SEED),--seed $(SEED))

bench: $(DEV_STAMP) $(MINDSPORE_STAMP)
	@$(BIN)/python benchmarks/run_all.py

zoo: $(DEV_STAMP)
	@$(BIN)/python bugzoo/zoo.py

realworld: $(DEV_STAMP)
	@bash realworld/setup.sh light heavy titan verl
	@$(BIN)/python -m realworld.run $(PROGRAMS)

rl: $(DEV_STAMP)
	@bash rl/setup.sh
	@$(BIN)/python rl/run.py $(PARTS)

docs: $(DEV_STAMP)
	@$(BIN)/python docs/images/make_screenshot.py

$(RUN_STAMP): $(INPUTS)
	@$(SETUP) run "$(PYTHON)" "$(VENV)"

$(DEV_STAMP): $(INPUTS)
	@$(SETUP) dev "$(PYTHON)" "$(VENV)"

mindspore: $(MINDSPORE_STAMP)

$(MINDSPORE_STAMP): $(INPUTS) constraints-mindspore.txt
	@$(SETUP) mindspore "$(PYTHON)" "$(MINDSPORE_VENV)"

clean:
	rm -rf $(VENV) $(MINDSPORE_VENV) build dist out
