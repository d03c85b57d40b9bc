/** The tape deck of a replay through the real services: Kafka, the detectors there, Alertmanager; followed live. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ask, path, send, useLoaded } from "./api";
import { useReplay, type Watched } from "./follow";
import { useHeat } from "./heat";
import { useKeys } from "./keys";
import { useMayChange } from "./Me";
import { LIVE_SPEEDS } from "./playhead";
import { go, href, replaceQuery, useRoute } from "./route";
import { Sent } from "./Sent";
import { Stage } from "./Stage";
import { parse, rfc3339 } from "./time";
import { TimeLine } from "./TimeLine";
import type { RecordingDetail, Replay } from "./types";
import { Days, EventClock, Moment, Trouble, When } from "./ui";
import { zoomOf } from "./zoom";

const TICK_MS = 100;

/** Event time between two reports: it goes on at the replay's speed, never past its end. */
function useEventTime(replay: Replay | null): number {
  const told = replay === null ? 0 : parse(replay.event_time);
  const [at, setAt] = useState(told);
  useEffect(() => {
    setAt(told);
    if (replay?.state !== "running" || replay.speed === "max") {
      return undefined;
    }
    const [began, speed, end] = [performance.now(), replay.speed, parse(replay.to)];
    const timer = setInterval(() => setAt(Math.min(end, told + (performance.now() - began) * speed)), TICK_MS);
    return () => clearInterval(timer);
  }, [told, replay?.state, replay?.speed, replay?.run]);
  return at;
}

export function LivePage({ name }: { readonly name: string }) {
  const watched = useReplay(name);
  const known = useRef<string | null>(null);
  known.current = watched.replay?.recording ?? known.current;
  const recording = useLoaded(known.current, () => ask<RecordingDetail>(path("recordings", known.current ?? "")));
  if (watched.error !== null) {
    return <Trouble error={watched.error} />;
  }
  if (watched.loaded && watched.replay === null && known.current !== null) {
    return (
      <p>
        The replay {name} was removed. <a href={href("library")}>Library</a>
      </p>
    );
  }
  if (watched.replay === null) {
    return watched.lost === null ? (
      <p>
        Waiting for a replay {name}. Those there are stand in the <a href={href("library")}>library</a>.
      </p>
    ) : (
      <Trouble error={watched.lost} />
    );
  }
  const { replay } = watched;
  return <When loaded={recording}>{(detail) => <Days of={detail}><LiveDeck watched={watched} replay={replay} recording={detail} /></Days>}</When>;
}

interface Props {
  readonly watched: Watched;
  readonly replay: Replay;
  readonly recording: RecordingDetail;
}

function LiveDeck({ watched, replay, recording }: Props) {
  const route = useRoute();
  const may = useMayChange();
  const at = useEventTime(replay);
  const [from, to] = [parse(recording.start), parse(recording.end)];
  const zoom = zoomOf(route, from, to, at);
  const heat = useHeat(recording.name, at, watched.findings);
  const [told, setTold] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const order = useCallback(
    (what: string, body: unknown = {}) => {
      setError(null);
      setTold(what);
      send<Replay>(path("replays", replay.name, what), body)
        .catch((reason: unknown) => setError(reason as Error))
        .finally(() => setTold(null));
    },
    [replay.name],
  );
  const seek = useCallback((target: number) => order("seek", { to: rfc3339(Math.round(Math.min(to, Math.max(from, target)))) }), [order, from, to]);
  // A click in a chart looks back at what was said; only the time line moves the replay for everybody.
  const back = (moment: number) => go(href("run", [replay.run], { t: rfc3339(Math.round(moment)) }));
  const running = replay.state === "running";
  const over = !running && replay.state !== "paused";
  const toggle = () => (over ? seek(from) : order(running ? "pause" : "resume"));
  const place = LIVE_SPEEDS.findIndex((one) => one === replay.speed);
  const faster = (step: 1 | -1) => order("speed", { speed: LIVE_SPEEDS[Math.min(LIVE_SPEEDS.length - 1, Math.max(0, place + step))] });
  const steer = {
    " ": toggle,
    "Shift+ArrowLeft": () => seek(at - 60_000),
    "Shift+ArrowRight": () => seek(at + 60_000),
    Home: () => seek(from),
    "[": () => faster(-1),
    "]": () => faster(1),
  };
  useKeys({ ...zoom.keys, ...(may ? steer : {}), Escape: () => replaceQuery({ gpu: null }) });
  const remove = () => {
    ask(path("replays", replay.name), {}, { method: "DELETE" }).then(
      () => go(href("library")),
      (reason: unknown) => setError(reason as Error),
    );
  };
  return (
    <>
      <section class="panel deck" aria-label="Tape deck">
        <div class="row">
          <button type="button" class="main play" onClick={toggle} disabled={!may || told !== null}>
            {over ? "↺ Again" : running ? "❚❚ Pause" : "▶ Resume"}
          </button>
          <button type="button" onClick={() => order("stop")} disabled={!may || over || told !== null}>
            ■ Stop
          </button>
          <label>
            <span class="soft">speed </span>
            <select value={String(replay.speed)} disabled={!may || over} onChange={({ currentTarget: { value } }) => order("speed", { speed: value === "max" ? value : Number(value) })}>
              {(place < 0 ? [replay.speed, ...LIVE_SPEEDS] : LIVE_SPEEDS).map((speed) => (
                <option key={speed} value={String(speed)}>
                  {speed === "max" ? "as fast as it goes" : `${speed}×`}
                </option>
              ))}
            </select>
          </label>
          <EventClock at={at} />
          <State replay={replay} told={told} reading={over && watched.run?.state === "running"} />
          <strong class="story" title={recording.title}>
            {recording.title}
          </strong>
          {may && over && (
            <button type="button" onClick={remove}>
              Remove
            </button>
          )}
        </div>
        <TimeLine
          {...{ from, to, zoom, at }}
          reached={at}
          findings={watched.findings}
          truths={recording.truths.filter((one) => !one.distractor)}
          onSeek={may ? seek : back}
          settled
        />
        <div class="small soft">
          Live through Kafka, generation {replay.generation}; this moment lands at <Moment at={parse(replay.lands_at)} withDay />.{" "}
          {may && "A click in the time line takes the replay there: alerts are resolved and the detectors begin afresh."} <a href={href("run", [replay.run])}>Look back without moving it</a>
        </div>
      </section>
      {watched.lost !== null && <Trouble error={watched.lost} />}
      {error !== null && <Trouble error={error} />}
      {replay.error !== null && <p class="sev page">The replay has failed: {replay.error}</p>}
      <Stage {...{ watched, recording, heat, route, zoom, at }} run={replay.run} until={at} onSeek={back} stays>
        <Sent alerts={watched.alerts} />
      </Stage>
    </>
  );
}

const LATE_S = 5;

interface StateProps {
  readonly replay: Replay;
  readonly told: string | null;
  /** Everything was sent, but the detectors have not read it all. */
  readonly reading: boolean;
}

function State({ replay, told, reading }: StateProps) {
  const late = replay.lag_s > LATE_S;
  return (
    <span role="status" class="nowrap">
      <span class={`sev ${replay.state === "running" ? "good" : replay.state === "failed" ? "page" : "info"}`}>{told === null ? replay.state : `${told}…`}</span>
      {reading && <span class="soft small"> the detectors are still reading</span>}
      {late && <span class="sev warn"> {replay.lag_s.toFixed(0)} s behind</span>}
    </span>
  );
}
