/** The tape deck over a run: the fleet's health, what the detectors found and when, and any GPU against its peers. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { ask, path, send, useLoaded } from "./api";
import { shown } from "./changes";
import { goesOn, useRun, type Watched } from "./follow";
import { useHeat, type Heat } from "./heat";
import { useKeys } from "./keys";
import { Operators } from "./Me";
import { SPEEDS, usePlayhead } from "./playhead";
import { href, replaceQuery, useRoute, type Route } from "./route";
import { ScoreOf } from "./Findings";
import { Stage, useLinkedMoment } from "./Stage";
import { parse } from "./time";
import { TimeLine } from "./TimeLine";
import type { RecordingDetail, Run } from "./types";
import { Days, EventClock, Moment, Trouble, When } from "./ui";
import { percent } from "./units";
import { zoomOf } from "./zoom";

/** A linked moment, else the first finding that is a page, else the first one; null: the recording's start. */
function initialMoment(route: Route, watched: Watched): number | null {
  const linked = parse(route.query["t"] ?? "");
  const first = watched.findings.find((one) => one.severity === "page") ?? watched.findings[0];
  return Number.isFinite(linked) ? linked : first === undefined ? null : parse(first.detected_at);
}

export function RunPage({ id }: { readonly id: string }) {
  const watched = useRun(id);
  const route = useRoute();
  const { run } = watched;
  const recording = useLoaded(run?.recording ?? null, () => ask<RecordingDetail>(path("recordings", run?.recording ?? "")));
  const [at, setAt] = useState<number | null>(null);
  // Asked for beside the recording, not after it: the moment is known sooner than the ends.
  const asked = at ?? (watched.loaded ? initialMoment(route, watched) : null) ?? (recording.data === null ? null : parse(recording.data.start));
  const heat = useHeat(run?.recording ?? null, asked, watched.findings);
  if (watched.error !== null) {
    return <Trouble error={watched.error} />;
  }
  if (run === null) {
    return <p class="soft">Loading…</p>;
  }
  return (
    <When loaded={recording}>
      {(detail) => (
        <Days of={detail}>
          <Deck key={id} watched={watched} run={run} recording={detail} heat={heat} route={route} onMoment={setAt} />
        </Days>
      )}
    </When>
  );
}

interface DeckProps {
  readonly watched: Watched;
  readonly run: Run;
  readonly recording: RecordingDetail;
  readonly heat: Heat;
  readonly route: Route;
  readonly onMoment: (at: number) => void;
}

function Deck({ watched, run, recording, heat, route, onMoment }: DeckProps) {
  const { findings } = watched;
  const [from, to] = [parse(recording.start), parse(recording.end)];
  const going = goesOn(run);
  const playhead = usePlayhead(from, to, initialMoment(route, watched) ?? from);
  const { at, seek } = playhead;
  const zoom = zoomOf(route, from, to, at);
  useLinkedMoment(route, at, playhead.playing, seek);
  useEffect(() => onMoment(at), [at, onMoment]);
  const [following, setFollowing] = useState(going);
  const reached = run.state === "done" ? to : run.event_time === null ? from : parse(run.event_time);
  useEffect(() => {
    if (following) {
      seek(going ? reached : (initialMoment({ ...route, query: {} }, watched) ?? from));
    }
  }, [going, following, reached, seek]);
  const move = useCallback(
    (target: number) => {
      setFollowing(false);
      seek(target);
    },
    [seek],
  );
  const jump = (step: 1 | -1) => {
    const times = findings.map((one) => parse(one.detected_at));
    const next = step === 1 ? times.find((time) => time > at + 1) : times.findLast((time) => time < at - 1);
    if (next !== undefined) {
      move(next);
    }
  };
  const faster = (step: 1 | -1) => {
    const place = SPEEDS.indexOf(playhead.speed as (typeof SPEEDS)[number]);
    playhead.setSpeed(SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, place + step))] ?? 60);
  };
  const play = () => {
    setFollowing(false);
    playhead.toggle();
  };
  useKeys({
    ...zoom.keys,
    " ": play,
    ArrowLeft: () => move(at - 10_000),
    ArrowRight: () => move(at + 10_000),
    "Shift+ArrowLeft": () => move(at - 60_000),
    "Shift+ArrowRight": () => move(at + 60_000),
    Home: () => move(from),
    End: () => move(to),
    n: () => jump(1),
    p: () => jump(-1),
    "[": () => faster(-1),
    "]": () => faster(1),
    Escape: () => replaceQuery({ gpu: null }),
  });
  return (
    <>
      <section class="panel deck" aria-label="Tape deck">
        <div class="row">
          <button type="button" class="main play" onClick={play} aria-label={playhead.playing ? "Pause" : "Play"}>
            {playhead.playing ? "❚❚ Pause" : "▶ Play"}
          </button>
          <label>
            <span class="soft">speed </span>
            <select value={playhead.speed} onChange={(event) => playhead.setSpeed(Number(event.currentTarget.value))}>
              {SPEEDS.map((speed) => (
                <option key={speed} value={speed}>
                  {speed}×
                </option>
              ))}
            </select>
          </label>
          <EventClock at={at} />
          <button type="button" onClick={() => jump(-1)} title="the finding before (p)">
            ◂ finding
          </button>
          <button type="button" onClick={() => jump(1)} title="the next finding (n)">
            finding ▸
          </button>
          <strong class="story" title={recording.title}>
            {recording.title}
          </strong>
          {going && <Going run={run} />}
          {run.replay !== null && (
            <a class="small nowrap" href={href("replay", [run.replay])}>
              live replay {run.replay}
            </a>
          )}
        </div>
        <TimeLine from={from} to={to} zoom={zoom} at={at} reached={reached} findings={findings} truths={recording.truths.filter((one) => !one.distractor)} onSeek={move} />
        <div class="small soft">Bars above: findings from detected to resolved. Outlines below: what the labels say was there. ? for keys.</div>
        {Object.keys(run.detectors).length > 0 && (
          <p class="small" role="note">
            Not the detectors as they come: {shown(run.detectors)}.
          </p>
        )}
      </section>
      {watched.lost !== null && <Trouble error={watched.lost} />}
      {(run.state === "cancelled" || run.state === "failed") && (
        <p class="sev page">
          The run {run.state === "cancelled" ? "was cancelled" : `has failed: ${run.error ?? ""}`}. What came after <Moment at={reached} withDay /> was not looked at.
        </p>
      )}
      <Stage {...{ watched, recording, heat, route, zoom, at }} run={run.id} until={to} onSeek={move}>
        {run.state === "done" && <ScoreOf run={run.id} />}
      </Stage>
    </>
  );
}

/** How far the detectors are; only one run at a time goes on, so one that nobody waits for can be ended. */
function Going({ run }: { readonly run: Run }) {
  const [error, setError] = useState<Error | null>(null);
  const cancel = () => send<Run>(path("runs", run.id, "cancel"), {}).catch((reason: unknown) => setError(reason as Error));
  return (
    <span class="row small" role="status">
      {run.state === "queued" ? (
        "waits for its turn"
      ) : (
        <>
          <progress max={1} value={run.progress} aria-label="How far the detectors are" /> {percent(run.progress)}
        </>
      )}
      {run.replay === null && (
        <Operators>
          <button type="button" onClick={() => void cancel()}>
            Cancel
          </button>
        </Operators>
      )}
      {error !== null && <Trouble error={error} />}
    </span>
  );
}
