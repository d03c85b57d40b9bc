/** Just enough Markdown for runbooks: headings, lists, fenced code, and code, bold and emphasis within a line. */
import type { ComponentChildren } from "preact";
import { blocks, type Block } from "./markdownBlocks";

export function Markdown({ text }: { readonly text: string }) {
  return <>{blocks(text).map((block, number) => render(block, number))}</>;
}

function render({ kind, lines }: Block, key: number): ComponentChildren {
  switch (kind) {
    case "heading":
      return <h3 key={key}>{inline(lines[0] ?? "")}</h3>;
    case "code":
      return (
        <pre key={key} class="scroll mono">
          {lines.join("\n")}
        </pre>
      );
    case "text":
      return <p key={key}>{inline(lines[0] ?? "")}</p>;
    case "items":
    case "steps": {
      const items = lines.map((line, number) => <li key={number}>{inline(line)}</li>);
      return kind === "items" ? <ul key={key}>{items}</ul> : <ol key={key}>{items}</ol>;
    }
  }
}

function inline(text: string): ComponentChildren {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|(?<![\w*])\*[^*\s](?:[^*]*[^*\s])?\*(?![\w*]))/).map((part, number) => {
    if (part.startsWith("`") && part.length > 2) {
      return <code key={number}>{part.slice(1, -1)}</code>;
    }
    if (part.startsWith("**") && part.length > 4) {
      return <strong key={number}>{part.slice(2, -2)}</strong>;
    }
    return number % 2 === 1 ? <em key={number}>{part.slice(1, -1)}</em> : part;
  });
}
