/** A small plot of a curve, 0 to 1 upwards. */
import type { Point } from "./curves";
import { useWidth } from "./size";

interface Props {
  readonly title: string;
  readonly points: readonly Point[];
  readonly x: string;
  readonly y: string;
  readonly from: number;
  readonly to: number;
  readonly ticks: readonly (readonly [at: number, text: string])[];
  /** Straight on to the next point and up there, as counts go; else from point to point. */
  readonly steps: boolean;
}

const HEIGHT = 220;
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 22, 10, 40];
const SHARES = [0, 0.25, 0.5, 0.75, 1] as const;

export function Plot({ title, points, x, y, from, to, ticks, steps }: Props) {
  const [box, width] = useWidth<HTMLDivElement>();
  const across = (value: number) => LEFT + ((value - from) / (to - from)) * Math.max(0, width - LEFT - RIGHT);
  const up = (share: number) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const begin = steps ? `M${LEFT} ${up(0)}` : "";
  const path = begin + points.map((one, number) => `${steps ? `H${across(one.x)} L` : number === 0 ? "M" : "L"}${across(one.x)} ${up(one.y)}`).join(" ");
  return (
    <figure style="margin:0">
      <figcaption>
        <h3>{title}</h3>
      </figcaption>
      <div ref={box}>
        <svg role="img" aria-label={`${title}: ${points.map((one) => one.says).join("; ")}`} style={`display:block;width:100%;height:${HEIGHT}px`} font-size="11" fill="var(--soft)">
          {SHARES.map((share) => (
            <g key={share}>
              <line x1={LEFT} x2={width - RIGHT} y1={up(share)} y2={up(share)} stroke="var(--line)" stroke-width="0.5" />
              <text x={LEFT - 6} y={up(share) + 4} text-anchor="end">
                {share}
              </text>
            </g>
          ))}
          {ticks.map(([at, text]) => (
            <g key={at}>
              <line x1={across(at)} x2={across(at)} y1={TOP} y2={HEIGHT - BOTTOM} stroke="var(--line)" stroke-width="0.5" />
              <text x={across(at)} y={HEIGHT - BOTTOM + 14} text-anchor="middle">
                {text}
              </text>
            </g>
          ))}
          <text x={(LEFT + width - RIGHT) / 2} y={HEIGHT - 6} text-anchor="middle">
            {x}
          </text>
          <text transform={`translate(11 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)`} text-anchor="middle">
            {y}
          </text>
          <path d={path} fill="none" stroke="var(--accent)" stroke-width="2" />
          {points.map((one, number) => (
            <circle key={number} cx={across(one.x)} cy={up(one.y)} r="3.5" fill="var(--accent)">
              <title>{one.says}</title>
            </circle>
          ))}
        </svg>
      </div>
    </figure>
  );
}
