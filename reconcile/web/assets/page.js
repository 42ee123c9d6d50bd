// The page works without this script. With it, views stay current and show times in the reader's time zone.

const body = document.body;
const live = document.getElementById("live");

function localTimes(root) {
  for (const t of root.querySelectorAll("time")) {
    const at = new Date(t.dateTime);
    if (!isNaN(at)) {
      t.title = t.textContent;
      t.textContent = at.toLocaleString();
    }
  }
}

// say tells a change to people who do not see it.
function say(text) {
  live.textContent = text;
}

// shown has the HTML of each live part as the daemon sent it.
const shown = new Map();
for (const part of document.querySelectorAll("[data-live]")) shown.set(part.id, part.outerHTML);

// reveal shows what works with this script only.
function reveal(root) {
  for (const e of root.querySelectorAll("button[hidden]:not([data-stop]), .drop[hidden]")) e.hidden = false;
}

// nameOf identifies an element that can have the focus, also in the next version of its part.
const nameOf = (e) => e.id || e.getAttribute("href") || e.ariaLabel || e.textContent;

// update replaces the live parts of the view that differ. It keeps the focus, the checked boxes and what is open.
function update(html) {
  const next = new DOMParser().parseFromString(html, "text/html");
  const parts = [...next.querySelectorAll("[data-live]")];
  if (parts.length !== shown.size || parts.some((part) => !shown.has(part.id))) {
    location.reload(); // the address has another view now, such as that of an image that was declared
    return;
  }
  for (const part of parts) {
    const old = document.getElementById(part.id);
    const text = part.outerHTML;
    if (shown.get(part.id) === text) continue;
    shown.set(part.id, text);
    const focused = old.contains(document.activeElement) && nameOf(document.activeElement);
    const checked = [...old.querySelectorAll("input:checked")].map((box) => box.id);
    const opened = [...old.querySelectorAll("details[open] summary")].map((d) => d.textContent);
    const scrolled = [...old.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
    localTimes(part);
    reveal(part);
    old.replaceWith(document.adoptNode(part));
    for (const id of checked) {
      const box = id && document.getElementById(id);
      if (box) box.checked = true;
    }
    for (const d of part.querySelectorAll("details")) d.open = opened.includes(d.querySelector("summary").textContent);
    part.querySelectorAll(".scroll").forEach((s, i) => (s.scrollLeft = scrolled[i] ?? 0));
    drawUpload();
    if (focused) [...part.querySelectorAll("a, button, input, summary, [tabindex]")].find((e) => nameOf(e) === focused)?.focus();
  }
}

const sleep = (ms, signal) =>
  new Promise((done) => {
    setTimeout(done, ms);
    signal?.addEventListener("abort", done);
  });
const visible = () =>
  new Promise((done) => {
    if (!document.hidden) return done();
    document.addEventListener("visibilitychange", function shown() {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", shown);
      done();
    });
  });

// follow requests the view again and again. The daemon responds when it has changed.
async function follow(tag) {
  for (let failures = 0; ; ) {
    await visible();
    const address = new URL(location.href);
    address.searchParams.set("poll", tag);
    const stop = new AbortController();
    const hide = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      const response = await fetch(address, { signal: stop.signal, headers: { Accept: "text/html" } });
      if (response.status === 200) {
        const next = response.headers.get("X-View");
        if (!next) throw new Error("no view"); // a proxy responds in place of the daemon
        update(await response.text());
        tag = next;
      } else if (response.status === 401 || response.status === 403) {
        say("You are not signed in any more. Load the page again.");
        return;
      } else if (response.status !== 204) {
        throw new Error("status " + response.status);
      }
      if (failures > 0) say("The daemon responds again.");
      failures = 0;
    } catch (e) {
      if (stop.signal.aborted) continue;
      failures++;
      if (failures === 2) say("The daemon does not respond. This page shows its last state.");
      await sleep(Math.min(30000, 500 * 2 ** failures));
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
  }
}

// request sends a request that changes something, and returns the response.
function request(method, path, options = {}) {
  const headers = { ...options.headers };
  if (body.dataset.session) headers["X-Request-Token"] = body.dataset.session;
  return fetch(body.dataset.prefix + path, { ...options, method, headers });
}

document.getElementById("signout")?.addEventListener("click", async () => {
  try {
    const response = await request("POST", "/signout");
    if (!response.ok) return say("You are still signed in: " + (await messageOf(response)));
    location.assign(body.dataset.prefix + "/signin");
  } catch {
    say("You are still signed in: the daemon does not respond.");
  }
});

// messageOf returns what a response says.
async function messageOf(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    return body.error ?? body.message ?? (body.copies ? "Requested for " + body.copies + (body.copies === 1 ? " copy." : " copies.") : "Requested.");
  } catch {
    return response.ok ? "Requested." : "The daemon responds with status " + response.status + ".";
  }
}

