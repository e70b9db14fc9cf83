"""Shrunken BLIP-2, PaliGemma and SigLIP with random weights, saved as the published ones are."""

import torch

WORDS = ["Question : What color is it a red bus on green road Is ? Short answer :", "answer fr en yes no"]
VISION = dict(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=12, patch_size=4
)


def keep(model, folder, noise):
    """In several files. Noise on what is drawn near 0 or 1 makes pictures tell answers apart."""
    for parameter in model.parameters():
        parameter.data += noise * torch.randn(parameter.shape)
    model.save_pretrained(folder, max_shard_size="10KB")


def save_blip2(folder, save_tokenizer, text, noise=0.0):
    from transformers import Blip2Config, Blip2ForConditionalGeneration, BlipImageProcessor, OPTConfig, T5Config

    size = save_tokenizer(WORDS, folder, more=["<image>"])
    torch.manual_seed(0)
    config = Blip2Config(
        vision_config=VISION,
        qformer_config=dict(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, encoder_hidden_size=16,
            vocab_size=size,
        ),
        text_config=(
            T5Config(vocab_size=size, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
            if text == "t5"
            else OPTConfig(
                vocab_size=size, hidden_size=16, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2,
                max_position_embeddings=64, word_embed_proj_dim=16, pad_token_id=0, eos_token_id=1, bos_token_id=1,
            )
        ),
        num_query_tokens=4,
        image_token_index=3,
    )  # fmt: skip
    keep(Blip2ForConditionalGeneration(config), folder, noise)
    BlipImageProcessor(size={"height": 12, "width": 12}).save_pretrained(folder)


def save_paligemma(folder, save_tokenizer, noise=0.0):
    from transformers import GemmaConfig, PaliGemmaConfig, PaliGemmaForConditionalGeneration, SiglipImageProcessor

    size = save_tokenizer(WORDS, folder, more=["<image>", "<s>"], bos="<s>")
    torch.manual_seed(0)
    text = GemmaConfig(
        vocab_size=size + 1200, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, pad_token_id=0, eos_token_id=1, bos_token_id=4,
    )  # fmt: skip
    config = PaliGemmaConfig(
        vision_config={**VISION, "model_type": "siglip_vision_model"}, text_config=text, image_token_index=3,
        projection_dim=16, hidden_size=16,
    )  # fmt: skip
    keep(PaliGemmaForConditionalGeneration(config), folder, noise)
    SiglipImageProcessor(size={"height": 12, "width": 12}, image_seq_length=9).save_pretrained(folder)


def save_siglip(folder, words):
    """With image and text sides, the latter for so many words."""
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    size = {name: VISION[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    text = size | {"intermediate_size": 32, "vocab_size": words}
    SiglipModel(SiglipConfig(text_config=text, vision_config=VISION)).save_pretrained(folder)
    SiglipImageProcessor(size={"height": 12, "width": 12}).save_pretrained(folder)
