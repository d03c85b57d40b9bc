/** New recordings: drop an archive or what other tools wrote, or capture a stretch of time from a server that is known. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ask, path, send, useLoaded } from "./api";
import { asOne } from "./archive";
import { Outcome } from "./Outcome";
import type { Importer, RecordingSummary, Task } from "./types";
import { Trouble } from "./ui";

interface Props {
  readonly onDone: () => void;
}

/** What is done to a file that comes, or a server that is asked; names of recordings that were made at once. */
type Made = Task | readonly string[];

export function Import({ onDone }: Props) {
  const known = useLoaded("importers", async () => {
    const [importers, sources] = await Promise.all([ask<readonly Importer[]>("importers"), ask<readonly { readonly name: string }[]>("sources")]);
    return { importers, sources: sources.map((one) => one.name) };
  });
  const [format, setFormat] = useState("");
  const [busy, setBusy] = useState<string | null>(null);
  const [told, setTold] = useState<string | null>(null);
  const [task, setTask] = useState<string | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const begin = (what: string, made: Promise<Made>) => {
    setBusy(what);
    setError(null);
    setTold(null);
    setTask(null);
    made
      .then(
        (one) => {
          if ("id" in one) {
            setTask(one.id);
          } else {
            setTold(`In the library: ${one.join(", ")}.`);
          }
        },
        (reason: unknown) => setError(reason as Error),
      )
      .finally(() => {
        setBusy(null);
        onDone();
      });
  };
  const importer = known.data?.importers.find((one) => one.name === format) ?? null;
  const sources = known.data?.sources ?? [];
  return (
    <>
      <section class="panel" aria-label="Import">
        <div class="row" style="margin-bottom:.5rem">
          <label>
            <span class="soft">Import </span>
            <select value={format} onChange={(event) => setFormat(event.currentTarget.value)}>
              <option value="">a recording of hindcast (.zip, .tar.gz)</option>
              {anyFirst(known.data?.importers ?? []).map((one) => (
                <option key={one.name} value={one.name}>
                  {one.name === ANY ? `files of any kinds (${ANY})` : one.name}
                </option>
              ))}
              {sources.map((one) => (
                <option key={`@${one}`} value={`@${one}`}>
                  the server {one}
                </option>
              ))}
            </select>
          </label>
        </div>
        {format.startsWith("@") ? (
          <Capture source={format.slice(1)} onSend={(body) => begin(body.name, send<Task>("captures", body))} busy={busy !== null} />
        ) : importer === null ? (
          <Drop busy={busy} says="Drop a recording here" several onFiles={(files) => begin(nameOf(files), allOf(files))} />
        ) : (
          <Foreign key={importer.name} importer={importer} busy={busy} onSend={(query, files) => begin(nameOf(files), sendAll(path("imports", importer.name), query, files))} />
        )}
        <span role="status">{told}</span>
        {task !== null && <Outcome key={task} id={task} onDone={onDone} />}
      </section>
      {error !== null && <Trouble error={error} />}
    </>
  );
}

/** The importer that recognises what it is given. */
const ANY = "heap";

function anyFirst(importers: readonly Importer[]): readonly Importer[] {
  return [...importers].sort((a, b) => Number(b.name === ANY) - Number(a.name === ANY));
}

type Query = readonly (readonly [name: string, value: string])[];

/** At least one: nothing is sent for nothing. */
type Files = readonly [File, ...File[]];

const nameOf = (files: Files) => (files.length === 1 ? files[0].name : `${files.length} files`);

/** Sends recordings, one after the other, up to the first that is refused; gives their names. */
async function allOf(files: Files): Promise<readonly string[]> {
  const names: string[] = [];
  for (const file of files) {
    try {
      names.push((await upload<RecordingSummary>("recordings", [], file)).name);
    } catch (reason) {
      throw reason instanceof ApiError ? refused(file.name, reason) : reason;
    }
  }
  return names;
}

function refused(name: string, { status, title, detail, remedy }: ApiError): ApiError {
  const other = status === 415 ? `; what another tool wrote is imported by its kind, chosen above, or as files of any kinds (${ANY})` : "";
  return new ApiError(status, title, `${name}: ${detail}`, `${remedy}${other}`);
}

/** Sends a file as it is, several as one archive. */
async function sendAll(url: string, query: Query, files: Files): Promise<Task> {
  const file = files.length === 1 ? files[0] : await asOne(files);
  return upload<Task>(url, [...query, ["filename", file.name]], file);
}

