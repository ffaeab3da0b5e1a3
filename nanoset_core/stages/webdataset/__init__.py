"""Webdatasets: sets of shuffled tars.

- Settings: `settings.py` (nanoset.yaml) and `standalone/options.py` (`nanoset shuffle`). Both are
  converted to the settings of a plan, in `plan_settings.py`.
- The plan: `contexts.py` cuts sources into contexts, `order.py` shuffles them, `plan.py` divides
  them into tars, and `quality.py` measures how even the order is.
- The tars: `sizing.py` chooses the engine. `writing.py` divides the work, in which `rows.py`
  supplies the rows and `tars.py` writes the tars. `markers.py` records what is finished.
- The project: `make.py`, `stage.py`, `verify.py` and `show.py` make it a stage, as in every stage.
- `standalone/`: `nanoset shuffle`, which needs no project.
"""
