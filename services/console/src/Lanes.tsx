/** Alerts of rules, findings of detectors and labels, one below the other on the axis of event time. */
import { scale, useWidth } from "./size";
import { axisText, ticks } from "./time";
import { words, type FiredAlert, type Truth } from "./types";
import type { Zoom } from "./zoom";
import { useBrush } from "./ZoomBar";

interface Props {
  readonly zoom: Zoom;
  readonly alerts: readonly FiredAlert[];
  readonly labels: readonly Truth[];
}

const COLOURS: Readonly<Record<string, string>> = { page: "var(--cell-page)", info: "var(--cell-info)" };
const HEIGHT = 16;
const GAP = 6;
/** Room for a lane's name. */
const LEFT = 74;

export function Lanes({ zoom, alerts, labels }: Props) {
  const { from, to } = zoom;
  const [box, whole] = useWidth<HTMLDivElement>();
  const left = LEFT * scale();
  const width = Math.max(whole - left - 2, 1);
  const withDay = to - from > 86_400_000;
  const x = (time: number) => left + ((Math.min(to, Math.max(from, time)) - from) / Math.max(to - from, 1)) * width;
  const { drag, handlers } = useBrush(zoom, (event) => {
    const across = (event.clientX - (box.current?.getBoundingClientRect().left ?? 0) - left) / width;
    return from + Math.min(1, Math.max(0, across)) * (to - from);
  });
  const bar = (key: string, lane: number, start: string, end: string | null, title: string, colour: string | null) => {
    if (Date.parse(start) > to || (end !== null && Date.parse(end) < from)) {
      return null;
    }
    const begin = x(Date.parse(start));
    return (
      <rect key={key} x={begin} y={lane * (HEIGHT + GAP) + 2} width={Math.max(x(end === null ? to : Date.parse(end)) - begin, 3)} height={HEIGHT - 4} rx="2" fill={colour ?? "none"} stroke={colour === null ? "var(--text)" : "var(--raised)"} stroke-width={colour === null ? 1.5 : 1}>
        <title>{title}</title>
      </rect>
    );
  };
  const foot = 3 * (HEIGHT + GAP);
  return (
    <div ref={box}>
      <svg class="lanes" role="img" aria-label="Rules, detectors and labels in event time" {...handlers} style={`height:${foot + 18 * scale()}px`}>
        {ticks(from, to, Math.max(2, Math.floor(width / ((withDay ? 160 : 110) * scale())))).map((time, number) => (
          <g key={time}>
            <line x1={x(time)} x2={x(time)} y1="0" y2={foot} stroke="var(--line)" />
            <text x={Math.min(x(time), whole - (withDay ? 110 : 56) * scale())} y={foot + 13 * scale()} fill="var(--soft)">
              {axisText(time, number, withDay)}
            </text>
          </g>
        ))}
        {["rules", "detectors", "labels"].map((name, lane) => (
          <g key={name}>
            <text x="0" y={lane * (HEIGHT + GAP) + 13} fill="var(--soft)">
              {name}
            </text>
            <rect x={left} y={lane * (HEIGHT + GAP)} width={width} height={HEIGHT} fill="var(--raised)" />
          </g>
        ))}
        {alerts.map((one, number) => bar(`alert ${number}`, one.by === "rules" ? 0 : 1, one.at, one.resolved_at, `${one.name}, ${words(one.entity)}`, COLOURS[one.severity] ?? "var(--cell-warn)"))}
        {drag !== null && <rect x={x(Math.min(...drag))} y="0" width={x(Math.max(...drag)) - x(Math.min(...drag))} height={foot} fill="var(--band)" />}
        {labels.map((one) => bar(`label ${one.id}`, 2, one.onset, one.end, `${one.fault}, ${words(one.entity)}`, null))}
      </svg>
    </div>
  );
}
