"""Shrunken models of VSR with random weights, saved as the published ones are, and what they read."""

import numpy as np
import torch
from PIL import Image

from cache import Regions, StoreWriter
from consumers.encoders.small_tokenizer import make_tokenizer

BERT = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 200,
    "initializer_range": 0.3,
}
WIDTHS = {"visualbert-vsr": 12, "lxmert-vsr": 20, "clip-negation": 8}  # of features, or of an embedding


def save_model(name, folder, texts):
    """Leaves in the folder what `from_pretrained` takes."""
    import transformers as hf

    torch.manual_seed(0)
    make_tokenizer(texts, folder, BERT["vocab_size"])
    if name == "visualbert-vsr":  # as published: of pretraining, without the head
        config = hf.VisualBertConfig(**BERT, num_hidden_layers=2, visual_embedding_dim=WIDTHS[name])
        model = hf.VisualBertForPreTraining(config)
    elif name == "lxmert-vsr":
        config = hf.LxmertConfig(
            **BERT, visual_feat_dim=WIDTHS[name], l_layers=1, x_layers=1, r_layers=1, num_qa_labels=3,
            num_object_labels=3, num_attr_labels=3,
        )  # fmt: skip
        model = hf.LxmertForPreTraining(config)
    elif name == "vilt":
        config = hf.ViltConfig(**BERT, num_hidden_layers=2, image_size=64, patch_size=16, max_position_embeddings=40)
        model = hf.ViltForMaskedLM(config)
        hf.ViltImageProcessor(size={"shortest_edge": 32}, size_divisor=16).save_pretrained(folder)
    else:
        text = {**BERT, "num_hidden_layers": 2, "eos_token_id": 3, "max_position_embeddings": 40}
        vision = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 1}
        vision |= {"image_size": 16, "patch_size": 8}
        config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTHS[name])
        config.text_config.projection_dim = config.vision_config.projection_dim = WIDTHS[name]
        model = hf.CLIPModel(config)
    model.save_pretrained(folder)
    return folder


def picture(key, rng, width, regions=5):
    corners = np.sort(rng.random((regions, 2, 2), np.float32), 1).reshape(regions, 4) * 90
    return Regions(
        key, 100, 100, corners, rng.random((regions, width), np.float32),
        global_features=rng.standard_normal(width).astype(np.float32),
    )  # fmt: skip


def write_store(name, path, keys):
    """Records of different lengths."""
    rng = np.random.default_rng(0)
    with StoreWriter(path, "float32") as writer:
        writer.write([picture(key, rng, WIDTHS[name], 3 + n % 3) for n, key in enumerate(keys)])
    return path


def write_images(folder, keys):
    rng = np.random.default_rng(0)
    (folder / "train2017").mkdir(parents=True)
    for n, key in enumerate(keys):
        pixels = rng.integers(0, 256, (40 + 8 * (n % 2), 48, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "train2017" / f"{key}.jpg")
    return folder


def write_source(name, folder, keys):
    """The options of a command line that name what the model reads."""
    if name == "vilt":
        return ["--images", write_images(folder / "pictures", keys)]
    return ["--store", write_store(name, folder / f"{name}.roi", keys)]