async function post(path) {
  try {
    return await messageOf(await request("POST", path));
  } catch {
    return "The daemon does not respond.";
  }
}

// cleanUp requests the deletion of the selected copies, one after the other.
async function cleanUp(image) {
  const selected = [...document.querySelectorAll("input[data-disk]:checked")];
  if (selected.length === 0) return say("Select copies first.");
  const names = selected.map((box) => box.dataset.disk).join(", ");
  if (!confirm("Delete the copies on " + names + "? A copy that is in use or needed is kept.")) return;
  const results = [];
  for (const box of selected) {
    const query = new URLSearchParams({ disk: box.dataset.disk, uuid: box.dataset.uuid });
    results.push(box.dataset.disk + ": " + (await post("/v1/images/" + image + "/cleanup?" + query)));
    box.checked = false;
  }
  say(results.join("\n"));
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button");
  if (!button) return;
  const { post: path, cleanup, copy } = button.dataset;
  if (path) {
    button.disabled = true;
    say(await post(path));
    button.disabled = false;
  } else if (cleanup) {
    await cleanUp(cleanup);
  } else if (copy) {
    const lines = document.getElementById(copy);
    try {
      await navigator.clipboard.writeText(lines.textContent); // only with TLS or on the own machine
      say("Copied.");
    } catch {
      getSelection().selectAllChildren(lines);
      say("The lines are selected: copy them with the keyboard.");
    }
  } else if ("stop" in button.dataset) {
    uploading?.abort();
  }
});

// Uploads use tus 1.0. The daemon knows how much it has, so that an upload continues after a pause, a cut or a restart of
// either side when the same file is chosen again. A cut costs one piece at most. A browser sends the piece again by itself if it has
// used the connection before: then the daemon skips what it has.

const pieceSize = 2 << 20;
let uploading = null; // stops the upload that runs
let drawn = null; // what is shown of the last upload: its share and a text

const base64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text)));

function isZero(bytes) {
  const words = new BigUint64Array(bytes, 0, bytes.byteLength >> 3);
  for (let i = 0; i < words.length; i++) if (words[i] !== 0n) return false;
  const rest = new Uint8Array(bytes, words.length * 8);
  return rest.every((b) => b === 0);
}

// UploadError is the end of an upload, and not a cut.
class UploadError extends Error {}

async function tus(method, path, headers, content, signal) {
  const response = await request(method, path, { headers: { "Tus-Resumable": "1.0.0", ...headers }, body: content, signal });
  if (response.ok) return response;
  const again = [409, 423, 429, 500, 502, 503, 504].includes(response.status) || (response.status === 404 && method !== "POST");
  const proxied = response.status === 413 && !response.headers.has("Tus-Resumable");
  const message = proxied
    ? "A proxy, not the daemon, responds 413 to a request of 2 MiB: set client_max_body_size to 0 if it is nginx."
    : await messageOf(method === "HEAD" ? await request("GET", path) : response);
  throw Object.assign(again ? new Error(message) : new UploadError(message), { status: response.status });
}

