#!/bin/sh
# Check that TensorFlow reads the TFRecord files packio writes, and packio those TensorFlow writes.
#
#     tools/interop_tensorflow.sh
#
# Makes a virtual environment in a temporary folder, installs tensorflow-cpu there (about 1 GB), and
# removes it. TENSORFLOW_VENV=DIR keeps it in DIR for the next time.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${TENSORFLOW_VENV:-$work/venv}

if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
fi
"$venv/bin/pip" install --quiet tensorflow-cpu 'google-crc32c>=1.5' 'pillow>=10.3'

cat >"$work/interop.py" <<'PYTHON'
"""Write with packio and read with TensorFlow, then the other way round."""

import io
import pathlib
import sys

import numpy as np
import tensorflow as tf
from PIL import Image

from packio.errors import NotAPackError
from packio.formats import Record, tfrecord

folder = pathlib.Path(sys.argv[1])
random = np.random.default_rng(0)
CLASSES = ["cat", "dog"]


def png(shape):
    buffer = io.BytesIO()
    Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def records():
    for i in range(50):
        h, w = 10 + i, 90 - i
        boxes = np.float32([[1, 2, w / 3, h / 2]] * (i % 3)).reshape(-1, 4)
        yield Record(
            png((h, w, 3)), i % 2, b"caf\xe9/%d.png" % i, "png", h, w, 3, png((h, w)), "png",
            b"{}", boxes, np.arange(i % 3),
        )


def read_ours(path, written):
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/format": tf.io.FixedLenFeature([], tf.string),
        "image/height": tf.io.FixedLenFeature([], tf.int64),
        "image/width": tf.io.FixedLenFeature([], tf.int64),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "image/class/text": tf.io.FixedLenFeature([], tf.string),
        "image/segmentation/class/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/object/bbox/xmax": tf.io.VarLenFeature(tf.float32),
        "image/object/class/label": tf.io.VarLenFeature(tf.int64),
        "packio/key": tf.io.FixedLenFeature([], tf.string),
    }
    found = list(tf.data.TFRecordDataset(str(path)))  # it checks the checksums
    assert len(found) == len(written)
    for record, raw in zip(written, found):
        example = tf.io.parse_single_example(raw, features)
        assert example["image/encoded"].numpy() == record.data
        assert example["image/format"].numpy() == b"PNG"
        size = example["image/height"].numpy(), example["image/width"].numpy(), 3
        assert tf.io.decode_image(example["image/encoded"]).shape == size
        assert tf.io.decode_png(example["image/segmentation/class/encoded"]).shape[:2] == size[:2]
        assert example["image/class/label"].numpy() == record.label
        assert example["image/class/text"].numpy().decode() == CLASSES[record.label]
        assert example["packio/key"].numpy() == record.key
        xmax = tf.sparse.to_dense(example["image/object/bbox/xmax"]).numpy()
        np.testing.assert_allclose(xmax, record.boxes[:, 2] / record.width, rtol=1e-6)
        labels = tf.sparse.to_dense(example["image/object/class/label"]).numpy()
        assert labels.tolist() == record.box_labels.tolist()
        message = tf.train.Example.FromString(raw.numpy())
        assert message.SerializeToString(deterministic=True) == raw.numpy()


def write_theirs(path, given, compression=""):
    def example(record):
        def bytes_feature(value):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

        return tf.train.Example(features=tf.train.Features(feature={
            "image/encoded": bytes_feature(record.data),
            "image/filename": bytes_feature(record.key),
            "image/class/label": tf.train.Feature(
                int64_list=tf.train.Int64List(value=[record.label])),
        }))

    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in given:
            writer.write(example(record).SerializeToString())


given = list(records())
writer = tfrecord.Writer(folder / "ours.tfrecord", count=50, size=0, classes=CLASSES)
writer.add(given)
writer.close()
read_ours(folder / "ours.tfrecord", given)

write_theirs(folder / "theirs.tfrecord", given)
whole = (folder / "theirs.tfrecord").read_bytes()
entries = list(tfrecord.scan(folder / "theirs.tfrecord"))
assert [(e.label, e.key) for e in entries] == [(r.label, r.key) for r in given]
assert [whole[e.offset :][: e.length] for e in entries] == [r.data for r in given]

for compression in ("GZIP", "ZLIB"):
    write_theirs(folder / compression, given, compression)
    try:
        list(tfrecord.scan(folder / compression))
    except NotAPackError as error:
        assert "unpack it" in str(error), error
    else:
        sys.exit(f"{compression} was not refused")
print(f"TensorFlow {tf.__version__}: 50 records of packio's read, 50 of TensorFlow's found")
PYTHON
cd "$work"
PYTHONPATH="$repository" TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0 "$venv/bin/python" interop.py "$work"
