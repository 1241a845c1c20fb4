"""`python -m lmab`: what the store holds, and whether this machine is fit for more.

Nothing here trains. Listing and showing read records only, so they answer at once: no torch is imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmab.lab.door import enter
from lmab.store import Record, Store
from lmab.types import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.option("--store", default="runs", show_default=True, help="The folder of runs.")
@click.pass_context
def lmab(context: click.Context, store: str) -> None:
    """Runs, reports and comparisons of a store."""
    context.obj = Path(store)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _opened(root: Path) -> Store:
    """BadInput: there is no such folder, or another version of lmab wrote it."""
    if not root.is_dir():
        raise BadInput(f"There is no store {root}: name one with --store, or make one with `python run.py`.")
    return Store(root)


@lmab.command("list")
@click.pass_obj
def listed(root: Path) -> None:
    """Every run, the oldest first."""
    from lmab.lab.page import console
    from lmab.lab.tables import Table, score

    store = _opened(root)
    rows = []
    for record in store:
        first = next(((k, v) for k, v in record.metrics.items() if k.startswith("test/")), None)
        metric = f"{first[0]} {score(first[1])}" if first else ""
        step = f"{record.step}/{record.steps}"
        rows.append([record.signature, _state(record, store), str(record.seed), step, metric, _summary(record)])
    if not rows:
        print(f"There are no runs in {root}.")
        return
    console().print(Table("Runs", ["run", "state", "seed", "step", "metric", "what"], rows).rich())


def _state(record: Record, store: Store) -> str:
    """A run that nobody works on any more was interrupted, whatever its record says."""
    left = record.state == "running" and not store.alive(record.signature)
    return "interrupted" if left else record.state


def _summary(record: Record) -> str:
    """What was asked for, less what the other columns say and what changes no result."""
    kept = [line for line in record.overrides if line.split("=")[0].lstrip("+~") not in _UNSAID]
    sweep = record.config.get("sweep") or {}
    label = [] if sweep.get("name") == "grid" else [sweep.get("name"), sweep.get("arm")]  # overrides say it
    return " ".join(filter(None, [*label, *kept]))


_UNSAID = ("seed", "sweep", "store", "display", "tracker", "name")


@lmab.command()
@click.argument("start")
@click.pass_obj
def show(root: Path, start: str) -> None:
    """One run, named by the first digits of its signature."""
    import yaml

    store = _opened(root)
    record = store.select(start)
    folder = store.folder(record.signature)
    parts: dict[str, Any] = {
        "run": record.signature,
        "state": _state(record, store),
        "message": record.message,
        "traceback": str(trace) if (trace := folder / "traceback.txt").exists() else "",
        "step": f"{record.step}/{record.steps}",
        "overrides": record.overrides,
        "config": record.config,
        "metrics": record.metrics,
        "cost": record.cost,
        "facts": record.facts,
        "versions": record.versions,
        "code": record.code,
        "folder": str(folder),
    }
    said = {key: value for key, value in parts.items() if value not in ("", [], {})}
    print(yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=100), end="")


@lmab.command()
@click.option("--by", multiple=True, required=True, metavar="KEY", help="What tells groups apart.")
@click.option("--metric", metavar="M", help="What is compared; test/mlm_loss where all runs have it.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Leave out all other runs.")
@click.pass_obj
def compare(root: Path, by: tuple[str, ...], metric: str | None, where: tuple[str, ...]) -> None:
    """Group done runs, pair them by seed, and write a page."""
    from lmab.lab import compare as comparison

    store = _opened(root)
    compared = comparison.compare(store, list(by), metric, list(where))
    command = comparison.line(store, by, metric, where)
    comparison.say(compared, comparison.write(root / "reports", compared, command))


@lmab.command()
@click.argument("name", default="")
@click.pass_obj
def report(root: Path, name: str) -> None:
    """Verdicts that were reached, with their pages. NAME: a claim's, or the start of a report's folder."""
    from lmab.checks import nearest

    found = list(_verdicts(_opened(root).root / "reports"))
    hits = [
        (folder, verdict)
        for folder, verdict in found
        if folder.name.startswith(name.replace("/", "-")) or verdict["claim"]["name"] == name
    ]
    if not found:
        raise BadInput(f"No claim has a report in {root / 'reports'}: make one, `python run.py -m sweeps=...`.")
    if not hits:
        names = sorted({verdict["claim"]["name"] for _, verdict in found})
        raise BadInput(f"There is no report {name} in {root / 'reports'}: {nearest(name, names)}")
    for folder, verdict in hits:
        print(f"{verdict['claim']['name']}: {verdict['sentence']}\n{folder / 'report.html'}")


@lmab.command()
@click.argument("overrides", nargs=-1)
@click.option("--budget", default="mini", show_default=True, help="At which sizes: smoke, mini, base or paper.")
@click.option("--clock", is_flag=True, help="Build every model and time it, too.")
def cost(overrides: tuple[str, ...], budget: str, clock: bool) -> None:
    """What the papers' models cost. OVERRIDES: a model of your own beside them, as in experiment=albert size=large."""
    from lmab.lab.costs import table
    from lmab.lab.page import console

    made = table(budget, overrides, clock=clock)
    console().print(made.rich())
    console().print(made.note)


