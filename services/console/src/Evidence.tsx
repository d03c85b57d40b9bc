/** The readings of every layer around an incident, on one axis of time, and the logs of the same minutes. */
import { useMemo, useState } from "preact/hooks";
import { ask, path, useLoaded } from "./api";
import type { Shade } from "./Chart";
import { entitiesFor } from "./incidents";
import { SignalChart } from "./Signals";
import { layersOf } from "./signals";
import { parse, rfc3339 } from "./time";
import { words, type Entity, type Finding, type IncidentDetail, type LogLines, type RecordingDetail } from "./types";
import { Moment, When } from "./ui";
import type { Zoom } from "./zoom";
import { ZoomBar } from "./ZoomBar";

interface EvidenceProps {
  readonly recording: RecordingDetail;
  readonly incident: IncidentDetail;
  readonly root: Finding | null;
  readonly zoom: Zoom;
  readonly at: number;
  readonly onSeek: (at: number) => void;
}

export function Evidence({ recording, incident, root, zoom, at, onSeek }: EvidenceProps) {
  const entity = root?.entity ?? incident.causes[0]?.entity ?? {};
  const told = entity["job_id"] ?? root?.evidence["job_id"] ?? incident.impact.jobs[0]?.job_id;
  const job = told === undefined ? null : String(told);
  const nodes = recording.jobs.find((one) => one.job_id === job)?.nodes ?? [];
  const shades = useMemo<readonly Shade[]>(
    () => [{ from: parse(incident.started_at), to: parse(incident.closed_at ?? recording.end) }],
    [incident, recording.end],
  );
  const layers = layersOf(entity, recording.streams)
    .map(({ name, signals }) => ({
      name,
      charts: signals.flatMap((signal) => {
        const entities = entitiesFor(signal.kind, signal, entity, job, nodes);
        return entities === null ? [] : [{ signal, entities }];
      }),
    }))
    .filter(({ charts }) => charts.length > 0);
  return (
    <section class="panel" aria-label="Evidence">
      <h2>
        Evidence at <Moment at={at} /> <span class="soft small">click in a chart to move, drag to zoom; all share one axis</span>
      </h2>
      <ZoomBar zoom={zoom} />
      {layers.length === 0 && (
        <p class="soft" role="note">
          No data: {recording.name} has no readings of {words(entity) || "what is at fault"}. It has the streams {recording.streams.map(({ kind }) => kind).join(", ") || "of nothing"}.
        </p>
      )}
      {layers.map(({ name, charts }) => (
        <div key={name}>
          <h3>{name}</h3>
          <div class="charts shared">
            {charts.map(({ signal, entities }, place) => (
              <SignalChart
                key={signal.field}
                {...{ recording, signal, entities, shades, zoom, at, onSeek }}
                peers={signal.kind !== "steps" || signal.field !== "step_time_s"}
                withAxis={place === charts.length - 1}
                height={place === charts.length - 1 ? 122 : 96}
              />
            ))}
          </div>
        </div>
      ))}
    </section>
  );
}

const MOST_LINES = 200;

interface LogsProps {
  readonly recording: string;
  readonly zoom: Zoom;
  readonly about: Entity;
  readonly at: number;
  readonly onSeek: (at: number) => void;
}

export function Logs({ recording, zoom, about, at, onSeek }: LogsProps) {
  const own = typeof about["node"] === "string" ? about["node"] : null;
  const [node, setNode] = useState<string | null>(own);
  const query = { from: rfc3339(zoom.from), to: rfc3339(zoom.to), limit: MOST_LINES, node };
  const loaded = useLoaded(`${recording} ${JSON.stringify(query)}`, () => ask<LogLines>(`${path("recordings", recording)}/logs`, query));
  return (
    <section class="panel" aria-label="Logs">
      <div class="row spread">
        <h2>Logs of these minutes</h2>
        {own !== null && (
          <button type="button" aria-pressed={node !== null} onClick={() => setNode(node === null ? own : null)}>
            only {own}
          </button>
        )}
      </div>
      <When loaded={loaded}>
        {({ items, more }) => (
          <>
            {items.length === 0 && (
              <p class="soft">
                No line{node === null ? "" : ` of ${node}`} from <Moment at={zoom.from} /> to <Moment at={zoom.to} />.
              </p>
            )}
            <ul class="feed">
              {items.map((line, number) => (
                <li key={number}>
                  <button type="button" class="link" onClick={() => onSeek(parse(line.at))}>
                    <Moment at={parse(line.at)} />{" "}
                    <span class={line.severity === "critical" || line.severity === "error" ? "sev page" : line.severity === "warning" ? "sev warn" : "soft"}>{line.severity}</span>{" "}
                    <span class="soft">
                      {line.source} {line.node}
                    </span>{" "}
                    <span class="mono">{line.message}</span> {parse(line.at) > at && <span class="soft small">later</span>}
                  </button>
                </li>
              ))}
            </ul>
            {more && <p class="small soft">The first {MOST_LINES} are shown.</p>}
          </>
        )}
      </When>
    </section>
  );
}
