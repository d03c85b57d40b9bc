/** A report in a frame that may run nothing; the same files are what is taken away. */
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { file, useLoaded } from "./api";
import { When } from "./ui";

interface Props {
  readonly url: string;
  /** Of each form that it is taken away in, the page first: as it is asked for, how it is called, how its file ends. */
  readonly forms: readonly (readonly [form: string, words: string, ending: string])[];
  /** Its file's name. */
  readonly name: string;
  readonly title: string;
  readonly children?: ComponentChildren;
}

export function Report({ url, forms, name, title, children }: Props) {
  const files = useLoaded(url, async () => {
    const blobs = await Promise.all(forms.map(([form]) => file(url, { form })));
    return { urls: blobs.map((blob) => URL.createObjectURL(blob)), text: (await blobs[0]?.text()) ?? "" };
  });
  const urls = files.data?.urls;
  useEffect(() => () => urls?.forEach((one) => URL.revokeObjectURL(one)), [urls]);
  return (
    <When loaded={files}>
      {(data) => (
        <>
          <div class="row" style="margin:.4rem 0 .8rem">
            {forms.map(([form, words, ending], place) => (
              <a key={form} class={place === 0 ? "button main" : "button"} href={data.urls[place] ?? ""} download={`${name}.${ending}`}>
                Download {words}
              </a>
            ))}
            {children}
            <span class="soft small">One file, opens offline, prints well.</span>
          </div>
          <iframe class="report" title={title} sandbox="" srcdoc={data.text} />
        </>
      )}
    </When>
  );
}