@lmab.command()
@click.argument("run")
@click.option("--prompt", required=True, help="The text to go on with.")
@click.option("--tokens", default=100, show_default=True, type=click.IntRange(min=1), help="How many at most.")
@click.option("--temperature", default=1.0, show_default=True, help="Of the softmax; 0 takes the likeliest token.")
@click.option("--top-k", type=int, help="Draw from so many of the likeliest tokens.")
@click.option("--top-p", default=1.0, show_default=True, help="Draw from the likeliest that have this share.")
@click.option("--memory", type=click.IntRange(min=0), help="Places to remember; as many as in training if not given.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
@click.pass_obj
def generate(root: Path, run: str, prompt: str, tokens: int, memory: int | None, **sampling: Any) -> None:
    """Go on with a text. RUN: how the signature of a trained Transformer-XL or XLNet begins."""
    from lmab import generate as generation
    from lmab.trained import opened

    drawing = generation.Sampling(**sampling)
    print(generation.text(opened(_opened(root), run), prompt, drawing, tokens=tokens, memory=memory))


@lmab.command()
@click.argument("run")
@click.argument("folder", type=click.Path(path_type=Path))
@click.pass_obj
def export(root: Path, run: str, folder: Path) -> None:
    """Write a checkpoint for Hugging Face's transformers. RUN: how the signature of a run begins; FOLDER: a new one."""
    from lmab import export as exporting

    left = exporting.export(_opened(root), run, folder)
    print(folder)
    if left:
        print(f"Left out, since the run did not teach it or no class of transformers has it: {', '.join(left)}.")


@lmab.command()
@click.argument("name")
@click.option("--results", default="results", show_default=True, help="The folder of committed evidence.")
@click.pass_obj
def publish(root: Path, name: str, results: str) -> None:
    """Keep the evidence of a report. NAME: the start of the report's folder in the store."""
    from lmab.lab.publish import ledger
    from lmab.lab.publish import publish as keep

    store = _opened(root)
    hits = [folder for folder, _ in _verdicts(store.root / "reports") if folder.name.startswith(name.replace("/", "-"))]
    if len(hits) != 1:
        names = ", ".join(folder.name for folder in hits) or "none"
        raise BadInput(f"{name} must begin the name of one report in {store.root / 'reports'}, and begins {names}.")
    print(keep(store, hits[0], Path(results)))
    print(ledger(Path(results)))


def _verdicts(reports: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every readable verdict.json and its folder; one that is damaged is said and passed over."""
    for path in sorted(reports.glob("*/verdict.json")):
        try:
            verdict = json.loads(path.read_text(encoding="utf-8"))
            _ = verdict["sentence"], verdict["claim"]["name"]
        except (ValueError, KeyError, TypeError) as error:
            print(f"lmab: {path} cannot be read ({error!r}).", file=sys.stderr)
            continue
        yield path.parent, verdict


@lmab.command()
@click.pass_obj
def doctor(root: Path) -> None:
    """What this machine has, what is wrong with it, and what to do. Exit status 1 if something is wrong."""
    from lmab.lab.doctor import checkup

    wrong = 0
    for finding in checkup(root):
        wrong += finding.wrong
        print(f"{'WRONG' if finding.wrong else 'ok':6}{finding.what}: {finding.said}")
    if wrong:
        raise SystemExit(1)


def _called() -> None:
    """Click with our own way of refusing."""
    try:
        lmab(prog_name="lmab", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        said = " ".join(error.format_message().split())
        raise BadInput(said if said.endswith((".", "?")) else f"{said}.") from error
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """The console's entry point."""
    enter(_called)


if __name__ == "__main__":
    main()
