"""Shared by the extractor tests: golden data when it is there, small detectors with random weights, photos."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ROIVAULT_SHARED", ROOT.parent / "shared"))


def _load_module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the extractor goldens; skips where they are absent."""
    path = SHARED / "golden" / "extractor"
    if not path.is_dir():
        pytest.skip(f"no golden data at {path}; set ROIVAULT_SHARED")
    return path


@pytest.fixture(scope="session")
def golden_weight(golden):
    """The rule that makes a golden tensor from its name and shape."""
    return _load_module(golden / "weights_rule.py").make


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)  # small maps gain nothing from more, and on a busy machine threads wait for each other


@pytest.fixture(scope="session")
def small_preset():
    """A C4 preset with few channels, whose weights the `small_weights` fixture makes."""
    from extractor.configs import MaxClassNMS
    from extractor.presets import DEMO

    architecture = replace(
        DEMO.architecture,
        stem_channels=8,
        widths=(4, 8, 8, 8),
        channels=(8, 16, 16, 24),
        blocks=(1, 1, 1, 1),
        rpn_channels=16,
        attribute_hidden=16,
        class_embedding=8,
        proposals=40,
        roi_chunk=16,
    )
    return replace(DEMO, name="small", architecture=architecture, selection=MaxClassNMS(max_regions=12))


@pytest.fixture(scope="session")
def small_weights(small_preset, tmp_path_factory) -> Path:
    """Random weights for `small_preset`, spread out enough that regions differ in class and score."""
    from safetensors.torch import save_file

    from extractor.detector import Detector

    generator = torch.Generator().manual_seed(7)
    state = {}
    for name, tensor in Detector(small_preset.architecture).state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim >= 2:
            gain = 0.1 if "deltas" in name or "bbox_pred" in name else 1.0  # boxes stay near their anchors
            state[name] = gain * noise * (2.0 / tensor[0].numel()) ** 0.5
        else:
            state[name] = (tensor + 0.1 * noise).clamp(min=0.05) if name.endswith(("weight", "var")) else 0.1 * noise
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(state, str(path))
    return path


@pytest.fixture
def small_extractor(small_preset, small_weights):
    from extractor.extractor import Extractor
    from extractor.images import DecodePolicy

    return Extractor(small_preset, small_weights, "cpu", "auto", DecodePolicy())


@pytest.fixture(scope="session")
def pictures() -> list[np.ndarray]:
    """Five RGB pictures: three shapes, two of which occur twice."""
    rng = np.random.default_rng(3)
    shapes = [(120, 160), (160, 120), (90, 200), (120, 160), (160, 120)]
    blocks = [rng.integers(0, 256, (h // 10, w // 10, 3), dtype=np.uint8) for h, w in shapes]
    return [np.kron(block, np.ones((10, 10, 1), np.uint8)) for block in blocks]
