"""Bad input is one clear sentence that names what is wrong and what is near, with status 2, before any training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lmab.lab import door
from lmab.run import run
from lmab.store import Store

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from omegaconf import DictConfig

# overrides -> what the sentence must hold
SENTENCES = {
    "modle.dim=3": ["modle.dim", "model.dim"],
    "model.dmi=3": ["model.dmi", "model.dim"],
    "model=brt": ["model=brt", "bert"],
    "experiment=bret": ["experiment=bret", "bert"],
    "budget=smal": ["budget=smal", "base, mini, paper, smoke"],
    "objective=[mln]": ["objective=mln", "mlm"],
    "objective=[]": ["objective=[mlm]"],
    "model.dim=33": ["dim=33", "heads=2", "dim=32 and dim=34"],
    "model.dim=many": ["model.dim='many'", "integer"],
    "model.depth=0": ["model.depth=0", "at least 1"],
    "+model.deph=3": ["model.deph", "depth"],
    "~model.depth": ["model.depth has no value"],
    "segments.length=5": ["length=5", "8"],
    "model.length=16": ["segments.length=32", "model.length=16"],
    "model.vocab=500": ["tokenizer.vocab=600", "model.vocab=500"],
    "tokenizer.vocab=40": ["tokenizer.vocab=40", "alphabet"],
    "tokenizer=byte_bpe tokenizer.vocab=200": ["tokenizer.vocab=200", "261"],
    "objective.mlm.rate=2": ["objective.mlm.rate=2.0", "from 0 to 1"],
    "objective.mlm.random=0.5": ["exceed 1", "0.2"],
    "objective.mlm.copies=0": ["objective.mlm.copies=0", "null"],
    "trainer.steps=0": ["trainer.steps=0", "greater than 0"],
    "trainer.micro=7": ["trainer.batch=16", "trainer.micro=7", "14"],
    "+trainer.stpes=3": ["trainer.stpes", "steps"],
    "evaluation.checkpoint=bset": ["evaluation.checkpoint=bset", "best"],
    "corpus=files": ["corpus.path has no value"],
    "corpus=files corpus.path=/nowhere/at/all.txt": ["/nowhere/at/all.txt"],
    "corpus.source=imbd": ["imbd", "imdb"],
    "corpus=several corpus.parts.0.sorce=imdb": ["corpus.parts.0.sorce", "source"],
    "tracker=wandb tracker.mode=offlin": ["tracker.mode=offlin", "offline"],
    "tracker.mode=online": ["tracker.mode", "tracker=wandb"],
    "optim.lr=-1": ["optim.lr=-1.0", "above 0"],
    "schedule.warmup=-5": ["schedule.warmup=-5"],
    "trainer.clip=0": ["trainer.clip=0", "greater than 0"],
    "trainer.accelerator=banana": ["trainer.accelerator='banana'", "cpu"],
    "trainer.devices=2": ["trainer.devices=2", "trainer.micro"],
    "objective.mlm.rate=0": ["objective.mlm.rate=0", "0.15"],
    "model.dropout=2": ["dropout"],
    "precision.trainer=64-true": ["precision.trainer='64-true'", "32-true"],
    "+modle.dim=3": ["modle", "model"],
    "corpus.path=x.txt": ["corpus.path", "corpus=files"],
    "evaluation.segments.length=64": ["evaluation.segments.length=64", "model.length=32"],
    "seed=true": ["seed=True"],
    "sweeps=roberta/masking": ["-m"],
    "sweeps=roberta/maskin": ["roberta/masking"],
    "seed=-1": ["seed=-1"],
    "task=null": ["~task"],
    "frozen=true": ["frozen=true", "start=..."],
    "objective=[mlm,clm]": ["objective=[mlm,clm]", "choose one"],
    "objective=[mlm,nsp]": ["objective=[nsp]", "segments=segment_pair", "segments.negatives=random"],
    "experiment=bert segments.negatives=swap": ["objective=[nsp]", "segments.negatives=random, not swap"],
    "experiment=albert evaluation.segments.negatives=random": ["objective=[sop]", "negatives=swap, not random"],
    "experiment=bert objective.mlm.causal=true": ["objective=[nsp]", "first place", "segments.last=true"],
    "evaluation.memory=8": ["evaluation.memory=8", "evaluation.memory=0"],
    "experiment=transformer_xl model.memory=0 model.positions=sinusoidal evaluation.memory=8": ["evaluation.memory=8"],
    "+evaluation.noise.mlm.rte=0.2": ["evaluation.noise.mlm.rte", "rate"],
    "+evaluation.noise.clm.half=true": ["evaluation.noise.clm", "mlm"],
    "start=[experiment=bert]": ["start=['experiment=bert']"],
    "start=run:0123": ["'0123'", "lmab list"],
    "start=0123": ["'0123'"],
    "start=['experiment=bret']": ["experiment=bret", "bert"],
    "start=['model.dmi=3']": ["model.dmi", "model.dim"],
    "start=['model.dim=33']": ["dim=33", "dim=32 and dim=34"],
    "model.dim=[": ["'model.dim=['"],
    "model=mlp": ["model=mlp reads images", "task=digits"],
    "tokenizer=levels": ["tokenizer=levels splits images", "task=digits"],
    "augment=shifts": ["augment=shifts moves images", "task=digits"],
    "augment=shifts task=rotten_tomatoes objective=[classify]": ["augment=shifts moves images", "text"],
    "augment=shift": ["augment=shift", "shifts"],
    "experiment=digits tokenizer=wordpiece": ["model=mlp reads grey levels", "tokenizer=levels"],
    "experiment=digits objective=[mlm]": ["objective=[mlm] learns from text", "objective=[classify]"],
    "experiment=digits objective=[classify,sop]": ["objective=[sop]", "negatives"],
    "experiment=digits model=bert objective=[mlm]": ["objective=[mlm] learns from text", "objective=[classify]"],
    "experiment=digits objective.classify.pool=mean": ["model=mlp", "objective.classify.pool=last"],
    "experiment=digits objective.classify.layers=[0,-1]": ["model=mlp", ".layers=[-1]"],
    "experiment=digits objective.classify.head=pooler": ["head=pooler", "objective.classify.head=linear"],
    "experiment=digits model.length=100": ["model.length=100", "segments.length=64", "64 for task=digits"],
    "experiment=digits segments.length=32": ["segments.length=32", "segments.length=64"],
    "experiment=digits tokenizer.vocab=16": ["tokenizer.vocab=16", "grey level 16", "tokenizer.vocab=17"],
    "experiment=digits model.gain=0": ["model.gain=0", "1 to keep"],
    "experiment=digits model.depth=0": ["model.depth=0", "at least 1"],
    "experiment=digits augment=shifts augment.pixels=0": ["augment.pixels=0", "at least 1"],
    "experiment=digits augment=shifts augment.pixels=8": ["augment.pixels=8", "augment.pixels=7"],
    "experiment=digits split.omit=[10]": ["split.omit=10", "0, 1, 2"],
    "experiment=digits split.omit=[0,1,2,3,4,5,6,7,8,9]": ["leaves no class"],
    "split.omit=[3]": ["split.omit=['3']", "task=..."],
    "task=rotten_tomatoes objective=[classify] split.omit=[postive]": ["split.omit=postive", "negative, positive"],
}


@pytest.mark.parametrize("line", SENTENCES)
def test_bad_input_is_one_sentence(
    line: str, composed: Callable[..., DictConfig], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as left:
        door.enter(lambda: run(composed(*line.split(), f"store={tmp_path}")))
    assert left.value.code == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert sentence.startswith("lmab: ")
    assert sentence.endswith((".", "?"))
    for word in SENTENCES[line]:
        assert word in sentence
    assert list(Store(tmp_path)) == []


TEXTS = {
    "an empty corpus": ("own.txt", b"\n\n  \n", ["own.txt"]),
    "two documents": ("own.txt", b"One text.\n\nAnother text.\n", ["2 different documents", "at least 3"]),
    "not UTF-8": ("own.txt", b"one\n\ntwo\n\ncaf\xe9\n", ["own.txt", "UTF-8"]),
    "a missing column": ("own.csv", b"txet,label\nwords,1\n", ["own.csv", "text", "txet"]),
    "broken JSON": ("own.jsonl", b'{"text": "fine"}\n{"text": \n', ["own.jsonl", "line 2"]),
    "an unknown kind of file": ("own.docx", b"words", ["own.docx", ".txt"]),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_bad_text_is_one_sentence(
    kind: str, composed: Callable[..., DictConfig], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    name, content, words = TEXTS[kind]
    (tmp_path / name).write_bytes(content)
    cfg = composed("corpus=files", f"corpus.path={tmp_path / name}", f"store={tmp_path / 'store'}")
    with pytest.raises(SystemExit) as left:
        door.enter(lambda: run(cfg))
    assert left.value.code == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    for word in words:
        assert word in sentence


def test_a_document_too_large_to_hold(
    composed: Callable[..., DictConfig], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "own.txt").write_text("word " * 1000)
    cfg = composed("corpus=files", f"corpus.path={tmp_path / 'own.txt'}", "corpus.largest=1000", f"store={tmp_path}")
    with pytest.raises(SystemExit):
        door.enter(lambda: run(cfg))
    assert "blank lines" in capsys.readouterr().err


@pytest.mark.parametrize("store", ["/dev/null/x", __file__])
def test_a_store_that_cannot_be(store: str, composed: Callable[..., DictConfig], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        door.enter(lambda: run(composed(f"store={store}")))
    assert left.value.code == 2
    (sentence,) = capsys.readouterr().err.strip().splitlines()
    assert store.rpartition("/")[0] in sentence
    assert "store=" in sentence


@pytest.mark.slow
def test_the_command_line_itself_answers_so(
    command: Callable[..., subprocess.CompletedProcess[str]], here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    asked = command  # one in a process of its own, as a user does
    for words, expected in {
        ("run.py", "modle.dim=3"): "model.dim",
        ("run.py", "model.dim=33", "budget=smoke"): "dim=32 and dim=34",
        ("run.py", "-m", "sweeps=roberta/masking", "seeds=3"): "seeds=7",
        ("run.py", "sweeps=roberta/masking"): "-m",
        ("run.py", "-m", "sweeps=roberta/masking", "+plateu=3"): "plateau",
        ("run.py", "-m", "sweeps=roberta/masking", "plateau=3"): "+plateau=",
        ("run.py", "-m", "store=a,b", "budget=smoke"): "one store",
    }.items():
        done = asked(*words)
        assert done.returncode == 2
        (sentence,) = done.stderr.strip().splitlines()
        assert expected in sentence
        assert not done.stdout
        asked = here