// find returns the path and the offset of the upload of a file, which it begins if there is none. last is the path of an upload that
// may have ended.
async function find(image, file, last, signal) {
  const fingerprint = ["page", file.name, file.size, file.lastModified].join(" ");
  const all = async () => (await tus("GET", "/v1/uploads", {}, undefined, signal)).json();
  const known = (await all()).find((u) => u.image === image);
  if (known && (known.fingerprint !== fingerprint || known.length !== file.size)) {
    throw new UploadError("Another file is being uploaded for this image.");
  }
  let path = known ? "/v1/uploads/" + known.id : last;
  if (!path) {
    const metadata = "name " + base64(image) + ",fingerprint " + base64(fingerprint);
    const created = await tus("POST", "/v1/uploads", { "Upload-Length": file.size, "Upload-Metadata": metadata }, undefined, signal).catch(async (e) => {
      throw e.status === 409 && !(await all()).some((u) => u.image === image) ? new UploadError(e.message) : e; // for example, the image is ready
    });
    path = "/v1/uploads/" + created.headers.get("Location").split("/").pop();
  }
  const head = await tus("HEAD", path, {}, undefined, signal);
  return { path, offset: Number(head.headers.get("Upload-Offset")) };
}

// send sends a file from an offset on. It returns when the daemon has accepted the whole file.
async function send(to, file, progress, signal) {
  for (let { path, offset } = to; offset < file.size; ) {
    progress(offset);
    let zeros = 0;
    let piece = null;
    while (offset + zeros < file.size) {
      const from = offset + zeros;
      const bytes = await file.slice(from, (Math.floor(from / pieceSize) + 1) * pieceSize).arrayBuffer();
      if (!isZero(bytes)) {
        piece = bytes;
        break;
      }
      zeros += bytes.byteLength;
      if (zeros >= 128 * pieceSize) break;
    }
    const headers = { "Upload-Offset": offset, "Upload-Overlap": 1, "Content-Type": "application/offset+octet-stream" };
    const response = zeros
      ? await tus("PATCH", path, { ...headers, "Upload-Zeros": zeros }, undefined, signal)
      : await tus("PATCH", path, headers, piece, signal);
    offset = Number(response.headers.get("Upload-Offset"));
  }
}

// drawUpload shows the last upload, also after its part of the view was replaced.
function drawUpload() {
  const bar = document.getElementById("progress");
  if (!bar || !drawn) return;
  bar.hidden = false;
  bar.value = drawn.share;
  document.getElementById("uploaded").textContent = drawn.text;
  document.querySelector("[data-stop]").hidden = !uploading;
}

async function upload(image, file) {
  if (uploading) return;
  const stop = (uploading = new AbortController());
  drawn = { share: 0, text: "" };
  const show = (text) => {
    drawn.text = text;
    drawUpload();
  };
  const progress = (sent) => {
    drawn.share = sent / file.size;
    show(Math.floor(drawn.share * 100) + " % of " + file.name);
  };
  show("");
  say("Uploading " + file.name + ".");
  let end;
  let last = null;
  try {
    for (let failures = 0; ; ) {
      try {
        const to = await find(image, file, last, stop.signal);
        last = to.path;
        let before = to.offset;
        await send(to, file, (sent) => (sent > before && (failures = 0), (before = sent), progress(sent)), stop.signal);
        break;
      } catch (e) {
        if (e instanceof UploadError || stop.signal.aborted) throw e;
        if (e.status === 404) last = null; // the daemon has forgotten it
        failures++;
        show("interrupted: " + e.message + "; trying again");
        await sleep(Math.min(10000, 250 * 2 ** failures), stop.signal);
      }
    }
    progress(file.size);
    end = file.name + " is uploaded.";
  } catch (e) {
    end = stop.signal.aborted ? "Paused. Choose the same file again to continue." : "The upload failed: " + e.message;
  }
  if (last && !drawn.share && !stop.signal.aborted) await tus("DELETE", last, {}).catch(() => {}); // nothing to continue
  uploading = null;
  show(end);
  say(end);
}

document.addEventListener("change", (event) => {
  const drop = event.target.closest?.("[data-upload]");
  if (!drop || !event.target.files?.length) return;
  upload(drop.dataset.upload, event.target.files[0]);
  event.target.value = ""; // so that choosing the same file again is a change
});
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => {
    const drop = event.target.closest?.("[data-upload]");
    if (!drop) return;
    event.preventDefault();
    if (kind === "drop" && event.dataTransfer.files.length) upload(drop.dataset.upload, event.dataTransfer.files[0]);
  });
}
addEventListener("beforeunload", (event) => uploading && event.preventDefault());

reveal(document);
localTimes(document);
if (body.dataset.view) follow(body.dataset.view);
