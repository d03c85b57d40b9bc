/** The fleet at a moment: a column a node, a cell a GPU. Told by colour and by mark, and by words under the pointer. */
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { bucketAt, census, layout, LEFT, stateOf, STATES, type Layout, type Place, type State } from "./fleet";
import { scale, sharp, useWidth } from "./size";
import { colour, useRepaint } from "./theme";
import type { Heatmap } from "./types";

interface Props {
  readonly map: Heatmap;
  readonly at: number;
  readonly selected: string | null;
  readonly peers: ReadonlySet<string>;
  readonly onSelect: (node: string, gpu: number) => void;
}

export function HeatMap({ map, at, selected, peers, onSelect }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [cursor, setCursor] = useState<number | null>(null);
  const repaint = useRepaint();
  const plan = useMemo(() => layout(map.rows, width), [map.rows, width]);
  const bucket = bucketAt(map, at);
  const counts = useMemo(() => census(map, bucket), [map, bucket]);

  useEffect(() => {
    if (canvas.current !== null && width > 0) {
      paint(canvas.current, width, plan, map, bucket, { selected, peers, cursor });
    }
  }, [plan, map, bucket, selected, peers, cursor, width, repaint]);

  const under = (event: MouseEvent): Place | null => {
    const { left, top } = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    return (
      plan.places.find((one) => x >= one.x && x < one.x + plan.cellWidth && y >= one.y && y < one.y + plan.cellHeight) ?? null
    );
  };
  const choose = (place: Place | null) => {
    const row = place === null ? undefined : map.rows[place.row];
    if (row !== undefined) {
      onSelect(row.node, row.gpu);
    }
  };
  const key = (event: KeyboardEvent) => {
    const here = plan.places.find((one) => one.row === cursor) ?? plan.places[0];
    if (here === undefined) {
      return;
    }
    const step = STEPS[event.key];
    if (step !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      const next = plan.places.find((one) => one.column === here.column + step[0] && one.slot === here.slot + step[1]);
      setCursor((next ?? here).row);
    } else if (event.key === "Enter") {
      event.preventDefault();
      choose(here);
    }
  };
  const pointed = cursor === null ? undefined : map.rows[cursor];
  const shown =
    pointed === undefined
      ? "Point at a GPU, or use the arrow keys and Enter."
      : `${pointed.node} GPU ${pointed.gpu}${pointed.rack === null ? "" : `, rack ${pointed.rack}`}: ${STATES[stateOf(map.cells[cursor ?? 0]?.[bucket])].name}`;
  return (
    <div ref={box}>
      <canvas
        ref={canvas}
        class="heat"
        tabIndex={0}
        role="application"
        aria-roledescription="heat map"
        aria-label={`Health of ${map.rows.length} GPUs. ${shown}`}
        onMouseMove={(event) => setCursor(under(event)?.row ?? null)}
        onMouseLeave={() => setCursor(null)}
        onClick={(event) => choose(under(event))}
        onKeyDown={key}
      />
      <div class="legend small">
        {(Object.keys(STATES) as State[])
          .filter((state) => counts[state] > 0 || state === "o" || state === "p")
          .map((state) => (
            <span key={state}>
              <Swatch state={state} /> {counts[state]} {STATES[state].name}
            </span>
          ))}
      </div>
      <div class="soft small" aria-live="polite">
        {shown}
      </div>
    </div>
  );
}

const STEPS: Readonly<Record<string, readonly [number, number]>> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

function Swatch({ state }: { readonly state: State }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const repaint = useRepaint();
  useEffect(() => {
    const context = canvas.current === null ? null : sharp(canvas.current, 14, 14);
    if (context !== null) {
      context.clearRect(0, 0, 14, 14);
      cell(context, state, 0, 0, 14, 14, colours());
    }
  }, [state, repaint]);
  return <canvas ref={canvas} aria-hidden="true" style="width:14px;height:14px;vertical-align:-2px" />;
}

