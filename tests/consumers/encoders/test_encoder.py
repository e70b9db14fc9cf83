"""What holds for every encoder in the registry, the ones to come included."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cache import Regions, UsageError
from cache.dataset import collate_regions
from consumers.encoders import Embedded, encoder_config, from_volta, list_encoders, load_encoder
from consumers.encoders.heads import HEADS
from consumers.encoders.inputs import InputError

ENCODERS = list_encoders()


def close(ours, theirs, tolerance=2e-5):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_shapes(name, small_encoder, inputs):
    encoder = small_encoder(name, heads=tuple(HEADS))
    config = encoder.config
    output = encoder(*inputs(config))
    assert output.text.shape == (2, 9, config.text.hidden)
    assert output.regions.shape == (2, 7, config.image.hidden)
    assert output.pooled.shape == (2, config.pool_size)
    assert (output.pooled_regions is None) == (config.fusion == "text")
    assert {head: tuple(encoder.head(head)(output).shape) for head in HEADS} == {
        "xvnli": (2, 3),
        "gqa": (2, 1842),
        "nlvr2": (1, 2),
        "retrieval": (2, 1),
        "vsr": (2, 2),
    }


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_a_sample_does_not_depend_on_its_batch(name, small_encoder, inputs):
    encoder = small_encoder(name)
    tensors = inputs(encoder.config, lengths=(9, 6, 3), counts=(2, 7, 5), text_slots=11, region_slots=8)
    together = encoder(*tensors)
    for i, (length, count) in enumerate(((9, 2), (6, 7), (3, 5))):
        ids, input_mask, features, locations, region_mask = (x[i : i + 1] for x in tensors)
        text = ids[:, :length], input_mask[:, :length]
        image = features[:, :count], locations[:, :count], region_mask[:, :count]
        alone = encoder(*text, *image)
        close(together.pooled[i], alone.pooled[0])
        close(together.text[i, :length], alone.text[0])
        close(together.regions[i, :count], alone.regions[0])


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_every_token_and_region_counts_and_padding_does_not(name, small_encoder, inputs):
    encoder = small_encoder(name)
    tensors = inputs(encoder.config, lengths=(6,), counts=(4,), text_slots=9, region_slots=7)
    pooled = encoder(*tensors).pooled
    for slot in range(6):
        ids = tensors[0].clone()
        ids[0, slot] = 79 if ids[0, slot] != 79 else 78
        assert (encoder(ids, *tensors[1:]).pooled - pooled).abs().max() > 1e-5, f"token {slot} changes nothing"
    for slot in range(7):
        features = tensors[2].clone()
        features[0, slot] += 1
        moved = (encoder(*tensors[:2], features, *tensors[3:]).pooled - pooled).abs().max()
        assert moved > 1e-5 if slot < 4 else moved < 1e-5, f"region {slot}"


@pytest.mark.parametrize("name", ENCODERS)
def test_every_weight_that_is_used_learns(name, small_encoder, inputs):
    encoder = small_encoder(name, heads=("xvnli",)).train()
    encoder.head("xvnli")(encoder(*inputs(encoder.config))).square().sum().backward()
    still = [n for n, p in encoder.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    # no text has a second segment there, no region of these is masked, only the first visual position is in use,
    # and what the last sublayers make of the stream that nobody pools is lost
    unread = {
        "vl-bert": {"image_embed.masked.weight"},
        "lxmert-original": {n for n in still if n.startswith(("blocks.31.image", "blocks.32.image"))},
    }
    assert set(still) <= unread.get(name, set())


@pytest.mark.parametrize("name", ENCODERS)
def test_checkpointing_changes_memory_only(name, small_encoder, inputs):
    grads = {}
    for checkpointing in (False, True):
        encoder = small_encoder(name)
        encoder.checkpointing = checkpointing
        encoder(*inputs(encoder.config)).pooled.square().sum().backward()
        grads[checkpointing] = {n: p.grad for n, p in encoder.named_parameters() if p.grad is not None}
    assert grads[True].keys() == grads[False].keys()
    for n, grad in grads[True].items():
        close(grad, grads[False][n], 1e-4)


@pytest.mark.parametrize("name", ["xuniter", "lxmert", "m3p", "vl-bert"])  # one per path through the code
@torch.no_grad()
def test_compiles_as_one_graph(name, shrunk, inputs):
    torch.compiler.reset()
    config = shrunk(name)
    encoder = load_encoder(replace(config, layout=tuple(dict.fromkeys(config.layout))))  # a sublayer of each kind
    tensors = inputs(encoder.config)
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    close(compiled(*tensors).pooled, encoder(*tensors).pooled)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_bfloat16_stays_near(name, small_encoder, inputs):
    encoder = small_encoder(name)
    tensors = inputs(encoder.config)
    exact = encoder(*tensors).pooled
    with torch.autocast("cpu", torch.bfloat16):
        rounded = encoder(*tensors).pooled
    assert rounded.dtype == torch.bfloat16
    assert F.cosine_similarity(rounded.float(), exact).min() > 0.99


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_embedding_once_and_pairing_is_the_same(name, small_encoder, inputs):
    encoder = small_encoder(name)
    ids, input_mask, *image = inputs(encoder.config)
    text, regions = encoder.embed_text(ids, input_mask), encoder.embed_regions(*image)
    swapped = torch.tensor([1, 0])
    paired = encoder.fuse(text, regions[swapped])
    close(paired.pooled, encoder(ids, input_mask, *(x[swapped] for x in image)).pooled)


@torch.no_grad()
def test_dual_streams_embed_through_their_own_layers(small_encoder, inputs):
    encoder = small_encoder("lxmert")
    ids, input_mask, *image = inputs(encoder.config)
    text = encoder.embed_text(ids, input_mask)
    assert encoder.config.first_crossing == 18
    assert (text.vectors - encoder.text_embed(ids)).abs().max() > 0.1
    for block in encoder.blocks[:18]:
        block.forward = None  # fusing must not come here again
    assert encoder.fuse(text, encoder_regions(encoder, image)).pooled.shape == (2, 32)


def encoder_regions(encoder, image):
    mask = image[2].bool()
    return Embedded(encoder.image_embed(image[0], image[1], encoder.text_embed), mask, mask.sum(1))


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_what_is_exported_comes_back(name, small_encoder, inputs):
    encoder = small_encoder(name, heads=("xvnli", "nlvr2"))
    config = {
        "image_embeddings": encoder.config.image_embedding,
        "model": "roberta" if encoder.config.text_model == "xlm-roberta" else "bert",
        "pad_token_id": encoder.config.pad_id,
        "num_attention_heads": encoder.config.text.heads,
        "v_num_attention_heads": encoder.config.image.heads,
        "fusion_act": encoder.config.pool_activation,
        "fusion_method": encoder.config.fusion,
        "layer_norm_eps": encoder.config.norm_eps,
        **sublayer_lists(encoder.config.layout),
    }
    again = from_volta(config, encoder.to_volta(), heads=("xvnli", "nlvr2"))
    tensors = inputs(encoder.config)
    for a, b in zip(encoder(*tensors), again(*tensors), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    assert again.to_volta().keys() == encoder.to_volta().keys()


def sublayer_lists(layout):
    lists = {key: [] for key in ("tt_attn", "tv_attn", "vt_attn", "vv_attn", "t_ff", "v_ff", "shared")}
    heads, image_heads = {}, {}
    for n, step in enumerate(layout):
        lists["shared"] += [n] * step.shared
        if hasattr(step, "text"):
            for letter, keys in (("t", step.text), ("v", step.image)):
                for key in keys:
                    lists[f"{letter}{'t' if key == 'text' else 'v'}_attn"].append(n)
            heads |= {str(n): step.text_heads} if step.text_heads else {}
        else:
            for stream in step.streams:
                lists["t_ff" if stream == "text" else "v_ff"].append(n)
    wide = {"v_num_attention_heads": 8} if heads else {}
    found = {f"{key}_sublayers": numbers for key, numbers in lists.items()}
    return found | wide | {"sublayer2num_attention_heads": heads, "sublayer2v_num_attention_heads": image_heads}


def test_unknown_head(small_encoder):
    with pytest.raises(UsageError, match="'caption'.*xvnli, gqa"):
        small_encoder("uniter", heads=("caption",))
    with pytest.raises(UsageError, match=r"heads=\('xvnli',\)"):
        small_encoder("uniter", heads="xvnli")
    with pytest.raises(UsageError, match="without the head 'gqa'; its heads: xvnli"):
        small_encoder("uniter", heads=("xvnli",)).head("gqa")


def test_pairs_need_an_even_batch(small_encoder, inputs):
    encoder = small_encoder("uniter", heads=("nlvr2",))
    output = encoder(*inputs(encoder.config, lengths=(4, 4, 4), counts=(3, 3, 3)))
    with pytest.raises(InputError, match=r"pooled has shape \(3, 32\).*multiple of 2"):
        encoder.head("nlvr2")(output)


@torch.no_grad()
def test_embedded_batches_join_and_part(small_encoder, inputs):
    encoder = small_encoder("uniter")
    a = encoder.embed_text(*inputs(encoder.config, lengths=(9, 6))[:2])
    b = encoder.embed_text(*inputs(encoder.config, lengths=(3, 2), seed=1)[:2])
    both = Embedded.concatenated([a, b])
    assert both.vectors.shape[:2] == (4, 9) and both.lengths.tolist() == [9, 6, 3, 2]
    back = both[2:].trimmed()
    assert torch.equal(back.vectors, b.vectors) and torch.equal(back.mask, b.mask)


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_reads_what_the_collation_makes(name, small_encoder, inputs):
    encoder = small_encoder(name)
    rng = np.random.default_rng(0)
    regions = []
    for n in (3, 5):
        boxes = np.sort(rng.uniform(0, 50, (n, 2, 2)), axis=1).reshape(n, 4).astype(np.float32)
        features = rng.uniform(0.1, 1, (n, 16)).astype(np.float32)
        regions.append(Regions(f"{n}.jpg", 64, 50, boxes, features))
    batch = collate_regions(regions, **encoder.config.collation)
    output = encoder(*inputs(encoder.config)[:2], batch.features, batch.locations, batch.mask)
    assert output.regions.shape[1] == 5 + (encoder.config.global_region != "none")


def test_published_collations():
    assert encoder_config("uniter").collation == {
        "max_regions": 37,
        "num_locations": 5,
        "global_region": "first",
        "normalize": False,
    }
    assert encoder_config("uc2").collation["num_locations"] == 7
    assert encoder_config("m3p").collation | {"num_locations": 5} == {
        "max_regions": 100,
        "num_locations": 5,
        "global_region": "none",
        "normalize": True,
    }


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_sparing_the_unread_positions_changes_none_that_is_read(name, small_encoder, inputs):
    encoder = small_encoder(name)
    ids, input_mask, *image = inputs(encoder.config)
    text, regions = encoder.embed_text(ids, input_mask), encoder.embed_regions(*image)
    whole, spared = encoder.fuse(text, regions), encoder.fuse(text, regions, pooled_only=True)
    close(spared.pooled, whole.pooled)
    close(spared.text, whole.text[:, :1])
    close(spared.regions, whole.regions[:, :1])
