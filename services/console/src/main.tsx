import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ask, AWAY, hasToken, setToken, useAway, useLoaded } from "./api";
import { BacktestPage } from "./Backtest";
import { ComparePage } from "./Compare";
import { CoveragePage } from "./Coverage";
import { IncidentPage } from "./Incident";
import { useKeys } from "./keys";
import { Library } from "./Library";
import { LivePage } from "./Live";
import { MeContext, type Me } from "./Me";
import { PostmortemPage } from "./Postmortem";
import { RecordingPage } from "./Recording";
import { go, href, useRoute, type Route } from "./route";
import { RulesPage } from "./Rules";
import { RunPage } from "./Run";
import { ScorePage } from "./Score";
import { useTheme } from "./theme";
import "./theme.css";
import { Trouble } from "./ui";
import { Wrong } from "./Wrong";

const PAGES = [
  ["", "Wrong now"],
  ["library", "Library"],
  ["compare", "Compare"],
  ["rules", "Rules"],
  ["backtest", "Backtest"],
  ["score", "Score"],
  ["postmortem", "Postmortem"],
] as const;

const TITLES: Readonly<Record<string, string>> = { run: "Replay", replay: "Live replay", incident: "Incident", coverage: "Coverage" };

const KEYS = [
  ["1 to 7", "what is wrong, library, compare, rules, backtest, score, postmortem"],
  ["Space", "play or pause"],
  ["← →", "10 s back or on; with Shift a minute"],
  ["[ ]", "slower, faster"],
  ["+ − 0", "in charts: closer, wider, the whole range; dragging across one zooms, too"],
  ["p n", "the finding before, the next one"],
  ["Home End", "the beginning, the end"],
  ["Arrows, Enter", "on the heat map: move, choose a GPU"],
  ["Esc", "close the GPU"],
  ["r", "in an incident: open or close its runbook"],
  ["m", "from an incident to its postmortem"],
  ["d", "from an incident to the deck at this moment"],
  ["t", "dark or light"],
  ["?", "this list"],
] as const;

function Shown({ route }: { readonly route: Route }) {
  const [first = "", second = ""] = route.path;
  switch (route.page) {
    case "":
      return <Wrong />;
    case "library":
      return first === "" ? <Library /> : <RecordingPage key={first} name={first} />;
    case "run":
      return <RunPage key={first} id={first} />;
    case "replay":
      return <LivePage key={first} name={first} />;
    case "incident":
      return <IncidentPage key={`${first}/${second}`} run={first} id={second} />;
    case "coverage":
      return <CoveragePage key={first} name={first} />;
    case "compare":
      return <ComparePage id={first === "" ? null : first} />;
    case "rules":
      return <RulesPage key={first} id={first === "" ? null : first} query={route.query} />;
    case "backtest":
      return <BacktestPage key={first} id={first === "" ? null : first} query={route.query} />;
    case "score":
      return <ScorePage id={first === "" ? null : first} />;
    case "postmortem":
      return <PostmortemPage key={first} id={first === "" ? null : first} query={route.query} />;
    default:
      return (
        <p>
          There is no such page. <a href={href("")}>What is wrong</a>
        </p>
      );
  }
}

function App() {
  const route = useRoute();
  const [theme, toggle] = useTheme();
  const help = useRef<HTMLDialogElement>(null);
  const me = useLoaded("me", () => ask<Me>("me"));
  const away = useAway();
  useEffect(() => {
    addEventListener("refused", me.again);
    return () => removeEventListener("refused", me.again);
  }, [me.again]);
  useKeys({
    ...Object.fromEntries(PAGES.map(([page], number) => [String(number + 1), () => go(href(page))])),
    t: toggle,
    "?": () => help.current?.showModal(),
  });
  const current = ["run", "replay", "incident", "coverage"].includes(route.page) ? "library" : route.page;
  useEffect(() => {
    document.title = `${PAGES.find(([page]) => page === route.page)?.[1] ?? TITLES[route.page] ?? "Not found"} · hindcast`;
  }, [route.page]);
  useEffect(() => scrollTo(0, 0), [route.page, route.path.join("/")]);
  const refused = me.error instanceof ApiError && me.error.status === 401;
  return (
    <MeContext.Provider value={me.data}>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>
        To the content
      </a>
      <header class="top">
        <a class="brand" href={href("")}>
          <img src="./icon.svg" alt="" width="20" height="20" /> hindcast
        </a>
        <nav aria-label="Pages">
          {PAGES.map(([page, name]) => (
            <a key={page} href={href(page)} {...(page === current ? { "aria-current": "page" as const } : {})}>
              {name}
            </a>
          ))}
        </nav>
        {me.data?.authentication === true && (
          <span class="soft small">
            {me.data.name}, {me.data.role === "viewer" ? "viewer: may look, not change" : me.data.role}
          </span>
        )}
        <button type="button" onClick={toggle}>
          {theme === "dark" ? "☀ Light" : "☾ Dark"}
        </button>
        <button type="button" aria-label="Keys" onClick={() => help.current?.showModal()}>
          ?
        </button>
      </header>
      <main id="main" tabIndex={-1} style="outline:none">
        {away && <Trouble error={AWAY} />}
        {refused ? <Door /> : <Shown route={route} />}
      </main>
      <dialog ref={help} aria-label="Keys">
        <h2>Keys</h2>
        <table>
          <tbody>
            {KEYS.map(([keys, what]) => (
              <tr key={keys}>
                <td class="nowrap">
                  <kbd>{keys}</kbd>
                </td>
                <td>{what}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <form method="dialog" style="margin-top:.8rem">
          <button type="submit" class="main">
            Close
          </button>
        </form>
      </dialog>
    </MeContext.Provider>
  );
}

function Door() {
  const [token, set] = useState("");
  return (
    <form
      class="panel"
      style="max-width:30rem"
      onSubmit={(event) => {
        event.preventDefault();
        setToken(token.trim());
      }}
    >
      <h1>Who are you?</h1>
      <p>This server wants a token. It is kept in this tab only.</p>
      {hasToken() && (
        <p class="sev page" role="alert">
          It does not know the token that was given. An operator of hindcast makes one: hindcast token
        </p>
      )}
      <div class="row">
        <input type="password" aria-label="token" autoComplete="off" value={token} onInput={(event) => set(event.currentTarget.value)} style="flex:1" />
        <button type="submit" class="main">
          Go in
        </button>
      </div>
    </form>
  );
}

const root = document.getElementById("app");
if (root !== null) {
  render(<App />, root);
}
