/** Cuts Markdown into blocks. */
export interface Block {
  readonly kind: "heading" | "text" | "items" | "steps" | "code";
  readonly lines: readonly string[];
}

export function blocks(text: string): readonly Block[] {
  const found: { kind: Block["kind"]; lines: string[] }[] = [];
  let fenced = false;
  let fresh = true;
  for (const line of text.split("\n")) {
    const last = found.at(-1);
    if (line.trimStart().startsWith("```")) {
      fenced = !fenced;
      if (fenced) {
        found.push({ kind: "code", lines: [] });
      }
      fresh = true;
    } else if (fenced) {
      last?.lines.push(line);
    } else if (line.trim() === "") {
      fresh = true;
    } else {
      const [kind, rest] = kindOf(line);
      const listed = kind === "items" || kind === "steps";
      if (kind === "text" && !fresh && last !== undefined && last.kind !== "heading" && last.kind !== "code") {
        last.lines.push(`${last.lines.pop() ?? ""} ${rest}`);
      } else if (listed && last?.kind === kind) {
        last.lines.push(rest);
      } else {
        found.push({ kind, lines: [rest] });
      }
      fresh = false;
    }
  }
  return found;
}

function kindOf(line: string): [Block["kind"], string] {
  const forms: readonly (readonly [Block["kind"], RegExp])[] = [
    ["heading", /^#+\s+(.*)$/],
    ["items", /^\s*[-*]\s+(.*)$/],
    ["steps", /^\s*\d+\.\s+(.*)$/],
  ];
  for (const [kind, form] of forms) {
    const rest = form.exec(line)?.[1];
    if (rest !== undefined) {
      return [kind, rest];
    }
  }
  return ["text", line.trim()];
}
