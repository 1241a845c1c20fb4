"""Text to numbers: WordPiece (BERT) and byte-level BPE (RoBERTa), learnt from the training split alone, or a published
tokenizer as it is; and the grey levels of images that are written as text."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from lmab.data.readers import existing, phrase
from lmab.types import BadInput, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_BYTES = pre_tokenizers.ByteLevel.alphabet()
# How the space before a word is written by SentencePiece and by byte-level BPE. No byte is written with the first, so
# the second is looked for after it.
_SPACES = ("▁", "Ġ")
# What the special types are for, and their names in published tokenizers. XLNet has <s> and </s> besides its own.
_NAMES = {
    "padding": ("[PAD]", "<pad>"),
    "what is unknown": ("[UNK]", "<unk>"),
    "the first place of a row": ("[CLS]", "<cls>", "<s>"),
    "the last place of a row": ("[SEP]", "<sep>", "</s>"),
    "what is masked": ("[MASK]", "<mask>"),
}


class Learner(Protocol):
    """Makes a tokenizer from text. Its fields are what can be ablated."""

    @property
    def vocab(self) -> int | None:
        """Types in the model's table; None: as many as the tokenizer has."""
        ...

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


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The pixels of images that are written as numbers, as task=digits writes them: the grey level n is type n, and
    there is no special type. vocab: grey levels."""

    vocab: int
    images: ClassVar[bool] = True

    def learn(self, sentences: Iterable[str]) -> Tokenizer:
        most = max((int(level) for sentence in sentences for level in sentence.split()), default=0)
        if most >= self.vocab:
            raise BadInput(
                f"tokenizer.vocab={self.vocab} has no type for the grey level {most}: give tokenizer.vocab={most + 1}."
            )
        # The library wants the name of an unknown type and, as long as none occurs, not the type.
        tokenizer = Tokenizer(models.WordLevel({str(level): level for level in range(self.vocab)}, unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A tokenizer that was learnt elsewhere, such as the one that a published model reads through.

    path: of a tokenizer.json, or of the folder that holds it. vocab: types in the model's table, at least those of the
    tokenizer; None: as many as it has. What it splits text into is taken as published: one that writes no space before
    the first word of a text, as RoBERTa's, takes that word for a continuation.
    """

    path: str
    vocab: int | None = None

    def fingerprint(self) -> str:
        """16 hexadecimal digits of what stands in the file, wherever it lies."""
        return hashlib.blake2b(self._file().read_bytes(), digest_size=8).hexdigest()

    def learn(self, sentences: Iterable[str]) -> Tokenizer:
        """The tokenizer; the text teaches it nothing, and is not read."""
        path = self._file()
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise BadInput(f"tokenizer.path={path} is no tokenizer.json: {phrase(error)}") from error
        # Published ones cut and pad every text to the length that they were last used with.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _file(self) -> Path:
        path = existing(self.path)
        return existing(path / "tokenizer.json") if path.is_dir() else path


def vocabulary(tokenizer: Tokenizer, size: int | None) -> Vocabulary:
    """The numbers of a tokenizer, whose special types are found by their usual names.

    size: of the model's table, which a small text may not fill; None: as many types as there are. BadInput: a smaller
    one, a special type that is missing, types that do not say where a word begins.
    """
    types = tokenizer.get_vocab()
    least = max(types.values()) + 1
    size = least if size is None else size
    if size < least:
        raise BadInput(
            f"tokenizer.vocab={size} is smaller than the tokenizer, which has {least} types: give the model as many, "
            f"budget.vocab={least}."
        )
    if types == {str(level): level for level in range(len(types))}:  # grey levels, of which none is special
        never = np.zeros(size, dtype=bool)
        return Vocabulary(size=size, pad=0, unknown=-1, first=-1, last=-1, mask=-1, special=never, continues=never)
    pad, unknown, first, last, mask = (_number(types, purpose) for purpose in _NAMES)
    named = [pad, unknown, first, last, mask]
    named += [number for number, added in tokenizer.get_added_tokens_decoder().items() if added.special]
    special = np.ones(size, dtype=bool)  # numbers that no type has are never drawn either
    special[list(types.values())] = False
    special[named] = True
    continues = np.zeros(size, dtype=bool)
    continuing = _continuing(tokenizer, types)
    for text, number in types.items():
        continues[number] = not special[number] and continuing(text)
    return Vocabulary(
        size=size, pad=pad, unknown=unknown, first=first, last=last, mask=mask, special=special, continues=continues
    )


def _number(types: dict[str, int], purpose: str) -> int:
    for name in _NAMES[purpose]:
        if name in types:
            return types[name]
    raise BadInput(
        f"tokenizer.path leads to a tokenizer without a special type for {purpose}, named "
        f"{' or '.join(_NAMES[purpose])}: give another, or learn one with tokenizer=wordpiece."
    )


def _continuing(tokenizer: Tokenizer, types: dict[str, int]) -> Callable[[str], bool]:
    """Tells the types that continue a word from those that begin one."""
    prefix = getattr(tokenizer.model, "continuing_subword_prefix", None)
    if prefix:
        return lambda text: text.startswith(prefix)
    for space in _SPACES:
        if any(text.startswith(space) for text in types):
            return lambda text: not text.startswith(space)
    raise BadInput(
        "tokenizer.path leads to a tokenizer whose types do not say where a word begins, as ##, ▁ or Ġ would: give "
        "another, or learn one with tokenizer=wordpiece."
    )
