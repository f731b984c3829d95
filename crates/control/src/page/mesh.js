// The state of the mesh, polled while the page is visible.

const POLL_MS = 2000;

// Concurrent requests of several parts of the page for the same path share one fetch.
const cache = new Map();
const CACHE_MS = 1000;

function query(path) {
  const cached = cache.get(path);
  if (cached) return cached;
  const pending = fetchJson(path);
  cache.set(path, pending);
  const forget = () => setTimeout(() => cache.delete(path), CACHE_MS);
  pending.then(forget, () => cache.delete(path));
  return pending;
}

// A suspended control plane accepts connections and sends nothing.
const TIMEOUT_MS = 5000;

// An error of a request. `silent` is true if no response came, or the control plane is stopping.
class RequestError extends Error {
  constructor(message, silent) {
    super(message);
    this.silent = silent;
  }
}

async function fetchJson(path) {
  let response;
  try {
    response = await fetch(`/api${path}`, { credentials: "same-origin", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (response.ok) return await response.json();
  } catch (error) {
    throw new RequestError(error.name === "TimeoutError" ? `no response within ${TIMEOUT_MS / 1000} s` : error.message, true);
  }
  throw new RequestError((await response.text().catch(() => "")).trim() || `${response.status}`, response.status >= 500);
}

// The errors of the watches that fail now.
const errors = new Map();
let notify = () => {};

// Calls back with the first error, or with null if every watch succeeds.
export function onErrorChange(listener) {
  notify = listener;
}

function publish() {
  const current = [...errors.values()];
  notify(current.find((error) => error.silent) ?? current[0] ?? null);
}

// Reports an error of a request that is not repeated; shown until the next response.
export function report(error) {
  errors.set("once", error);
  publish();
}

// Requests all paths every two seconds and passes the responses to `show` in the same order. Returns a function
// that stops it.
export function watch(paths, show) {
  const key = Symbol(paths.join(" "));
  let ended = false;
  let timer = 0;
  let polling = false;
  const poll = async () => {
    if (ended || polling) return;
    polling = true;
    if (!document.hidden) {
      try {
        const responses = await Promise.all(paths.map(query));
        if (!ended) {
          errors.delete(key);
          errors.delete("once");
          publish();
          show(...responses);
        }
      } catch (error) {
        if (!ended) {
          errors.set(key, error);
          publish();
        }
      }
    }
    polling = false;
    if (!ended) timer = setTimeout(poll, POLL_MS);
  };
  const resume = () => {
    // A poll in progress sets the timer itself.
    if (document.hidden || polling) return;
    clearTimeout(timer);
    poll();
  };
  document.addEventListener("visibilitychange", resume);
  poll();
  return () => {
    ended = true;
    if (errors.delete(key)) publish();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", resume);
  };
}
