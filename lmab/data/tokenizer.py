"""Text to numbers: WordPiece (BERT) and byte-level BPE (RoBERTa), learnt from the training split alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lmab.types import BadInput, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

_BYTES = pre_tokenizers.ByteLevel.alphabet()
_SPACE = "Ġ"  # how byte-level BPE writes the space before a word


class Learner(Protocol):
    """Makes a tokenizer from text. Its fields are what can be ablated."""

    vocab: int

    def learn(self, sentences: Iterable[str]) -> Tokenizer: ...


@dataclass(frozen=True, kw_only=True)
class WordPiece:
    """BERT's subwords (Devlin et al. 2018, section 3): `##` marks a piece that continues a word.

    vocab: how many types at most. alphabet: how many characters are kept at most; rarer ones are unknown.
    """

    vocab: int
    lowercase: bool = True
    alphabet: int = 1000

    def learn(self, sentences: Iterable[str]) -> Tokenizer:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        splitter = pre_tokenizers.BertPreTokenizer()
        words = Counter(
            word for sentence in sentences for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(sentence))
        )
        # The library numbers continuing characters, and cuts the alphabet, in the order of a hash map that is
        # another in every process, and breaks ties between merges by these numbers. So it is told them.
        counts: Counter[str] = Counter()
        for word, n in words.items():
            for character in word:
                counts[character] += n
        kept = sorted(counts, key=lambda character: (-counts[character], character))[: self.alphabet]
        inside = sorted({character for word in words for character in word[1:]}.intersection(kept))
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.vocab,
            special_tokens=[*special, *(f"##{character}" for character in inside)],
            initial_alphabet=kept,
            limit_alphabet=len(kept),
            show_progress=False,
        )
        learnt = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        learnt.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        learnt.train_from_iterator(words.elements(), trainer)
        if learnt.get_vocab_size() > self.vocab:
            # The trainer keeps every character, alone and as a continuation, whatever size was asked for.
            raise BadInput(
                f"tokenizer.vocab={self.vocab} is smaller than the alphabet of the training text with its "
                f"special tokens, {learnt.get_vocab_size()}: raise tokenizer.vocab to at least that, or "
                f"lower tokenizer.alphabet={self.alphabet}."
            )
        tokenizer = Tokenizer(models.WordPiece(learnt.get_vocab(), unk_token="[UNK]"))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
        tokenizer.decoder = decoders.WordPiece()
        tokenizer.add_special_tokens(special)
        return tokenizer


@dataclass(frozen=True, kw_only=True)
class ByteLevelBPE:
    """RoBERTa's subwords (Liu et al. 2019, section 4.4; Radford et al. 2019): merges of bytes, so that no
    text holds an unknown token. A type that begins with a space begins a word."""

    vocab: int

    def learn(self, sentences: Iterable[str]) -> Tokenizer:
        special = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
        least = len(_BYTES) + len(special)
        if self.vocab < least:
            raise BadInput(
                f"tokenizer.vocab={self.vocab} is smaller than the 256 bytes and {len(special)} special "
                f"tokens of a byte-level tokenizer: raise it to at least {least}."
            )
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab, special_tokens=special, initial_alphabet=_BYTES, show_progress=False
        )
        tokenizer.train_from_iterator(sentences, trainer)
        return tokenizer


def vocabulary(tokenizer: Tokenizer, size: int) -> Vocabulary:
    """The numbers of a tokenizer. The first five types are the special ones, in the order that both
    tokenizers above give them. size: of the model's table, which a small text may not fill."""
    types = tokenizer.get_vocab()
    special = np.ones(size, dtype=bool)
    continues = np.zeros(size, dtype=bool)
    byte_level = "<s>" in types
    for text, number in types.items():
        special[number] = number < 5
        continues[number] = not text.startswith(_SPACE) if byte_level else text.startswith("##")
    return Vocabulary(
        size=size, pad=0, unknown=1, first=2, last=3, mask=4, special=special, continues=continues & ~special
    )
