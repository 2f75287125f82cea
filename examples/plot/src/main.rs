//! Draws the pictures in the docs.
//!
//! ```text
//! cargo run -p plot
//! ```
//!
//! You will see the names of the files that the program writes. Without an argument, these are the pictures of the
//! docs. To write them below another folder, run `cargo run -p plot -- target/plot`.
//!
//! Nothing is simulated. A [`RateLimiter`] with a [`ManualClock`] decides the calls of the algorithms' pictures, which
//! are the same in each picture. The limit is 4 per second. In the picture of `Concurrency`, the limit is 4 at a time.
//! In the picture of `Tiered`, it is 8 per second during a part of the time. The picture of fair capacity compares the
//! calls of a `RateLimiter` and of a `FairLimiter`. The responses of the other pictures are those of an axum `Router`,
//! and the times are those that `cargo bench` has measured.
//!
//! [`RateLimiter`]: tower_throttle::RateLimiter
//! [`ManualClock`]: tower_throttle::clock::ManualClock

mod arrivals;
mod bench;
mod colors;
mod curve;
mod custom;
mod fair_capacity;
mod figures;
mod layers;
mod panel;
mod picture;
mod sheet;
mod strips;
mod two_callers;
mod workload;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::bench::{Bench, NUMBERS};
use crate::fair_capacity::FairCapacity;
use crate::figures::scenes;
use crate::sheet::with_pictures;
use crate::two_callers::TwoCallers;

/// The folder of the repository.
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The links of the guide for rustdoc, which contain the pictures of its chapters.
const LINKS: &str = "src/guide/rustdoc_links.md";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plot: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().map_or_else(|| PathBuf::from(REPOSITORY), PathBuf::from);
    if folder.as_os_str().to_string_lossy().starts_with('-') || arguments.next().is_some() {
        return Err("usage: plot [<folder>]".into());
    }
    for (file, text) in files()? {
        let path = folder.join(&file);
        let cannot = |error| format!("cannot write {}: {error}", path.display());
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(cannot)?;
        std::fs::write(&path, text).map_err(cannot)?;
        println!("{file}");
    }
    Ok(())
}

/// Returns all files that the program writes: their paths in the repository, and their texts.
fn files() -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let scenes = scenes();
    let mut files = Vec::new();
    for scene in &scenes {
        files.push((format!("src/algorithm/pictures/{}.svg", scene.name), picture::draw(scene)));
    }
    let sheet = |name: &str| format!("examples/plot/pictures/{name}.svg");
    let algorithms = strips::draw(&scenes);
    let layers = layers::draw()?;
    let fair_capacity = FairCapacity::run()?.draw();
    let links = std::fs::read_to_string(Path::new(REPOSITORY).join(LINKS))?;
    let pictures = [
        ("picture of all algorithms", &*algorithms),
        ("picture of the layers", &*layers),
        ("picture of fair capacity", &*fair_capacity),
    ];
    files.push((LINKS.to_owned(), with_pictures(&links, &pictures)));
    files.push((sheet("algorithms"), algorithms));
    files.push((sheet("layers"), layers));
    files.push((sheet("fair_capacity"), fair_capacity));
    files.push((sheet("two_callers"), TwoCallers::run()?.draw()));
    let bench = Bench::read(&std::fs::read_to_string(Path::new(REPOSITORY).join(NUMBERS))?)?;
    files.push(("benches/store.svg".to_owned(), bench.draw()?));
    files.push(("benches/store_full.svg".to_owned(), bench.draw_all()?));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::LazyLock;

    use super::*;

    static FILES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| files().unwrap());

    #[test]
    fn the_docs_show_what_the_code_does() {
        for (file, text) in &*FILES {
            let kept = std::fs::read_to_string(Path::new(REPOSITORY).join(file)).unwrap_or_default();
            // The files are compared line by line, because a checkout may have other line endings.
            assert!(kept.lines().eq(text.lines()), "{file} is outdated: cargo run -p plot");
        }
    }

    #[test]
    fn no_picture_is_left_that_the_code_does_not_draw() {
        let drawn: BTreeSet<_> = FILES.iter().map(|(file, _)| file.clone()).collect();
        for folder in ["src/algorithm/pictures", "examples/plot/pictures"] {
            for entry in std::fs::read_dir(Path::new(REPOSITORY).join(folder)).unwrap() {
                let file = format!("{folder}/{}", entry.unwrap().file_name().into_string().unwrap());
                assert!(drawn.contains(&file), "{file}");
            }
        }
    }

    #[test]
    fn the_docs_say_what_each_picture_shows() {
        for (picture, doc) in [
            ("examples/plot/pictures/two_callers.svg", "README.md"),
            ("examples/plot/pictures/algorithms.svg", "README.md"),
            ("examples/plot/pictures/algorithms.svg", "src/guide/limits.md"),
            ("examples/plot/pictures/layers.svg", "src/guide/ordering.md"),
            ("examples/plot/pictures/fair_capacity.svg", "src/guide/concurrency.md"),
            ("benches/store.svg", "README.md"),
            ("benches/store_full.svg", "benches/README.md"),
        ] {
            let (_, svg) = FILES.iter().find(|(file, _)| file == picture).unwrap();
            let label = svg.split("aria-label='").nth(1).unwrap().split('\'').next().unwrap();
            let text = std::fs::read_to_string(Path::new(REPOSITORY).join(doc)).unwrap();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&format!("![{label}]")), "{doc} does not say: {label}");
        }
    }

    #[test]
    fn a_picture_of_an_algorithm_is_small_and_one_piece_of_markdown() {
        for (file, svg) in FILES.iter().filter(|(file, _)| file.starts_with("src/algorithm")) {
            assert!(svg.len() < 30_000, "{file} has {} bytes", svg.len());
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            // The first line is one whole tag, and no line is empty. Otherwise, Markdown would treat the picture as
            // text.
            assert!(svg.lines().next().is_some_and(|line| line.ends_with('>')));
            assert!(svg.lines().all(|line| !line.trim().is_empty()));
        }
    }
}
