"""Tokenizers of both kinds, built on the fly and loaded the way a published one is."""

import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from dataclasses import replace  # noqa: E402

from cache import InputNotFound, UsageError  # noqa: E402
from consumers.encoders import encoder_config, load_tokenizer  # noqa: E402

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a dog cat sleep ##s on the mat red ball with one and two".split()
PIECES = ["▁a", "▁dog", "▁cat", "▁sleep", "s", "▁on", "▁the", "▁mat", "▁red", "▁ball", "▁Dog", "▁", "o"]


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    """A directory as `save_pretrained` of a BERT tokenizer leaves it."""
    folder = tmp_path_factory.mktemp("wordpiece")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def unigram(tmp_path_factory):
    """A directory as `save_pretrained` of an XLM-R tokenizer leaves it: <s> 0, <pad> 1, </s> 2, <unk> 3."""
    folder = tmp_path_factory.mktemp("unigram")
    pieces = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [(piece, -1.0 - i / 10) for i, piece in enumerate(PIECES)]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    special |= {"pad_token": "<pad>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return folder


def test_wordpiece(wordpiece):
    batch = load_tokenizer("uniter", wordpiece)(["A dog sleeps on the mat", "Cat"])
    ids = [WORDS.index(w) for w in "[CLS] a dog sleep ##s on the mat [SEP]".split()]
    short = [WORDS.index(w) for w in ("[CLS]", "cat", "[SEP]")]
    assert batch.input_ids.tolist() == [ids, short + [0] * 6]
    assert batch.input_mask.tolist() == [[1] * 9, [1] * 3 + [0] * 6]
    assert batch.input_ids.dtype == torch.int64


def test_unigram_pads_with_one_and_keeps_case(unigram):
    batch = load_tokenizer("xuniter", unigram)(["a dog sleeps", "Dog"])
    at = {piece: 4 + i for i, piece in enumerate(PIECES)}
    assert batch.input_ids.tolist() == [
        [0, at["▁a"], at["▁dog"], at["▁sleep"], at["s"], 2],
        [0, at["▁Dog"], 2, 1, 1, 1],
    ]
    assert batch.input_mask.sum(1).tolist() == [6, 3]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_long_texts_keep_their_beginning_and_both_specials(kind, request):
    folder = request.getfixturevalue(kind)
    tokenizer = load_tokenizer("uniter" if kind == "wordpiece" else "uc2", folder)
    text = "the red dog on the mat " * 30
    whole = tokenizer([text], 200).input_ids[0]
    cut = tokenizer([text]).input_ids[0]
    assert len(cut) == 80 and len(whole) > 80
    assert torch.equal(cut[:79], whole[:79]) and cut[79] == whole[-1]
    assert tokenizer([text], 40).input_ids.shape == (1, 40)


def test_empty_and_strange_texts(wordpiece):
    tokenizer = load_tokenizer("uniter", wordpiece)
    assert tokenizer(["", " \n\t", "\u200b"]).input_ids.tolist()[0] == [2, 3]
    assert tokenizer(["dog\u00a0dog\n dog"]).input_ids.tolist() == [[2, 6, 6, 6, 3]]
    with pytest.raises(UsageError, match="a sequence of at least one text"):
        tokenizer("dog")
    with pytest.raises(UsageError, match="a sequence of at least one text"):
        tokenizer([])
    with pytest.raises(UsageError, match="max_tokens is 600; uniter takes 3 to 512"):
        tokenizer(["dog"], 600)


def test_the_wrong_tokenizer(wordpiece, unigram, tmp_path):
    small = replace(encoder_config("uniter"), vocab_size=10)
    with pytest.raises(UsageError, match=r"has 19 tokens, uniter's word table 10; .*bert-base-uncased"):
        load_tokenizer(small, wordpiece)
    with pytest.raises(UsageError, match="pads with 1, muniter with 0; .*bert-base-multilingual-cased"):
        load_tokenizer("muniter", unigram)
    with pytest.raises(InputNotFound, match="no tokenizer for uniter at .*nowhere.*bert-base-uncased"):
        load_tokenizer("uniter", tmp_path / "nowhere")
