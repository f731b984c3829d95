// What the mesh says: asked for again and again while somebody looks.

const EVERY_MS = 2000;

// What several parts of the page ask for at the same time is asked for once.
const fresh = new Map();
const FRESH_MS = 1000;

function ask(path) {
  const known = fresh.get(path);
  if (known) return known;
  const asked = fetched(path);
  fresh.set(path, asked);
  const forget = () => setTimeout(() => fresh.delete(path), FRESH_MS);
  asked.then(forget, () => fresh.delete(path));
  return asked;
}

async function fetched(path) {
  const answer = await fetch(`/api${path}`, { credentials: "same-origin" });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${answer.status}`);
  return answer.json();
}

// Asks for all paths every two seconds, and hands over the answers in the same order. Answers an
// end for it.
export function watch(paths, show, fail) {
  let ended = false;
  let timer = 0;
  let looking = false;
  const look = async () => {
    if (ended || looking) return;
    looking = true;
    if (!document.hidden) {
      try {
        const answers = await Promise.all(paths.map(ask));
        if (!ended) show(...answers);
      } catch (error) {
        if (!ended) fail(error);
      }
    }
    looking = false;
    if (!ended) timer = setTimeout(look, EVERY_MS);
  };
  const again = () => {
    // A look that is under way sets the timer itself.
    if (document.hidden || looking) return;
    clearTimeout(timer);
    look();
  };
  document.addEventListener("visibilitychange", again);
  look();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", again);
  };
}
