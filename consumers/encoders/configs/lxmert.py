"""LXMERT (Tan and Bansal, EMNLP 2019) in Volta's controlled setup: two streams, then shared cross-attention."""

from ..config import EncoderConfig, lxmert_layout

CONFIG = EncoderConfig(
    name="lxmert",
    image_embedding="lxmert",
    tokenizer="bert-base-uncased",
    vocab_size=30522,
    layout=lxmert_layout(text_layers=9, image_layers=5, cross_layers=5),
)
