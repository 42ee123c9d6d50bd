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

// update replaces the live parts of the view that differ. It keeps the focus and the checked boxes.
function update(html) {
  const next = new DOMParser().parseFromString(html, "text/html");
  localTimes(next);
  for (const part of next.querySelectorAll("[data-live]")) {
    const old = document.getElementById(part.id);
    if (!old || old.innerHTML === part.innerHTML) continue;
    const focused = old.contains(document.activeElement) && document.activeElement.id;
    const checked = [...old.querySelectorAll("input:checked")].map((box) => box.id);
    const opened = [...old.querySelectorAll("details[open]")].map((d) => d.textContent);
    const scrolled = [...old.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
    old.replaceWith(document.adoptNode(part));
    for (const id of checked) {
      const box = id && document.getElementById(id);
      if (box) box.checked = true;
    }
    for (const d of part.querySelectorAll("details")) d.open = opened.includes(d.textContent);
    part.querySelectorAll(".scroll").forEach((s, i) => (s.scrollLeft = scrolled[i] ?? 0));
    if (focused) document.getElementById(focused)?.focus();
  }
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
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
        const html = await response.text();
        tag = response.headers.get("X-View");
        update(html);
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

const signOut = document.getElementById("signout");
if (signOut) {
  signOut.hidden = false;
  signOut.addEventListener("click", async () => {
    await request("POST", "/signout");
    location.assign(body.dataset.prefix + "/signin");
  });
}

localTimes(document);
if (body.dataset.view) follow(body.dataset.view);
