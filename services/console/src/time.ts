/** Event time: milliseconds since the epoch, shown in UTC. */

export function parse(text: string): number {
  return Date.parse(text);
}

export function rfc3339(at: number): string {
  return new Date(at).toISOString();
}

/** 09:30:16, or with the day in front where a recording spans several. */
export function clock(at: number, withDay = false): string {
  const text = new Date(at).toISOString();
  return withDay ? `${text.slice(0, 10)} ${text.slice(11, 19)}` : text.slice(11, 19);
}

/** Whether a time of the day alone names no moment of what is between two ends. */
export function severalDays(from: number, to: number): boolean {
  return to - from > 86_400_000;
}

/** 09:30:16 UTC: a time that somebody reads alone says whose it is. */
export function moment(at: number, withDay = false): string {
  return `${clock(at, withDay)} UTC`;
}

/** What stands at a tick of an axis; the first names the zone for all. */
export function axisText(at: number, number: number, withDay: boolean): string {
  return `${clock(at, withDay).slice(0, withDay ? 16 : 8)}${number === 0 ? " UTC" : ""}`;
}

/** 45 s, 26 min, 3 h 05, 2 d 4 h. */
export function span(ms: number): string {
  const s = Math.round(Math.abs(ms) / 1000);
  const sign = ms < 0 ? "−" : "";
  if (s < 100) {
    return `${sign}${Math.abs(ms) < 10_000 ? (Math.abs(ms) / 1000).toFixed(1) : s} s`;
  }
  const min = Math.round(s / 60);
  if (min < 100) {
    return `${sign}${min} min`;
  }
  const h = Math.floor(min / 60);
  return h < 48 ? `${sign}${h} h ${String(min % 60).padStart(2, "0")}` : `${sign}${Math.floor(h / 24)} d ${h % 24} h`;
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800];

/** Round times between two ends, at most `most` of them. */
export function ticks(from: number, to: number, most: number): number[] {
  const least = (to - from) / 1000 / Math.max(most, 1);
  const step = (STEPS_S.find((one) => one >= least) ?? 2_592_000) * 1000;
  const out: number[] = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    out.push(at);
  }
  return out;
}
