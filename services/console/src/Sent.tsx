/** What was alerted when: what Alertmanager was sent of the findings, and how soon. */
import { parse, span } from "./time";
import type { Alert } from "./types";
import { Moment, Sev } from "./ui";

export function Sent({ alerts }: { readonly alerts: readonly Alert[] }) {
  return (
    <section class="panel" aria-label="Alerts sent">
      <h2>
        Alerts sent <span class="soft">{alerts.length}</span>
      </h2>
      {alerts.length === 0 ? (
        <p class="soft small">Nobody was alerted. (A run of the detectors alone alerts nobody; a live replay does.)</p>
      ) : (
        <ul class="feed">
          {alerts.map((one) => (
            <li key={one.id}>
              <Sev of={one.severity} /> <strong>{one.name}</strong> {one.state === "resolved" && <span class="soft small">resolved</span>}
              <div class="small">
                found at <Moment at={parse(one.detected_at)} /> of the recording; with Alertmanager {span(one.delay_s * 1000)} after it was found
                {one.receivers.length > 0 && `, for ${one.receivers.join(", ")}`}
                {one.suppressed && <span class="sev warn"> silenced</span>}
              </div>
              <div class="small soft">
                sent <Moment at={parse(one.sent_at)} withDay />
                {one.resolved_at !== null && (
                  <>
                    , resolved <Moment at={parse(one.resolved_at)} withDay />
                  </>
                )}{" "}
                (wall clock)
              </div>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}
