"""Starting from BERT or XLM-R: where each layer goes."""

import pytest
import torch

from cache import WeightsError
from consumers.encoders import encoder_config, list_encoders, load_encoder
from consumers.encoders.text_models import text_layers

# BERT layer -> (attention, feed-forward) sublayer, as published
PUBLISHED = {
    "uniter": [(2 * i, 2 * i + 1) for i in range(12)],
    "lxmert": [(2 * i, 2 * i + 1) for i in range(9)] + [(19, 20), (22, 23), (25, 26)],
    "vilbert": [(2 * i, 2 * i + 1) for i in range(6)] + [(14 + 4 * i, 15 + 4 * i) for i in range(6)],
}


def text_model(rows, segments, hidden=24, ffn=96, layers=12, positions=64, prefix="bert."):
    """A state dict as transformers writes it, every tensor of its own random values."""
    shapes = {
        "embeddings.word_embeddings.weight": (rows, hidden),
        "embeddings.position_embeddings.weight": (positions, hidden),
        "embeddings.token_type_embeddings.weight": (segments, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
        "embeddings.position_ids": (1, positions),
        "pooler.dense.weight": (hidden, hidden),
        "pooler.dense.bias": (hidden,),
    }
    for i in range(layers):
        layer = f"encoder.layer.{i}."
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{layer}{part}.weight": (hidden, hidden), f"{layer}{part}.bias": (hidden,)}
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{layer}{part}.weight": (hidden,), f"{layer}{part}.bias": (hidden,)}
        shapes |= {f"{layer}intermediate.dense.weight": (ffn, hidden), f"{layer}intermediate.dense.bias": (ffn,)}
        shapes |= {f"{layer}output.dense.weight": (hidden, ffn), f"{layer}output.dense.bias": (hidden,)}
    generator = torch.Generator().manual_seed(0)
    return {prefix + name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def start(shrunk, tmp_path):
    def from_state(name, state, **options):
        torch.save(state, tmp_path / "text.bin")
        return load_encoder(shrunk(name), tmp_path / "text.bin", **options)

    return from_state


@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_go_where_published(name):
    layout = encoder_config(name).layout
    assert [(n, n + 1) for n in text_layers(encoder_config(name))][:12] == PUBLISHED[name]
    assert all(hasattr(layout[ffn], "streams") and "text" in layout[ffn].streams for _, ffn in PUBLISHED[name])


@pytest.mark.parametrize("name", list_encoders())
def test_every_encoder_starts_from_its_text_model(name, start, shrunk):
    config = shrunk(name)
    xlm = config.text_model == "xlm-roberta"
    layers = min(12, len(text_layers(config)))
    state = text_model(80, 1 if xlm else 2, layers=layers, prefix="roberta." if xlm else "bert.")
    root = "roberta." if xlm else "bert."
    encoder = start(name, state | {("lm_head.bias" if xlm else "cls.predictions.bias"): torch.zeros(80)})
    assert torch.equal(encoder.text_embed.word.weight, state[f"{root}embeddings.word_embeddings.weight"])
    assert torch.equal(encoder.text_embed.norm.bias, state[f"{root}embeddings.LayerNorm.bias"])
    for layer, n in enumerate(text_layers(config)[:12]):
        source = f"{root}encoder.layer.{layer}."
        assert torch.equal(encoder.blocks[n].text.k.weight, state[f"{source}attention.self.key.weight"])
        assert torch.equal(encoder.blocks[n].text.norm.bias, state[f"{source}attention.output.LayerNorm.bias"])
        assert torch.equal(encoder.blocks[n + 1].text.fc2.weight, state[f"{source}output.dense.weight"])
    if config.text_types:
        rows = state[f"{root}embeddings.token_type_embeddings.weight"]
        assert torch.equal(encoder.text_embed.segment.weight[: len(rows)], rows)
    fresh = encoder.report.fresh
    assert "pool_text.dense.weight" in fresh and not any(n.startswith("text_embed.") for n in fresh)
    assert any(n.endswith("pooler.dense.weight") for n in encoder.report.skipped)


def test_old_names_and_bare_models(start):
    state = text_model(80, 2, prefix="")
    renames = ("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")
    old = dict(state)
    for new_part, old_part in renames:
        old = {name.replace(new_part, old_part): tensor for name, tensor in old.items()}
    encoder = start("uniter", old)
    assert torch.equal(encoder.text_embed.norm.weight, state["embeddings.LayerNorm.weight"])


@pytest.mark.parametrize("gone", ["embeddings.LayerNorm.bias", "encoder.layer.5.attention.self.key.bias"])
def test_missing(start, gone):
    state = text_model(80, 2)
    del state[f"bert.{gone}"]
    own = "text_embed.norm.bias" if "embeddings" in gone else "blocks.10.text.k.bias"
    with pytest.raises(WeightsError, match=f"missing tensors: 1: {own}"):
        start("uniter", state)


def test_too_many_layers_and_strange_tensors(start):
    with pytest.raises(WeightsError, match=r"unexpected tensors: 16: encoder\.layer\.12\.attention"):
        start("uniter", text_model(80, 2, layers=13))
    with pytest.raises(WeightsError, match="unexpected tensors: 1: qa_outputs.weight"):
        start("uniter", text_model(80, 2) | {"qa_outputs.weight": torch.zeros(2, 24)})


def test_another_vocabulary(start):
    pattern = r"embeddings\.word_embeddings\.weight is \(99, 24\) in the checkpoint and \(80, 24\) in the encoder"
    with pytest.raises(WeightsError, match=pattern):
        start("muniter", text_model(99, 1, prefix="roberta."))
