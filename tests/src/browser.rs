//! A real browser without a window: where it puts the parts of a page, and a picture of them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::Program;

/// A page as a browser showed it.
pub struct Shown {
    /// The document after it was laid out.
    pub document: String,
    /// Its tables and drawings, in order.
    pub parts: Vec<Part>,
    width: usize,
    height: usize,
    /// Red, green and blue, row by row.
    pixels: Vec<[u8; 3]>,
}

/// A table or a drawing, and where it is on the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its tag: `table` or `svg`.
    pub tag: String,
    /// The distance from the left edge of the page, in pixels.
    pub left: usize,
    /// The distance from the top of the page.
    pub top: usize,
    /// How wide it is.
    pub width: usize,
    /// How high it is.
    pub height: usize,
}

impl Shown {
    /// Opens a page in headless Chromium, which has to be installed; `folder` is for its files.
    ///
    /// # Panics
    /// When the browser fails, or is not done in time.
    #[must_use]
    pub fn open(page: &Path, folder: &Path) -> Self {
        let mut text = std::fs::read_to_string(page).unwrap();
        let end = text.rfind("</body>").expect("the page has an end");
        text.insert_str(end, MEASURE);
        let measured = folder.join("measured.html");
        std::fs::write(&measured, text).unwrap();
        let page = format!("file://{}", measured.display());
        let document = browse(&page, folder, &["--dump-dom"]);
        let picture = folder.join("picture.png");
        browse(&page, folder, &[&format!("--screenshot={}", picture.display())]);
        let picture = Picture::read(&picture);
        Self {
            parts: document.split("data-shown=\"").skip(1).map(Part::parse).collect(),
            document,
            width: picture.width,
            height: picture.height,
            pixels: picture.pixels,
        }
    }

    /// How many colours the picture has where a part is: one where nothing is to be seen.
    #[must_use]
    pub fn colours(&self, part: &Part) -> usize {
        let rows = part.top..(part.top + part.height).min(self.height);
        let right = (part.left + part.width).min(self.width);
        let places = rows.flat_map(|row| (part.left..right).map(move |x| (row, x)));
        places.map(|(row, x)| self.pixels[row * self.width + x]).collect::<BTreeSet<_>>().len()
    }
}

impl Part {
    fn parse(text: &str) -> Self {
        let (text, _) = text.split_once('"').expect("an attribute ends");
        let words: Vec<&str> = text.split(' ').collect();
        let number = |index: usize| words[index].parse().expect("a number of pixels");
        Self {
            tag: words[0].to_owned(),
            left: number(1),
            top: number(2),
            width: number(3),
            height: number(4),
        }
    }
}

/// A picture of a page.
struct Picture {
    width: usize,
    height: usize,
    /// Red, green and blue, row by row.
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn read(file: &Path) -> Self {
        let decoder = png::Decoder::new(BufReader::new(File::open(file).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().expect("the picture fits in memory")];
        let form = reader.next_frame(&mut bytes).unwrap();
        let samples = form.color_type.samples();
        let pixels = bytes.chunks_exact(samples).map(|pixel| [pixel[0], pixel[1], pixel[2]]);
        Self { width: form.width as usize, height: form.height as usize, pixels: pixels.collect() }
    }
}

/// What the browser prints when it opens a page.
fn browse(url: &str, folder: &Path, what: &[&str]) -> String {
    let mut command = Command::new("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1"])
        .arg(format!("--window-size={WINDOW}"))
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .args(what)
        .arg(url);
    let mut browser = Program::start("chromium", &mut command);
    if what.contains(&"--dump-dom") {
        browser.wait_for_line("</html>", PATIENCE);
    }
    let status = browser.wait(PATIENCE);
    assert!(status.success(), "{status}: {}", browser.printed());
    browser.printed()
}

/// Writes down where things are.
const MEASURE: &str = "<script>for (const part of document.querySelectorAll('table, svg')) {\
     const box = part.getBoundingClientRect();\
     const numbers = [box.left + scrollX, box.top + scrollY, box.width, box.height];\
     part.setAttribute('data-shown', [part.tagName.toLowerCase(), \
     ...numbers.map(Math.round)].join(' '));}</script>";
/// As wide as a screen, and higher than any page of ours with few cases.
const WINDOW: &str = "1280,9000";
const PATIENCE: Duration = Duration::from_secs(60);
