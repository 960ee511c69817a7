# `make demo`: one real plan, end to end. `make test`: the tests, `make test-long`: a fair sample of those that are exhaustive,
# `make test-all`: the whole of these, `make golden`: all requests whose answers are recorded. All make their own environment in .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
unexport PYTHONDONTWRITEBYTECODE  # each process that tests start would compile the package anew

.PHONY: demo test test-long test-all golden lint docs outputs benchmark calibrate study random-plans lowered training predictions against-torch fuzz mutations faults clean against-papers what-to-run

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[torch,plot,test]'
	touch $@

demo: $(INSTALLED)
	mkdir -p demo
	$(BIN)/trainplan plan --model gpt2 --cluster cpu-4 --batch 8 --sequence 256 --memory 1GiB --pipeline 1 --micro-batches 1 \
		--measure -o demo/plan.json
	$(BIN)/trainplan run demo/plan.json --steps 3 --scale-down 8 --dtype float64
	$(BIN)/trainplan plan --model gpt2 --cluster cpu-4 --batch 8 --sequence 256 --pipeline 2 --micro-batches 4 -o demo/pipeline.json
	$(BIN)/trainplan run demo/pipeline.json --steps 3 --scale-down 8 --dtype float64

test: $(INSTALLED)
	$(BIN)/pytest -q --durations=40 --numprocesses auto --maxprocesses 8 --dist worksteal

test-long: $(INSTALLED)
	$(BIN)/pytest -q -m long --durations=40 --numprocesses auto --maxprocesses 8 --dist worksteal

test-all: $(INSTALLED)
	TRAINPLAN_TESTS=all $(BIN)/pytest -q -m long --durations=40 --numprocesses auto --maxprocesses 8 --dist worksteal

golden: $(INSTALLED)
	TRAINPLAN_TESTS=all $(BIN)/pytest -q -m long --durations=0 --numprocesses auto --maxprocesses 8 --dist worksteal tests/golden

lint: $(INSTALLED)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[lint]'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/links && mkdir -p build/links/trainplan
	for package in profiling formulations solvers execution; do ln -sfn ../../../$$package build/links/trainplan/$$package; done
	for item in trainplan/*; do ln -sfn ../../../$$item build/links/trainplan/$$(basename $$item); done  # mypy follows them
	$(BIN)/mypy -p trainplan
	rm -rf build/layers && cp -RL build/links build/layers  # import-linter follows neither links nor folders without __init__
	touch build/layers/trainplan/profiling/__init__.py
	cd build/layers && ../../$(BIN)/lint-imports --config ../../pyproject.toml

docs: $(INSTALLED)  # into build/site
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@! grep -rnoE '<(script|img|iframe|source)[^>]* src="?(https?:)?//[^">]*|<link[^>]* rel="?(stylesheet|icon|preconnect|preload)[^>]*href="?(https?:)?//[^">]*|url\(["'"'"']?(https?:)?//[^)]*|@import[^;]*//[^;]*' \
		--include='*.html' --include='*.css' build/site || { echo 'the site loads what is not in it'; false; }

outputs: $(INSTALLED)  # what the pages show of commands, their pictures, and the notebooks, as they are printed now
	$(BIN)/python -m tests.helpers.guides
	$(BIN)/jupytext --to ipynb --update --execute notebooks/*.py

benchmark: $(INSTALLED)
	$(BIN)/python benchmarks/profiles.py
	$(BIN)/python benchmarks/layer_strategies.py
	$(BIN)/python benchmarks/pipelines.py
	$(BIN)/python benchmarks/stage_assignment.py
	$(BIN)/python benchmarks/cluster_strategies.py
	$(BIN)/python benchmarks/pipeline_partition.py
	$(BIN)/python -m benchmarks.memory_switches
	$(BIN)/python -m benchmarks.h3t_planners
	$(BIN)/python benchmarks/limits.py

# Of the shipped steps; make calibrate RUNS="runs.json more.json" WITHOUT=ID GROUPS=groups.json OUT=efficiencies.yaml PAGE=docs/measured.md
# fits others, and writes the table and the texts of the page.
calibrate: $(INSTALLED)
	$(BIN)/python -m trainplan.validation.calibrate $(RUNS) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(GROUPS),--groups $(GROUPS)) \
		$(if $(OUT),-o $(OUT)) $(if $(PAGE),--page $(PAGE))

against-papers: $(INSTALLED)
	$(BIN)/python benchmarks/joint_against_papers.py

study: $(INSTALLED)
	$(BIN)/python -m benchmarks.studies.galvatron_study
	$(BIN)/python -m benchmarks.studies.amp_study
	$(BIN)/python -m benchmarks.studies.autopipe_study
	$(BIN)/python -m benchmarks.studies.h3t_study

random-plans: $(INSTALLED)
	$(BIN)/python -m benchmarks.random_plans

what-to-run: $(INSTALLED)  # docs/what-to-run.md
	$(BIN)/python -m benchmarks.what_to_run

predictions: $(INSTALLED)
	$(BIN)/python -m benchmarks.predictions

against-torch: $(INSTALLED)
	$(BIN)/python -m benchmarks.against_torch

fuzz: $(INSTALLED)
	$(BIN)/python -m benchmarks.fuzz
	$(BIN)/python -m benchmarks.fuzz --degenerate --count 850

lowered: $(INSTALLED)
	$(BIN)/python -m benchmarks.lowered

training: $(INSTALLED)
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.training_faults

mutations: $(INSTALLED)
	$(BIN)/python -m benchmarks.mutations --count 1000 --seed 0 --refused 50

faults: $(INSTALLED)
	$(BIN)/python -m benchmarks.faults

clean:
	rm -rf $(VENV) build demo
