"""Model: what every model here is. Embedding tables made from a schema, and a dense part above them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from hybridrec.data.frame import frame_dataset
from hybridrec.data.schema import Feature, Schema
from hybridrec.embedding import EmbeddingCollection, Table
from hybridrec.embedding.devices import device_of
from hybridrec.models.options import encode
from hybridrec.models.summary import summary
from hybridrec.models.tables import Options, tables_of
from hybridrec.remedy import SCHEMA_FILE, remedied
from hybridrec.types import Batch


class Inputs(TypedDict, total=False):
    """What all models take beside their own arguments."""

    tables: Options | None  # options of hr.Table by table, {"user": {"capacity": 10**6}}
    share: Mapping[str, str] | None  # features that use the table of another, {"history": "item"}
    seed: int  # of the initial rows
    device: torch.device | str  # where rows and layers are; not part of config()


class Model(nn.Module):
    """Rows looked up by `inputs`, then `net`, the dense part: logits [B], or [B, k] for k labels.

    `inputs(batch)` gives tensors, and `net` is an ordinary module over them, with all the parameters: it can be
    compiled (`compile_dense`), exported or replaced alone. A model keeps its arguments under their names, from which
    `config()` rebuilds it: `hybridrec.models.build(name, schema, **config)`. With `device="cuda"` its rows and layers
    are on the GPU, and so must be the batches; a Trainer brings them there.
    """

    net: nn.Module
    embeddings: EmbeddingCollection

    def __init__(
        self, schema: Schema, dim: int = 16, *, sequences: Collection[str] = (), **inputs: Unpack[Inputs]
    ) -> None:
        super().__init__()
        check_schema(schema)
        self.schema, self.dim = schema, dim
        self.tables: Options = _mapping("tables", inputs.pop("tables", None), '{"user": {"capacity": 1000000}}')
        self.share: dict[str, str] = _mapping("share", inputs.pop("share", None), '{"history": "item"}')
        self.seed = inputs.pop("seed", 0)
        self.device = device_of(inputs.pop("device", "cpu"))
        if inputs:
            valid = ", ".join(options_of(type(self)))
            raise TypeError(f"{type(self).__name__} has no option {next(iter(inputs))!r}; it takes {valid}")
        self.labels = columns_of(schema.of("label"))
        self.dense_names = columns_of(schema.of("dense"))
        self.outputs = max(1, len(self.labels))
        if not schema.of("id"):
            raise remedied(
                ValueError,
                f"{type(self).__name__} needs an id feature, and the schema has none",
                call="bucketize a dense one: schema.edit(name, kind='id', transforms=[Bucketize([...])])",
                setting=f"bucketize a dense one {SCHEMA_FILE}",
            )
        made = tables_of(schema, dim, share=self.share, options=self.tables, sequences=sequences)
        self.declared: list[Table] = made

    def collection(self, tables: list[Table], room: int | None = None) -> EmbeddingCollection:
        """A collection of these tables with the model's seed, on its device; `room` for numbers beside its vectors."""
        return EmbeddingCollection(tables, seed=self.seed, device=self.device, room=room)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """What `net` takes: the pooled vectors of all features side by side, and the dense numbers."""
        return self.embeddings(batch.ids).flat, self.dense(batch)

    def forward(self, batch: Batch) -> Tensor:
        """Logits: [B], or [B, k] for k labels."""
        return self.logits(self.net(*self.inputs(batch)))

    def dense(self, batch: Batch) -> Tensor:
        """The dense numbers [B, n] of a batch, which must be those of the schema."""
        found = batch.dense_names or tuple(range(batch.dense.shape[1]))
        if found != self.dense_names and (batch.dense_names or len(found) != len(self.dense_names)):
            raise ValueError(
                f"the batch has the dense columns {', '.join(map(str, found)) or 'none'}, the model was made for "
                f"{', '.join(self.dense_names) or 'none'}; load the data with the model's schema"
            )
        return batch.dense

    def logits(self, out: Tensor) -> Tensor:
        """[B, 1] as [B]; several labels as they are."""
        return out.squeeze(1) if self.outputs == 1 else out

    def output_biases(self) -> list[Tensor]:
        """The biases of the logits, in the order of the labels: here, of the last linear layer of `net`."""
        return [last_bias(self.net)]

    def set_base_rates(self, rates: Sequence[float]) -> None:
        """Begin at these shares of positives, one per label, by the biases of the logits.

        Else the first steps of a rare label are large, push everything towards "no", and are remembered by optimizers
        that add up squares: with labels of different rates this costs the others much.
        """
        if len(rates) != self.outputs or not all(0 < rate < 1 for rate in rates):
            raise ValueError(f"rates are {list(rates)}; {self.outputs} between 0 and 1 are needed, one per label")
        biases = self.output_biases()
        if sum(map(len, biases)) != self.outputs:
            raise TypeError(f"the logits of {type(self).__name__} have no bias that could be set")
        with torch.no_grad():
            for bias, logits in zip(biases, torch.tensor(rates).logit().split([len(b) for b in biases]), strict=True):
                bias.copy_(logits)

    def predict(self, frame: Any) -> np.ndarray:
        """Probabilities for the rows of a frame (pandas, polars, pyarrow, dict): [n], or [n, k] for k labels.

        They are right for labels of 0 and 1; `hybridrec.load(run)` knows other losses too.
        """
        parts, was_training = [], self.training
        self.eval()
        try:
            with torch.no_grad():
                for batch in frame_dataset(frame, self.schema):
                    parts.append(self(batch.to(self.device)).sigmoid().cpu().numpy())
        finally:
            self.train(was_training)
        return np.concatenate(parts) if parts else np.empty((0,) if self.outputs == 1 else (0, self.outputs))

    def compile_dense(self, **options: Any) -> None:
        """Compile the dense part in place with torch.compile; the lookup stays one native call."""
        self.net.compile(**options)

    def config(self) -> dict[str, Any]:
        """The arguments beside the schema and the device, as JSON values."""
        return {name: encode(getattr(self, name)) for name in options_of(type(self)) if name != "device"}

    def summary(self) -> str:
        """Tables with their rows and bytes, and the parameters of the dense part, for people."""
        return summary(self)


