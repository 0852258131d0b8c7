"""Text becomes token shards, and shards become batches: numpy only, no torch."""

from loopworth.data.batches import Batches as Batches
from loopworth.data.opening import open_data as open_data
from loopworth.data.prepare import Prepared as Prepared
from loopworth.data.prepare import prepare as prepare
from loopworth.data.tokens import TokenData as TokenData
from loopworth.data.tokens import TokenSplit as TokenSplit
from loopworth.data.tokens import open_folder as open_folder
