/** Alerts of rules, findings of detectors and labels, one below the other on the axis of event time. */
import { scale, useWidth } from "./size";
import { clock, ticks } from "./time";
import { words, type FiredAlert, type Truth } from "./types";

interface Props {
  readonly from: number;
  readonly to: number;
  readonly alerts: readonly FiredAlert[];
  readonly labels: readonly Truth[];
}

const COLOURS: Readonly<Record<string, string>> = { page: "var(--cell-page)", info: "var(--cell-info)" };
const HEIGHT = 16;
const GAP = 6;
/** Room for a lane's name. */
const LEFT = 74;

export function Lanes({ from, to, alerts, labels }: Props) {
  const [box, whole] = useWidth<HTMLDivElement>();
  const left = LEFT * scale();
  const width = Math.max(whole - left - 2, 1);
  const withDay = to - from > 86_400_000;
  const x = (time: number) => left + ((Math.min(to, Math.max(from, time)) - from) / Math.max(to - from, 1)) * width;
  const bar = (key: string, lane: number, start: string, end: string | null, title: string, colour: string | null) => {
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
      <svg class="lanes" role="img" aria-label="Rules, detectors and labels in event time" style={`height:${foot + 18 * scale()}px`}>
        {ticks(from, to, Math.max(2, Math.floor(width / (110 * scale())))).map((time) => (
          <g key={time}>
            <line x1={x(time)} x2={x(time)} y1="0" y2={foot} stroke="var(--line)" />
            <text x={Math.min(x(time), whole - (withDay ? 110 : 56) * scale())} y={foot + 13 * scale()} fill="var(--soft)">
              {clock(time, withDay).slice(0, withDay ? 16 : 8)}
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
        {labels.map((one) => bar(`label ${one.id}`, 2, one.onset, one.end, `${one.fault}, ${words(one.entity)}`, null))}
      </svg>
    </div>
  );
}
