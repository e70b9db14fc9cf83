"""M3P (Ni et al., CVPR 2021): an XLM encoder over regions first, then words; 100 regions of unit length."""

from ..config import EncoderConfig

CONFIG = EncoderConfig(
    name="m3p",
    image_embedding="m3p",
    tokenizer="xlm-roberta-base",
    vocab_size=250002,
    text_model="xlm-roberta",
    max_positions=514,
    text_types=0,
    pad_id=1,
    regions=100,
    global_region="none",
    normalize=True,
    pool_size=768,
    pool_activation="tanh",
    fusion="text",
)
