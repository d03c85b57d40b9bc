/** What caused what in an incident, what it cost, and the figures that its detector saw. */
import { ordered } from "./incidents";
import { Table, type Column } from "./Table";
import { parse, span } from "./time";
import { words, type Finding, type IncidentDetail } from "./types";
import { Moment, Sev } from "./ui";
import { evidence, known, percent } from "./units";

export function Chain({ incident, onSeek }: { readonly incident: IncidentDetail; readonly onSeek: (at: number) => void }) {
  const root = incident.causes[0]?.finding;
  const members = new Map(incident.members.map((one) => [one.id, one]));
  const name = (end: string) => {
    const member = members.get(end);
    return member === undefined ? end.replace(/^seen:/, "").replace(/^job:/, "job ") : `${member.fault}, ${words(member.entity)}`;
  };
  return (
    <section class="panel" aria-label="Root cause">
      <h2>What caused what</h2>
      <ol class="chain">
        {incident.causes.slice(0, 3).map((cause, place) => (
          <li key={cause.finding} class={place === 0 ? "root" : ""}>
            <div class="soft small">{place === 0 ? "root cause" : "or else"}, {percent(cause.score)}</div>
            <button type="button" onClick={() => onSeek(parse(members.get(cause.finding)?.detected_at ?? incident.opened_at))}>
              {cause.fault}, {words(cause.entity)}
            </button>
            <div class="small">{cause.reasons.join("; ")}</div>
          </li>
        ))}
        {ordered(incident.chain).map((link) => (
          <li key={`${link.cause}>${link.effect}`} class={link.effect === root ? "root" : ""}>
            <div>
              {name(link.cause)} <span aria-label="leads to">→</span> <strong>{name(link.effect)}</strong>
            </div>
            <div class="small soft">{link.because}</div>
          </li>
        ))}
      </ol>
      {incident.unlisted > 0 && <p class="small soft">and {incident.unlisted} finding(s) more</p>}
      <h3>Findings</h3>
      <ul class="feed">
        {incident.members.map((one) => (
          <li key={one.id}>
            <button type="button" class="link" onClick={() => onSeek(parse(one.detected_at))}>
              <Sev of={one.severity} /> <Moment at={parse(one.detected_at)} /> {one.fault}, {words(one.entity)}
              <div class="small">{one.summary}</div>
            </button>
          </li>
        ))}
      </ul>
      {incident.offenders.map((one) => (
        <p key={words(one.entity)} class="small">
          <span class="sev warn">repeat offender</span> {words(one.entity)}: root of {one.incidents} incident(s) in the last 28 days
        </p>
      ))}
    </section>
  );
}

const JOBS: readonly Column<IncidentDetail["impact"]["jobs"][number]>[] = [
  {
    name: "job",
    by: ({ job_id }) => job_id,
    cell: ({ job_id, ended_at }) => (
      <>
        {job_id}
        {ended_at !== null && (
          <div class="small soft">
            ended <Moment at={parse(ended_at)} />
          </div>
        )}
      </>
    ),
  },
  { name: "GPUs", num: true, by: ({ gpus }) => gpus },
  { name: "steps", num: true, by: (job) => job.step_time_factor, cell: (job) => known(job.step_time_factor, (it) => `× ${it.toFixed(2)}`) },
  { name: "stood", num: true, by: ({ stood_s }) => stood_s, cell: (job) => known(job.gpu_hours_lost === null ? null : job.stood_s, (it) => span(it * 1000)) },
  { name: "GPU-hours", num: true, by: (job) => job.gpu_hours_lost, cell: (job) => known(job.gpu_hours_lost, (it) => it.toFixed(1)) },
];

export function Impact({ incident }: { readonly incident: IncidentDetail }) {
  const { jobs } = incident.impact;
  return jobs.length === 0 ? null : (
    <section class="panel" aria-label="Impact">
      <h2>What it cost</h2>
      <Table id="jobs" rows={jobs} columns={JOBS} keyOf={({ job_id }) => job_id} />
    </section>
  );
}

export function Facts({ of: root }: { readonly of: Finding }) {
  return (
    <section class="panel" aria-label="Figures">
      <h2>What {root.detector} saw</h2>
      <p class="small">{root.summary}</p>
      <div>
        <table class="small figures">
          <tbody>
            {Object.entries(root.evidence).map(([name, value]) => (
              <tr key={name}>
                <td class="mono nowrap">{name}</td>
                <td class={typeof value === "number" ? "num" : ""} style="overflow-wrap:anywhere">{typeof value === "number" ? evidence(name, value) : value}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
