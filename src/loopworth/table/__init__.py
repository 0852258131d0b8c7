"""From a file to checked numbers, one room a step; `loopworth.runs` opens the door to them.

`reading.py` turns any source into named columns of raw values, `columns.py` knows their names and
units, `values.py` makes numbers of them, `derive.py` rows (`draft.py`), to which `architecture.py`
adds what the ledger knows. `screening.py` finds rows that cannot be used, `units.py` numbers in
another unit, `blocks.py` the cells that a bootstrap resamples, and `design.py` what the table as a
whole cannot tell.
"""
