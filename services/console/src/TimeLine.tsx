/** The run from end to end: what was found (above) and what was there (below); click or drag to go to a moment. */
import { useMemo } from "preact/hooks";
import { useWidth } from "./size";
import { clock, ticks } from "./time";
import { words, type Finding, type Truth } from "./types";

interface Props {
  readonly from: number;
  readonly to: number;
  readonly at: number;
  readonly reached: number;
  readonly findings: readonly Finding[];
  readonly truths: readonly Truth[];
  readonly onSeek: (at: number) => void;
}

const COLOURS = { page: "var(--cell-page)", ticket: "var(--cell-warn)", info: "var(--cell-info)" } as const;
const LANES = 3;

export function TimeLine({ from, to, at, reached, findings, truths, onSeek }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const withDay = to - from > 86_400_000;
  const x = (time: number) => ((Math.min(to, Math.max(from, time)) - from) / Math.max(to - from, 1)) * width;
  const pointed = (event: PointerEvent) => {
    const { left } = (event.currentTarget as Element).getBoundingClientRect();
    onSeek(from + ((event.clientX - left) / Math.max(width, 1)) * (to - from));
  };
  const still = useMemo(
    () => (
      <>
        {ticks(from, to, Math.max(2, Math.floor(width / 110))).map((time) => (
          <g key={time}>
            <line x1={x(time)} x2={x(time)} y1="0" y2="58" stroke="var(--line)" stroke-width="1" />
            <text x={Math.min(x(time) + 3, width - (withDay ? 100 : 54))} y="71" font-size="11" fill="var(--soft)">
              {clock(time, withDay).slice(0, withDay ? 16 : 8)}
            </text>
          </g>
        ))}
        {findings.map((one, number) => {
          const start = x(Date.parse(one.detected_at));
          const end = one.resolved_at === null ? width : x(Date.parse(one.resolved_at));
          const y = 3 + (number % LANES) * 12;
          return (
            <g key={one.id}>
              <title>{`${one.fault}, ${words(one.entity)}`}</title>
              <rect x={start} y={y} width={Math.max(end - start, 3)} height="9" rx="2" fill={COLOURS[one.severity]} />
            </g>
          );
        })}
        {truths.map((one) => (
          <g key={one.id}>
            <title>{`Label: ${one.fault}, ${words(one.entity)}${one.note === null ? "" : `. ${one.note}`}`}</title>
            <rect
              x={x(Date.parse(one.onset))}
              y="44"
              width={Math.max(x(Date.parse(one.end)) - x(Date.parse(one.onset)), 3)}
              height="9"
              fill="none"
              stroke="var(--text)"
              stroke-width="1.5"
            />
          </g>
        ))}
      </>
    ),
    [from, to, width, findings, truths],
  );
  return (
    <div ref={box}>
      <svg
        class="timeline"
        role="slider"
        tabIndex={0}
        aria-label="Moment in the recording"
        aria-valuemin={from}
        aria-valuemax={to}
        aria-valuenow={Math.round(at)}
        aria-valuetext={clock(at, withDay)}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          pointed(event);
        }}
        onPointerMove={(event) => event.buttons === 1 && pointed(event)}
      >
        <rect x="0" y="0" width={x(reached)} height="58" fill="var(--raised)" />
        {still}
        <line x1={x(at)} x2={x(at)} y1="0" y2="60" stroke="var(--text)" stroke-width="2" />
        <path d={`M${x(at) - 6} 0 h12 l-6 8 z`} fill="var(--text)" />
      </svg>
    </div>
  );
}
