//! Draws the pictures in the docs: the same calls, decided by each algorithm.
//!
//! ```text
//! cargo run -p plot
//! ```
//!
//! You will see the names of the files that the program writes and, for each file, how many calls passed, waited or
//! were denied. Without an argument, the program writes the pictures of the docs, in `src/algorithm/pictures`. To
//! write to another folder, run `cargo run -p plot -- target/pictures`.
//!
//! The same calls are made in each picture. The limit is 4 per second. In the picture of `Concurrency`, the limit is 4
//! at a time. In the picture of `Tiered`, it is 8 per second during a part of the time. Nothing is simulated: a
//! [`RateLimiter`] with a [`ManualClock`] decides.
//!
//! [`RateLimiter`]: tower_throttle::RateLimiter
//! [`ManualClock`]: tower_throttle::clock::ManualClock

mod arrivals;
mod colors;
mod curve;
mod custom;
mod figures;
mod panel;
mod picture;
mod svg;
mod symbols;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::figures::scenes;
use crate::picture::draw;

/// The folder from which the docs include the pictures.
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/algorithm/pictures");

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("plot: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().map_or_else(|| PathBuf::from(PICTURES), PathBuf::from);
    if folder.as_os_str().to_string_lossy().starts_with('-') || arguments.next().is_some() {
        return Err("usage: plot [<folder>]".to_owned());
    }
    let cannot = |what: String, error| format!("cannot write {what}: {error}");
    std::fs::create_dir_all(&folder).map_err(|error| cannot(folder.display().to_string(), error))?;
    for scene in scenes() {
        let path = folder.join(scene.file());
        let svg = draw(&scene).map_err(|error| format!("cannot draw {}: {error}", scene.file()))?;
        std::fs::write(&path, svg).map_err(|error| cannot(path.display().to_string(), error))?;
        println!("{}: {}", path.display(), scene.workload.summary());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docs_show_what_the_algorithms_do() {
        let mut drawn: Vec<_> = scenes().iter().map(|scene| scene.file()).collect();
        drawn.sort();
        let entries = std::fs::read_dir(PICTURES).unwrap();
        let mut kept: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        kept.sort();
        assert_eq!(kept, drawn);
        for scene in scenes() {
            let kept = std::fs::read_to_string(PathBuf::from(PICTURES).join(scene.file())).unwrap();
            // The pictures are compared line by line, because a checkout may have other line endings.
            let same = kept.lines().eq(draw(&scene).unwrap().lines());
            assert!(same, "{} is outdated: cargo run -p plot", scene.file());
        }
    }

    #[test]
    fn a_picture_is_small_and_one_piece_of_markdown() {
        for scene in scenes() {
            let svg = draw(&scene).unwrap();
            assert!(svg.len() < 30_000, "{} has {} bytes", scene.file(), svg.len());
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            // The first line is one whole tag, and no line is empty. Otherwise, Markdown would treat the picture as
            // text.
            assert!(svg.lines().next().is_some_and(|line| line.ends_with('>')));
            assert!(svg.lines().all(|line| !line.trim().is_empty()));
        }
    }
}
