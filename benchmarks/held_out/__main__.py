"""What the detectors catch, miss and falsely report, on recordings that nothing was developed on.

    python -m benchmarks.held_out                         30 labels of every fault
    python -m benchmarks.held_out --healthy 600           so many healthy node-days
    python -m benchmarks.held_out --grid --labels 2       other clusters, cadences, sizes, noise
    python -m benchmarks.held_out --worlds 50             in other worlds (see `hindcast make --world`)
    python -m benchmarks.held_out --worlds 60 --healthy 600 --budget 0.2,0.5,2      is the budget kept?
    python -m benchmarks.held_out --first-seed 5000 --labels 2 --faults straggler,nvlink_fault    while developing

Recordings are made, scored and deleted, one at a time on each core; results go to a file (`--results`) as they come,
and the same command goes on where it was interrupted. Seeds from 900000 on are for tests alone.
"""

import argparse
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.held_out import report
from benchmarks.held_out.grid import grid_plan
from benchmarks.held_out.healthy import healthy_plan
from benchmarks.held_out.plan import Plan, faults_plan, summed
from benchmarks.held_out.run import Result, run
from benchmarks.held_out.worlds import budget_sheets, world_sheets
from services.cli.sheets import print_sheet
from services.kit.errors import UserError
from services.recording.faults import FAULTS
from services.score.seeds import TEST_SEEDS
from services.score.sheet import Sheet, page_of

FINAL_WORLDS = 500
"""Nothing is developed in the worlds from this number on."""
_HEALTHY_SCALE_IN_WORLDS = 0.3
"""So that 600 node-days are of more than 50 worlds."""


def main() -> None:
    """Plan, make, score, print; write JSON and a page where asked to."""
    asked = _arguments()
    faults = tuple(FAULTS) if asked.faults is None else tuple(asked.faults.split(","))
    if unknown := set(faults) - set(FAULTS):
        raise UserError(f"no such fault: {', '.join(sorted(unknown))}", remedy=f"there are {', '.join(FAULTS)}")
    plan = _plan(asked, faults)
    if asked.budget is not None:
        budgets = [float(budget) for budget in asked.budget.split(",")]
        plan = replace(plan, cases=[replace(case, budget=budget) for case in plan.cases for budget in budgets])
    kind = "test seeds: nothing was developed on them" if asked.first_seed in TEST_SEEDS else "development seeds"
    lead = f"{kind}, from {asked.first_seed}; {len(plan.cases)} recordings, about {plan.cpu_minutes:.0f} CPU minutes"
    console = Console(width=None if os.isatty(1) else 140, markup=False)
    console.print(lead, highlight=False)
    if plan.labels:
        console.print(f"labels required: {_counted(plan.labels)}", highlight=False)
    if asked.plan:
        for case in plan.cases:
            console.print(f"  {case.cell + ': ' if case.cell else ''}{case.name}", highlight=False)
        return
    budget_s = None if asked.budget_minutes is None else 60 * asked.budget_minutes
    results = run(plan.cases, asked.results, asked.workers, budget_s)
    if len(results) < len(plan.cases):
        lead += f"; {len(results)} of them made and scored"
    lead += f"; took {sum(result.cpu_s for result in results) / 60:.0f} CPU minutes"
    sheets = _sheets(asked, results)
    for sheet in sheets:
        print_sheet(console, sheet)
    console.print(f"\n{lead}", highlight=False)
    if asked.json is not None:
        asked.json.write_text(json.dumps(_as_json(lead, results, sheets), indent=1) + "\n", encoding="utf-8")
    if asked.html is not None:
        asked.html.write_text(page_of("Detectors on held-out recordings", lead, sheets), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.held_out", description=(__doc__ or "").split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--healthy", type=float, metavar="NODE_DAYS", help="healthy node-days of varied workloads instead"
    )
    what.add_argument("--grid", action="store_true", help="other clusters, cadences, sizes and noise instead")
    parser.add_argument(
        "--labels", type=int, help="required labels of every fault, at least (30; of each cell of the grid 2)"
    )
    parser.add_argument("--worlds", type=int, default=0, help="make each recording in the next of so many worlds")
    parser.add_argument("--first-world", type=int, default=FINAL_WORLDS, help=f"below {FINAL_WORLDS} while developing")
    parser.add_argument("--budget", help="false alarms per 100 node-days that detectors may raise: one, or several")
    parser.add_argument("--faults", help="only these, with commas between")
    parser.add_argument("--cells", help="of the grid only those whose name begins so: cluster,noise,512")
    parser.add_argument(
        "--first-seed", type=int, default=TEST_SEEDS.start, help=f"below {TEST_SEEDS.start} while developing"
    )
    parser.add_argument("--scale", type=float, help="nodes, times the profile's (0.1; of healthy recordings 1)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="recordings at a time")
    parser.add_argument("--budget-minutes", type=float, help="begin no recording after so many minutes")
    parser.add_argument("--results", type=Path, default=Path("held-out.jsonl"), help="added to, and resumed from")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--html", type=Path, help="write a page there")
    parser.add_argument("--plan", action="store_true", help="only say what would be made")
    return parser.parse_args()


def _plan(asked: argparse.Namespace, faults: tuple[str, ...]) -> Plan:
    worlds = range(asked.first_world, asked.first_world + asked.worlds)
    if asked.healthy is not None:
        usual = _HEALTHY_SCALE_IN_WORLDS if worlds else 1.0
        return healthy_plan(asked.healthy, asked.first_seed, asked.scale or usual, worlds)
    if asked.grid:
        cells = None if asked.cells is None else asked.cells.split(",")
        return grid_plan(asked.labels or 2, asked.first_seed, faults, cells)
    return faults_plan(asked.labels or 30, asked.first_seed, asked.scale or 0.1, faults, worlds)


def _sheets(asked: argparse.Namespace, results: list[Result]) -> list[Sheet]:
    if asked.healthy is not None:
        return [*budget_sheets(results), *report.healthy_sheets(results)]
    if asked.grid:
        return [report.grid_sheet(results), *report.fault_sheets(results)]
    return [*report.fault_sheets(results), *world_sheets(results)]


def _counted(labels: Counter[str]) -> str:
    return ", ".join(f"{fault} {labels[fault]}" for fault in FAULTS if labels[fault])


def _as_json(lead: str, results: list[Result], sheets: list[Sheet]) -> dict[str, Any]:
    """Return the scorecard's figures, and the tables as they are printed."""
    plan = summed(result.case for result in results)
    return {
        "lead": lead,
        "labels_planned": dict(plan.labels),
        "scorecard": report.scorecard(results).as_json(),
        "tables": {
            sheet.title: [dict(zip(sheet.columns, row.cells, strict=True)) for row in sheet.rows] for sheet in sheets
        },
    }


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
