"""The package's names are there, and cost nothing until they are used."""

import subprocess
import sys
from pathlib import Path

import pytest

import consumers

ROOT = Path(__file__).resolve().parents[2]


def test_importing_is_light():
    code = "import consumers, sys; print([m for m in ('torch', 'transformers', 'safetensors') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_names_lead_to_what_they_name():
    pytest.importorskip("torch")
    from consumers.encoders import load_encoder

    assert consumers.load_encoder is load_encoder
    assert all(getattr(consumers, name).__name__ == name for name in consumers.__all__)
    with pytest.raises(AttributeError, match="no attribute 'load_decoder'"):
        _ = consumers.load_decoder
