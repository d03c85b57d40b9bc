/** One signal over time: the entity's line against its peers' band. Charts of a page share cursor and axis. */
import { useEffect, useMemo, useRef } from "preact/hooks";
import UPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { isolated } from "./curves";
import { scale, useWidth } from "./size";
import { colour, useRepaint } from "./theme";
import { clock } from "./time";
import type { SeriesAnswer, Values } from "./types";
import { NO_DATA, shownAs, tick, withUnit } from "./units";
import type { Zoom } from "./zoom";

export interface Shade {
  readonly from: number;
  readonly to: number;
}

interface Props {
  readonly title: string;
  readonly unit: string;
  readonly answer: SeriesAnswer;
  readonly zoom: Zoom;
  readonly at: number | null;
  readonly until: number;
  readonly shades: readonly Shade[];
  readonly height: number;
  readonly withAxis: boolean;
  readonly onSeek: (at: number) => void;
}

type Column = (number | null)[];

/** Lines told apart by colour beyond which they are drawn alike, as one bundle. */
const MOST_COLOURS = 4;

/** A pointer that moves less than that is a click. */
const DRAGGED_PX = 6;

export function Chart({ title, unit: read, answer: asRead, zoom, at, until, shades, height, withAxis, onSeek }: Props) {
  const { from, to } = zoom;
  const [answer, unit] = useMemo(() => inUnit(asRead, read), [asRead, read]);
  const [box, width] = useWidth<HTMLDivElement>();
  const host = useRef<HTMLDivElement>(null);
  const readout = useRef<HTMLSpanElement>(null);
  const place = useRef<() => void>(() => undefined);
  const now = useRef({ at, until });
  now.current = { at, until };
  const seek = useRef(onSeek);
  seek.current = onSeek;
  const brush = useRef(zoom);
  brush.current = zoom;
  const repaint = useRepaint();
  const shadeKey = shades.map((one) => `${one.from}-${one.to}`).join();

  useEffect(() => {
    if (host.current === null || width === 0) {
      return undefined;
    }
    const line = document.createElement("div");
    line.style.cssText = `position:absolute;top:0;bottom:0;width:2px;pointer-events:none;background:${colour("text")}`;
    const veil = document.createElement("div");
    veil.className = "veil";
    const keys = keysOf(answer, unit, readout.current);
    const tell = (u: UPlot) => {
      const { at: moment, until: played } = now.current;
      const bucket = u.cursor.idx ?? (moment === null ? null : u.valToIdx(moment));
      keys(bucket === null || (answer.times[bucket] ?? 0) > played ? null : bucket);
    };
    const stand = (u: UPlot) => {
      const { at: moment, until: played } = now.current;
      const inside = moment !== null && moment >= from && moment <= to;
      line.hidden = !inside;
      line.style.transform = `translateX(${inside ? u.valToPos(moment, "x") - 1 : 0}px)`;
      veil.hidden = played >= to;
      veil.style.left = `${veil.hidden ? 0 : Math.max(0, u.valToPos(played, "x"))}px`;
      tell(u);
    };
    let dragged = false;
    const select = (u: UPlot) => {
      const { left, width: wide } = u.select;
      if (wide >= DRAGGED_PX) {
        dragged = true;
        brush.current.show(u.posToVal(left, "x"), u.posToVal(left + wide, "x"));
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }
    };
    const options = optionsOf(answer, { from, to, shades, width, height, withAxis, tell, stand, select, reset: () => brush.current.reset() });
    const made = new UPlot(options, dataOf(answer), host.current);
    made.over.append(veil, line);
    place.current = () => stand(made);
    // The second click of a double one belongs to it, and the end of a drag is no click.
    const clicked = (event: MouseEvent) => {
      if (!dragged && event.detail < 2) {
        seek.current(made.posToVal(event.offsetX, "x"));
      }
      dragged = false;
    };
    made.over.addEventListener("click", clicked);
    return () => {
      made.destroy();
      place.current = () => undefined;
    };
  }, [answer, from, to, shadeKey, width, height, withAxis, unit, repaint]);

  useEffect(() => place.current(), [at, until]);

  const peers = answer.band === null ? "" : `, against ${answer.band.peers} peers of ${answer.band.about}`;
  const name = `${title}${unit === "" ? "" : ` in ${unit}`}${peers}`;
  return (
    <figure class="chart" style="margin:0" aria-label={name} title={name}>
      <figcaption>
        <h3>
          {title} <span class="soft">{unit}</span> <span ref={readout} class="readout" />
        </h3>
      </figcaption>
      <div ref={box} class="plot">
        <div ref={host} />
        {withAxis && <span class="zone soft">UTC</span>}
      </div>
    </figure>
  );
}