interface Colours {
  readonly of: Readonly<Record<State, string>>;
  readonly ink: string;
  readonly line: string;
  readonly soft: string;
  readonly focus: string;
  readonly accent: string;
}

function colours(): Colours {
  const of = Object.fromEntries((Object.keys(STATES) as State[]).map((one) => [one, colour(STATES[one].colour)]));
  return {
    of: of as Record<State, string>,
    ink: colour("cell-ink"),
    line: colour("line"),
    soft: colour("soft"),
    focus: colour("focus"),
    accent: colour("accent"),
  };
}

/** One cell: a stroke where nothing reports, a dot for a ticket, a cross for a page, a ring for information. */
function cell(context: CanvasRenderingContext2D, state: State, x: number, y: number, w: number, h: number, with_: Colours): void {
  context.fillStyle = with_.of[state];
  context.fillRect(x, y, w, h);
  const [cx, cy, r] = [x + w / 2, y + h / 2, Math.min(w, h) * 0.24];
  context.lineWidth = 1.6;
  context.strokeStyle = with_.ink;
  context.fillStyle = with_.ink;
  context.beginPath();
  if (state === "-") {
    context.strokeStyle = with_.line;
    context.moveTo(x + 1, y + h - 1);
    context.lineTo(x + w - 1, y + 1);
    context.stroke();
  } else if (state === "p") {
    context.moveTo(cx - r, cy - r);
    context.lineTo(cx + r, cy + r);
    context.moveTo(cx + r, cy - r);
    context.lineTo(cx - r, cy + r);
    context.stroke();
  } else if (state === "t") {
    context.arc(cx, cy, r * 0.7, 0, 7);
    context.fill();
  } else if (state === "i") {
    context.arc(cx, cy, r * 0.8, 0, 7);
    context.stroke();
  }
}

interface Marked {
  readonly selected: string | null;
  readonly peers: ReadonlySet<string>;
  readonly cursor: number | null;
}

function paint(canvas: HTMLCanvasElement, width: number, plan: Layout, map: Heatmap, bucket: number, marked: Marked): void {
  const context = sharp(canvas, width, plan.height);
  if (context === null) {
    return;
  }
  const with_ = colours();
  const [w, h] = [plan.cellWidth, plan.cellHeight];
  context.clearRect(0, 0, width, plan.height);
  context.font = `${11 * scale()}px system-ui, sans-serif`;
  context.textBaseline = "alphabetic";
  context.fillStyle = with_.soft;
  plan.columns.forEach((one, number) => {
    const before = plan.columns[number - 1];
    if (plan.labelled === "nodes") {
      context.fillText(one.node, one.x, one.y - 5, w - 3);
    } else if (plan.labelled === "racks" && one.rack !== null && (before?.rack !== one.rack || before.y !== one.y)) {
      context.fillText(one.rack, one.x, one.y - 5);
    }
  });
  for (const place of plan.places) {
    if (place.x === LEFT && (place.slot % 2 === 0 || h >= 14)) {
      context.fillStyle = with_.soft;
      context.fillText(String(map.rows[place.row]?.gpu ?? ""), 4, place.y + h / 2 + 4);
    }
    cell(context, stateOf(map.cells[place.row]?.[bucket]), place.x, place.y, w - 1, h - 1, with_);
  }
  for (const place of plan.places) {
    const row = map.rows[place.row];
    const name = row === undefined ? "" : `${row.node}/${row.gpu}`;
    if (name === marked.selected || place.row === marked.cursor) {
      context.strokeStyle = with_.focus;
      context.lineWidth = 2;
      context.strokeRect(place.x, place.y, w - 1, h - 1);
    } else if (marked.peers.size < map.rows.length && marked.peers.has(name)) {
      context.strokeStyle = with_.accent;
      context.lineWidth = 1;
      context.strokeRect(place.x + 0.5, place.y + 0.5, w - 2, h - 2);
    }
  }
}
