/** What changes the stretch of time that charts show: dragging across one, and buttons. */
import type { TargetedPointerEvent } from "preact";
import { useState } from "preact/hooks";
import { Moment } from "./ui";
import type { Zoom } from "./zoom";

/** What is drawn across less of what is shown is a click. */
const LEAST_SHARE = 0.01;

/** Dragging across what is drawn as SVG, of which `timeOf` says where in time the pointer is. */
export function useBrush(zoom: Zoom, timeOf: (event: PointerEvent) => number) {
  const [drag, setDrag] = useState<readonly [from: number, to: number] | null>(null);
  const end = () => setDrag(null);
  return {
    drag,
    handlers: {
      onPointerDown: (event: TargetedPointerEvent<SVGSVGElement>) => {
        // A finger that is drawn across a page moves the page.
        if (event.pointerType !== "touch" && event.button === 0) {
          event.currentTarget.setPointerCapture(event.pointerId);
          setDrag([timeOf(event), timeOf(event)]);
        }
      },
      onPointerMove: (event: PointerEvent) => drag !== null && setDrag([drag[0], timeOf(event)]),
      onPointerUp: () => {
        if (drag !== null && Math.abs(drag[1] - drag[0]) > (zoom.to - zoom.from) * LEAST_SHARE) {
          zoom.show(Math.min(...drag), Math.max(...drag));
        }
        end();
      },
      onPointerCancel: end,
      onDblClick: zoom.reset,
    },
  };
}

/** The same by buttons: fingers and keyboards drag in no chart. */
export function ZoomBar({ zoom }: { readonly zoom: Zoom }) {
  const { from, to, whole } = zoom;
  const withDay = to - from > 86_400_000;
  return (
    <div class="row zoom small" role="group" aria-label="Time shown in the charts">
      <span class="soft" role="status">
        <Moment at={from} withDay={withDay} /> to <Moment at={to} withDay={withDay} />
      </span>
      <button type="button" onClick={zoom.closer} title="+, or drag across a chart">
        + Closer
      </button>
      <button type="button" onClick={zoom.wider} disabled={whole} title="-">
        − Wider
      </button>
      <button type="button" onClick={() => zoom.move(-1)} disabled={whole}>
        ◂ Earlier
      </button>
      <button type="button" onClick={() => zoom.move(1)} disabled={whole}>
        Later ▸
      </button>
      <button type="button" onClick={zoom.reset} disabled={whole} title="0, or a double click in a chart">
        Whole range
      </button>
    </div>
  );
}
