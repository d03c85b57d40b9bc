/** The tape deck: a moment of event time that stands still or moves on at a speed. */
import { useCallback, useLayoutEffect, useRef, useState } from "preact/hooks";

export const SPEEDS = [1, 10, 60, 300, 1800] as const;
/** As the replay service takes them. */
export const LIVE_SPEEDS = [1, 10, 60, 300, 1000, "max"] as const;

export interface Playhead {
  readonly at: number;
  readonly playing: boolean;
  readonly speed: number;
  readonly seek: (at: number) => void;
  readonly toggle: () => void;
  readonly setSpeed: (speed: number) => void;
}

const FRAME_MS = 50;

/** `from` and `to` bound it; it starts at `initial`, and stops at the end. */
export function usePlayhead(from: number, to: number, initial: number): Playhead {
  const clamp = useCallback((at: number) => Math.min(to, Math.max(from, at)), [from, to]);
  const [at, setAt] = useState(() => clamp(initial));
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(60);
  const exact = useRef(at);

  const seek = useCallback(
    (target: number) => {
      exact.current = clamp(target);
      setAt(exact.current);
    },
    [clamp],
  );

  // Before the page is painted: after it, one more frame would move a moment that is shown as standing still.
  useLayoutEffect(() => {
    if (!playing) {
      return undefined;
    }
    let before = performance.now();
    let shown = before;
    let frame = requestAnimationFrame(function tick(now) {
      exact.current = clamp(exact.current + Math.max(0, now - before) * speed);
      before = now;
      const ended = exact.current >= to;
      if (now - shown >= FRAME_MS || ended) {
        shown = now;
        setAt(exact.current);
      }
      if (ended) {
        setPlaying(false);
      } else {
        frame = requestAnimationFrame(tick);
      }
    });
    return () => cancelAnimationFrame(frame);
  }, [playing, speed, clamp, to]);

  const toggle = useCallback(() => {
    if (!playing && exact.current >= to) {
      exact.current = from;
      setAt(from);
    }
    setPlaying(!playing);
  }, [playing, from, to]);

  return { at, playing, speed, seek, toggle, setSpeed };
}
