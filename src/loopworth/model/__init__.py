"""The looped transformer."""

from loopworth.model.looped import Block as Block
from loopworth.model.looped import LoopedTransformer as LoopedTransformer
from loopworth.model.looped import build as build
