"""What a method changes: phi and g(r) of two tables, resampled together, and where the loss went.

`pairing.py` brings tables onto the same budgets, convention and cells; `draws.py` fits each of them
to the same resamples and says what a difference is worth; `decomposition.py` splits a change of
loss into its parts; `variants.py` tells a gain in the loop from a gain everywhere; `comparing.py`
puts them together.
"""

from loopworth.compare.comparing import Comparison, MethodComparison, compare
from loopworth.compare.draws import Difference

__all__ = ["Comparison", "Difference", "MethodComparison", "compare"]
