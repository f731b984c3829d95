//! Opens a page in a headless browser, and records the positions of its tables and drawings and the color of each pixel.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::TestProgram;

/// A page as rendered by a browser.
pub struct RenderedPage {
    /// The document after layout.
    pub document: String,
    /// The tables and drawings of the page, in document order.
    pub elements: Vec<PageElement>,
    width: usize,
    height: usize,
    /// Red, green and blue of each pixel, row by row.
    pixels: Vec<[u8; 3]>,
}

/// A table or drawing of a page, and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageElement {
    /// The tag: `table` or `svg`.
    pub tag: String,
    /// The distance from the left edge of the page, in pixels.
    pub left: usize,
    /// The distance from the top of the page, in pixels.
    pub top: usize,
    /// The width in pixels.
    pub width: usize,
    /// The height in pixels.
    pub height: usize,
}

impl RenderedPage {
    /// Opens a page in headless Chromium, which must be installed; `folder` is for temporary files.
    ///
    /// # Panics
    /// If the browser fails or times out.
    #[must_use]
    pub fn open_page(page_file: &Path, folder: &Path) -> Self {
        let mut page_text = std::fs::read_to_string(page_file).unwrap();
        let body_end = page_text.rfind("</body>").expect("the page has an end");
        page_text.insert_str(body_end, MEASURE_SCRIPT);
        let measured_page = folder.join("measured.html");
        std::fs::write(&measured_page, page_text).unwrap();
        let page_url = format!("file://{}", measured_page.display());
        let document = run_browser(&page_url, folder, &["--dump-dom"]);
        let screenshot_file = folder.join("picture.png");
        run_browser(&page_url, folder, &[&format!("--screenshot={}", screenshot_file.display())]);
        let screenshot = Screenshot::read(&screenshot_file);
        Self {
            elements: document.split("data-shown=\"").skip(1).map(PageElement::parse).collect(),
            document,
            width: screenshot.width,
            height: screenshot.height,
            pixels: screenshot.pixels,
        }
    }

    /// Returns the number of colors in the area of an element: one if it is blank.
    #[must_use]
    pub fn count_colors(&self, element: &PageElement) -> usize {
        let rows = element.top..(element.top + element.height).min(self.height);
        let right = (element.left + element.width).min(self.width);
        let positions = rows.flat_map(|row| (element.left..right).map(move |column| (row, column)));
        positions
            .map(|(row, column)| self.pixels[row * self.width + column])
            .collect::<BTreeSet<_>>()
            .len()
    }
}

impl PageElement {
    fn parse(attribute: &str) -> Self {
        let (attribute, _) = attribute.split_once('"').expect("an attribute ends");
        let values: Vec<&str> = attribute.split(' ').collect();
        let parse_number = |index: usize| values[index].parse().expect("a number of pixels");
        Self {
            tag: values[0].to_owned(),
            left: parse_number(1),
            top: parse_number(2),
            width: parse_number(3),
            height: parse_number(4),
        }
    }
}

/// A screenshot of a page.
struct Screenshot {
    width: usize,
    height: usize,
    /// Red, green and blue of each pixel, row by row.
    pixels: Vec<[u8; 3]>,
}

impl Screenshot {
    fn read(file: &Path) -> Self {
        let decoder = png::Decoder::new(BufReader::new(File::open(file).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().expect("the picture fits in memory")];
        let frame = reader.next_frame(&mut bytes).unwrap();
        let samples = frame.color_type.samples();
        let pixels = bytes.chunks_exact(samples).map(|pixel| [pixel[0], pixel[1], pixel[2]]);
        Self {
            width: frame.width as usize,
            height: frame.height as usize,
            pixels: pixels.collect(),
        }
    }
}

/// Returns the output of the browser for a page.
fn run_browser(url: &str, folder: &Path, options: &[&str]) -> String {
    let mut command = Command::new("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1"])
        .arg(format!("--window-size={WINDOW_SIZE}"))
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .args(options)
        .arg(url);
    let mut browser = TestProgram::start("chromium", &mut command);
    if options.contains(&"--dump-dom") {
        browser.wait_for_line("</html>", MAX_WAIT);
    }
    let status = browser.wait_for_exit(MAX_WAIT);
    assert!(status.success(), "{status}: {}", browser.printed_output());
    browser.printed_output()
}

/// Records the position of each table and drawing in an attribute of the element.
const MEASURE_SCRIPT: &str = "<script>for (const part of document.querySelectorAll('table, svg')) {\
     const box = part.getBoundingClientRect();\
     const numbers = [box.left + scrollX, box.top + scrollY, box.width, box.height];\
     part.setAttribute('data-shown', [part.tagName.toLowerCase(), \
     ...numbers.map(Math.round)].join(' '));}</script>";
/// The window size in pixels: as wide as a screen, and higher than the test pages.
const WINDOW_SIZE: &str = "1280,9000";
/// The timeout of one browser run.
const MAX_WAIT: Duration = Duration::from_secs(60);
