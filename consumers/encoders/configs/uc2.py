"""UC2 (Zhou et al., CVPR 2021): a single stream over XLM-R, with seven location values and no global region."""

from ..config import EncoderConfig

CONFIG = EncoderConfig(
    name="uc2",
    image_embedding="uc2",
    tokenizer="xlm-roberta-base",
    vocab_size=250002,
    text_model="xlm-roberta",
    max_positions=514,
    pad_id=1,
    location_dim=7,
    global_region="none",
    pool_size=768,
    fusion="text",
    classifier_size=768,
    retrieval_loss="triplet",
    norm_eps=1e-5,
)
