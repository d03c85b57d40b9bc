/** Charts of signals, loaded as they come into view: a recording may have hundreds. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ask, path, useLoaded } from "./api";
import { Chart, type Shade } from "./Chart";
import type { Signal } from "./signals";
import { scale } from "./size";
import { moment, parse, rfc3339, severalDays, span } from "./time";
import type { RecordingDetail, SeriesAnswer } from "./types";
import { quantity } from "./units";
import type { Zoom } from "./zoom";

interface Props {
  readonly recording: RecordingDetail;
  readonly signal: Signal;
  readonly entities: readonly string[];
  readonly peers: boolean;
  readonly zoom: Zoom;
  readonly at: number | null;
  /** What comes later is veiled: it has not been played yet. */
  readonly until?: number;
  readonly shades: readonly Shade[];
  readonly height?: number;
  readonly withAxis: boolean;
  readonly onSeek: (at: number) => void;
}

/** A bucket is never shorter than the sampling interval: shorter ones would be empty. */
export function pointsFor(from: number, to: number, interval_s: number | null): number {
  const samples = (to - from) / 1000 / (interval_s ?? 1);
  return Math.max(20, Math.min(600, Math.floor(samples)));
}

function anyReading({ series }: SeriesAnswer): boolean {
  return series.some(({ mean }) => mean.some((value) => value !== null));
}

/** Why a chart is empty: what was not read is not zero. */
function whyEmpty({ series }: SeriesAnswer, { kind, rate }: Signal, entities: readonly string[], interval_s: number | null, { from, to, whole }: Zoom, days: boolean): string {
  const [length, every] = [to - from, interval_s === null ? "" : ` (one is taken every ${quantity(interval_s, "s")})`];
  if (!whole && interval_s !== null && length < (rate ? 2 : 1) * interval_s * 1000) {
    return `The range shown is ${span(length)}, shorter than it takes to read one${every}: look at a wider one.`;
  }
  if (series.length > 0 && rate) {
    return `It is a counter, and its increase takes two readings in a row${every}.`;
  }
  const who = entities.length === 0 ? "Nobody" : entities.join(", ");
  return `${who} sent none of the stream ${kind} from ${moment(from, days)} to ${moment(to, days)}${every}.`;
}

/** What is not yet in view but soon may be, is loaded too. */
const AHEAD = "800px";
const AT_ONCE = 2;
let asking = 0;
const waiting: (() => void)[] = [];

/** A page of charts asks for two at a time, from the top: twenty at once would all come last. */
async function inTurn<T>(request: () => Promise<T>): Promise<T> {
  if (asking >= AT_ONCE) {
    await new Promise<void>((go) => waiting.push(go));
  }
  asking += 1;
  try {
    return await request();
  } finally {
    asking -= 1;
    waiting.shift()?.();
  }
}

export function SignalChart({ recording, signal, entities, peers, zoom, at, until = zoom.to, shades, height = 140, withAxis, onSeek }: Props) {
  const { from, to } = zoom;
  const box = useRef<HTMLDivElement>(null);
  const [near, setNear] = useState(false);
  useEffect(() => {
    if (box.current === null) {
      return undefined;
    }
    const observer = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && setNear(true), { rootMargin: AHEAD });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const interval = recording.streams.find((one) => one.kind === signal.kind)?.interval_s ?? null;
  const query = {
    kind: signal.kind,
    field: signal.field,
    entities: entities.join(","),
    from: rfc3339(from),
    to: rfc3339(to),
    points: pointsFor(from, to, interval),
    rate: String(signal.rate),
    peers: String(peers),
  };
  const url = `${path("recordings", recording.name)}/series`;
  const loaded = useLoaded(near ? `${url} ${JSON.stringify(query)}` : null, () => inTurn(() => ask<SeriesAnswer>(url, query)));
  const { data, error } = loaded;
  return (
    <div ref={box} style={`min-height:calc(${height * scale()}px + 1.3rem)`} aria-busy={data === null && error === null}>
      {data === null && error === null && (
        <p class="small soft">
          <strong>{signal.title}</strong> {near ? "loading…" : ""}
        </p>
      )}
      {error !== null && (
        <p class="small">
          {signal.title}: <span class="sev page">{error.message}</span>
        </p>
      )}
      {data !== null && !anyReading(data) && (
        <p class="small soft" role="note">
          <strong>{signal.title}</strong>: no data. {whyEmpty(data, signal, entities, interval, zoom, severalDays(parse(recording.start), parse(recording.end)))}
        </p>
      )}
      {data !== null && anyReading(data) && (
        <>
          <Chart title={signal.title} unit={signal.unit} answer={data} {...{ zoom, at, until, shades, height, withAxis, onSeek }} />
          {data.left_out > 0 && <p class="small soft">{data.left_out} more are not drawn.</p>}
        </>
      )}
    </div>
  );
}
