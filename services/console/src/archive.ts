/** Several files as one: a tar of them, compressed, as a service takes a folder. */
const BLOCK = 512;

/** A header of ustar: names are cut to what it holds, everything else is the least that readers ask for. */
function header(file: File, name: string): Uint8Array<ArrayBuffer> {
  const block = new Uint8Array(BLOCK);
  const put = (at: number, text: string) => block.set(new TextEncoder().encode(text), at);
  const octal = (value: number, digits: number) => `${value.toString(8).padStart(digits, "0")}\0`;
  put(0, name);
  put(100, octal(0o644, 7));
  put(124, octal(file.size, 11));
  put(136, octal(Math.floor(file.lastModified / 1000), 11));
  put(148, " ".repeat(8));
  put(156, "0");
  put(257, "ustar\u000000");
  put(148, `${octal(block.reduce((sum, byte) => sum + byte, 0), 6)} `);
  return block;
}

/** The name of a file in the archive: no other has it, and it fits. */
function named(file: File, taken: Set<string>): string {
  const whole = file.webkitRelativePath === "" ? file.name : file.webkitRelativePath;
  let name = whole.slice(-96);
  for (let number = 2; taken.has(name) || new TextEncoder().encode(name).length > 99; number += 1) {
    name = `${number}-${whole.replace(/[^\x20-\x7e]/g, "_").slice(-90)}`;
  }
  taken.add(name);
  return name;
}

export async function asOne(files: readonly File[]): Promise<File> {
  const taken = new Set<string>();
  const parts = files.flatMap((file) => [header(file, named(file, taken)), file, new Uint8Array((BLOCK - (file.size % BLOCK)) % BLOCK)]);
  const tar = new Blob([...parts, new Uint8Array(2 * BLOCK)]);
  const packed = await new Response(tar.stream().pipeThrough(new CompressionStream("gzip"))).blob();
  return new File([packed], "files.tar.gz");
}
