"""Tokenizers: one text gives one tokenizer everywhere, and the numbers that noises rely on are right."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, pre_tokenizers

from lmab.data.tokenizer import ByteLevelBPE, WordPiece, vocabulary
from lmab.types import BadInput

LEARNERS = [WordPiece(vocab=600, alphabet=100), ByteLevelBPE(vocab=600)]
each = pytest.mark.parametrize("learner", LEARNERS, ids=["wordpiece", "byte_bpe"])


@pytest.fixture(scope="module")
def learnt(sentences) -> dict[str, Tokenizer]:
    return {type(learner).__name__: learner.learn(sentences) for learner in LEARNERS}


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=False).tokens


@each
def test_the_first_five_types_are_the_special_ones(learnt, learner):
    tokenizer = learnt[type(learner).__name__]
    first = [tokenizer.id_to_token(number) for number in range(5)]
    assert first in (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        ["<pad>", "<unk>", "<s>", "</s>", "<mask>"],
    )
    words = vocabulary(tokenizer, 600)
    names = [words.pad, words.unknown, words.first, words.last, words.mask]
    assert names == [0, 1, 2, 3, 4]
    assert np.flatnonzero(words.special).tolist() == names
    assert tokenizer.get_vocab_size() == 600
    assert sorted(tokenizer.get_vocab().values()) == list(range(600))


@each
def test_a_text_gives_one_tokenizer_in_every_process(learnt, learner, sentences, tmp_path):
    path = tmp_path / "sentences.json"
    path.write_text(json.dumps(sentences), encoding="utf-8")
    code = (
        "import hashlib, json, pathlib, sys\n"
        "from lmab.data.tokenizer import ByteLevelBPE, WordPiece\n"
        f"text = {learner!r}.learn(json.loads(pathlib.Path(sys.argv[1]).read_text('utf-8'))).to_str()\n"
        "print(hashlib.md5(text.encode()).hexdigest())"
    )
    said = subprocess.check_output([sys.executable, "-c", code, str(path)], text=True)
    here = learnt[type(learner).__name__].to_str()
    assert said.strip() == hashlib.md5(here.encode()).hexdigest()
    # An alphabet that is cut among equally rare characters, and the order of the text, change nothing either.
    if isinstance(learner, WordPiece):
        learner = WordPiece(vocab=600, alphabet=30)
        assert learner.learn(sentences).to_str() == learner.learn(sentences[::-1]).to_str()


def test_wordpiece_keeps_the_most_frequent_characters():
    tokenizer = WordPiece(vocab=40, alphabet=3).learn(["aaaa bbb cc d", "abc"])
    assert pieces(tokenizer, "d") == ["[UNK]"]
    assert set("abc") <= set(tokenizer.get_vocab())
    assert "##d" not in tokenizer.get_vocab()
    assert pieces(tokenizer, "abc") == ["abc"]
    assert pieces(tokenizer, "aad") == ["[UNK]"]
    # Among equally frequent ones the alphabet decides, and not the order of some table in memory.
    equal = WordPiece(vocab=40, alphabet=6).learn(["l k j i h g f e d c b a"])
    assert set(equal.get_vocab()) == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"}


def test_wordpiece_learns_the_most_frequent_pairs_first():
    # Five special tokens, a b c alone and b c as continuations fill ten places, so that one merge remains.
    text, special = ["ab ab ab abc"], {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    none, one = WordPiece(vocab=10).learn(text), WordPiece(vocab=11).learn(text)
    assert set(none.get_vocab()) == special | {"a", "b", "c", "##b", "##c"}
    assert set(one.get_vocab()) == set(none.get_vocab()) | {"ab"}
    assert pieces(one, "abc") == ["ab", "##c"]


def test_wordpiece_lowercases_if_asked(sentences):
    assert pieces(WordPiece(vocab=600).learn(sentences), "THE Film") == ["the", "film"]
    cased = WordPiece(vocab=600, lowercase=False).learn(sentences)
    assert "The" in cased.get_vocab()
    assert cased.normalizer.normalize_str("Café THE") == "Café THE"


@each
def test_continuing_types_are_those_that_continue_a_word(learnt, learner, reviews):
    tokenizer = learnt[type(learner).__name__]
    vocab = vocabulary(tokenizer, 600)
    splitter = pre_tokenizers.BertPreTokenizer()
    for review in reviews[:20]:
        words = review.split()  # a byte-level tokenizer takes a word's punctuation as part of it
        if isinstance(learner, WordPiece):
            words = [word for word, _ in splitter.pre_tokenize_str(tokenizer.normalizer.normalize_str(review))]
        each = [tokenizer.encode(word, add_special_tokens=False).ids for word in words]
        whole = tokenizer.encode(" ".join(words), add_special_tokens=False)
        assert whole.ids == list(itertools.chain.from_iterable(each))
        assert all(vocab.continues[ids].tolist() == [False] + [True] * (len(ids) - 1) for ids in each)
        assert any(len(ids) > 1 for ids in each)
    assert not vocab.continues[vocab.special].any()


def test_types_that_the_text_did_not_fill_are_never_drawn(sentences):
    tokenizer = ByteLevelBPE(vocab=400).learn(["a little text"])
    assert tokenizer.get_vocab_size() < 400
    words = vocabulary(tokenizer, 400)
    assert words.size == len(words.special) == len(words.continues) == 400
    assert words.special[tokenizer.get_vocab_size() :].all()
    assert not words.continues[tokenizer.get_vocab_size() :].any()


anything = st.text(st.characters(codec="utf-8"), max_size=40)


@given(text=anything)
def test_byte_level_pieces_say_the_text_again(learnt, text):
    tokenizer = Tokenizer.from_str(learnt["ByteLevelBPE"].to_str())
    tokenizer.encode_special_tokens = True
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert all(number >= 5 for number in encoded.ids)
    # The first word is given the space that every word has.
    spaced = text if text.startswith(" ") or not text else f" {text}"
    assert tokenizer.decode(encoded.ids) == spaced


@each
def test_learning_leaves_special_words_in_a_text_to_the_reader(learnt, learner):
    tokenizer = Tokenizer.from_str(learnt[type(learner).__name__].to_str())
    text = "it says [MASK] and <mask> and [SEP] and </s>"
    assert {3, 4} <= set(tokenizer.encode(text, add_special_tokens=False).ids)
    tokenizer.encode_special_tokens = True
    assert not {0, 2, 3, 4} & set(tokenizer.encode(text, add_special_tokens=False).ids)


def test_a_wordpiece_vocabulary_that_cannot_hold_the_alphabet_is_refused(sentences):
    with pytest.raises(BadInput, match=r"tokenizer\.vocab=40 is smaller.*tokenizer\.alphabet=1000") as caught:
        WordPiece(vocab=40).learn(sentences)
    needed = int(re.search(r"special tokens, (\d+):", str(caught.value)).group(1))
    assert WordPiece(vocab=needed).learn(sentences).get_vocab_size() == needed
    with pytest.raises(BadInput, match=f"special tokens, {needed}:"):
        WordPiece(vocab=needed - 1).learn(sentences)
    assert WordPiece(vocab=40, alphabet=10).learn(sentences).get_vocab_size() == 40


def test_a_byte_level_vocabulary_that_cannot_hold_the_bytes_is_refused(sentences):
    with pytest.raises(BadInput, match=r"tokenizer\.vocab=260 is smaller.*at least 261"):
        ByteLevelBPE(vocab=260).learn(sentences)
    assert ByteLevelBPE(vocab=261).learn(sentences).get_vocab_size() == 261