/** What was read as it is shown: in the unit in which its largest value is no long number. */
function inUnit(answer: SeriesAnswer, read: string): readonly [SeriesAnswer, string] {
  const { series, band } = answer;
  const size = (values: Values) => values.reduce<number>((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
  // The band may reach far beyond what there was: it is no reading.
  const { unit, factor } = shownAs(read, Math.max(...series.map(({ mean }) => size(mean)), band === null ? 0 : size(band.median)));
  if (factor === 1) {
    return [answer, unit];
  }
  const shown = (values: Values) => values.map((value) => (value === null ? null : value * factor));
  const lines = series.map((one) => ({ ...one, mean: shown(one.mean) }));
  return [{ ...answer, series: lines, band: band === null ? null : { ...band, low: shown(band.low), high: shown(band.high), median: shown(band.median) } }, unit];
}

/** Fill the caption with a key of the lines; what is returned writes what they read in a bucket behind each. */
function keysOf(answer: SeriesAnswer, unit: string, box: HTMLElement | null): (bucket: number | null) => void {
  const { series, band } = answer;
  const many = series.length > MOST_COLOURS;
  const back = Math.ceil(bridgedMs(answer) / answer.bucket_ms);
  const at = (values: Values, bucket: number) => values.slice(Math.max(0, bucket - back), bucket + 1).findLast((value) => value !== null);
  const told = (value: number | null | undefined) => (value === null || value === undefined ? NO_DATA : withUnit(value, unit));
  const values: ((bucket: number) => string)[] = many
    ? [(bucket) => `${series.length} lines: ${range(series.map((one) => at(one.mean, bucket) ?? null), told)}`]
    : series.map((one) => (bucket) => `${one.key} ${told(at(one.mean, bucket))}`);
  if (band !== null) {
    values.push((bucket) => `${band.peers} peers ${told(at(band.median, bucket))}`);
  }
  const spans = values.map((_, number) => {
    const span = document.createElement("span");
    const [name] = (many ? LINES[0] : LINES[number]) ?? LINES[0];
    span.style.color = `var(--${number < values.length - (band === null ? 0 : 1) ? name : "soft"})`;
    return span;
  });
  box?.replaceChildren(...spans);
  return (bucket) => {
    spans.forEach((span, number) => {
      span.textContent = values[number]?.(bucket ?? -1) ?? "";
    });
  };
}

function range(values: readonly (number | null)[], told: (value: number | null) => string): string {
  const there = values.filter((one) => one !== null);
  return there.length === 0 ? NO_DATA : `${told(Math.min(...there))} to ${told(Math.max(...there))}`;
}

/** What cannot be less than nothing has no band below it. */
function floored(low: Values, median: Values): Column {
  const positive = median.every((value) => value === null || value >= 0);
  return low.map((value) => (value === null || !positive ? value : Math.max(0, value)));
}

function dataOf(answer: SeriesAnswer): UPlot.AlignedData {
  const columns: Column[] = [];
  if (answer.band !== null) {
    columns.push(floored(answer.band.low, answer.band.median), [...answer.band.high], [...answer.band.median]);
  }
  for (const series of answer.series) {
    columns.push([...series.mean]);
  }
  const middle = answer.bucket_ms / 2;
  return [answer.times.map((time) => time + middle), ...columns] as unknown as UPlot.AlignedData;
}

/** So many empty buckets are no gap, as sampling jitters against the buckets; nor is a slow step of up to a minute. */
const BRIDGED = 2.5;
const BRIDGED_STEPS_MS = 60_000;

function bridgedMs(answer: SeriesAnswer): number {
  return Math.max(BRIDGED * answer.bucket_ms, answer.kind === "steps" ? BRIDGED_STEPS_MS : 0);
}

/** Told apart by colour and by dash. */
const LINES: readonly [Line, ...Line[]] = [
  ["page", []],
  ["accent", [7, 3]],
  ["good", [2, 2]],
  ["warn", [9, 3, 2, 3]],
];

interface Look {
  readonly from: number;
  readonly to: number;
  readonly shades: readonly Shade[];
  readonly width: number;
  readonly height: number;
  readonly withAxis: boolean;
  readonly tell: (u: UPlot) => void;
  readonly stand: (u: UPlot) => void;
  readonly select: (u: UPlot) => void;
  readonly reset: () => void;
}

type Line = readonly [colour: string, dash: number[]];

function optionsOf(answer: SeriesAnswer, look: Look): UPlot.Options {
  const withDay = look.to - look.from > 86_400_000;
  const soft = colour("soft");
  const grid = { stroke: colour("line"), width: 0.5 };
  const larger = scale();
  const font = `${12 * larger}px system-ui, sans-serif`;
  const plain: UPlot.Series = { points: { show: false } };
  const peers: UPlot.Series[] =
    answer.band === null
      ? []
      : [
          { ...plain, stroke: "transparent" },
          { ...plain, stroke: "transparent" },
          { ...plain, stroke: colour("band-line"), width: 1, dash: [4, 3] },
        ];
  const many = answer.series.length > MOST_COLOURS;
  const bridged = bridgedMs(answer);
  const gaps = (u: UPlot, _place: number, _first: number, _last: number, nulls: UPlot.Series.Gaps): UPlot.Series.Gaps => {
    const shortest = u.valToPos(look.from + bridged, "x", true) - u.valToPos(look.from, "x", true);
    return nulls.filter(([start, end]) => end - start > shortest);
  };
  const own = answer.series.map(({ mean }, number): UPlot.Series => {
    const [name, dash] = (many ? undefined : LINES[number]) ?? LINES[0];
    const alone = isolated(mean, bridged / answer.bucket_ms);
    const points: UPlot.Series.Points = { show: true, size: 4, fill: colour(name), filter: () => alone };
    return { stroke: colour(name), width: many ? 0.9 : 1.8, dash, gaps, points };
  });
  return {
    width: look.width,
    height: look.height * larger,
    ms: 1,
    padding: [6, 30 * larger, look.withAxis ? 0 : 6, 0],
    tzDate: (at) => UPlot.tzDate(new Date(at), "Etc/UTC"),
    cursor: {
      sync: { key: "time", setSeries: false, filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } },
      drag: { x: true, y: false, setScale: false, dist: DRAGGED_PX, click: () => undefined },
      bind: { dblclick: () => look.reset as () => null },
      points: { size: 5 },
    },
    scales: { x: { time: true, range: () => [look.from, look.to] }, y: { range: rangeOf } },
    legend: { show: false },
    series: [{}, ...peers, ...own],
    bands: answer.band === null ? [] : [{ series: [2, 1], fill: colour("band"), dir: -1 }],
    axes: [
      {
        show: look.withAxis,
        stroke: soft,
        grid,
        ticks: grid,
        font,
        size: 28 * larger,
        values: (_, splits) => splits.map((at) => clock(at, withDay).slice(0, withDay ? 16 : 8)),
        space: (withDay ? 130 : 80) * larger,
      },
      { stroke: soft, grid, ticks: grid, font, size: 58 * larger, values: (_, splits) => splits.map(tick), space: 26 * larger },
    ],
    hooks: { drawClear: [(u: UPlot) => shade(u, look.shades)], draw: [look.stand], setCursor: [look.tell], setSelect: [look.select] },
  };
}

/** A flat line gets room around it: noise of a per mille should not look like a cliff. */
function rangeOf(_: UPlot, low: number | null, high: number | null): UPlot.Range.MinMax {
  if (low === null || high === null) {
    return [0, 1];
  }
  if (low === 0 && high === 0) {
    return [0, 1];
  }
  const room = Math.max((high - low) * 0.08, Math.max(Math.abs(low), Math.abs(high)) * 0.02);
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

function shade(u: UPlot, shades: readonly Shade[]): void {
  u.ctx.save();
  u.ctx.fillStyle = colour("shade");
  const { left, top, width, height } = u.bbox;
  for (const one of shades) {
    const from = Math.max(left, u.valToPos(one.from, "x", true));
    const to = Math.min(left + width, u.valToPos(one.to, "x", true));
    if (to > from) {
      u.ctx.fillRect(from, top, to - from, height);
    }
  }
  u.ctx.restore();
}
