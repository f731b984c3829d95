//! The terminal while something live is shown: a screen of its own, keys at once, and all as before
//! afterwards.

use std::io::{self, Read as _, Write as _};
use std::sync::OnceLock;

use rustix::termios::{self, OptionalActions, SpecialCodeIndex, Termios};
use tokio::sync::mpsc;

use super::Order;

/// A terminal that shows a screen of ours until this is dropped.
pub(super) struct Terminal {
    before: Termios,
}

/// What was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Sort(Order),
    Other,
}

impl Terminal {
    /// Takes the terminal over.
    pub(super) fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = termios::tcgetattr(&stdin)?;
        let mut ours = before.clone();
        // Keys come one by one and are not shown; Ctrl-C stays a signal.
        ours.local_modes.remove(termios::LocalModes::ICANON | termios::LocalModes::ECHO);
        // A read waits for at most a tenth of a second, so that whoever reads notices the end.
        ours.special_codes[SpecialCodeIndex::VMIN] = 0;
        ours.special_codes[SpecialCodeIndex::VTIME] = 1;
        termios::tcsetattr(&stdin, OptionalActions::Now, &ours)?;
        let terminal = Self { before: BEFORE.get_or_init(|| before).clone() };
        terminal.write("\x1b[?1049h\x1b[?25l")?;
        Ok(terminal)
    }

    /// Restores the modes of the terminal without a write, which its reader may block.
    pub(super) fn restore() {
        if let Some(before) = BEFORE.get() {
            termios::tcsetattr(io::stdin(), OptionalActions::Now, before).ok();
        }
    }

    /// Keys as they are pressed. The thread that reads them ends when nobody wants them any more.
    pub(super) fn keys(&self) -> io::Result<mpsc::Receiver<Key>> {
        let (pressed, keys) = mpsc::channel(KEYS_MAX);
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            let mut stdin = io::stdin().lock();
            let mut byte = [0];
            while !pressed.is_closed() {
                match stdin.read(&mut byte) {
                    // Nothing was pressed in time.
                    Ok(0) => {}
                    Ok(_) => drop(pressed.try_send(key(byte[0]))),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        })?;
        Ok(keys)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = termios::tcgetwinsize(io::stdout());
        let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        size.ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or((80, 24))
    }

    /// Replaces what is shown, without a flicker.
    pub(super) fn draw(&self, screen: &str) -> io::Result<()> {
        let lines = screen.replace('\n', "\x1b[K\r\n");
        self.write(&format!("\x1b[H{lines}\x1b[J"))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Whoever has closed the terminal has no more use for it.
        self.write("\x1b[?25h\x1b[?1049l").ok();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.before).ok();
    }
}

fn key(byte: u8) -> Key {
    match byte {
        b'q' | b'Q' => Key::Quit,
        b'r' => Key::Sort(Order::Rate),
        b's' => Key::Sort(Order::Success),
        b'5' => Key::Sort(Order::P50),
        b'9' => Key::Sort(Order::P99),
        b'n' => Key::Sort(Order::Name),
        _ => Key::Other,
    }
}

/// The modes of the terminal before this process changed them.
static BEFORE: OnceLock<Termios> = OnceLock::new();
/// Keys that wait to be looked at.
const KEYS_MAX: usize = 16;
