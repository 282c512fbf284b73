"""How fast this machine trains, as ratios measured in one run: python -m benchmarks."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Any

import torch
import typer

from benchmarks.engines import bench_cpu, bench_gpu, prediction_seconds
from benchmarks.growth import bench_growth
from benchmarks.whole_paper import seconds_per_figure
from carvyfl.cli import main, options
from carvyfl.cli.output import (
    Command,
    note,
    print_json,
    print_table,
    saved,
    screen,
    stopping_cleanly,
)
from carvyfl.core.environment import commit, environment
from carvyfl.core.errors import CarvyError
from carvyfl.core.files import write_text

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(cls=Command)
@stopping_cleanly("nothing was written")
def bench(
    device: str = options.option(
        "cpu (the loop engine) or cuda (the batched one); auto: what there is.", default="auto"
    ),
    clients: str = options.option(
        "Numbers of clients to stack, on a GPU.", default="100,1000,3000"
    ),
    samples: int = options.option("Samples per client, on a GPU.", default=500, min=16),
    precision: str = options.option(
        "Comma-separated: bf16, tf32, fp32; the first one counts.", default="bf16,tf32"
    ),
    out: Path | None = options.option("Write every figure as JSON here."),
    json: bool = options.JSON,
) -> None:
    """Measure client-steps against the plain PyTorch loop and the device's own limits.

    A client-step is one mini-batch of 16 through the compact CNN, forward,
    backward and step. Ratios compare figures of the same run; nothing is
    compared with numbers from elsewhere.

    [bold]Examples[/bold]

      python -m benchmarks

      python -m benchmarks --device cuda --clients 100,1000 --out bench.json
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {"commit": commit(), "environment": environment()}
    if device == "cpu":
        note("Measuring the loop engine on one core (half a minute) …")
        found |= bench_cpu()
        step = found["loop_us_per_client_step"] / found["environment"]["cores"]
    elif device == "cuda":
        note("Measuring the batched engine (a minute) …")
        stacked = options.whole_numbers(clients, "--clients", least=1)
        found |= bench_gpu(stacked, samples, [p.strip() for p in precision.split(",")])
        gpu = torch.device("cuda")
        found["predict_20_models_10000_images_seconds"] = prediction_seconds(20, 10_000, gpu)
        found["growth"] = bench_growth(gpu, found["precision"])
        step = min(found["us_per_client_step"].values())
    else:
        raise CarvyError(f"--device takes auto, cpu or cuda, not '{device}'")
    found["whole_paper_seconds"] = dict(seconds_per_figure(step))
    if out is not None:
        write_text(out, json_.dumps(found, indent=1) + "\n")
        saved(str(out))
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    where = found["environment"]["gpu"] or found["environment"]["processor"]
    plain = found["plain_loop_us_per_client_step"]
    rows = [["plain PyTorch loop", plain, "1.0", ""]]
    for name, part in (
        ("loop engine, one core", "loop"),
        ("its convolutions alone", "convolutions"),
    ):
        if (us := found.get(f"{part}_us_per_client_step")) is not None:
            speed = f"{found['loop_speed_over_plain']:.2f}" if part == "loop" else ""
            rows.append([name, us, speed, f"{found[f'{part}_share_of_gemm_rate']:.0%}"])
    for precision in ("bf16", "tf32", "fp32"):
        entry = found.get(f"batched_{precision}", {"us_per_client_step": {}})
        for n, us in entry["us_per_client_step"].items():
            speed, share = entry["speed_over_plain"][n], entry["share_of_matmul_rate"][n]
            rows.append([f"batched, {precision}, {n} clients", us, f"{speed:.1f}", f"{share:.0%}"])
    for size, us in found.get("sweep_us_per_client_step", {}).items():
        rows.append([f"a sweep of 2,000 clients, {size} samples", us, f"{plain / us:.1f}", ""])
    head = ["what", "µs per client-step", "over the plain loop", "share of matmul rate"]
    print_table(head, rows, f"On {where}:")
    if "parts_us_per_client_step" in found:
        parts = found["parts_us_per_client_step"].items()
        head = ["layer of the loop engine", "µs per client-step"]
        print_table(head, [(name, f"{us:,.0f}") for name, us in parts])
    if "growth" in found:
        ratios = ("time_ratio", "memory_ratio")
        print_table(
            ["ten times the …", "time", "memory"],
            [[row["quantity"], *(f"× {row[r]:.1f}" for r in ratios)] for row in found["growth"]],
        )
        taken = found["predict_20_models_10000_images_seconds"]
        screen.print(f"20 models vote on 10,000 images in {taken:.2f} s.")
    screen.print("The whole paper would take, from these figures:")
    for name, taken in found["whole_paper_seconds"].items():
        screen.print(f"  {name}: {taken / 60:,.1f} minutes")


if __name__ == "__main__":
    main(app)
