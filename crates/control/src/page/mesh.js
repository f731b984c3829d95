// What the mesh says: asked for again and again while somebody looks.

const EVERY_MS = 2000;

export async function ask(path) {
  const answer = await fetch(`/api${path}`, { credentials: "same-origin" });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${answer.status}`);
  return answer.json();
}

// Asks for all paths every two seconds, and hands over the answers in the same order. Answers an
// end for it.
export function watch(paths, show, fail) {
  let ended = false;
  let timer = 0;
  const look = async () => {
    if (ended) return;
    if (!document.hidden) {
      try {
        const answers = await Promise.all(paths.map(ask));
        if (!ended) show(...answers);
      } catch (error) {
        if (!ended) fail(error);
      }
    }
    if (!ended) timer = setTimeout(look, EVERY_MS);
  };
  const again = () => {
    if (document.hidden) return;
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
