"""The parts that models are made of, each usable alone: tensors in, tensors out."""

from __future__ import annotations

from hybridrec.models.layers.attention import AttentionPooling as AttentionPooling
from hybridrec.models.layers.cross import CrossLayer as CrossLayer
from hybridrec.models.layers.cross import crossed as crossed
from hybridrec.models.layers.dense_fields import DenseFields as DenseFields
from hybridrec.models.layers.first_order import FirstOrder as FirstOrder
from hybridrec.models.layers.interaction import FieldSums as FieldSums
from hybridrec.models.layers.interaction import dot_interaction as dot_interaction
from hybridrec.models.layers.interaction import fm_interaction as fm_interaction
from hybridrec.models.layers.interaction import pairs_beside as pairs_beside
from hybridrec.models.layers.mlp import MLP as MLP
from hybridrec.models.layers.popularity import Popularity as Popularity
from hybridrec.models.layers.running_norm import RunningNorm as RunningNorm
