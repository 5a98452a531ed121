# make demo: see the whole lab in minutes.   make test: everything that CI runs, in minutes.
# make test-all: the slow tests too, before a release.
# make app: a page that captions pictures of your own, with the model of photos, and with your models in runs/shapes, or
# else with those of the demo.
# make compare: all decoders on the embedded data set, side by side; on yours with SETTINGS=file.json.
# make bench: how much faster than the usual way, on this machine.
# make pictures: the demo, and the figures of README.md and ASSIGNMENT.md anew, in both languages.
# For instructors: make handout (folder and zip for students), make bonus (a further task), both in Chinese with
# LANGUAGE=zh; make gradescope (its autograder zip),
# make remake (everything that follows from a change of a TODO: docs/instructors.md).
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: demo pictures app test test-all compare bench handout bonus gradescope remake clean

demo: $(VENV)/.ready
	$(PY) -m instructor.demo

# in the folder with the models.py that the models were trained with: this one, or the demo's
TRAINED := $(dir $(wildcard ./runs/shapes/BEST_checkpoint_* build/demo/runs/shapes/BEST_checkpoint_*))
app: $(VENV)/.ready
	$(if $(TRAINED),,@$(PY) -m instructor.assemble instructor/models.py build/demo > /dev/null)
	@cd $(firstword $(TRAINED:/runs/shapes/=) build/demo) && $(abspath $(PY)) -m lab.app

pictures: $(VENV)/.ready
	$(PY) -m instructor.demo
	$(PY) -m instructor.pictures

test: $(VENV)/.ready
	$(PY) -m instructor.test

test-all: $(VENV)/.ready
	$(PY) -m instructor.test --all

compare: $(VENV)/.ready
	$(PY) -m instructor.compare $(if $(SETTINGS),--settings "$(SETTINGS)")

bench: $(VENV)/.ready
	$(PY) -m benchmarks.bench

IN_LANGUAGE = $(if $(LANGUAGE),--language $(LANGUAGE))

handout: $(VENV)/.ready
	$(PY) -m instructor.handout $(IN_LANGUAGE)

bonus: $(VENV)/.ready
	$(PY) -m instructor.bonus $(IN_LANGUAGE)

gradescope: $(VENV)/.ready
	$(PY) -m instructor.gradescope

remake: $(VENV)/.ready
	$(PY) -m instructor.remake

# The environment, made anew when the requirements change.
$(VENV)/.ready: requirements.txt instructor/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11: make $(MAKECMDGOALS) PYTHON=python3.11 (or newer)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --disable-pip-version-check -r instructor/requirements.txt
	@touch $@

clean:
	rm -rf build $(VENV)
