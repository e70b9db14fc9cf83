"""Volta's JSON configurations (Bugliarello et al. 2021) as encoder configurations.

What the JSON says of the structure is taken from it; every size is read from the state dict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

from torch import Tensor

from cache import InputNotFound, UsageError, WeightsError

from .config import BOTH, IMAGE, TEXT, Attention, EncoderConfig, FeedForward, StreamConfig, Sublayer
from .heads import HEADS, head_labels

FEATURES = {  # where each family's first image layer is
    "visualbert": "bert.embeddings.projection",
    "vl-bert": "bert.embeddings.obj_downsample.1",
    "vilbert": "bert.v_embeddings.image_embeddings",
    "lxmert": "bert.v_embeddings.image_embeddings",
}


class Shapes:
    """Shapes of a state dict by name; a name that is not there is a WeightsError."""

    def __init__(self, state: Mapping[str, Tensor], name: str):
        self.state, self.encoder = state, name

    def __contains__(self, name: str) -> bool:
        return name in self.state

    def layers(self, name: str) -> int:
        """How many there are of a name that has the number for {}."""
        return next(n for n in count() if name.format(n) not in self)

    def __call__(self, name: str) -> tuple[int, ...]:
        if name not in self.state:
            raise WeightsError(f"the state dict has no {name}, which the {self.encoder} configuration needs")
        return tuple(self.state[name].shape)


def _read(path: Path) -> Mapping:
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputNotFound(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({error}): give one of Volta's config files") from error
    if not isinstance(config, Mapping):
        raise UsageError(f"{path} holds no JSON object: give one of Volta's config files")
    return config


def read_config(
    config: Mapping | str | Path,
    state: Mapping[str, Tensor],
    heads: Iterable[str] | Mapping[str, int],
    families: Mapping[str, Callable[[Mapping, str, Shapes], dict]],
) -> tuple[EncoderConfig, dict[str, int]]:
    """A Volta JSON configuration (its contents or its path) and a state dict with Volta's names -> an encoder
    configuration and the heads with their numbers of labels. `families` has what reads the sizes of each.

    Raises UsageError for a structure that no class here has, InputNotFound and UsageError for a file that cannot be
    read, WeightsError for a tensor that is not there.
    """
    if not isinstance(config, Mapping):
        config = _read(Path(config))
    family = config.get("image_embeddings")
    if family not in families:
        raise UsageError(f"Volta configuration: image_embeddings is {family!r}; known are {', '.join(families)}")
    for key in ("hidden_act", "v_hidden_act"):
        if config.get(key, "gelu") != "gelu":
            raise UsageError(f"Volta configuration: {key} is {config[key]!r}; only gelu is known")
    shapes = Shapes(state, family)
    xlm = _is_xlm(config)
    values = {
        "tokenizer": config.get("bert_model", "xlm-roberta-base" if xlm else "bert-base-uncased"),
        "text_model": "xlm-roberta" if xlm else "bert",
        "pad_id": config.get("pad_token_id", 0),
        "global_region": config.get("add_global_imgfeat") or "none",
        "normalize": bool(config.get("norm_embeddings", False)),
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "init_std": config.get("initializer_range", 0.02),
        "retrieval_loss": "triplet" if family == "uc2" else "cross_entropy",
    }
    values |= families[family](config, family, shapes)
    result = EncoderConfig(name=family, image_embedding=family, **values)
    labels = head_labels(heads)
    for name in labels:
        for task in HEADS[name].volta_tasks:
            for last in (f"clfs_dict.{task}.weight", f"clfs_dict.{task}.logit_fc.3.weight"):
                if last in shapes and not isinstance(heads, Mapping):
                    labels[name] = shapes(last)[0]
            if (hidden := f"clfs_dict.{task}.logit_fc.0.weight") in shapes:
                result = replace(result, classifier_size=shapes(hidden)[0])
    return result, labels


def _is_xlm(config: Mapping) -> bool:
    return "roberta" in config.get("model", config.get("bert_model", "bert"))


def stream_config(config: Mapping, prefix: str, hidden: int, heads: int) -> StreamConfig:
    """Sizes of a stream; the sublayers carry their own feed-forward widths."""
    rates = (config.get(f"{prefix}{kind}_dropout_prob", 0.1) for kind in ("hidden", "attention_probs"))
    return StreamConfig(hidden, heads, 4 * hidden, *rates)


def read_bert(config: Mapping, family: str, shapes: Shapes) -> dict:
    root = "bert.embeddings"
    vocabulary, hidden = shapes(f"{root}.word_embeddings.weight")
    features = FEATURES.get(family, f"{root}.image_embeddings")
    image_hidden, feature_dim = shapes(f"{features}.weight")
    sizes = {"location_dim": config.get("num_locs", 5)}
    if family == "vl-bert":
        masked = shapes(f"{root}.object_mask_visual_embedding.weight")[1]
        sizes["coordinate_dim"], feature_dim = (feature_dim - masked) // 8, masked
    elif family != "visualbert":
        locations = features.replace("image_embeddings", "image_location_embeddings")
        sizes["location_dim"] = shapes(f"{locations}.weight")[1]
    if family == "uniter" and _is_xlm(config):
        sizes["image_types"] = shapes(f"{root}.image_token_type_embeddings.weight")[0]
    segments = f"{root}.new_token_type_embeddings.weight" if family == "uc2" else f"{root}.token_type_embeddings.weight"
    least = {"uniter": 1 if "image_types" in sizes else 2, "uc2": 2, "vl-bert": 3}.get(family, 1)
    if shapes(segments)[0] < least:
        raise WeightsError(
            f"{segments} is {shapes(segments)} in the checkpoint and {(least, hidden)} in the encoder: "
            f"{family} reads row {least - 1}; is it a checkpoint of another encoder?"
        )
    return {
        "vocab_size": vocabulary,
        "layout": _layout(config, shapes, hidden, image_hidden),
        "max_positions": shapes(f"{root}.position_embeddings.weight")[0],
        "text_types": shapes(segments)[0],
        "text": stream_config(config, "", hidden, config.get("num_attention_heads", 12)),
        "feature_dim": feature_dim,
        "image": stream_config(config, "v_", image_hidden, config.get("v_num_attention_heads", 12)),
        "pool_size": shapes("bert.t_pooler.dense.weight")[0],
        "pool_activation": config.get("fusion_act", "relu"),
        "fusion": config.get("fusion_method", "mul"),
        **sizes,
    }


def _layout(config: Mapping, shapes: Shapes, hidden: int, image_hidden: int) -> tuple[Sublayer, ...]:
    """Volta lists, per kind of step, the sublayers that take it."""
    attention = {key: set(config[f"{key}_attn_sublayers"]) for key in ("tt", "tv", "vt", "vv")}
    ffn = {TEXT: set(config["t_ff_sublayers"]), IMAGE: set(config["v_ff_sublayers"])}
    shared = set(config.get("shared_sublayers", ()))
    layout = []
    for n in range(1 + max(set().union(*attention.values(), *ffn.values()))):
        layer, tied = f"bert.encoder.layer.{n}", n in shared
        if streams := tuple(name for name in BOTH if n in ffn[name]):
            names = {TEXT: "dense", IMAGE: "dense" if tied and len(streams) == 2 else "v_dense"}
            widths = {f"{s}_width": shapes(f"{layer}.intermediate.{names[s]}.weight")[0] for s in streams}
            layout.append(FeedForward(streams, tied, **widths))
            continue
        text = tuple(name for name, key in ((TEXT, "tt"), (IMAGE, "tv")) if n in attention[key])
        image = tuple(name for name, key in ((TEXT, "vt"), (IMAGE, "vv")) if n in attention[key])
        sizes = {}
        if text:
            width = shapes(f"{layer}.attention_self.query.weight")[0]
            sizes["text_width"] = width if width != hidden else None
            sizes["text_heads"] = config.get("sublayer2num_attention_heads", {}).get(str(n))
        if image:
            query = "query" if tied and text else "v_query"
            width = shapes(f"{layer}.attention_self.{query}.weight")[0]
            sizes["image_width"] = width if width != image_hidden else None
            sizes["image_heads"] = config.get("sublayer2v_num_attention_heads", {}).get(str(n))
        layout.append(Attention(text, image, tied, **sizes))
    return tuple(layout)
