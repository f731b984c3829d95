//! Switches the terminal to live mode, with the alternate screen and unbuffered keys, and restores it on exit.

use std::io::{self, Read as _, Write as _};
use std::sync::OnceLock;

use rustix::termios::{self, OptionalActions, SpecialCodeIndex, Termios};
use tokio::sync::mpsc;

use super::SortOrder;

/// A terminal in live mode, restored on drop.
pub(super) struct LiveTerminal {
    original_modes: Termios,
}

/// A pressed key, by its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PressedKey {
    Quit,
    Sort(SortOrder),
    Other,
}

impl LiveTerminal {
    /// Switches the terminal to live mode.
    pub(super) fn enter_live_mode() -> io::Result<Self> {
        let stdin = io::stdin();
        let original_modes = termios::tcgetattr(&stdin)?;
        let mut live_modes = original_modes.clone();
        // Keys arrive one by one without echo; Ctrl-C still raises a signal.
        live_modes.local_modes.remove(termios::LocalModes::ICANON | termios::LocalModes::ECHO);
        // A read waits at most a tenth of a second, so that the reading thread notices the end.
        live_modes.special_codes[SpecialCodeIndex::VMIN] = 0;
        live_modes.special_codes[SpecialCodeIndex::VTIME] = 1;
        termios::tcsetattr(&stdin, OptionalActions::Now, &live_modes)?;
        let terminal =
            Self { original_modes: ORIGINAL_MODES.get_or_init(|| original_modes).clone() };
        // The alternate screen, without a cursor.
        terminal.write("\x1b[?1049h\x1b[?25l")?;
        Ok(terminal)
    }

    /// Restores the terminal modes without a write to the terminal, which could block.
    pub(super) fn restore() {
        if let Some(original_modes) = ORIGINAL_MODES.get() {
            termios::tcsetattr(io::stdin(), OptionalActions::Now, original_modes).ok();
        }
    }

    /// Returns pressed keys as they arrive. The reading thread ends once the receiver is dropped.
    pub(super) fn read_keys(&self) -> io::Result<mpsc::Receiver<PressedKey>> {
        let (key_sender, keys) = mpsc::channel(MAX_KEYS);
        std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            let mut stdin = io::stdin().lock();
            let mut byte = [0];
            while !key_sender.is_closed() {
                match stdin.read(&mut byte) {
                    // No key was pressed within the timeout.
                    Ok(0) => {}
                    // Keys beyond the capacity of the queue are lost.
                    Ok(_) => drop(key_sender.try_send(parse_key(byte[0]))),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        })?;
        Ok(keys)
    }

    /// Returns the columns and rows of the terminal; 80 and 24 if the size is unknown.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = termios::tcgetwinsize(io::stdout())
            .map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        size.ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or((80, 24))
    }

    /// Replaces the screen content without flicker.
    pub(super) fn draw(&self, screen: &str) -> io::Result<()> {
        let lines = screen.replace('\n', "\x1b[K\r\n");
        self.write(&format!("\x1b[H{lines}\x1b[J"))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }
}

impl Drop for LiveTerminal {
    fn drop(&mut self) {
        // The terminal may be closed already.
        self.write("\x1b[?25h\x1b[?1049l").ok();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.original_modes).ok();
    }
}

fn parse_key(byte: u8) -> PressedKey {
    match byte {
        b'q' | b'Q' => PressedKey::Quit,
        b'r' => PressedKey::Sort(SortOrder::Rate),
        b's' => PressedKey::Sort(SortOrder::Success),
        b'5' => PressedKey::Sort(SortOrder::P50),
        b'9' => PressedKey::Sort(SortOrder::P99),
        b'n' => PressedKey::Sort(SortOrder::Name),
        _ => PressedKey::Other,
    }
}

/// The modes of the terminal before this process changed them.
static ORIGINAL_MODES: OnceLock<Termios> = OnceLock::new();
/// The capacity of the queue of pressed keys.
const MAX_KEYS: usize = 16;
