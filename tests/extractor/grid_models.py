"""Small image transformers with random weights, in the layouts that they are published in."""

from __future__ import annotations

from pathlib import Path

import torch

SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = SIZE | {"vocab_size": 99, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
VISION = SIZE | {"image_size": 64, "patch_size": 16}


def save_small(kind: str, folder: Path, image: int = 64, shard: str = "5GB") -> None:
    """Write a model of that kind with the settings of its image processor, as `save_pretrained` of transformers does.

    CLIP and SigLIP with their text sides, ViT within a classifier, BLIP-2 and PaliGemma with all that writes: as most
    of the published ones are. Files are no larger than `shard`, as far as tensors allow.
    """
    import transformers as hf

    torch.manual_seed(11)
    vision = VISION | {"image_size": image}
    if kind == "clip":
        both = {"text_config": TEXT | {"projection_dim": 16}, "vision_config": vision | {"projection_dim": 16}}
        model = hf.CLIPModel(hf.CLIPConfig(**both, projection_dim=16))
        processor = hf.CLIPImageProcessor(size={"shortest_edge": image}, crop_size={"height": image, "width": image})
    elif kind == "siglip":
        model = hf.SiglipModel(hf.SiglipConfig(text_config=TEXT, vision_config=vision))
        processor = hf.SiglipImageProcessor(size={"height": image, "width": image})
    elif kind == "blip2":
        text = {"vocab_size": 99, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
        queries = SIZE | {"vocab_size": 99, "encoder_hidden_size": SIZE["hidden_size"]}
        config = {"qformer_config": queries, "text_config": hf.T5Config(**text), "num_query_tokens": 4}
        model = hf.Blip2ForConditionalGeneration(hf.Blip2Config(vision_config=vision, **config, image_token_index=3))
        processor = hf.BlipImageProcessor(size={"height": image, "width": image})
    elif kind == "paligemma":
        text = TEXT | {"num_key_value_heads": 1, "head_dim": 8}
        vision |= {"model_type": "siglip_vision_model", "vision_use_head": False}
        config = {"vision_config": vision, "text_config": hf.GemmaConfig(**text), "projection_dim": 32}
        model = hf.PaliGemmaForConditionalGeneration(hf.PaliGemmaConfig(**config, image_token_index=3))
        processor = hf.SiglipImageProcessor(size={"height": image, "width": image})
    else:
        model = hf.ViTForImageClassification(hf.ViTConfig(**vision))
        processor = hf.ViTImageProcessor(size={"height": image, "width": image})
    for parameter in model.parameters():  # published sizes: biases and norms are not at their first values either
        parameter.data += 0.05 * torch.randn(parameter.shape)
    model.save_pretrained(folder, max_shard_size=shard)
    processor.save_pretrained(folder)
