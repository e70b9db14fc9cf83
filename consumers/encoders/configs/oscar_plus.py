"""OSCAR+ (VinVL, Zhang et al., CVPR 2021): OSCAR with a layer norm of the image's vectors, over VinVL's regions."""

from ..config import EncoderConfig

CONFIG = EncoderConfig(
    name="oscar-plus",
    image_embedding="oscar",
    tokenizer="bert-base-uncased",
    vocab_size=30522,
    separator_id=102,
    tagged=("xvnli", "gqa", "vsr", "retrieval"),  # as published not NLVR2's
    location_dim=6,
    regions=50,
    global_region="none",
    pool_size=768,
    pool_activation="tanh",
    fusion="text",
    classifier_size=3 * 768,
    deep_heads=("nlvr2",),
    retrieval_loss="binary",
)