def columns_of(features: list[Feature]) -> tuple[str, ...]:
    """The names of the columns that features make in a batch: "size[0]", "size[1]" for lists of fixed length.

    >>> import pyarrow as pa
    >>> columns_of([Feature("age", "dense", pa.float32()), Feature("box", "dense", pa.list_(pa.float32(), 2))])
    ('age', 'box[0]', 'box[1]')
    """
    wide = [[f.name] if f.size is None else [f"{f.name}[{i}]" for i in range(f.size)] for f in features]
    return tuple(name for names in wide for name in names)


def check_schema(schema: object) -> None:
    """Refuse what is no schema, as a dataset."""
    if not isinstance(schema, Schema):
        raise TypeError(f"schema is a {type(schema).__name__}; give the Schema of the data, as dataset.schema is")


def _mapping(name: str, given: Mapping[str, Any] | None, example: str) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{name} is {given!r}; it must be a dict, such as {example}")
    return dict(given or {})


def options_of(kind: type[Model]) -> tuple[str, ...]:
    """The names of the arguments that a model takes beside the schema."""
    own = [name for name in inspect.signature(kind).parameters if name not in ("schema", "inputs", "sequences")]
    return (*own, *Inputs.__annotations__)


def last_bias(module: nn.Module) -> Tensor:
    """The bias of the last linear layer inside."""
    *_, last = (part for part in module.modules() if isinstance(part, nn.Linear))
    return last.bias


def same_dim(model: Model, tables: list[Table]) -> None:
    """Refuse tables of another dim than the model's, where vectors are multiplied with each other."""
    if odd := [table for table in tables if table.dim != model.dim]:
        raise ValueError(
            f"table {odd[0].name!r} has dim {odd[0].dim}, but {type(model).__name__} multiplies vectors of all "
            f"features; leave its dim at {model.dim}"
        )