function upload<T>(url: string, query: Query, file: File): Promise<T> {
  const search = new URLSearchParams(query.map(([name, value]) => [name, value])).toString();
  return ask<T>(search === "" ? url : `${url}?${search}`, {}, { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } });
}

interface DropProps {
  readonly busy: string | null;
  readonly says: string;
  readonly onFiles: (files: Files) => void;
  readonly several?: boolean;
}

function Drop({ busy, says, onFiles, several = false }: DropProps) {
  const [over, setOver] = useState(false);
  const take = useRef<(files: FileList | null | undefined) => void>(() => undefined);
  take.current = (files) => {
    const [first, ...others] = files ?? [];
    if (first !== undefined && busy === null) {
      onFiles([first, ...others]);
    }
  };
  // Anywhere on the page: a browser opens what is dropped beside, and the console would be gone.
  useEffect(() => {
    const stop = new AbortController();
    const on = (kind: "dragover" | "dragleave" | "drop", then: (event: DragEvent) => void) => addEventListener(kind, then, { signal: stop.signal });
    on("dragover", (event) => {
      event.preventDefault();
      setOver(true);
    });
    on("dragleave", (event) => event.relatedTarget === null && setOver(false));
    on("drop", (event) => {
      event.preventDefault();
      setOver(false);
      take.current(event.dataTransfer?.files);
    });
    return () => stop.abort();
  }, []);
  return (
    <div class={over ? "drop over" : "drop"}>
      <label class="row">
        <span>{busy === null ? `${says}, or choose one:` : `Sending ${busy}…`}</span>
        <input
          type="file"
          multiple={several}
          disabled={busy !== null}
          onChange={({ currentTarget }) => {
            take.current(currentTarget.files);
            currentTarget.value = ""; // the same file, mended, is a change again
          }}
        />
      </label>
    </div>
  );
}

interface ForeignProps {
  readonly importer: Importer;
  readonly busy: string | null;
  readonly onSend: (query: Query, files: Files) => void;
}

/** What another tool wrote: it needs a name, and is told what the files do not say. */
function Foreign({ importer, busy, onSend }: ForeignProps) {
  const [name, setName] = useState("");
  const [options, setOptions] = useState<Readonly<Record<string, string>>>({});
  const given = Object.entries(options).filter(([, value]) => value !== "");
  return (
    <>
      <p class="small">
        {importer.help} Takes {importer.takes}; drop several files together, or as one .zip or .tar.gz.
      </p>
      <div class="row choices" style="margin-bottom:.6rem">
        <Named name={name} set={setName} />
        {importer.options.map((one) => (
          <label key={one.name} title={one.help}>
            <span class="soft">{one.name} </span>
            <input size={14} value={options[one.name] ?? ""} placeholder={String(one.default ?? "")} onInput={(event) => setOptions({ ...options, [one.name]: event.currentTarget.value })} />
          </label>
        ))}
      </div>
      {name === "" ? (
        <p class="soft small">First give it a name.</p>
      ) : (
        <Drop
          busy={busy}
          says="Drop the files here"
          several
          onFiles={(files) => onSend([["name", name], ...given.map(([option, value]) => ["option", `${option}=${value}`] as const)], files)}
        />
      )}
    </>
  );
}

function Named({ name, set }: { readonly name: string; readonly set: (name: string) => void }) {
  return (
    <label>
      <span class="soft">name of the recording </span>
      <input value={name} required pattern="[a-z0-9]+(-[a-z0-9]+)*" placeholder="like-this" onInput={(event) => set(event.currentTarget.value)} />
    </label>
  );
}

interface Asked {
  readonly source: string;
  readonly name: string;
  readonly from: string;
  readonly to: string;
}

interface CaptureProps {
  readonly source: string;
  readonly busy: boolean;
  readonly onSend: (asked: Asked) => void;
}

function Capture({ source, busy, onSend }: CaptureProps) {
  const [asked, setAsked] = useState({ name: "", from: "", to: "" });
  return (
    <form
      class="row choices"
      onSubmit={(event) => {
        event.preventDefault();
        onSend({ source, name: asked.name, from: `${asked.from}Z`, to: `${asked.to}Z` });
      }}
    >
      <Named name={asked.name} set={(name) => setAsked({ ...asked, name })} />
      {(["from", "to"] as const).map((end) => (
        <label key={end}>
          <span class="soft">{end} (UTC) </span>
          <input type="datetime-local" step="1" required value={asked[end]} onInput={(event) => setAsked({ ...asked, [end]: event.currentTarget.value })} />
        </label>
      ))}
      <button type="submit" class="main" disabled={busy}>
        Capture
      </button>
    </form>
  );
}
