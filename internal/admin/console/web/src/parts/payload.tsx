// What a job or a message contains. It is shown as text, whatever it is.
import { bytes } from "../format";
import { Panel } from "./basic";

const shown = 100_000; // characters

export function Payload({ title, name, json, base64 }: { title: string; name: string; json?: unknown; base64?: string }) {
  if (json === undefined && base64 === undefined) return null;
  const text = base64 !== undefined ? base64 : typeof json === "string" ? pretty(json) : JSON.stringify(json, null, 2);
  const save = () => {
    const link = document.createElement("a");
    const body = base64 !== undefined ? Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)) : typeof json === "string" ? json : JSON.stringify(json);
    link.href = URL.createObjectURL(new Blob([body], { type: "application/octet-stream" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  return (
    <Panel title={title} aside={<button type="button" class="small" onClick={save}>Save as a file</button>}>
      {base64 !== undefined && <p class="quiet">It is no text: {bytes(Math.floor((base64.length * 3) / 4))}, shown in Base64.</p>}
      <pre class="json" tabIndex={0} aria-label={title}>{text.slice(0, shown)}</pre>
      {text.length > shown && <p class="quiet">The first {bytes(shown)} of {bytes(text.length)} are shown; save it as a file to have all.</p>}
    </Panel>
  );
}

/** JSON with line breaks; other texts as they are. */
function pretty(text: string): string {
  if (text.length > shown || !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
