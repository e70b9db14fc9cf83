"""Models of transformers with random weights, shrunk, in folders as their publishers lay them out."""

import re

import pytest
import torch


@pytest.fixture
def save_tokenizer():
    """Texts, a folder -> a tokenizer of their words there, which ends texts with </s>; returns its size."""

    def save(texts, folder, more=(), bos=None):
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        words = dict.fromkeys(word for text in texts for word in re.findall(r"\w+|[^\w\s]", text))
        vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *more, *words])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [tokenizer.pre_tokenizer, pre_tokenizers.Split(Regex(r"[^\w\s<>/]"), "isolated")]
        )
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 1)]
        )
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
            bos_token=bos, additional_special_tokens=list(more),
        )  # fmt: skip
        fast.save_pretrained(folder)
        return len(vocabulary)

    return save


@pytest.fixture
def save_mt5(save_tokenizer):
    """Texts, a folder -> an mT5 there with a tokenizer of their words."""

    def save(texts, folder):
        from transformers import MT5Config, MT5ForConditionalGeneration

        size = save_tokenizer(texts, folder)
        torch.manual_seed(0)
        config = MT5Config(
            vocab_size=size, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4,
            decoder_start_token_id=0, dropout_rate=0.0,
        )  # fmt: skip
        MT5ForConditionalGeneration(config).save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def save_vit():
    """A folder -> a ViT there that looks at 3 x 3 patches of 4 pixels."""

    def save(folder):
        from transformers import ViTConfig, ViTImageProcessor, ViTModel

        torch.manual_seed(1)
        config = ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=12,
            patch_size=4,
        )
        ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
        ViTImageProcessor(size={"height": 12, "width": 12}).save_pretrained(folder)
        return folder

    return save
