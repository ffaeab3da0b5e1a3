"""Webdatasets: sets of shuffled tars.

- Settings: `settings.py` (nanoset.yaml), `standalone/options.py` (`nanoset shuffle`); both lead to `plan_settings.py`.
- The plan: `contexts.py` cuts sources into rows, `order.py` shuffles them, `plan.py` divides them into tars,
  `quality.py` measures how even the order is.
- The tars: `sizing.py` chooses the engine, `writing.py` has `rows.py` gather the rows, and `tars.py` write them.
- `make.py`, `stage.py`, `verify.py` and `show.py` join this to a project, as in every stage.
"""
