"""Shared by the consumer tests: reference data, encoders shrunk to a thousandth, inputs that fit them."""

from __future__ import annotations

import copy
import gzip
import json
import os
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from cache import Regions, StoreWriter, open_store
from consumers.encoders import Tokenizer, encoder_config, load_encoder
from consumers.encoders.config import StreamConfig

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ROIVAULT_SHARED", ROOT.parent / "shared"))
DATA = ROOT / "tests" / "data" / "encoders"


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the encoder goldens; skips where they are absent."""
    path = SHARED / "golden" / "encoders"
    if not path.is_dir():
        pytest.skip(f"no golden data at {path}; set ROIVAULT_SHARED")
    return path


def _rule(name: str, shape) -> np.ndarray:
    normal = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))).standard_normal(tuple(shape))
    if len(shape) == 1:
        normal = 1 + 0.1 * normal if name.endswith("weight") else 0.1 * normal
    else:
        normal = normal / np.sqrt(shape[-1])
    return normal.astype(np.float32)


@pytest.fixture(scope="session")
def golden_weights():
    """Names and shapes -> the state dict whose outputs the goldens hold: values depend on the name and shape alone."""
    return lambda shapes: {name: torch.from_numpy(_rule(name, shape)) for name, shape in shapes.items()}


@pytest.fixture(scope="session")
def reference() -> tuple[dict, dict]:
    """({model: configuration, shapes, losses}, arrays): some numbers of the goldens that travel with the tests."""
    models = json.loads(gzip.decompress((DATA / "reference.json.gz").read_bytes()))
    with np.load(DATA / "reference.npz") as arrays:
        return models, dict(arrays)


def _shrink(config):
    """The same structure, as much narrower as leaves a text stream of 24."""
    by = config.text.hidden // 24

    def stream(s: StreamConfig) -> StreamConfig:
        return replace(s, hidden=s.hidden // by, ffn=s.ffn // by)

    def step(s):
        return replace(s, **{k: v // by for k in ("text_width", "image_width") if (v := getattr(s, k))})

    return replace(
        config,
        vocab_size=80,
        max_positions=64,
        layout=tuple(step(s) for s in config.layout),
        text=stream(config.text),
        image=stream(config.image),
        feature_dim=16,
        coordinate_dim=2,
        pool_size=config.pool_size // by,
        classifier_size=24,
    )


@pytest.fixture(scope="session")
def shrunk():
    """Encoder name -> its configuration, small."""
    return lambda name: _shrink(encoder_config(name))


@pytest.fixture(scope="session")
def small_encoder(shrunk):
    """Encoder name -> a small encoder with random weights of unit scale, so that every part shows in the output."""

    @cache
    def built(name, heads, legacy):
        torch.manual_seed(0)
        encoder = load_encoder(shrunk(name), heads=heads, legacy=legacy)
        with torch.no_grad():
            for parameter in encoder.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
                else:
                    parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
        return encoder

    return lambda name, heads=(), legacy=False: copy.deepcopy(built(name, heads, legacy))


@pytest.fixture(scope="session")
def inputs():
    """Configuration, text lengths and region counts -> the five inputs, padded to the longest or to given sizes."""

    def build(config, lengths=(9, 6), counts=(7, 4), text_slots=None, region_slots=None, seed=0):
        generator = torch.Generator().manual_seed(seed)
        lengths, counts = torch.tensor(lengths), torch.tensor(counts)
        size, slots = text_slots or int(lengths.max()), region_slots or int(counts.max())
        ids = torch.randint(5, config.vocab_size, (len(lengths), 64), generator=generator)[:, :size]
        input_mask = torch.arange(size) < lengths[:, None]
        region_mask = torch.arange(slots) < counts[:, None]
        features = torch.rand(len(lengths), 64, config.feature_dim, generator=generator)[:, :slots]
        locations = torch.rand(len(lengths), 64, config.location_dim, generator=generator)[:, :slots]
        ids = torch.where(input_mask, ids, config.pad_id)
        features, locations = (x * region_mask[..., None] for x in (features, locations))
        return ids, input_mask.long(), features, locations, region_mask.long()

    return build


class WordTokenizer:
    """Stands for a tokenizer of transformers: words are hashed to ids."""

    def __init__(self, config):
        self.config = config

    def __call__(self, texts, truncation, max_length, padding):
        first, size = self.config.pad_id + 1, self.config.vocab_size
        ids = [[first + zlib.crc32(word.encode()) % (size - first) for word in text.split()] for text in texts]
        return {"input_ids": [[first, *row[: max_length - 2], first + 1] for row in ids]}


@pytest.fixture(scope="session")
def words():
    """Configuration -> a `Tokenizer` for it."""
    return lambda config: Tokenizer(WordTokenizer(config), config)


@pytest.fixture(scope="session")
def feature_store(tmp_path_factory):
    """A store of the pictures 0 to 39, six regions of 16 numbers each."""
    path = tmp_path_factory.mktemp("stores") / "pictures.roi"
    rng = np.random.default_rng(0)
    with StoreWriter(path, "float32") as writer:
        writer.write([picture(str(n), rng) for n in range(40)])
    return open_store(path)


def picture(key, rng, regions=6, dim=16):
    corners = np.sort(rng.random((regions, 2, 2), np.float32), 1).reshape(regions, 4) * 90
    return Regions(key, 100, 100, corners, rng.random((regions, dim), np.float32))
