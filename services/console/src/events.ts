/** Server-sent events, read from a response. */

export interface StreamEvent {
  readonly kind: string;
  readonly id: string;
  readonly data: string;
}

/** What a server sends as text/event-stream, event by event. */
export async function* eventsOf(response: Response): AsyncGenerator<StreamEvent> {
  const reader = (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop() ?? "";
    for (const block of blocks) {
      const event = parseEvent(block);
      if (event.data !== "") {
        yield event;
      }
    }
  }
}

export function parseEvent(block: string): StreamEvent {
  const event = { kind: "message", id: "", data: "" };
  for (const line of block.split("\n")) {
    const [, name, value = ""] = /^([a-z]+): ?(.*)$/.exec(line) ?? [];
    if (name === "event") {
      event.kind = value;
    } else if (name === "id") {
      event.id = value;
    } else if (name === "data") {
      event.data += event.data === "" ? value : `\n${value}`;
    }
  }
  return event;
}
