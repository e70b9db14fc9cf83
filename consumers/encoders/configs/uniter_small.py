"""A small UNITER over the features of the `demo` detector, to be trained from nothing on a laptop in minutes."""

from ..config import EncoderConfig, StreamConfig, single_stream

WIDTH = StreamConfig(hidden=96, heads=4, ffn=384, dropout=0.0, attention_dropout=0.0)

CONFIG = EncoderConfig(
    name="uniter-small",
    image_embedding="uniter",
    tokenizer="the demo (demo/training/tokenizer)",  # made from the words of the tasks by small_tokenizer.py
    vocab_size=1024,
    layout=single_stream(2),
    max_positions=128,
    text=WIDTH,
    image=WIDTH,
    feature_dim=384,
    pool_size=96,
    classifier_size=192,
    pool_activation="tanh",
    fusion="sum",
    init_std=0.15,
)
