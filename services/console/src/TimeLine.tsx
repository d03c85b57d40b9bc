/** The run from end to end: what was found (above) and what was there (below); click or drag to go to a moment. */
import { useMemo, useState } from "preact/hooks";
import { scale, useWidth } from "./size";
import { axisText, moment, ticks } from "./time";
import { words, type Finding, type Truth } from "./types";
import type { Zoom } from "./zoom";

interface Props {
  readonly from: number;
  readonly to: number;
  /** What of it the charts below show. */
  readonly zoom: Zoom;
  readonly at: number;
  /** How far it is known: what is still open, or was to come, ends here. */
  readonly reached: number;
  readonly findings: readonly Finding[];
  readonly truths: readonly Truth[];
  /** Called while one drags, too; `settled` only: once, where the pointer is let go. */
  readonly onSeek: (at: number) => void;
  readonly settled?: boolean;
}

const COLOURS = { page: "var(--cell-page)", ticket: "var(--cell-warn)", info: "var(--cell-info)" } as const;
const LANES = 3;

export function TimeLine({ from, to, zoom, at, reached, findings, truths, onSeek, settled = false }: Props) {
  const [drag, setDrag] = useState<number | null>(null);
  const [box, width] = useWidth<HTMLDivElement>();
  const withDay = to - from > 86_400_000;
  const x = (time: number) => ((Math.min(to, Math.max(from, time)) - from) / Math.max(to - from, 1)) * width;
  const under = (event: PointerEvent) => {
    const { left } = (event.currentTarget as Element).getBoundingClientRect();
    return Math.min(to, Math.max(from, from + ((event.clientX - left) / Math.max(width, 1)) * (to - from)));
  };
  const pointed = (event: PointerEvent) => (settled ? setDrag(under(event)) : onSeek(under(event)));
  const release = () => {
    if (drag !== null) {
      onSeek(drag);
      setDrag(null);
    }
  };
  const begun = truths.filter((one) => Date.parse(one.onset) <= reached);
  const still = useMemo(() => {
    const taken = Array<number>(LANES).fill(0);
    return (
      <>
        {ticks(from, to, Math.max(2, Math.floor(width / ((withDay ? 160 : 110) * scale())))).map((time, number) => (
          <g key={time}>
            <line x1={x(time)} x2={x(time)} y1="0" y2="58" stroke="var(--line)" stroke-width="1" />
            <text x={Math.min(x(time) + 3, width - (withDay ? 100 : 54) * scale())} y="71" fill="var(--soft)">
              {axisText(time, number, withDay)}
            </text>
          </g>
        ))}
        {findings.map((one, number) => {
          const start = x(Date.parse(one.detected_at));
          const end = x(one.resolved_at === null ? reached : Date.parse(one.resolved_at));
          const free = taken.findIndex((until) => until <= start);
          const lane = free === -1 ? number % LANES : free;
          taken[lane] = end;
          const y = 3 + lane * 12;
          return (
            <g key={one.id}>
              <title>{`${one.fault}, ${words(one.entity)}`}</title>
              <rect x={start} y={y} width={Math.max(end - start, 3)} height="9" rx="2" fill={COLOURS[one.severity]} stroke="var(--raised)" />
            </g>
          );
        })}
        {begun.map((one) => (
          <g key={one.id}>
            <title>{`Label: ${one.fault}, ${words(one.entity)}${one.note === null ? "" : `. ${one.note}`}`}</title>
            <rect
              x={x(Date.parse(one.onset))}
              y="44"
              width={Math.max(x(Math.min(reached, Date.parse(one.end))) - x(Date.parse(one.onset)), 3)}
              height="9"
              fill="none"
              stroke="var(--text)"
              stroke-width="1.5"
            />
          </g>
        ))}
      </>
    );
  }, [from, to, reached, width, findings, truths]);
  return (
    <div ref={box}>
      <svg
        class="timeline"
        role="slider"
        tabindex={0}
        aria-label="Moment in the recording"
        aria-valuemin={from}
        aria-valuemax={to}
        aria-valuenow={Math.round(at)}
        aria-valuetext={moment(at, withDay)}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          pointed(event);
        }}
        onPointerMove={(event) => event.buttons === 1 && pointed(event)}
        onPointerUp={release}
        onPointerCancel={() => setDrag(null)}
      >
        <rect x="0" y="0" width={x(reached)} height="58" fill="var(--raised)" />
        {!zoom.whole && <rect class="shown" x={x(zoom.from)} y="1" width={x(zoom.to) - x(zoom.from)} height="57" fill="var(--band)" stroke="var(--accent)" />}
        {still}
        <line x1={x(at)} x2={x(at)} y1="0" y2="60" stroke="var(--text)" stroke-width="2" />
        <path d={`M${x(at) - 6} 0 h12 l-6 8 z`} fill="var(--text)" />
        {drag !== null && (
          <g>
            <line x1={x(drag)} x2={x(drag)} y1="0" y2="60" stroke="var(--accent)" stroke-width="2" stroke-dasharray="4 3" />
            <text x={Math.min(x(drag) + 6, width - (withDay ? 160 : 90) * scale())} y="40" fill="var(--text)">
              {moment(drag, withDay)}
            </text>
          </g>
        )}
      </svg>
    </div>
  );
}
