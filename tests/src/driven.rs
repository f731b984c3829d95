//! A real browser that is driven: keys are pressed in it, and its page is asked, over the DevTools
//! protocol on two pipes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::eventually;

/// A browser with one page.
pub struct Driven {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    last: u64,
}

impl Driven {
    /// Opens a page in headless Chromium, which has to be installed; `folder` is for its files.
    ///
    /// # Panics
    /// When the browser fails, or does not answer in time.
    #[must_use]
    pub fn open(url: &str, folder: &Path) -> Self {
        let mut command = Command::new("sh");
        // The browser reads commands from its third descriptor and answers on its fourth.
        command
            .args(["-c", "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "chromium"])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--disable-background-networking", "--force-device-scale-factor=1"])
            .args(["--remote-debugging-pipe", "--window-size=1400,900"])
            .arg(format!("--user-data-dir={}", folder.join("driven").display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("chromium is installed");
        let to = child.stdin.take().expect("it was asked for");
        let answers = BufReader::new(child.stdout.take().expect("it was asked for"));
        let (told, from) = channel();
        std::thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if told.send(message).is_err() {
                    return;
                }
            }
        });
        let mut driven = Self { child, to, from, session: None, last: 0 };
        let target = driven.call("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = driven.call("Target.attachToTarget", target)["sessionId"].clone();
        driven.session = session.as_str().map(str::to_owned);
        driven.call("Page.enable", json!({}));
        driven.call("Page.navigate", json!({ "url": url }));
        driven
    }

    /// What an expression is in the page.
    ///
    /// # Panics
    /// When the page throws.
    #[must_use]
    pub fn ask(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true});
        let mut told = self.call("Runtime.evaluate", asked);
        assert!(told["exceptionDetails"].is_null(), "{expression}: {told}");
        told["result"]["value"].take()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// When it does not become so.
    pub fn wait_for(&mut self, expression: &str) {
        eventually(expression, PATIENCE, || (self.ask(expression) == true).then_some(()));
    }

    /// Types a text where the focus is.
    ///
    /// # Panics
    /// When the browser fails.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key: `Tab`, `Enter` or `Escape`.
    ///
    /// # Panics
    /// When the browser fails, or the key is another one.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            other => panic!("{other} is not known here"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser listens");
        loop {
            let mut told = self.from.recv_timeout(PATIENCE).expect("the browser answers");
            // What has no number is news.
            if told["id"] == self.last {
                assert!(told["error"].is_null(), "{method}: {told}");
                return told["result"].take();
            }
        }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
