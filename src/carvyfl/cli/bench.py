"""`carvy bench`: how fast this machine trains, as ratios measured in one run."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from carvyfl.cli import options
from carvyfl.cli.output import note, print_json, screen, stopping_cleanly
from carvyfl.core.errors import CarvyError


@stopping_cleanly("nothing was written")
def bench(
    device: Annotated[
        str,
        typer.Option(help="cpu (the loop engine) or cuda (the batched one); auto: what there is."),
    ] = "auto",
    clients: Annotated[
        str, typer.Option(help="Numbers of clients to stack, on a GPU.")
    ] = "100,1000,3000",
    samples: Annotated[int, typer.Option(help="Samples per client, on a GPU.", min=16)] = 500,
    precision: Annotated[
        str, typer.Option(help="Comma-separated: bf16, tf32, fp32; the first one counts.")
    ] = "bf16,tf32",
    out: Annotated[Path | None, typer.Option(help="Write every figure as JSON here.")] = None,
    json: options.Json = False,
) -> None:
    """Measure client-steps against the plain PyTorch loop and the device's own limits.

    A client-step is one mini-batch of 16 through the compact CNN, forward,
    backward and step. Ratios compare figures of the same run; nothing is
    compared with numbers from elsewhere.

    [bold]Examples[/bold]

      carvy bench

      carvy bench --device cuda --clients 100,1000 --out bench.json
    """
    import torch

    from carvyfl.bench.engines import bench_cpu, bench_gpu, prediction_seconds
    from carvyfl.bench.growth import bench_growth
    from carvyfl.bench.paper import seconds_per_figure
    from carvyfl.core.environment import commit, environment

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = {"commit": commit(), "environment": environment()}
    if device == "cpu":
        note("Measuring the loop engine on one core (half a minute) …")
        found |= bench_cpu()
        step = found["loop_us_per_client_step"] / found["environment"]["cores"]
    elif device == "cuda":
        note("Measuring the batched engine (a minute) …")
        found |= bench_gpu(_numbers(clients), samples, [p.strip() for p in precision.split(",")])
        gpu = torch.device("cuda")
        found["predict_20_models_10000_images_seconds"] = prediction_seconds(20, 10_000, gpu)
        found["growth"] = bench_growth(gpu, found["precision"])
        step = min(found["us_per_client_step"].values())
    else:
        raise CarvyError(f"--device takes auto, cpu or cuda, not '{device}'")
    found["whole_paper_seconds"] = dict(seconds_per_figure(step))
    if out is not None:
        from carvyfl.core.files import write_text

        write_text(out, json_.dumps(found, indent=1) + "\n")
    if json:
        print_json(found)
    else:
        _print(found)


def _numbers(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise CarvyError(f"--clients takes whole numbers such as 100,1000, not '{text}'")
    return found


def _print(found: dict[str, Any]) -> None:
    where = found["environment"]["gpu"] or found["environment"]["processor"]
    table = Table("what", "µs per client-step", "over the plain loop", "share of matmul rate")
    table.add_row("plain PyTorch loop", f"{found['plain_loop_us_per_client_step']:,.1f}", "1.0", "")
    if "loop_us_per_client_step" in found:
        for name, part, speed in (
            ("loop engine, one core", "loop", f"{found['loop_speed_over_plain']:.2f}"),
            ("its convolutions alone", "convolutions", ""),
        ):
            us, share = found[f"{part}_us_per_client_step"], found[f"{part}_share_of_gemm_rate"]
            table.add_row(name, f"{us:,.1f}", speed, f"{share:.0%}")
    for precision in ("bf16", "tf32", "fp32"):
        entry = found.get(f"batched_{precision}", {"us_per_client_step": {}})
        for n, us in entry["us_per_client_step"].items():
            speed, share = entry["speed_over_plain"][n], entry["share_of_matmul_rate"][n]
            name = f"batched, {precision}, {n} clients"
            table.add_row(name, f"{us:,.1f}", f"{speed:.1f}", f"{share:.0%}")
    for size, us in found.get("sweep_us_per_client_step", {}).items():
        speed = found["plain_loop_us_per_client_step"] / us
        name = f"a sweep of 2,000 clients, {size} samples"
        table.add_row(name, f"{us:,.1f}", f"{speed:.1f}", "")
    screen.print(f"On {where}:")
    screen.print(table)
    if "parts_us_per_client_step" in found:
        parts = Table("layer of the loop engine", "µs per client-step")
        for name, us in found["parts_us_per_client_step"].items():
            parts.add_row(name, f"{us:,.0f}")
        screen.print(parts)
    if "growth" in found:
        growth = Table("ten times the …", "time", "memory")
        for row in found["growth"]:
            ratios = (row["time_ratio"], row["memory_ratio"])
            growth.add_row(row["quantity"], *(f"× {ratio:.1f}" for ratio in ratios))
        screen.print(growth)
        taken = found["predict_20_models_10000_images_seconds"]
        screen.print(f"20 models vote on 10,000 images in {taken:.2f} s.")
    screen.print("The whole paper would take, from these figures:")
    for name, taken in found["whole_paper_seconds"].items():
        screen.print(f"  {name}: {taken / 60:,.1f} minutes")
