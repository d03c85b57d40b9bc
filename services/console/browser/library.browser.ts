/** Who may look and who may change; recordings dropped, refused, replayed and deleted; a server that goes away. */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { inspected, READY, ROOT, serve, type Served } from "./server";

const NAME = "vela-power-brake-as-it-was-told-to-us-by-somebody-who-likes-long-names";
const TOKENS = { viewer: "only-looks", operator: "may-change" } as const;

/** A small recording under another name, as others would send it. */
function archive(folder: string): Buffer {
  const recording = join(folder, NAME);
  cpSync(join(ROOT, "replay-data/small/vela-power-brake"), recording, { recursive: true });
  const header = join(recording, "recording.yaml");
  writeFileSync(header, readFileSync(header, "utf8").replace("name: vela-power-brake", `name: ${NAME}`).replace(/^title: /m, `title: ${"x".repeat(120)} `));
  return execFileSync("tar", ["-czf", "-", "-C", folder, NAME]);
}

describe.skipIf(!READY)("the library in a browser (needs Chromium, the built console and .venv)", () => {
  const folder = mkdtempSync(join(tmpdir(), "hindcast-console-"));
  let served: Served;
  beforeAll(async () => {
    const tokens = join(folder, "tokens.yaml");
    const known = Object.entries(TOKENS).map(([role, secret]) => ({ name: `a ${role}`, role, sha256: createHash("sha256").update(secret).digest("hex") }));
    writeFileSync(tokens, JSON.stringify(known));
    served = await serve({ HINDCAST_API_TOKENS_FILE: tokens });
  });
  afterAll(async () => {
    await served.close();
    rmSync(folder, { recursive: true });
  });

  const enter = async (token: string) => {
    await served.page.getByLabel("token").fill(token);
    await served.page.getByRole("button", { name: "Go in" }).click();
  };

  it("asks for a token, and shows a viewer no control that would be refused", async () => {
    const { page, base, wrong } = served;
    await page.goto(base);
    await enter("a guess");
    await page.getByRole("alert").filter({ hasText: "does not know the token" }).waitFor();
    expect(await inspected(page, "door")).toEqual([]);
    await enter(TOKENS.viewer);
    await page.getByRole("heading", { name: "What to do next" }).waitFor();
    expect(await page.getByRole("link", { name: "3 recording(s) here" }).getAttribute("href")).toBe("#/library");
    await page.keyboard.press("2");
    await page.locator("article").first().waitFor();
    expect((await page.locator("article").first().boundingBox())?.width, "a story has room").toBeGreaterThan(330);
    expect(await page.locator("article button:not(.small), section[aria-label=Import]").count()).toBe(0);
    expect(await inspected(page, "library-viewer")).toEqual([]);
    for (const at of ["compare", "rules", "backtest", "score", "postmortem"]) {
      await page.goto(`${base}#/${at}`);
      await page.locator("h1").waitFor();
      expect(await page.locator("main button, main form").count(), at).toBe(0);
    }
    await page.evaluate(() => sessionStorage.clear());
    await page.goto("about:blank");
    await page.goto(base);
    await enter(TOKENS.operator);
    expect(wrong).toEqual([]);
  });

  it("opens on what is wrong where nothing is yet, and tells its keys", async () => {
    const { page, base, wrong } = served;
    await page.getByRole("heading", { name: "What to do next" }).waitFor();
    expect(await inspected(page, "nothing-wrong")).toEqual([]);
    await page.keyboard.press("?");
    const keys = page.getByRole("dialog", { name: "Keys" });
    expect(await keys.textContent()).toContain("play or pause");
    expect(await inspected(page, "keys")).toEqual([]);
    await page.keyboard.press("Escape");
    await keys.waitFor({ state: "hidden" });
    await page.goto(`${base}#/run/nowhere`);
    await page.getByRole("alert").getByRole("link", { name: "see in the library what there is" }).waitFor();
    await page.goto(base);
    await page.getByRole("heading", { name: "What to do next" }).waitFor(); // keys are heard once the page stands
    expect(wrong).toEqual([]);
  });

  it("takes a recording that is dropped, says why it does not, and deletes it again", async () => {
    const { page, wrong } = served;
    const drop = async (...files: readonly (readonly [string, Buffer])[]) => {
      const transfer = await page.evaluateHandle(
        (all) => {
          const data = new DataTransfer();
          for (const [name, packed] of all) {
            data.items.add(new File([Uint8Array.from(atob(packed), (one) => one.charCodeAt(0))], name));
          }
          return data;
        },
        files.map(([file, bytes]) => [file, bytes.toString("base64")] as const),
      );
      await page.dispatchEvent("main", "drop", { dataTransfer: transfer });
    };
    const junk = Buffer.from("no archive at all");
    await page.keyboard.press("2");
    await page.locator("article").first().waitFor();
    await drop(["notes.zip", junk]);
    const refused = page.getByRole("alert");
    await refused.filter({ hasText: "notes.zip: the archive is neither a .zip nor a .tar.gz" }).filter({ hasText: /What to do:.* or as files of any kinds \(heap\)/ }).waitFor();
    expect(await inspected(page, "library-refused")).toEqual([]);
    const packed = archive(folder);
    await drop(["recording.tar.gz", packed], ["notes.zip", junk]);
    const article = page.locator("article", { hasText: NAME });
    await article.waitFor();
    expect((await article.boundingBox())?.width, "a word without end is broken").toBeLessThan(700);
    await refused.filter({ hasText: "notes.zip" }).waitFor();
    await drop(["recording.tar.gz", packed]);
    await refused.filter({ hasText: `there is a recording ${NAME}` }).waitFor();
    await article.getByRole("button", { name: "Replay" }).click();
    await page.waitForSelector("section[aria-label='Score']");
    expect(await page.locator("section[aria-label=Findings] tbody tr").count()).toBe(1);
    await page.goBack();
    await article.getByRole("button", { name: "Delete…" }).click();
    expect(await inspected(page, "library-delete")).toEqual([]);
    await article.getByRole("button", { name: `Delete ${NAME}` }).click();
    await article.waitFor({ state: "detached" });
    expect(await page.locator("article").count()).toBe(3);
    expect(wrong).toEqual([]);
  });

  it("says that the server is away, and goes on by itself when it is back", async () => {
    const { page } = served;
    await page.context().setOffline(true);
    await page.keyboard.press("6");
    await page.getByText("The hindcast server does not answer").waitFor();
    expect(await inspected(page, "away")).toEqual([]);
    await page.context().setOffline(false);
    await page.getByRole("button", { name: "Score the library" }).waitFor();
    await page.getByText("No labelled recording has been run yet").waitFor();
    await page.getByText("The hindcast server does not answer").waitFor({ state: "detached" });
  });
});
