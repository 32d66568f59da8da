"""Peer: TFRecord files of `tf.train.Example`, read by tf.data in the usual way.

Eight files, read interleaved; batched before `tf.io.parse_example` (one call per batch); parallel map and
prefetch with AUTOTUNE, in a pool of `threads` threads. Lists become RaggedTensors.
Writing the records is not timed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before the import, or TensorFlow's banner fills stderr

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
from protocol import Request, serve

FILES = 8


def write_records(source: Path, cache: Path) -> list[str]:
    """The rows of a Parquet file as `FILES` TFRecord files in the cache."""
    folder = cache / f"tfrecord-{source.stem}"
    if not folder.exists():
        part = folder.with_suffix(f".part{os.getpid()}")
        part.mkdir(parents=True)
        file = pq.ParquetFile(source)
        writers = [tf.io.TFRecordWriter(str(part / f"{i}.tfrecord")) for i in range(FILES)]
        n = 0
        for chunk in file.iter_batches(8_192):
            for row in chunk.to_pylist():
                writers[n % FILES].write(example(row))
                n += 1
        for writer in writers:
            writer.close()
        part.rename(folder)
    return sorted(str(path) for path in folder.glob("*.tfrecord"))


def example(row: dict[str, Any]) -> bytes:
    return tf.train.Example(
        features=tf.train.Features(feature={name: feature(value) for name, value in row.items()})
    ).SerializeToString()


def feature(value: Any) -> Any:
    if isinstance(value, float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value if isinstance(value, list) else [value]))


def prepare(request: Request) -> Any:
    tf.config.threading.set_inter_op_parallelism_threads(request.threads)
    tf.config.threading.set_intra_op_parallelism_threads(request.threads)
    spec = {}
    for field in pq.read_schema(request.path):
        if pa.types.is_list(field.type):
            spec[field.name] = tf.io.RaggedFeature(tf.int64)
        else:
            kind = tf.float32 if pa.types.is_floating(field.type) else tf.int64
            spec[field.name] = tf.io.FixedLenFeature([], kind)
    options = tf.data.Options()
    options.threading.private_threadpool_size = request.threads
    files = tf.data.Dataset.from_tensor_slices(write_records(request.path, request.cache))
    return (
        files.interleave(tf.data.TFRecordDataset, cycle_length=FILES, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(request.batch)
        .map(lambda records: tf.io.parse_example(records, spec), num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )


if __name__ == "__main__":
    serve(prepare, lambda batch, label: int(batch[label].shape[0]), {"tensorflow": tf.__version__})
