"""What is trained, as frozen values with a JSON round trip and a content hash."""

from loopworth.spec.model import Conditioning as Conditioning
from loopworth.spec.model import Injection as Injection
from loopworth.spec.model import MlpKind as MlpKind
from loopworth.spec.model import ModelSpec as ModelSpec
from loopworth.spec.run import DataSpec as DataSpec
from loopworth.spec.run import OptimSpec as OptimSpec
from loopworth.spec.run import RunSpec as RunSpec
from loopworth.spec.run import UnrollSpec as UnrollSpec
