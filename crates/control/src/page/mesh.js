// Polls the state of the mesh from the control plane while the page is visible.

const POLL_MS = 2000;

// Concurrent requests of several polls for the same path share one fetch.
const sharedRequests = new Map();
const CACHE_MS = 1000;

function fetchShared(path) {
  const sharedRequest = sharedRequests.get(path);
  if (sharedRequest) return sharedRequest;
  const request = fetchJson(path);
  sharedRequests.set(path, request);
  const removeLater = () => setTimeout(() => sharedRequests.delete(path), CACHE_MS);
  request.then(removeLater, () => sharedRequests.delete(path));
  return request;
}

// The timeout of a request: a suspended control plane accepts connections, but sends nothing.
const TIMEOUT_MS = 5000;

// An error of a request. `isUnavailable` is true without a response, and for a response with a server error, such
// as when the control plane is stopping.
class RequestError extends Error {
  constructor(message, isUnavailable) {
    super(message);
    this.isUnavailable = isUnavailable;
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

// The errors of the polls that fail now.
const errors = new Map();
let errorListener = () => {};

// Calls the listener with an error, or with null if every poll succeeds. An error of an unavailable control plane
// has precedence.
export function onErrorChange(listener) {
  errorListener = listener;
}

function notifyListener() {
  const current = [...errors.values()];
  errorListener(current.find((error) => error.isUnavailable) ?? current[0] ?? null);
}

// Reports an error of a request that is not repeated; shown until the next response.
export function reportError(error) {
  errors.set("once", error);
  notifyListener();
}

// Requests all paths every two seconds and passes the responses to `show` in the same order. Returns a function
// that stops the requests.
export function pollPaths(paths, show) {
  const key = Symbol(paths.join(" "));
  let ended = false;
  let timer = 0;
  let polling = false;
  const poll = async () => {
    if (ended || polling) return;
    polling = true;
    if (!document.hidden) {
      try {
        const responses = await Promise.all(paths.map(fetchShared));
        if (!ended) {
          errors.delete(key);
          errors.delete("once");
          notifyListener();
          show(...responses);
        }
      } catch (error) {
        if (!ended) {
          errors.set(key, error);
          notifyListener();
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
    if (errors.delete(key)) notifyListener();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", resume);
  };
}
