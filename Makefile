# make demo      pack real photographs and load them, on a machine with no more than Python and make
# make test      install what the tests need and run them, but for the long ones
# make test-long run the long tests
# make .venv/.dev  install what the tests need, and run none
# make lint      ruff and mypy
# make docs      build the site into build/site; a dead link fails
# make clean     remove what the above made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# A file of tests a process; more processes than two cores, since many tests wait for others.
PYTEST_ARGS ?= -n 4 --dist loadfile
# pytest rewrites the asserts of the tests, half of what collecting them takes: kept for the next run.
KEEPING := PYTHONDONTWRITEBYTECODE=
# Readers of versions that people still have, each in a folder of its own: tests/formats/test_old_readers.py.
OLD := lmdb==1.6.2 lmdb==2.3.0 webdataset==0.2.111

CORE := setup.py $(shell find packio/images/native -name '*.[ch]')  # what is compiled

.PHONY: help demo test test-long lint docs clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make/make/p' Makefile

# Stamps: a second run installs nothing until the files that say what to install have changed.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "$(PYTHON) is older than 3.10; try: make PYTHON=python3.11 …" >&2; exit 1; }
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt $(CORE) | $(BIN)/python
	@echo "installing packio, PyTorch and the demo's photographs into $(VENV); a minute or more"
	@$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt Makefile $(CORE) | $(BIN)/python
	@echo "installing packio and all that its tests need into $(VENV); a minute or more"
	@$(PIP) -e '.[dev]'
	@$(PIP) --no-deps mmengine==0.10.7
	@# axe.min.js is in it, which looks for what keeps people from using a page
	@$(PIP) --no-deps axe-playwright-python==0.1.8
	@# yapf, which mmengine imports, keeps its grammar in the user's cache: processes that write it
	@# at once read it half written
	@$(BIN)/python -c 'import yapf'
	@rm -rf $(VENV)/old
	@for old in $(OLD); do \
		$(PIP) --no-deps --target "$(VENV)/old/$$(echo $$old | sed s/==/-/)" "$$old" || exit 1; \
	done
	@touch $@ $(VENV)/.demo

$(VENV)/.system: | $(BIN)/python
	@sh tools/install_system_packages.sh
	@touch $@

demo/.images: $(VENV)/.demo tools/make_sample_images.py
	@rm -rf demo
	@mkdir -p demo
	@$(BIN)/python tools/make_sample_images.py demo/images --n 400 --classes 4
	@touch $@

demo: demo/.images
	@echo "\$$ packio pack demo/images demo/images.lmdb"
	@$(BIN)/packio pack demo/images demo/images.lmdb
	@echo "\$$ python tools/demo.py demo/images.lmdb"
	@$(BIN)/python tools/demo.py demo/images.lmdb

test: $(VENV)/.dev $(VENV)/.system
	@$(KEEPING) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-long: $(VENV)/.dev $(VENV)/.system
	@$(KEEPING) $(BIN)/python -m pytest $(PYTEST_ARGS) -m long

lint: $(VENV)/.dev
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

docs: $(VENV)/.dev
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "the site is built with Zensical, which needs Python 3.11 or newer" >&2; exit 1; }
	@$(BIN)/python tools/make_reference.py --check
	@$(BIN)/python tools/readme_tables.py --check
	@$(BIN)/python tools/readme_picture.py --check
	@$(BIN)/python tools/make_site.py

clean:
	rm -rf $(VENV) demo build dist packio.egg-info packio/images/native/_core.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find benchmarks examples packio tests tools -name __pycache__ -prune -exec rm -rf {} +
