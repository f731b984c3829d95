// The state of the mesh, polled while the page is visible.

const EVERY_MS = 2000;

// Concurrent requests of several parts of the page for the same path share one fetch.
const fresh = new Map();
const FRESH_MS = 1000;

function query(path) {
  const known = fresh.get(path);
  if (known) return known;
  const pending = fetched(path);
  fresh.set(path, pending);
  const forget = () => setTimeout(() => fresh.delete(path), FRESH_MS);
  pending.then(forget, () => fresh.delete(path));
  return pending;
}

// A suspended control plane accepts connections and sends nothing.
const TIMEOUT_MS = 5000;

// An error of a request. `silent` is true if no response came, or the control plane is stopping.
class Trouble extends Error {
  constructor(message, silent) {
    super(message);
    this.silent = silent;
  }
}

async function fetched(path) {
  let answer;
  try {
    answer = await fetch(`/api${path}`, { credentials: "same-origin", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (answer.ok) return await answer.json();
  } catch (error) {
    throw new Trouble(error.name === "TimeoutError" ? `no response within ${TIMEOUT_MS / 1000} s` : error.message, true);
  }
  throw new Trouble((await answer.text().catch(() => "")).trim() || `${answer.status}`, answer.status >= 500);
}

// The currently failing watches, each with its error.
const troubles = new Map();
let notify = () => {};

// Calls back with the first error, or with null if every watch succeeds.
export function onTrouble(listener) {
  notify = listener;
}

function publish() {
  const all = [...troubles.values()];
  notify(all.find((error) => error.silent) ?? all[0] ?? null);
}

// Reports an error of a request that is not repeated; shown until the next response.
export function report(error) {
  troubles.set("once", error);
  publish();
}

// Requests all paths every two seconds and passes the responses to `show` in the same order. Returns a function
// that stops it.
export function watch(paths, show) {
  const own = Symbol(paths.join(" "));
  let ended = false;
  let timer = 0;
  let looking = false;
  const look = async () => {
    if (ended || looking) return;
    looking = true;
    if (!document.hidden) {
      try {
        const answers = await Promise.all(paths.map(query));
        if (!ended) {
          troubles.delete(own);
          troubles.delete("once");
          publish();
          show(...answers);
        }
      } catch (error) {
        if (!ended) {
          troubles.set(own, error);
          publish();
        }
      }
    }
    looking = false;
    if (!ended) timer = setTimeout(look, EVERY_MS);
  };
  const again = () => {
    // A poll in progress sets the timer itself.
    if (document.hidden || looking) return;
    clearTimeout(timer);
    look();
  };
  document.addEventListener("visibilitychange", again);
  look();
  return () => {
    ended = true;
    if (troubles.delete(own)) publish();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", again);
  };
}
